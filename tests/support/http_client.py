"""Requests to the health port of a process, and a port for it."""

from __future__ import annotations

import urllib.error
import urllib.request

from outrider.testing.services.ports import free_ports


def free_port() -> int:
    return free_ports(1)[0]


def fetch(url: str) -> tuple[int, str]:
    """The status and the body; 0 if nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""
