"""Metrics of a node in the data model of OpenTelemetry: the same families that Prometheus reads, value by value.

Names stay as they are, so that a dashboard fits whichever way the metrics came. Counters become monotonic sums since the node
was opened, histograms keep their buckets, and what describes the node becomes its resource. Nothing is sent here; that is
web/export.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family

SCOPE = InstrumentationScope("meshbus")
_INFO = "meshbus_node"
"""The family that says what the node is."""


def metrics_data(found: Iterable[Family], started_ns: int, now_ns: int) -> MetricsData:
    """Return families as one message; the times are Unix nanoseconds."""
    families = list(found)
    about = {
        key: value for family in families if family.name == _INFO for key, value in family.samples[0].labels.items()
    }
    metrics = [_metric(family, started_ns, now_ns) for family in families if family.type != "info" and family.samples]
    scoped = ScopeMetrics(scope=SCOPE, metrics=metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource=_resource(about), scope_metrics=[scoped], schema_url="")])


def _resource(about: Mapping[str, str]) -> Resource:
    # The names that OpenTelemetry gives to services; a node is one instance of the service.
    named = {"service.name": "meshbus", "service.instance.id": about.get("node_id", "")}
    return Resource({**named, **{f"meshbus.{key}": value for key, value in about.items()}})


def _metric(family: Family, started_ns: int, now_ns: int) -> Metric:
    data: Sum | Gauge | Histogram
    if family.type == "histogram":
        data = Histogram([_buckets(family, started_ns, now_ns)], AggregationTemporality.CUMULATIVE)
    else:
        points = [
            NumberDataPoint(dict(sample.labels), started_ns, now_ns, float(sample.value))
            for sample in family.samples
            if not sample.name.endswith("_created")
        ]
        counts = family.type == "counter"
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if counts else Gauge(points)
    return Metric(family.name, family.documentation, family.unit, data)


def _buckets(family: Family, started_ns: int, now_ns: int) -> HistogramDataPoint:
    """Return the only histogram of a family; its own buckets add up, those of OpenTelemetry do not."""
    up_to = [(float(sample.labels["le"]), sample.value) for sample in family.samples if "le" in sample.labels]
    rest = {sample.name.removeprefix(family.name): sample.value for sample in family.samples}
    counts = [int(count) for _, count in up_to]
    return HistogramDataPoint(
        attributes={},
        start_time_unix_nano=started_ns,
        time_unix_nano=now_ns,
        count=counts[-1],
        sum=rest["_sum"],
        bucket_counts=[count - before for before, count in zip([0, *counts], counts, strict=False)],
        explicit_bounds=[edge for edge, _ in up_to[:-1]],
        min=None,  # type: ignore[arg-type]  # not known, and left out of the message
        max=None,  # type: ignore[arg-type]
    )
