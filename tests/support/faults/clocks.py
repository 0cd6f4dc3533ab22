"""Clocks that jump: libfaketime before a program, and a file that says by how much."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from outrider.testing.services import KINDS, ServiceMissing, Services
from outrider.testing.services.install.programs import Program
from outrider.testing.services.servers.postgres import Postgres

_REMEDY = "sudo apt-get install faketime"
_PROGRAM = Program(service="faketime", names=("faketime",), package="faketime", remedy=_REMEDY)
_KIND = "postgres with a clock of its own"


class Clock:
    """Settings for a process that reads its time from here; waiting goes on as ever."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.off = 0
        """By how many seconds it is wrong."""

    @property
    def environment(self) -> dict[str, str]:
        _PROGRAM.get(install=True)
        library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
        if library is None:
            raise ServiceMissing("faketime", _REMEDY)
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DISABLE_SHM": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def jump(self, seconds: int) -> None:
        """Be off by so much from now on; replaced as a whole, since it is read all the time."""
        self.off = seconds
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}")
        new.chmod(0o644)
        new.replace(self._file)


class JumpingPostgres(Postgres):
    @cached_property
    def clock(self) -> Clock:
        return Clock(self.folder / "clock")

    def prepare(self) -> None:
        super().prepare()
        # Without the file libfaketime looks for others, at every question for the time.
        self.clock.jump(self.clock.off)

    def server_environment(self) -> dict[str, str]:
        # Not for the tools: initdb and psql need no faked time, and start more slowly with it.
        return self.clock.environment


def start(services: Services) -> JumpingPostgres:
    KINDS[_KIND] = JumpingPostgres
    try:
        server = services.another(_KIND)
    finally:
        del KINDS[_KIND]
    assert isinstance(server, JumpingPostgres)
    return server
