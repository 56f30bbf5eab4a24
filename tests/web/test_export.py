"""The export to OpenTelemetry: to a receiver that reads the official messages, over HTTP."""

import asyncio
import gzip
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from meshbus.cli.exit import Exit
from meshbus.config import NodeConfig
from meshbus.keyfile import create_psk
from meshbus.node.node import Node
from meshbus.web import export
from meshbus.web.export import Export
from tests.cli.running import running
from tests.patience import PATIENCE_S


class Collector:
    """Takes OTLP over HTTP, as the specification of OpenTelemetry says."""

    def __init__(self) -> None:
        self.got: queue.Queue[ExportMetricsServiceRequest] = queue.Queue()
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.headers["content-type"] == "application/x-protobuf"
                assert self.path == "/v1/metrics"
                collector.got.put(ExportMetricsServiceRequest.FromString(body))
                answer = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(collector.status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}/v1/metrics"

    async def next(self) -> dict[str, Any]:
        """Return the metrics of the next message, by name."""
        message = await asyncio.to_thread(self.got.get, timeout=PATIENCE_S)
        return {
            metric.name: metric
            for resource in message.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    serving = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    serving.start()
    yield made
    made.server.shutdown()
    serving.join()
    made.server.server_close()


def node(collector: Collector, interval_s: float) -> Node:
    otel = {"endpoint": collector.endpoint, "interval_s": interval_s}
    return Node.open(NodeConfig.load(None, {}, psk="5a" * 32, ephemeral=True, name="west", otel=otel))


def export_of(opened: Node) -> Export:
    assert opened.config.otel is not None
    return Export(opened, opened.config.otel)


async def test_metrics_arrive_every_interval_and_once_more_at_the_end(collector: Collector) -> None:
    async with node(collector, 0.05) as opened:
        async with export_of(opened):
            first = await collector.next()
            await opened.publisher("sensors/a").publish_batch([b"1", b"2"])
        last = first
        while not collector.got.empty():
            last = await collector.next()
    (point,) = last["meshbus_channel_published_events"].sum.data_points
    assert (point.attributes[0].value.string_value, point.as_double) == ("sensors/a", 2.0)
    assert "meshbus_channel_published_events" not in first
    assert last["meshbus_turn_duration_seconds"].histogram.data_points  # measured in a node that exports
    assert "process_cpu_seconds" in last


async def test_a_collector_that_refuses_is_counted_and_told_once(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = 400
    async with node(collector, 0.02) as opened:
        async with export_of(opened):
            for _ in range(3):
                await collector.next()
        assert opened.counters["export"]["failed"] >= 3
    told = [record for record in caplog.records if record.name == "meshbus.web"]
    assert len(told) == 1
    assert collector.endpoint in told[0].getMessage()


async def test_a_collector_that_is_not_there_does_not_keep_a_node_from_ending(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "LAST_S", 0.05)
    collector.server.server_close()  # nothing listens there now
    async with node(collector, 3600) as opened:
        async with asyncio.timeout(PATIENCE_S), export_of(opened):
            pass
        assert opened.counters["export"]["failed"] == 1


def test_meshbus_up_exports(collector: Collector, tmp_path: Path) -> None:
    create_psk(tmp_path / "mesh.key")
    otel = f'name = "west"\n[otel]\nendpoint = "{collector.endpoint}"\ninterval_s = 3600\n'
    with running(tmp_path / "west", otel) as up:
        assert up.stop() == (Exit.OK, "meshbus: stopped\n")
        message = collector.got.get(timeout=PATIENCE_S)  # that at the end
    (resource,) = message.resource_metrics
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (about["meshbus.name"], about["service.instance.id"]) == ("west", up.status["node_id"])
