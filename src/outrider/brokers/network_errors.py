"""Network and TLS errors: whether waiting may help, in the same words for every broker."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final, NamedTuple

from outrider.errors import BrokerUnavailable, ConfigurationError, OutriderError

_IS_IT_TLS: Final = "does this port speak TLS? If not, use a URL and settings without TLS"


class TlsNotAnswered(OSError):
    """The server was reached, and did not answer the TLS handshake."""


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
            why = error.reason or type(error).__name__
            return Diagnosis(not cut_off, f"no TLS: {why}; {_IS_IT_TLS}")
        case TlsNotAnswered():
            return Diagnosis(False, f"no TLS: no answer; {_IS_IT_TLS}")
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


def without_tls(error: Exception, *, tls: bool) -> Exception:
    """What became of a new connection; a server without TLS cuts it off or stays silent."""
    silent = isinstance(error, ConnectionResetError | ConnectionAbortedError | TimeoutError)
    return TlsNotAnswered() if tls and silent else error
