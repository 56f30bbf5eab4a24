"""Settings of the web server of a node: where it listens, and who may read.

The table `[web]` of a file. This module only checks the settings; web/server.py serves.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import msgspec

from meshbus.config.spelling import Endpoint
from meshbus.errors import ConfigError

PORT = 9464
"""The port that exporters of OpenTelemetry use for Prometheus."""


class WebEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A live page, metrics and health of a node over HTTP: `/`, `/metrics`, `/healthz` and `/readyz`; needs the extra `web`."""

    bind: Endpoint = Endpoint("127.0.0.1", PORT)
    """Address to listen on (TCP); port 0 means any free port."""
    token_file: Path | None = None
    """Private file with the token that programs send as `Authorization: Bearer …` and people enter once at `/login`; required
    unless `bind` is a loopback address. HTTP is not encrypted: put a proxy with TLS before it on networks that others can read."""

    def __post_init__(self) -> None:
        if self.token_file is None and not is_loopback(self.bind.host):
            raise ConfigError(
                "token_file",
                f"required because bind is {self.bind}; set it, or bind to 127.0.0.1 for this machine only",
            )


def is_loopback(host: str) -> bool:
    """Return whether an address reaches only this machine; a name could be looked up to any address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
