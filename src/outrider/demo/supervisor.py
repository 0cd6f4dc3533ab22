"""The supervisor: restarts the relay process, as systemd or Kubernetes would."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMAND: Final = ("-m", "outrider", "relay", "outrider.demo.relay:relay", "--quiet")


class Supervisor:
    """Runs one child process; restarts it one second after it ends."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}
        self._child: asyncio.subprocess.Process | None = None
        self.starts = 0

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.returncode is None

    async def run(self) -> None:
        try:
            while True:
                self._child = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *_COMMAND,
                    env=self._environment,
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C reaches only the demo, which stops it
                )
                self.starts += 1
                await self._child.wait()
                await asyncio.sleep(1)
        finally:
            await self._stop()

    async def _stop(self) -> None:
        if self._child is not None and self.alive:
            self._child.terminate()
            try:
                await asyncio.wait_for(self._child.wait(), 5)
            except TimeoutError:
                self._child.kill()
                await self._child.wait()
