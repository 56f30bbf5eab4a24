"""Metrics and health over HTTP: both formats, the token, and what happens to too many clients."""

import asyncio
import socket  # noqa: TID251 - clients that send nothing
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from meshbus.config import NodeConfig
from meshbus.errors import ConfigError
from meshbus.node.node import Node
from meshbus.web.server import MAX_CLIENTS, MAX_HEAD_BYTES, WebServer
from tests.web.scrape import Page, get

PSK = "5a" * 32
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def node(**web: Any) -> Node:
    return Node.open(NodeConfig.load(None, {}, psk=PSK, ephemeral=True, web={"bind": "127.0.0.1:0", **web}))


async def fetch(server: WebServer, path: str, **headers: str) -> Page:
    return await asyncio.to_thread(get, server.address, path, **headers)


def server_of(opened: Node) -> WebServer:
    assert opened.config.web is not None
    return WebServer(opened, opened.config.web)


async def test_metrics_are_in_the_format_that_is_asked_for() -> None:
    async with node() as opened, server_of(opened) as server:
        plain = await fetch(server, "/metrics")
        open_ = await fetch(server, "/metrics", accept=OPENMETRICS)
    assert plain.status == open_.status == 200
    assert plain.kind.startswith("text/plain")
    assert open_.kind.startswith("application/openmetrics-text")
    assert "meshbus_sent_events" in {family.name for family in parse_text(plain.text)}
    families = parse_openmetrics(open_.text)  # type: ignore[no-untyped-call]
    assert "meshbus_sent_events" in {family.name for family in families}
    assert open_.text.endswith("# EOF\n")


async def test_health_and_readiness() -> None:
    async with node() as opened, server_of(opened) as server:
        assert await fetch(server, "/healthz") == Page(200, "text/plain; charset=utf-8", "ok\n")
        assert (await fetch(server, "/readyz")).status == 200
        assert (await fetch(server, "/other")).status == 404
    away = [{"address": "127.0.0.1:9", "public_key": "11" * 32, "node_id": "01"}]
    config = NodeConfig.load(None, {}, psk=PSK, ephemeral=True, web={"bind": "127.0.0.1:0"}, peers=away)
    async with Node.open(config) as opened, server_of(opened) as server:
        assert (await fetch(server, "/readyz"))[0::2] == (503, "not ready\n")
        assert (await fetch(server, "/healthz")).status == 200


async def test_metrics_need_the_token_if_there_is_one(tmp_path: Path) -> None:
    token = tmp_path / "web.token"
    token.write_text("0123456789abcdef\n", "utf-8")
    token.chmod(0o600)
    async with node(token_file=token) as opened, server_of(opened) as server:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic 0123456789abcdef"}):
            refused = await fetch(server, "/metrics", **headers)
            assert (refused.status, "Authorization: Bearer TOKEN" in refused.text) == (401, True)
        assert (await fetch(server, "/metrics", authorization="Bearer 0123456789abcdef")).status == 200
        assert (await fetch(server, "/healthz")).status == 200


async def test_an_address_in_use_is_an_error_of_the_configuration() -> None:
    async with node() as opened, server_of(opened) as server:
        with pytest.raises(ConfigError, match=r"web\.bind: 127\.0\.0\.1:\d+ cannot be opened: .*choose another port"):
            async with WebServer(opened, NodeConfig.load(None, {}, web={"bind": server.address}).web):  # type: ignore[arg-type]
                pass


async def test_clients_beyond_the_limit_are_turned_away() -> None:
    async with node() as opened, server_of(opened) as server:
        host, port = server.address.split(":")
        with ExitStack() as stack:
            for _ in range(MAX_CLIENTS + 1):
                stack.enter_context(socket.create_connection((host, int(port))))
            assert (await fetch(server, "/healthz")).status == 503
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"GET / HTTP/1.1\r\nx: " + b"a" * (2 * MAX_HEAD_BYTES))
            reply = await asyncio.to_thread(client.recv, 100)
            assert b" 400 " in reply
