"""Everything that can be asked of a running node over its socket, and every way to ask it badly."""

import asyncio
import base64
import os
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from meshbus.config import NodeConfig
from meshbus.engine.channels.publish import LegError, PublishReport
from meshbus.keyfile import create_identity
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.node.admin import Admin, event_row, peer_row, report_row, status_row
from meshbus.node.node import Node
from meshbus.node.unix import MAX_LINE, LineClient
from meshbus.wire.messages.token import PermissionToken, Scope
from tests.patience import PATIENCE_S

PSK = "77" * 32
LIDAR = "sensors/lidar"


def _node(**settings: object) -> Node:
    defaults = {"psk": PSK, "ephemeral": True, "handshake_timeout_s": 0.5, "membership_ack_timeout_s": 2}
    return Node.open(NodeConfig.load(None, {}, **{**defaults, **settings}))


class Talk:
    """One connection to an admin socket."""

    def __init__(self, client: LineClient) -> None:
        self.client = client

    async def ask(self, **request: object) -> dict[str, Any]:
        return await self.say(msgspec.json.encode(request))

    async def say(self, line: bytes) -> dict[str, Any]:
        await self.client.send(line + b"\n")
        return await self.hear()

    async def hear(self) -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.json.decode(await asyncio.wait_for(self.client.receive(), PATIENCE_S))
        return answer

    async def get(self, **request: object) -> Any:
        answer = await self.ask(**request)
        assert answer["ok"], answer
        return answer["result"]


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    small = {"name": "small", "max_event_bytes": 9000}
    async with _node(subnet="3.7", tags=["role:lidar"], channels=[small]) as opened:
        yield opened


@pytest.fixture
async def talk(node: Node, tmp_path: Path) -> AsyncIterator[Talk]:
    path = tmp_path / "run" / "admin.sock"
    async with Admin(node).serve(path), await LineClient.connect(path) as client:
        yield Talk(client)


@pytest.fixture
async def other(node: Node) -> AsyncIterator[Node]:
    """Another node, connected to the first."""
    async with _node(tags=["role:planner"]) as opened:
        await opened.connect(node.address, public_key=node.public_key)
        yield opened


async def test_the_status_has_ids_and_addresses(node: Node, talk: Talk) -> None:
    status = await talk.get(do="status")
    assert status == status_row(node)
    assert status["node_id"] == f"{node.node_id:016x}"
    assert status["public_key"] == node.public_key.hex()
    assert status["address"] == node.address
    assert (status["subnet"], status["peers"]) == ("3.7", 0)


async def test_peers_are_listed(node: Node, other: Node, talk: Talk) -> None:
    (peer,) = await talk.get(do="peers")
    assert peer["node_id"] == f"{other.node_id:016x}"
    assert peer["address"] == other.address
    assert peer["health"] == "alive"
    assert peer == peer_row(node.peers[0])


async def test_a_file_of_rows_is_published_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrow"
    rows = pa.table({"payload": [b"a", b"b"]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write(rows)
    socket = tmp_path / "run" / "admin.sock"
    request: dict[str, Any] = {"do": "publish_once", "channel": "alerts", "writer": "w", "batch": 0}
    async with (
        _node(log_dir=tmp_path / "logs", channels=[{"name": "alerts", "log": "published"}]) as node,
        Admin(node).serve(socket),
        await LineClient.connect(socket) as client,
    ):
        talk = Talk(client)
        assert [await talk.get(**request, path=str(path)) for _ in range(2)] == [2, 0]
        log = node.logs.of_published(ChannelName("alerts"))
        assert log is not None
        assert [event.payload for event in log.file.read_range(0, 9)] == [b"a", b"b"]
        for content, problem in ((None, "cannot be read"), (b"text", "cannot be read")):
            wrong = tmp_path / "wrong.arrow"
            if content is not None:
                wrong.write_bytes(content)
            answer = await talk.ask(**request, path=str(wrong))
            assert (answer["code"], problem in answer["problem"]) == ("config", True)
        rows = pa.table({"body": [b"a"]})
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write(rows)
        assert "has no column payload" in (await talk.ask(**request, path=str(path)))["problem"]


async def test_connect_starts_a_session(node: Node, talk: Talk) -> None:
    async with _node() as far:
        peer = await talk.get(do="connect", address=far.address, public_key=far.public_key.hex())
        assert peer["node_id"] == f"{far.node_id:016x}"
        assert [peer.node_id for peer in far.peers] == [node.node_id]


async def test_a_plain_node_is_reached_by_id_and_noise_key(node: Node, talk: Talk) -> None:
    async with _node() as far:
        peer = await talk.get(
            do="connect",
            address=far.address,
            public_key=far.noise_public_key.hex(),
            node_id=f"{far.node_id:016x}",
            profile="plain",
        )
        assert peer["node_id"] == f"{far.node_id:016x}"


async def test_an_event_is_published_and_the_roster_lists_its_subscribers(node: Node, other: Node, talk: Talk) -> None:
    async with other.subscribe(LIDAR) as subscription:
        (row,) = await talk.get(do="roster")
        assert row == {"channel": LIDAR, "node_id": f"{other.node_id:016x}", "name": None, "queue_group": None}
        report = await talk.get(do="publish", channel=LIDAR, payload="grüß")
        assert report == {"attempted": 1, "delivered": 1, "errors": [], "filtered": [], "log_seq": None}
        binary = base64.b64encode(b"\xff\0").decode()
        assert (await talk.get(do="publish", channel=LIDAR, payload_base64=binary, reliable=True))["delivered"] == 1
        events = subscription.__aiter__()
        assert (await anext(events)).payload.decode() == "grüß"
        assert (await anext(events)).payload == b"\xff\0"


async def test_events_are_streamed_until_the_next_line(node: Node, other: Node, talk: Talk) -> None:
    publisher = other.publisher(LIDAR)
    assert await talk.get(do="subscribe", channel=LIDAR) == {
        "publishers": [{"node_id": f"{other.node_id:016x}", "name": None}],
        "refused": [],
    }
    await publisher.publish(b"one")
    await publisher.publish(b"\xff")
    first, second = (await talk.hear())["event"], (await talk.hear())["event"]
    assert (first["channel"], first["publisher"], first["payload"]) == (LIDAR, f"{other.node_id:016x}", "one")
    assert second["payload_base64"] == base64.b64encode(b"\xff").decode()
    assert "payload" not in second
    assert (await talk.get(do="status"))["peers"] == 1
    assert (await publisher.publish(b"nobody is left")).attempted == 0


async def test_counters_are_shown(node: Node, talk: Talk) -> None:
    assert await talk.get(do="counters") == node.counters


async def test_a_policy_is_shown_and_applied(tmp_path: Path) -> None:
    own, new = tmp_path / "policy.toml", tmp_path / "new.toml"
    own.write_text("# empty\n", "utf-8")
    new.write_text('[[channels]]\nname = "a"\npriority = 2\n', "utf-8")
    path = tmp_path / "run" / "admin.sock"
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(_node(policy_file=own))
        await stack.enter_async_context(Admin(node).serve(path))
        talk = Talk(await stack.enter_async_context(await LineClient.connect(path)))
        before = await talk.get(do="policy")
        assert before["policy_file"] == str(own)
        assert await talk.get(do="policy_apply", path=str(new), by="ada") == {"changes": ["channel a: priority 0 → 2"]}
        assert (await talk.get(do="policy"))["sha256"] != before["sha256"]
        assert before["version"] is None
        assert await talk.get(do="policy_apply") == {"changes": []}
        answer = await talk.ask(do="policy_apply", path=str(tmp_path / "none.toml"))
        assert (answer["ok"], answer["code"]) == (False, "config")


async def test_an_issuer_is_revoked(node: Node, tmp_path: Path) -> None:
    issuer = Identity.generate(os.urandom)
    channels = [{"name": LIDAR, "require_token": True}]
    path = tmp_path / "run" / "admin.sock"
    async with AsyncExitStack() as stack:
        strict = await stack.enter_async_context(_node(channels=channels, trusted_issuers=[issuer.entity_id]))
        await stack.enter_async_context(Admin(strict).serve(path))
        talk = Talk(await stack.enter_async_context(await LineClient.connect(path)))
        await node.connect(strict.address, public_key=strict.public_key)
        token = PermissionToken.issue(
            issuer, node.public_key, Scope.SUBSCRIBE, LIDAR, ttl_s=60, now=_unix(), entropy=os.urandom
        )
        node.add_token(token)
        await stack.enter_async_context(node.subscribe(LIDAR))
        assert len(await talk.get(do="roster")) == 1
        assert await talk.get(do="revoke", issuer=issuer.entity_id.hex(), generation=1) is None
        assert await talk.get(do="roster") == []


def _unix() -> int:
    import time

    return time.time_ns() // 1_000_000_000


@pytest.mark.parametrize(
    ("line", "code", "problem"),
    [
        (b"nonsense", "config", "request: is not a valid command"),
        (b"[]", "config", "request: is not a valid command"),
        (b"{}", "config", "request: is not a valid command"),
        (b'{"do": "dance"}', "config", "request: is not a valid command: Invalid value 'dance'"),
        (b'{"do": "peers", "x": 1}', "config", "request: is not a valid command: Object contains unknown field `x`"),
        (b'{"do": "publish", "channel": 5}', "config", "request: is not a valid command: Expected `str`"),
        (
            b'{"do": "publish", "channel": "a"}',
            "config",
            "payload: give exactly one of payload, payload_base64 and path",
        ),
        (b'{"do": "publish", "channel": "a", "payload_base64": "!"}', "config", "payload_base64: is not valid base64"),
        (b'{"do": "publish", "channel": "A", "payload": "x"}', "channel", "channel 'A': upper case"),
        (b'{"do": "subscribe", "channel": "Bad"}', "channel", ""),
        (b'{"do": "subscribe", "channel": "a", "when_full": "x"}', "config", "request: is not a valid command"),
        (b'{"do": "connect", "address": "x", "public_key": "00"}', "local_protocol", "a public key has 32 bytes"),
        (b'{"do": "revoke", "issuer": "00", "generation": 1}', "config", "issuer: must be 64 hex digits, got '00'"),
        (
            b'{"do": "revoke", "issuer": "' + b"00" * 32 + b'", "generation": -1}',
            "config",
            "generation: must be from 0 to 4294967295, got -1",
        ),
        (
            b'{"do": "connect", "address": "127.0.0.1:1", "public_key": "' + b"11" * 32 + b'", "node_id": "xyz"}',
            "config",
            "node_id: must be 16 hex digits, got 'xyz'",
        ),
        (
            b'{"do": "publish", "channel": "small", "payload": "' + b"x" * 9001 + b'"}',
            "local_protocol",
            "an event of 9001",
        ),
        (
            b'{"do": "publish", "channel": "a", "path": "/nowhere"}',
            "config",
            "path: /nowhere cannot be read: No such file",
        ),
        (b'{"do": "publish", "channel": "a", "path": "/nowhere", "payload": "x"}', "config", "payload: give exactly"),
    ],
    ids=lambda value: value[:40].decode() if isinstance(value, bytes) else None,
)
async def test_a_command_that_fails_is_answered_with_its_error(
    talk: Talk, line: bytes, code: str, problem: str
) -> None:
    answer = await talk.say(line)
    assert answer["ok"] is False
    assert answer["code"] == code
    assert answer["problem"].startswith(problem)
    assert (await talk.ask(do="status"))["ok"], "the connection goes on"


async def test_a_refusal_keeps_its_reason(node: Node, talk: Talk) -> None:
    async with _node(channels=[{"name": LIDAR, "require_token": True}]) as strict:
        await node.connect(strict.address, public_key=strict.public_key)
        answer = await talk.ask(do="subscribe", channel=LIDAR)
        assert (answer["ok"], answer["code"], answer["fault"]) == (False, "channel", "rejected")
        assert "unauthorized" in answer["problem"]


async def test_daemons_are_run_listed_followed_and_stopped(tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text("class Quiet:\n    def process(self, event):\n        return []\n")
    async with (
        _node(daemons_dir=str(tmp_path / "daemons"), daemons_path=[str(tmp_path)]) as opened,
        Admin(opened).serve(tmp_path / "run" / "admin.sock") as server,
        await LineClient.connect(server.path) as client,
    ):
        talk = Talk(client)
        row = await talk.get(do="daemon_run", daemon={"name": "quiet", "factory": "quiet:Quiet"})
        assert await talk.get(do="daemons") == [{**row, "state": "running"}]
        assert await talk.get(do="daemon_logs", daemon=row["origin"]) is None
        assert "runs here" in (await talk.hear())["line"]["text"]
        assert await talk.hear() == {"ok": True, "result": None}
        refused = await talk.ask(do="daemon_move", daemon="quiet", timeout_s=5.0)
        assert (refused["code"], refused["fault"]) == ("migration", "target-unavailable")
        assert await talk.get(do="daemon_stop", daemon="quiet", withdraw=True) is None
        assert [one["state"] for one in await talk.get(do="daemons")] == ["stopped"]
        for do in ("daemon_stop", "daemon_logs"):
            refused = await talk.ask(do=do, daemon="nobody")
            assert (refused["code"], refused["fault"]) == ("daemon", "unknown")


async def test_daemons_of_a_node_that_runs_none_are_refused(talk: Talk) -> None:
    refused = await talk.ask(do="daemons")
    assert (refused["code"], refused["problem"].startswith("daemons_dir: is not set")) == ("config", True)


async def test_an_internal_error_fails_one_command_only(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("meshbus.node.admin.status_row", fail)
    answer = await talk.ask(do="status")
    assert (answer["ok"], answer["code"], answer["problem"]) == (False, "system", "oops")
    assert "admin request failed" in caplog.text
    assert (await talk.ask(do="peers"))["ok"]


async def test_a_line_that_is_too_long_is_refused(talk: Talk) -> None:
    answer = await talk.say(b"x" * (MAX_LINE + 1))
    assert (answer["ok"], answer["code"]) == (False, "config")


async def test_the_socket_is_private(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "run" / "admin.sock"
    async with Admin(node).serve(path):
        assert _mode(path) == 0o600
        assert _mode(path.parent) == 0o700


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_rows_carry_everything() -> None:
    from meshbus.engine.base.batch import Event

    assert event_row(Event(b"x", ChannelName("a"), 255, 7)) == {
        "channel": "a",
        "publisher": "00000000000000ff",
        "pub_seq": 7,
        "payload": "x",
    }
    report = PublishReport(2, 1, (LegError(255, "backpressure", "slow"),))
    assert report_row(report)["errors"] == [{"node_id": "00000000000000ff", "code": "backpressure", "problem": "slow"}]


async def test_invites_are_made_listed_and_changed(tmp_path: Path) -> None:
    create_identity(tmp_path / "issuer.toml")
    node = Node.open(
        psk=bytes(32), identity=tmp_path / "id.toml", issuer_key=tmp_path / "issuer.toml", join_bind="127.0.0.1:0"
    )
    path = tmp_path / "run" / "admin.sock"
    async with node, Admin(node).serve(path), await LineClient.connect(path) as client:
        talk = Talk(client)
        made = await talk.get(do="invite", name="rover-7", tags=["lidar"], subnet="3.7", approval=True, by="ada")
        assert made["token"].startswith("mbj1_")
        assert made["address"] == node.join_address == (await talk.get(do="status"))["join_address"]
        (row,) = await talk.get(do="invites")
        assert row == {key: value for key, value in made.items() if key not in {"token", "address"}}
        assert (row["name"], row["tags"], row["subnet"], row["approval"]) == ("rover-7", ["lidar"], "3.7", True)
        gone = await talk.get(do="invite_change", change="withdraw", invite=made["invite"])
        assert gone == {**row, "state": "withdrawn"}
        refused = await talk.ask(do="invite_change", change="approve", invite=made["invite"])
        assert (refused["ok"], refused["code"]) == (False, "config")
        assert not (await talk.ask(do="invite", name="two words"))["ok"]
