"""Metrics in the data model of OpenTelemetry: the same values as in Prometheus, as the official encoder writes them."""

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.core import Metric as Family

from meshbus.node.node import Node
from meshbus.web.families import families
from meshbus.web.otlp import metrics_data

STARTED, NOW = 1_000, 2_000


def encoded(*found: Family) -> tuple[dict[str, str], dict[str, Metric]]:
    """Return the attributes of the resource and the metrics by name, as a collector gets them."""
    message = encode_metrics(metrics_data(found, STARTED, NOW))
    (resource,) = message.resource_metrics
    (scope,) = resource.scope_metrics
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    return about, {metric.name: metric for metric in scope.metrics}


def test_a_counter_is_a_monotonic_sum_since_the_start() -> None:
    family = CounterMetricFamily("meshbus_dropped", "What was dropped.", labels=("reason",))
    family.add_metric(("bad_tag",), 3)
    family.add_metric(("replayed",), 0)
    metric = encoded(family)[1]["meshbus_dropped"]
    assert metric.description == "What was dropped."
    assert metric.sum.is_monotonic
    assert metric.sum.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    points = {point.attributes[0].value.string_value: point for point in metric.sum.data_points}
    assert {reason: point.as_double for reason, point in points.items()} == {"bad_tag": 3.0, "replayed": 0.0}
    assert (points["bad_tag"].start_time_unix_nano, points["bad_tag"].time_unix_nano) == (STARTED, NOW)


def test_a_gauge_stays_one_and_a_family_without_values_is_left_out() -> None:
    _, metrics = encoded(
        GaugeMetricFamily("meshbus_peers_away", "Away.", value=2),
        GaugeMetricFamily("meshbus_replica_lag_events", "Lag.", labels=("channel",)),
    )
    assert list(metrics) == ["meshbus_peers_away"]
    assert metrics["meshbus_peers_away"].gauge.data_points[0].as_double == 2.0


def test_a_histogram_keeps_its_buckets() -> None:
    buckets = [("0.1", 2.0), ("1.0", 5.0), ("+Inf", 6.0)]
    _, metrics = encoded(HistogramMetricFamily("meshbus_request_duration_seconds", "Time.", buckets, sum_value=4.5))
    (point,) = metrics["meshbus_request_duration_seconds"].histogram.data_points
    assert list(point.explicit_bounds) == [0.1, 1.0]
    assert list(point.bucket_counts) == [2, 3, 1]
    assert (point.count, point.sum) == (6, 4.5)
    assert not point.HasField("min")  # not known
    assert not point.HasField("max")


def test_what_the_node_is_becomes_its_resource() -> None:
    about = {"name": "west", "node_id": "00000000000000aa", "subnet": "3.7"}
    resource, metrics = encoded(InfoMetricFamily("meshbus_node", "What this node is.", value=about))
    assert metrics == {}
    assert resource["service.name"] == "meshbus"
    assert resource["service.instance.id"] == "00000000000000aa"
    assert (resource["meshbus.name"], resource["meshbus.subnet"]) == ("west", "3.7")


async def test_every_family_of_a_node_arrives_with_its_values() -> None:
    async with Node.open(psk="5a" * 32, ephemeral=True, otel={}) as node:
        found = list(families(node, [], []))
    _, metrics = encoded(*found)
    assert set(metrics) == {family.name for family in found if family.samples and family.type != "info"}
    for family in found:
        if family.type in {"counter", "gauge"} and family.samples:
            data = metrics[family.name].sum if family.type == "counter" else metrics[family.name].gauge
            assert [point.as_double for point in data.data_points] == [sample.value for sample in family.samples]
