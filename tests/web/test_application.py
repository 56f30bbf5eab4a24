"""What a node answers over HTTP: the live page and its documents, the login, metrics and health."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from meshbus.config import NodeConfig
from meshbus.node.node import Node
from meshbus.web.access import UNKNOWN_READER, WRONG_HOST
from meshbus.web.document import Document
from meshbus.web.feed import MAX_WATCHERS
from tests.patience import PATIENCE_S
from tests.web.scrape import fetch, node, post, server_of, watch

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
TOKEN = "0123456789abcdef"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "web.token"
    path.write_text(f"{TOKEN}\n", "utf-8")
    path.chmod(0o600)
    return path


# ── the live page ───────────────────────────────────────────────────────────────────────────


async def test_the_page_and_its_files_are_confined() -> None:
    async with node() as opened, server_of(opened) as server:
        page = await fetch(server, "/")
        assert (page.status, page.kind) == (200, "text/html; charset=utf-8")
        for path in ("/", "/page.js", "/uplot.js", "/snapshot", "/login"):
            answer = await fetch(server, path)
            assert answer.status == 200
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
        assert (await fetch(server, "/vendored.toml")).status == 404
        assert (await fetch(server, "/../server.py")).status == 404


async def test_a_snapshot_is_the_document_of_the_page() -> None:
    async with node() as opened, server_of(opened) as server:
        answer = await fetch(server, "/snapshot")
        with await watch(server) as stream:
            event = await asyncio.to_thread(stream.event)
    assert (answer.kind, answer.headers["cache-control"]) == ("application/json", "no-store")
    one, other = (msgspec.json.decode(text, type=Document) for text in (answer.text, event))
    assert one.about == other.about
    assert one.about.node_id == f"{opened.node_id:016x}"


async def test_events_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.web.feed.PAUSE_S", 0.01)
    async with node() as opened, server_of(opened) as server:
        with await watch(server) as stream:
            times = [json.loads(await asyncio.to_thread(stream.event))["uptime_s"] for _ in range(3)]
    assert times == sorted(set(times))


async def test_pages_beyond_the_limit_are_refused_and_leave_room_for_metrics() -> None:
    async with node() as opened, server_of(opened) as server:
        streams = [await watch(server) for _ in range(MAX_WATCHERS)]
        for stream in streams:
            assert await asyncio.to_thread(stream.event)
        refused = await fetch(server, "/events")
        assert (refused.status, refused.headers["retry-after"]) == (503, "10")
        assert (await fetch(server, "/metrics")).status == 200
        streams.pop().close()
        async with asyncio.timeout(PATIENCE_S):  # the server notices a moment later
            while True:
                with await watch(server) as again:
                    if again.status == 200:
                        break
                await asyncio.sleep(0.01)
        for stream in streams:
            stream.close()


async def test_a_page_from_elsewhere_cannot_read_a_node_by_another_name() -> None:
    async with node() as opened, server_of(opened) as server:
        for path in ("/", "/events", "/snapshot", "/metrics"):
            answer = await fetch(server, path, host="rebound.example")
            assert (answer.status, answer.text) == (421, f"{WRONG_HOST}\n")
        assert (await fetch(server, "/healthz", host="rebound.example")).status == 200


# ── the token ───────────────────────────────────────────────────────────────────────────────


async def test_everything_about_a_node_needs_the_token_if_there_is_one(token_file: Path) -> None:
    async with node(token_file=token_file) as opened, server_of(opened) as server:
        for path in ("/events", "/snapshot", "/metrics"):
            for headers in (
                {},
                {"authorization": "Bearer wrong"},
                {"cookie": f"meshbus-{opened.node_id:016x}={TOKEN}"},
            ):
                refused = await fetch(server, path, **headers)
                assert (refused.status, refused.text) == (401, f"{UNKNOWN_READER}\n")
                assert refused.headers["www-authenticate"] == "Bearer"
        for path in ("/snapshot", "/metrics"):
            assert (await fetch(server, path, authorization=f"Bearer {TOKEN}")).status == 200
        for path in ("/healthz", "/readyz", "/login", "/page.css"):
            assert (await fetch(server, path)).status == 200
        page = await fetch(server, "/")
        assert (page.status, page.headers["location"]) == (303, "login")


async def test_a_browser_exchanges_the_token_for_a_cookie(token_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with node(token_file=token_file) as opened, server_of(opened) as server:
        wrong = await asyncio.to_thread(post, server.address, "/login", authorization="Bearer wrong")
        assert (wrong.status, "set-cookie" in wrong.headers) == (401, False)
        right = await asyncio.to_thread(post, server.address, "/login", authorization=f"Bearer {TOKEN}")
        assert right.status == 204
        cookie, *flags = right.headers["set-cookie"].split("; ")
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(flags)
        assert TOKEN not in right.headers["set-cookie"]
        assert (await fetch(server, "/", cookie=cookie)).status == 200
        assert (await fetch(server, "/snapshot", cookie=cookie)).status == 200
        assert (await fetch(server, "/snapshot", cookie=f"{cookie}0")).status == 401
    assert TOKEN not in caplog.text


async def test_nothing_can_be_changed() -> None:
    async with node() as opened, server_of(opened) as server:
        for path in ("/", "/snapshot", "/events", "/metrics", "/healthz", "/page.js"):
            assert (await asyncio.to_thread(post, server.address, path)).status == 405


# ── for programs ────────────────────────────────────────────────────────────────────────────


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
        assert (await fetch(server, "/healthz"))[:3] == (200, "text/plain; charset=utf-8", "ok\n")
        assert (await fetch(server, "/readyz")).status == 200
        assert (await fetch(server, "/other")).status == 404
    away: list[dict[str, Any]] = [{"address": "127.0.0.1:9", "public_key": "11" * 32, "node_id": "01"}]
    config = NodeConfig.load(None, {}, psk="5a" * 32, ephemeral=True, web={"bind": "127.0.0.1:0"}, peers=away)
    async with Node.open(config) as opened, server_of(opened) as server:
        assert (await fetch(server, "/readyz"))[0:3:2] == (503, "not ready\n")
        assert (await fetch(server, "/healthz")).status == 200
