"""TLS to a broker, from files: which authorities to trust, and which certificate to show."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Protocol

from outrider.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


class TlsConfig(Protocol):
    """What the config of every broker has."""

    @property
    def ca_file(self) -> Path | None: ...
    @property
    def client_certificate(self) -> Path | None: ...
    @property
    def client_key(self) -> Path | None: ...
    @property
    def ssl_context(self) -> ssl.SSLContext | None: ...


def has_tls_settings(config: TlsConfig) -> bool:
    return bool(config.ssl_context or config.ca_file or config.client_certificate)


def tls_problems(config: TlsConfig) -> list[str]:
    """Settings that contradict each other."""
    problems = []
    if config.client_key and not config.client_certificate:
        problems.append("client_key needs client_certificate")
    if config.ssl_context and (config.ca_file or config.client_certificate):
        problems.append("ssl_context excludes ca_file and client_certificate")
    return problems


def tls_context(config: TlsConfig) -> ssl.SSLContext:
    """Verifies the server's certificate and name, unless `ssl_context` does not."""
    if config.ssl_context is not None:
        return config.ssl_context
    try:
        context = ssl.create_default_context(cafile=config.ca_file)
        if config.client_certificate:
            context.load_cert_chain(config.client_certificate, config.client_key)
    except OSError as error:
        name, why = type(config).__name__, error.strerror or type(error).__name__
        raise ConfigurationError(f"{name}: ca_file or certificate: {why}") from error
    return context
