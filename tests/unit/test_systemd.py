"""What systemd is told: when the process is ready, and that its event loop turns."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from outrider import OutboxRelay
from outrider.cli.processes import _notify_systemd
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
