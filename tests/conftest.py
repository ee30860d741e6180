"""What every test may use: the project's root, a Chromium, and how Hypothesis searches."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from kvlab.installation import find_chromium

# No deadline: a slow machine is no failure. In CI the same examples each time, so that red means a change.
settings.register_profile("kvlab", deadline=None, print_blob=True, derandomize=os.environ.get("CI") == "true")
settings.load_profile("kvlab")

# A shell ignores Ctrl-C for what it starts in the background, and children inherit that: some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder that holds pyproject.toml."""
    return Path(__file__).parent.parent


@pytest.fixture(scope="session")
def chromium() -> Path:
    """A Chromium that starts. Without one the test is skipped, and in CI it fails."""
    path = find_chromium()
    if path is None:
        message = "no Chromium: install Debian's chromium or Google Chrome, or set KVLAB_CHROMIUM"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return path
