"""Installs Debian packages without starting the daemons in them."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

# Installation scripts start daemons with these programs.
_DAEMON_STARTERS = ("invoke-rc.d", "deb-systemd-invoke", "service")
_SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(package: str) -> None:
    """Install a package; if that fails, update the package lists and try again."""
    with tempfile.TemporaryDirectory(prefix="outrider-") as stand_ins:
        for name in _DAEMON_STARTERS:
            Path(stand_ins, name).symlink_to(shutil.which("true") or "/bin/true")
        options = ["-o", f"DPkg::Path={stand_ins}:{_SYSTEM_PATH}"]
        install = ["install", "--yes", "--no-install-recommends", *options, package]
        if _apt_get(*install).returncode == 0:
            return
        _apt_get("update")
        _apt_get(*install).check_returncode()


def _apt_get(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=300", *arguments],
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
