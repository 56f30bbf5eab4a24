"""The export of metrics to an OpenTelemetry collector: one message every interval, and one at the end.

Sums go on from the start of the node, so an export that fails loses nothing: the next one has it. A failure is counted and
logged at most once a minute. The message is made on the loop of the node and sent in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Self

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult
from prometheus_client import PROCESS_COLLECTOR

from meshbus.config.otel import OtelEntry
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.node import Node
from meshbus.seldom import SeldomWarning
from meshbus.web.families import families
from meshbus.web.logstate import read_logs
from meshbus.web.otlp import metrics_data

TIMEOUT_S = 10.0
"""How long one export may take. The default of OpenTelemetry."""
LAST_S = 2.0
"""How long the last export may take, while the node ends. Our choice: a collector that is there answers in milliseconds."""

_logger = logging.getLogger("meshbus.web")


class Export:
    """Sends the metrics of one node; open inside `async with`."""

    def __init__(self, node: Node, entry: OtelEntry) -> None:
        self._node = node
        self._entry = entry
        self._tasks = TaskOwner("the export of metrics", _logger)
        self._warn = SeldomWarning(_logger)

    async def __aenter__(self) -> Self:
        self._tasks.start(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()
        await self._send(LAST_S)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._entry.interval_s)
            await self._send(TIMEOUT_S)

    async def _send(self, timeout_s: float) -> None:
        node, now_ns = self._node, time.time_ns()
        found = [*families(node, *await read_logs(node)), *PROCESS_COLLECTOR.collect()]
        message = metrics_data(found, now_ns - int(node.uptime_s * 1e9), now_ns)

        def send() -> MetricExportResult:
            exporter = OTLPMetricExporter(endpoint=self._entry.endpoint, timeout=timeout_s)
            try:
                return exporter.export(message)
            finally:
                exporter.shutdown()

        if await asyncio.to_thread(send) is not MetricExportResult.SUCCESS:
            node.live.engine.counters.add("export", "failed")
            self._warn("metrics were not exported: %s does not accept them; check otel.endpoint", self._entry.endpoint)
