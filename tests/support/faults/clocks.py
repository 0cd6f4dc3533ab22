"""Clocks that jump, by libfaketime, which reads the offset from a file."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from outrider.testing.services import ServiceMissing
from outrider.testing.services.install.programs import Program
from outrider.testing.services.servers.postgres import Postgres

_REMEDY = "sudo apt-get install faketime"
_PROGRAM = Program(service="faketime", names=("faketime",), package="faketime", remedy=_REMEDY)


class Clock:
    """The clock of a process; sleeping and timeouts are not affected."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.off = 0
        """The offset from the real time, in seconds."""

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
        """Set the offset. The file is replaced atomically, because it is read all the time."""
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
