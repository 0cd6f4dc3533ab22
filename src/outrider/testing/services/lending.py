"""Lends the servers of one run to the other processes of that run, such as test workers."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from threading import Thread
from typing import Any

from outrider.testing.services.errors import ServerFailed, ServiceMissing
from outrider.testing.services.servers.server import Server


class Lender:
    """Answers on a Unix socket which servers there are, and starts a server when first asked."""

    def __init__(self, folder: Path, start: Callable[[str], Server]) -> None:
        # Nobody else may pass through this folder: the answers hold passwords.
        folder.mkdir(mode=0o700)
        self.address = folder / "socket"

        class Handler(StreamRequestHandler):
            def handle(self) -> None:
                kind = self.rfile.readline().decode().strip()
                self.wfile.write(json.dumps(_answer(start, kind)).encode())

        self._server = _Listener(str(self.address), Handler)
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Listener(ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False


def borrow(address: Path, kind: str) -> dict[str, Any]:
    """Ask a lender for a server; return what `Server.borrow` takes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(address))
        connection.sendall(f"{kind}\n".encode())
        with connection.makefile() as answer:
            found: dict[str, Any] = json.load(answer)
    if missing := found.get("missing"):
        raise ServiceMissing(*missing)
    if failed := found.get("failed"):
        raise ServerFailed(failed)
    return found


def _answer(start: Callable[[str], Server], kind: str) -> dict[str, Any]:
    try:
        return start(kind).loan()
    except ServiceMissing as error:
        return {"missing": [error.service, error.command]}
    # The process that asked has to hear about every error, or it would wait for ever.
    except Exception as error:  # noqa: BLE001
        return {"failed": f"{type(error).__name__}: {error}"}
