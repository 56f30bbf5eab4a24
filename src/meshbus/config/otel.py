"""Settings of the export to OpenTelemetry: where a node sends its metrics, and how often.

The table `[otel]` of a file. This module only checks the settings; web/export.py sends.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from meshbus.config.spelling import Seconds
from meshbus.errors import ConfigError


class OtelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of a node, sent to an OpenTelemetry collector by OTLP over HTTP; needs the extra `otel`."""

    endpoint: str = "http://127.0.0.1:4318/v1/metrics"
    """Where the collector takes metrics. Headers, such as those with a key, and certificates are set in the environment, as for
    all OpenTelemetry exporters: `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_EXPORTER_OTLP_CERTIFICATE`."""
    interval_s: Seconds = 15.0
    """Time between two exports."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(
                "endpoint",
                f"must be an http or https address such as 'http://127.0.0.1:4318/v1/metrics', got {self.endpoint!r}",
            )
