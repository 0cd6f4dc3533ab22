"""The process of a relay or consumer: what systemd is told, and an error while it stops."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from outrider import ConfigurationError, OutboxRelay
from outrider.cli.processes import _notify_systemd, run_until_signal
from outrider.lifecycle import BackgroundService
from outrider.testing.memory_broker import MemoryBroker
from outrider.testing.memory_store import MemoryOutboxStore


async def test_process_is_ready_without_its_broker_and_feeds_the_watchdog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "30000")
        broker, received = MemoryBroker(), asyncio.get_running_loop().sock_recv
        broker.stop()

        # when
        async with OutboxRelay(MemoryOutboxStore(), broker.publisher()) as relay:
            notifying = asyncio.create_task(_notify_systemd([relay]))
            states = [await asyncio.wait_for(received(systemd, 100), 30) for _ in range(3)]
            notifying.cancel()

    # then
    assert states == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]


class FailsToStop(BackgroundService):
    _grace = timedelta(seconds=5)

    async def _run(self, opened: asyncio.Event) -> None:
        opened.set()
        os.kill(os.getpid(), signal.SIGTERM)
        await self._stopping.wait()
        raise ConfigurationError("it cannot be closed")


async def test_error_while_a_process_stops_is_raised_once_and_never_logged_as_forgotten() -> None:
    # given
    forgotten: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: forgotten.append(context))

    # when
    with pytest.raises(ConfigurationError, match="it cannot be closed"):
        await run_until_signal([FailsToStop()])

    # then
    await asyncio.sleep(0.01)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)  # these keep the tasks that stop the services
    gc.collect()
    assert forgotten == []
