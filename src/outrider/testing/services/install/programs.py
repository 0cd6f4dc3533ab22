"""Finds a server's program: on this machine, in an installed wheel, or as a Debian package."""

import importlib.util
import os
import re
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from outrider.testing.services.errors import ServiceMissing
from outrider.testing.services.install import debian
from outrider.testing.services.install.cache import locked

PATH = "$PATH"


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program, where to look for it, and the command that installs it."""

    service: str
    names: tuple[str, ...]
    remedy: str
    package: str
    places: tuple[str, ...] = (PATH,)
    wheel: Callable[[], Path | None] = lambda: None

    def get(self, *, install: bool) -> Path:
        """Find the program, or install it if that is allowed and possible."""
        found = self.find()
        if found is None and install and debian.can_install():
            found = self._install()
        if found is None:
            raise ServiceMissing(self.service, self.remedy)
        return found

    def find(self) -> Path | None:
        for folder in self._folders():
            for name in self.names:
                if os.access(folder / name, os.X_OK):
                    return folder / name
        return None

    def _install(self) -> Path | None:
        with locked("apt"):
            # Another process may have installed it while this one waited for the lock.
            if (found := self.find()) is None:
                try:
                    debian.install(self.package)
                except subprocess.CalledProcessError as error:
                    raise ServiceMissing(self.service, self.remedy) from error
                found = self.find()
            return found

    def _folders(self) -> Iterator[Path]:
        for place in self.places:
            yield from _path() if place == PATH else _newest_first(place)
        # A virtual environment that is not activated is not on the PATH.
        yield Path(sysconfig.get_path("scripts"))
        if (folder := self.wheel()) is not None:
            yield folder


def wheel_folder(package: str, pattern: str) -> Path | None:
    """The folder inside an installed package that matches the pattern."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob(pattern), None)


def _path() -> Iterator[Path]:
    return (Path(folder) for folder in os.get_exec_path())


def _newest_first(pattern: str) -> list[Path]:
    found = [Path(folder) for folder in glob(pattern)]  # noqa: PTH207
    return sorted(found, key=_version_in, reverse=True)


def _version_in(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]
