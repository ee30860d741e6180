"""Provide a Chromium for the browser tests: find one, or install Debian's where that is possible."""

import os
import platform
import shutil
import subprocess

from kvlab.installation import find_chromium


def apt_get() -> list[str] | None:
    """The command that installs packages here without asking anybody, None where there is none."""
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return ["apt-get"]
    if (
        shutil.which("sudo")
        and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0
    ):
        return ["sudo", "-n", "apt-get"]
    return None


def install() -> str | None:
    """Install Debian's chromium; return why it could not be done, None when it was."""
    if platform.system() != "Linux":
        return "install Chromium or Google Chrome by hand"
    if platform.freedesktop_os_release().get("ID") == "ubuntu":
        return "Ubuntu's chromium is a snap, which tests cannot drive: install Google Chrome"
    command = apt_get()
    if command is None:
        return "installing one needs apt-get as root or by sudo without a password"
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update", "-qq"], ["install", "-qq", "--yes", "--no-install-recommends", "chromium"]):
        if subprocess.run([*command, *step], env=env, check=False).returncode:
            return f"`{' '.join([*command, *step])}` failed"
    return None


def provide() -> bool:
    """Whether a Chromium is there, now or after installing it; says on stdout what was wrong."""
    if find_chromium():
        return True
    if named := os.environ.get("KVLAB_CHROMIUM"):
        problem: str | None = f"KVLAB_CHROMIUM={named} does not start"
    else:
        print("no Chromium: installing one", flush=True)
        problem = install()
        if problem is None and not find_chromium():
            problem = "the installed one does not start"
    if problem is not None:
        print(f"no Chromium: {problem}; KVLAB_CHROMIUM names one that lies elsewhere", flush=True)
    return problem is None
