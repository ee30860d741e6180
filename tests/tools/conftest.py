import pytest


@pytest.fixture(autouse=True)
def tools(monkeypatch, root):
    """The folder of the tools is importable, as it is for a script that lies in it."""
    monkeypatch.syspath_prepend(root / "tools")
    return root / "tools"
