"""What can go wrong with a private server, sorted by what to do about it."""


class ServiceMissing(Exception):
    """Install it: the message names the command that brings the service."""

    def __init__(self, service: str, command: str) -> None:
        super().__init__(f"{service} is missing; this brings it: {command}")
        self.service = service
        self.command = command


class ServerFailed(Exception):
    """Read the end of the server's log, which is in the message."""


class NotOurs(Exception):
    """Abort: the server is not proven to be one that this run started."""
