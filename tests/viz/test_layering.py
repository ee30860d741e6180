"""The pictures know the log and nothing behind it."""

import ast
import subprocess
import sys

import kvlab.viz

ALLOWED = {"errors", "events", "shapes", "viz", "workload"}


def test_viz_imports_no_policy_no_memory_and_no_engine(root):
    for path in sorted((root / "kvlab/viz").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvlab"):
                part = [*node.module.split("."), "viz"][1]
                assert part in ALLOWED, f"{path.name} imports {node.module}"


def test_every_name_that_is_promised_exists_and_is_documented():
    for name in kvlab.viz.__all__:
        assert name in kvlab.viz.__doc__ or name == "Scene"
        assert getattr(kvlab.viz, name) is not None


def test_importing_viz_loads_neither_widgets_nor_plotly():
    code = "import sys, kvlab.viz; print(sorted({'anywidget', 'plotly', 'ipywidgets', 'torch'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
