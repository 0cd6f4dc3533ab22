"""Errors of private servers, sorted by what to do about them."""


class ServiceMissing(Exception):
    """The program is not installed; the message has the command that installs it."""

    def __init__(self, service: str, command: str) -> None:
        super().__init__(f"{service} is missing; this brings it: {command}")
        self.service = service
        self.command = command


class ServerFailed(Exception):
    """The server did not start or a tool failed; the message has the end of the log."""


class NotOurs(Exception):
    """The server may not be stopped or changed: this process did not start it."""
