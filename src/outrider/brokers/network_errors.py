"""Network and TLS errors: whether waiting may help, in the same words for every broker."""

from __future__ import annotations

import os
import socket
import ssl
from typing import NamedTuple

from outrider.errors import BrokerUnavailable, ConfigurationError, OutriderError


class Diagnosis(NamedTuple):
    """What an error means for the caller."""

    permanent: bool
    """A permanent error needs a person; any other may pass by waiting."""
    reason: str

    def error(self, broker: str, address: object, cause: BaseException) -> OutriderError:
        """ConfigurationError or BrokerUnavailable, with its cause."""
        kind = ConfigurationError if self.permanent else BrokerUnavailable
        made = kind(f"{broker} at {address}: {self.reason}")
        made.__cause__ = cause
        return made


def network_diagnosis(error: BaseException | None) -> Diagnosis | None:
    """None if the error comes from neither network nor TLS: the adapter then has to know it.

    No text of a client library is quoted: it may hold a password or a value of an event.
    """
    match error:
        case ssl.SSLCertVerificationError():
            return Diagnosis(True, f"its certificate is not trusted: {error.verify_message}")
        case ssl.SSLError():
            cut_off = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
            return Diagnosis(not cut_off, f"no TLS: {error.reason or type(error).__name__}")
        case UnicodeError():
            return Diagnosis(True, "the host name is not valid")
        case TimeoutError():
            return Diagnosis(False, "no answer in time")
        case socket.gaierror():
            return Diagnosis(False, error.strerror or "the host name is not known")
        case OSError():
            # The system's own text for the number: a library may have put anything into strerror.
            return Diagnosis(
                False, os.strerror(error.errno) if error.errno else type(error).__name__
            )
        case _:
            return None
