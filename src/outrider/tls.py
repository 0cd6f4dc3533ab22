"""TLS to a broker, from files: whom to trust, and the certificate to show."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Protocol

from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


class TlsFiles(Protocol):
    """What the settings of every broker have."""

    @property
    def ca_file(self) -> Path | None: ...
    @property
    def client_certificate(self) -> Path | None: ...
    @property
    def client_key(self) -> Path | None: ...


def context_from(config: TlsFiles) -> ssl.SSLContext:
    """Verifies the server's certificate and name."""
    try:
        context = ssl.create_default_context(cafile=config.ca_file)
        if config.client_certificate:
            context.load_cert_chain(config.client_certificate, config.client_key)
    except OSError as error:
        name, why = type(config).__name__, error.strerror or type(error).__name__
        raise ConfigurationError(f"{name}: ca_file or certificate: {why}") from error
    return context
