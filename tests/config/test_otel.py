"""The settings of the export to OpenTelemetry."""

import pytest

from meshbus.config import NodeConfig
from meshbus.config.otel import OtelEntry
from meshbus.errors import ConfigError


def test_the_default_is_a_collector_on_this_machine() -> None:
    assert OtelEntry().endpoint == "http://127.0.0.1:4318/v1/metrics"
    config = NodeConfig.load(None, {}, otel={"interval_s": 5})
    assert config.otel == OtelEntry(interval_s=5.0)
    assert NodeConfig.load(None, {}).otel is None


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "grpc://collector:4317", "http://", ""])
def test_an_endpoint_is_an_http_address(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"otel\.endpoint.*must be an http or https address"):
        NodeConfig.load(None, {}, otel={"endpoint": endpoint})
