"""A real JupyterLab and a real headless Chromium, once a session, driven as a learner drives them."""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, sync_playwright
from support.chromium import QUIET_CHROMIUM

CHROMIUM_ARGUMENTS = [*QUIET_CHROMIUM, "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
LAB_SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "apputils-extension/themes": {"theme": "JupyterLab Light"},
    "docmanager-extension/plugin": {"autosave": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}
LAB_STARTS_WITHIN_S = 60
# JupyterLab's own, on every start: no debugger in this kernel, no icon of the site, no place for the history.
NOT_OURS = re.compile(r"debugger state|favicon|History was unable to be retrieved")
LOOPBACK = re.compile(r"(?:http|ws)://127\.0\.0\.1[:/]|data:|blob:|about:")

KERNEL_IS_IDLE = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
RUN_ALL = """milliseconds => Promise.race([
  jupyterapp.commands.execute('notebook:run-all-cells'),
  new Promise((_, reject) => setTimeout(() => reject(new Error('run-all timed out')), milliseconds))])"""
CHANGE_THEME = "theme => jupyterapp.commands.execute('apputils:change-theme', {theme})"
EVALUATE = """async expression => {
  const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const asked = kernel.requestExecute({code: '', user_expressions: {v: expression}, store_history: false});
  const value = (await asked.done).content.user_expressions.v;
  return value.status === 'ok' ? value.data['text/plain'] : `${value.ename}: ${value.evalue}`; }"""


class Server(NamedTuple):
    """Where JupyterLab answers, and the folder it shows."""

    url: str
    token: str
    folder: Path


class Learner:
    """A person at the browser: opens a notebook, runs it, changes the theme, looks."""

    def __init__(self, page: Page, server: Server, shots: Path) -> None:
        self.page, self.server, self.shots = page, server, shots
        self._complaints: list[str] = []
        page.on("console", lambda message: self._complain(message.type == "error", message.text))
        page.on("pageerror", lambda error: self._complain(True, str(error)))
        page.on("request", lambda request: self._complain(not LOOPBACK.match(request.url), request.url))

    def open(self, notebook: str) -> None:
        """Open a notebook in a fresh workspace and wait until its kernel is idle."""
        self._complaints.clear()
        self.page.goto(f"{self.server.url}/lab/tree/{notebook}?token={self.server.token}&reset")
        self.page.wait_for_function(KERNEL_IS_IDLE, timeout=90_000)

    def run_all(self, limit_s: float = 120) -> bool:
        """Run every cell; False if one raised."""
        finished = self.page.evaluate(RUN_ALL, limit_s * 1000) is not False
        self.evaluate("None")  # waits in the kernel's queue: after an error run-all returns while cells still run
        return finished

    def evaluate(self, expression: str) -> str:
        """The repr of a Python expression in the notebook's kernel, or its error."""
        return str(self.page.evaluate(EVALUATE, expression))

    def theme(self, name: str) -> None:
        """Change JupyterLab's theme, `Light` or `Dark`."""
        self.page.evaluate(CHANGE_THEME, f"JupyterLab {name}")
        self.page.wait_for_selector(f"body[data-jp-theme-light='{str(name == 'Light').lower()}']", state="attached")

    def outputs(self, mime: str) -> list[str]:
        """The texts of all outputs of one mime type that are on the page."""
        return self.page.locator(f".jp-OutputArea-output[data-mime-type='{mime}']").all_inner_texts()

    def complaints(self) -> list[str]:
        """Errors of the console and requests that left this machine, since the notebook was opened."""
        return [text for text in self._complaints if not NOT_OURS.search(text)]

    def shoot(self, name: str) -> Path:
        """A screenshot for eyes: in $KVLAB_SHOTS, or in the session's temporary folder."""
        path = self.shots / f"{name}.png"
        self.page.screenshot(path=path)
        return path

    def _complain(self, bad: bool, text: str) -> None:
        if bad:
            self._complaints.append(text[:300])


@pytest.fixture(scope="session")
def lab(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """JupyterLab over copies of the notebooks, with nothing of the user's configuration."""
    own = tmp_path_factory.mktemp("lab")
    folder = own / "course"
    shutil.copytree(root / "notebooks", folder)
    for plugin, values in LAB_SETTINGS.items():
        file = own / "settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    own_folders = {
        "IPYTHONDIR": "ipython",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
    }
    env = os.environ | {name: str(own / name_of) for name, name_of in own_folders.items()}
    port, token = free_port(), secrets.token_hex(16)
    server = Server(f"http://127.0.0.1:{port}", token, folder)
    options = [
        *("--no-browser", "--allow-root", "--expose-app-in-browser", "--ServerApp.ip=127.0.0.1"),
        *(f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder}"),
        f"--IdentityProvider.token={token}",
    ]
    log = own / "lab.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], stdout=output, stderr=output, env=env, cwd=folder
        )
    try:
        wait_for(server, process, log)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def learner(lab: Server, chromium: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Learner]:
    """One browser with a fresh profile."""
    shots = Path(os.environ.get("KVLAB_SHOTS") or tmp_path_factory.mktemp("shots"))
    shots.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"),
            executable_path=chromium,
            headless=True,
            args=CHROMIUM_ARGUMENTS,
            viewport={"width": 1280, "height": 1000},
        )
        context.set_default_timeout(20_000)
        yield Learner(context.pages[0], lab, shots)
        context.close()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(server: Server, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until_s = time.monotonic() + LAB_STARTS_WITHIN_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            urllib.request.urlopen(f"{server.url}/api/status?token={server.token}", timeout=2).close()
            return
        except OSError:
            time.sleep(0.25)
    raise RuntimeError(f"JupyterLab did not answer (exit code {process.poll()}):\n{log.read_text()[-3000:]}")
