"""Free ports on the loopback address."""

import random
import socket
from contextlib import closing
from pathlib import Path

LOOPBACK = "127.0.0.1"

_returned: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports that are free now and that this process has not returned before."""
    ports: list[int] = []
    # Not from the range of ephemeral ports: while a server is down, a client that reconnects could
    # get the port of that server as its own, and connect to itself.
    candidates = range(20_000, _first_ephemeral_port())
    while len(ports) < count:
        port = random.choice(candidates)  # noqa: S311
        if port not in _returned and is_free(port):
            _returned.add(port)
            ports.append(port)
    return ports


def is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        # As servers do: the port may have connections in TIME_WAIT, but no listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def exchange(port: int, request: bytes = b"", timeout: float = 2) -> bytes:
    """Send a request and return the first bytes of the answer."""
    with closing(socket.create_connection((LOOPBACK, port), timeout=timeout)) as connection:
        connection.sendall(request)
        return connection.recv(65_536)


def _first_ephemeral_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32_768
    return first if first > 21_000 else 32_768
