"""Network and TLS errors: whether waiting may help, in the same words for every broker."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from outrider.errors import BrokerUnavailable, ConfigurationError


class Diagnosis(NamedTuple):
    """What an error means. A permanent one needs a person; any other may pass by waiting."""

    permanent: bool
    reason: str

    def error(self, broker: str, address: object, cause: BaseException) -> Exception:
        """ConfigurationError or BrokerUnavailable, with its cause."""
        kind = ConfigurationError if self.permanent else BrokerUnavailable
        made = kind(f"{broker} at {address}: {self.reason}")
        made.__cause__ = cause
        return made


def network_diagnosis(error: BaseException | None) -> Diagnosis | None:
    """None if the error comes from neither network nor TLS: then the broker's adapter knows.

    No text of a client library is quoted: it may hold a password or what an event contains.
    """
    match error:
        case ssl.SSLCertVerificationError():
            return Diagnosis(True, f"its certificate is not trusted: {error.verify_message}")
        case ssl.SSLError():
            cut_off = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
            return Diagnosis(not cut_off, f"no TLS: {error.reason}")
        case UnicodeError():
            return Diagnosis(True, "the host name is not valid")
        case TimeoutError():
            return Diagnosis(False, "no answer in time")
        case OSError():
            return Diagnosis(False, error.strerror or type(error).__name__)
        case _:
            return None
