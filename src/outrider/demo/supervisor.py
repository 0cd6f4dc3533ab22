"""Keeps the relay's process alive, as systemd or Kubernetes would, and kills it when asked."""

from __future__ import annotations

import asyncio
import sys


class Supervisor:
    """One child; when it ends, it is started again after a moment."""

    def __init__(self, *arguments: str) -> None:
        self._command = (sys.executable, "-m", "outrider.demo.relay", *arguments)
        self._child: asyncio.subprocess.Process | None = None
        self.starts = 0

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.returncode is None

    def kill(self) -> None:
        """SIGKILL: it can say goodbye to nobody."""
        if self._child is not None and self.alive:
            self._child.kill()

    async def run(self) -> None:
        try:
            while True:
                self._child = await asyncio.create_subprocess_exec(
                    *self._command, stdin=asyncio.subprocess.DEVNULL
                )
                self.starts += 1
                await self._child.wait()
                await asyncio.sleep(1)
        finally:
            await self._end()

    async def _end(self) -> None:
        if self._child is not None and self.alive:
            self._child.terminate()
            try:
                await asyncio.wait_for(self._child.wait(), 5)
            except TimeoutError:
                self._child.kill()
                await self._child.wait()
