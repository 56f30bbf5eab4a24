"""The policy of a running node changes at one moment, as a whole or not at all, and no session ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import pytest

from meshbus.config.node import history_of
from meshbus.config.policyfile import parse_policy, signed_content
from meshbus.engine.base.notices import PeerFailed, PeerGone, Unsubscribed
from meshbus.errors import ConfigError
from meshbus.log.files import Files
from meshbus.log.packets.policies import load_policies
from meshbus.log.packets.reader import PacketReader
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.node.audit import AuditLog, read_audit
from meshbus.node.node import Node
from meshbus.node.peers.noticelog import Notice, PolicyChanged, PolicyRefused
from meshbus.node.policies import keeper as subject
from meshbus.node.policies.keeper import Via
from meshbus.policy.fate import Fate
from meshbus.policy.reason import RECORDED
from meshbus.spark.replay.records import replay_records
from meshbus.spark.replay.tally import Chosen
from meshbus.wire.messages.fleetpolicy import PolicyStatement
from tests.patience import PATIENCE_S

PSK = bytes(32).hex()
OPEN, CLOSED = "fleet/open", "fleet/closed"
RULES = "".join(
    f'[[subnet_rules]]\nmatch_tags = ["at:{place}"]\ntarget_subnet = "{place}"\n' for place in ("1", "2", "3")
)


def policy(first: str, second: str) -> str:
    """The policy of a gateway with two channels of this visibility."""
    return (
        f'{RULES}[[gateways]]\nnode = "gw"\npeer_subnets = ["1", "3"]\n[[channels]]\nname = "{OPEN}"\nvisibility = "{first}"\n'
        f'[[channels]]\nname = "{CLOSED}"\nvisibility = "{second}"\n'
    )


BEFORE, AFTER = policy("global", "subnet-local"), policy("subnet-local", "global")


def written(folder: Path, text: str, name: str = "policy.toml") -> Path:
    file = folder / name
    file.write_text(text, "utf-8")
    return file


class Line:
    """A publisher, a gateway that records, and a subscriber, in three subnets."""

    def __init__(self, folder: Path) -> None:
        common: dict[str, Any] = {"psk": PSK, "ephemeral": True, "heartbeat_s": 0.05, "session_timeout_s": 60.0}
        self.folder = folder
        self.file = written(folder, BEFORE)
        rules = [{"match_tags": [f"at:{place}"], "target_subnet": place} for place in ("1", "2", "3")]
        self.left = Node.open(tags=["at:1"], subnet="1", subnet_rules=rules, **common)
        self.middle = Node.open(
            name="gw", tags=["at:2"], subnet="2", policy_file=self.file, log_dir=folder, record_packets=True, **common
        )
        self.right = Node.open(tags=["at:3"], subnet="3", subnet_rules=rules, **common)
        self.nodes = self.left, self.middle, self.right
        self.notices: list[Notice] = []

    async def __aenter__(self) -> Self:
        for node in self.nodes:
            await node.start()
        for outer in (self.left, self.right):
            await outer.connect(self.middle.address, public_key=self.middle.public_key)
        await until(lambda: self.right.node_id in {route.node_id for route in self.left.mesh.routes})
        await self.left.connect(public_key=self.right.public_key)
        for channel in (OPEN, CLOSED):
            await self.right.subscribe_channel(self.left.node_id, channel)
        # Announcements tell the gateway who is where; until then it drops everything.
        await self.publish_until(lambda: self.right.counters["received"]["events"] > 20)
        self.middle.watch(self.notices.append)
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes:
            await node.close()

    async def publish_until(self, holds: Any) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await self.publish(1)
                await asyncio.sleep(0)

    async def publish(self, packets: int) -> None:
        """Publish so many packets on each channel."""
        for _ in range(packets):
            for channel in (OPEN, CLOSED):
                await self.left.publisher(channel).publish(b"x" * 100)

    async def settled(self) -> None:
        """Wait until the gateway has judged what was published: an answer through it comes after all of that."""
        await self.left.ping(self.right.node_id, timeout_s=PATIENCE_S)

    def rows(self) -> list[dict[str, Any]]:
        """What the gateway recorded of the two channels, in order; call it when the gateway is closed."""
        snapshot = PacketReader(self.folder, self.middle.node_id).snapshot()
        wanted = ["channel", "verdict", "reason", "policy_version", "src", "dst", "packet_seq"]
        return [
            row
            for batch in snapshot.batches(columns=wanted, dictionaries=False)
            for row in batch.to_pylist()
            if row["channel"] in {OPEN, CLOSED} and row["src"] is not None
        ]


async def until(holds: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - other nodes decide it
            await asyncio.sleep(0.01)


def verdict(row: dict[str, Any]) -> str:
    return "forward" if row["verdict"] == Fate.FORWARDED else RECORDED[row["reason"]].word


async def test_verdicts_change_at_one_moment_under_load_and_no_session_ends(tmp_path: Path) -> None:
    async with Line(tmp_path) as line:
        dropped, sessions = 0, {peer.node_id: peer.link.session_id for peer in line.middle.live.engine.peers}
        file = written(tmp_path, AFTER, "new.toml")
        applied = False

        def enough() -> bool:
            return applied and sum(line.middle.mesh.gateway.drops.values()) > dropped + 50

        async with asyncio.TaskGroup() as group:
            publishing = group.create_task(line.publish_until(enough))
            changes = await line.middle.apply_policy(file, by="ada")
            dropped, applied = sum(line.middle.mesh.gateway.drops.values()), True
            await publishing
        assert {peer.node_id: peer.link.session_id for peer in line.middle.live.engine.peers} == sessions
        assert not any(isinstance(notice, PeerGone | PeerFailed | Unsubscribed) for notice in line.notices)
        assert [notice for notice in line.notices if isinstance(notice, PolicyChanged)] == [
            PolicyChanged("ada", "apply", changes)
        ]
        assert line.file.read_text("utf-8") == AFTER
    assert len(changes) == 2
    known = [
        row for row in line.rows() if row["src"] == int(SubnetId.parse("1")) and row["dst"] == int(SubnetId.parse("3"))
    ]
    # The numbers of the policies change once, and with them every verdict.
    versions = [version for version, _ in groupby(row["policy_version"] for row in known)]
    judged = {
        version: {(row["channel"], verdict(row)) for row in known if row["policy_version"] == version}
        for version in versions
    }
    meant = [judged[version] for version in versions]
    assert len(versions) == len(set(versions))
    assert meant[0] == {(OPEN, "forward"), (CLOSED, "subnet_local")}
    assert meant[-1] == {(OPEN, "subnet_local"), (CLOSED, "forward")}
    assert set(map(frozenset, meant)) == {frozenset(meant[0]), frozenset(meant[-1])}
    policies = load_policies(PacketReader(tmp_path, line.middle.node_id).folder)
    assert policies[versions[0]] != policies[versions[-1]]


async def test_a_replay_predicts_what_then_happens(tmp_path: Path) -> None:
    async with Line(tmp_path) as line:
        await line.settled()
        began = datetime.now(UTC)
        await line.publish(60)
        await line.settled()
        recording = line.middle._opened.recording
        assert recording is not None
        await asyncio.to_thread(recording.recorder.drain)
        rules = parse_policy(AFTER.encode(), "new").gateway_policy(line.middle.node_id, "gw", SubnetId.parse("2"))
        assert rules is not None
        chosen = Chosen(line.middle.node_id, start=began)
        predicted = await asyncio.to_thread(replay_records, tmp_path, rules, chosen)
        await line.middle.apply_policy(written(tmp_path, AFTER, "new.toml"))
        # The same traffic again.
        await line.publish(60)
        await line.settled()
    rows = line.rows()
    last = rows[-1]["policy_version"]
    happened = Counter((row["channel"], verdict(row)) for row in rows if row["policy_version"] == last)
    foretold = Counter({(one.channel, one.proposed): one.packets for one in predicted.changes if one.channel})
    assert happened == foretold == {(OPEN, "subnet_local"): 60, (CLOSED, "forward"): 60}
    assert predicted.changed == 120


async def test_an_invalid_policy_is_refused_and_the_old_one_stays_whole(tmp_path: Path) -> None:
    file = written(tmp_path, BEFORE)
    notices: list[Notice] = []
    async with Node.open(name="gw", psk=PSK, ephemeral=True, policy_file=file) as node:
        node.watch(notices.append)
        before, rules = node.policy, node.live.engine.mesh.boundary.gateway.snapshot()
        wrong = written(tmp_path, AFTER + "heartbeat_s = 1\n", "wrong.toml")
        wrong.write_text("heartbeat_s = 1\n" + AFTER, "utf-8")
        with pytest.raises(ConfigError, match=r"wrong.toml, line 1\): is a setting of one node, which cannot change"):
            await node.apply_policy(wrong, by="eve")
        file.write_text(AFTER.replace("global", "globl"), "utf-8")
        with pytest.raises(ConfigError, match=r"policy\.toml, line"):
            await node.apply_policy(via=Via.SIGHUP)
        with pytest.raises(ConfigError, match="the file does not exist"):
            await node.apply_policy(tmp_path / "none.toml")
        assert node.policy is before
        assert node.live.engine.mesh.boundary.gateway.snapshot() == rules
    assert [type(notice) for notice in notices] == [PolicyRefused] * 3
    rows = read_audit(history_of(file)).rows
    assert [(row.by if row.by == "eve" else "", row.via, row.result) for row in rows] == [
        ("", "start", "applied"),
        ("eve", "apply", "refused"),
        ("", "sighup", "refused"),
    ]
    assert "heartbeat_s" in (rows[1].problem or "")


async def test_the_own_file_is_read_again_and_every_change_is_a_row(tmp_path: Path) -> None:
    file = written(tmp_path, BEFORE)
    async with Node.open(name="gw", psk=PSK, ephemeral=True, policy_file=file) as node:
        first = node.policy_hash
        assert await node.apply_policy() == ()
        file.write_text(AFTER, "utf-8")
        assert len(await node.apply_policy(by="ada")) == 2
        assert node.policy == parse_policy(AFTER.encode(), "new")
        assert node.policy_hash != first
    found = read_audit(history_of(file))
    assert [(row.via, row.result, len(row.changes)) for row in found.rows] == [
        ("start", "applied", 0),
        ("apply", "applied", 0),
        ("apply", "applied", 2),
    ]
    # The next start has nothing to add, unless somebody edited the file meanwhile.
    async with Node.open(name="gw", psk=PSK, ephemeral=True, policy_file=file):
        assert read_audit(history_of(file)).rows == found.rows
    file.write_text(BEFORE, "utf-8")
    async with Node.open(name="gw", psk=PSK, ephemeral=True, policy_file=file):
        assert [row.via for row in read_audit(history_of(file)).rows][-1] == "start"
    assert read_audit(history_of(file)).problems == []


async def test_a_node_that_becomes_a_gateway_announces_that_it_is_one(tmp_path: Path) -> None:
    file = written(tmp_path, RULES)
    async with Node.open(name="gw", psk=PSK, ephemeral=True, policy_file=file, tags=["at:2"]) as node:
        engine = node.live.engine
        assert not node.mesh.is_gateway
        await node.apply_policy(written(tmp_path, BEFORE, "new.toml"))
        assert [node.mesh.is_gateway] == [True]
        assert engine.announcer.capabilities.metadata["gateway"] == "true"
        assert "at:2" in engine.announcer.capabilities.tags
        await node.apply_policy(written(tmp_path, RULES, "old.toml"))
        assert "gateway" not in engine.announcer.capabilities.metadata


async def test_a_node_without_a_file_says_what_to_do() -> None:
    async with Node.open(psk=PSK, ephemeral=True, channels=[{"name": "a", "priority": 3}]) as node:
        assert [rule.priority for rule in node.policy.channels] == [3]
        assert node.policy_hash is None
        with pytest.raises(ConfigError, match=r"policy_file: is not set.*move the policy to a file of its own"):
            await node.apply_policy()


class ReadOnly(Files):
    def write_aside(self, *_: Any) -> None:
        raise OSError(30, "Read-only file system")


async def test_a_policy_that_cannot_be_stored_is_not_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, BEFORE)
    monkeypatch.setattr(subject, "Files", ReadOnly)
    async with Node.open(name="gw", psk=PSK, ephemeral=True, policy_file=file) as node:
        before = node.policy
        with pytest.raises(ConfigError, match="cannot be written: Read-only file system; the old policy stays"):
            await node.apply_policy(written(tmp_path, AFTER, "new.toml"))
        assert node.policy is before
    assert file.read_text("utf-8") == BEFORE
    assert [row.result for row in read_audit(history_of(file)).rows] == ["applied", "applied", "refused"]


ISSUER, STRANGER = Identity.from_seed(bytes(range(32))), Identity.from_seed(bytes(32))


def signed(folder: Path, text: str, version: int, issuer: Identity = ISSUER) -> Path:
    statement = PolicyStatement.sign(issuer, version, text.encode())
    return written(folder, signed_content(statement, text.encode()).decode(), f"{version}.toml")


async def fleet(stack: AsyncExitStack, folder: Path, count: int) -> list[Node]:
    """A line of nodes with the same issuer and a policy each that nobody signed yet."""
    nodes: list[Node] = []
    for number in range(count):
        place = folder / str(number)
        place.mkdir()
        file = written(place, BEFORE)
        node = Node.open(
            name=f"node-{number}", psk=PSK, ephemeral=True, policy_file=file, policy_issuers=[ISSUER.entity_id]
        )
        nodes.append(await stack.enter_async_context(node))
        if number:
            await node.connect(nodes[-2].address, public_key=nodes[-2].public_key)
    return nodes


async def test_one_apply_reaches_every_node_and_lasts(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nodes = await fleet(stack, tmp_path, 3)
        new = signed(tmp_path, AFTER, 1)
        changes = await nodes[0].apply_policy(new, by="ada")
        assert len(changes) == 2
        await until(lambda: len({node.policy_hash for node in nodes}) == 1)
        assert all(node.policy == parse_policy(AFTER.encode(), "new") for node in nodes)
        assert [node.policy_version for node in nodes] == [1, 1, 1]
        files = [node.config.policy_file for node in nodes]
        last = read_audit(history_of(files[2] or tmp_path)).rows[-1]
        assert (last.via, last.version, last.result) == ("fleet", 1, "applied")
        assert last.by == f"issuer {ISSUER.entity_id.hex()}"
        assert last.changes == changes
    assert {file.read_bytes() for file in files if file is not None} == {new.read_bytes()}
    # A node that starts again holds it still, and does not go back.
    async with Node.open(psk=PSK, ephemeral=True, policy_file=files[2], policy_issuers=[ISSUER.entity_id]) as again:
        service = again.live.engine.fleet_policy
        assert service is not None
        assert service.version == 1


@pytest.mark.parametrize(
    ("version", "issuer", "problem"),
    [
        (None, ISSUER, "must be of one of the policy_issuers .*, got no signature; sign it with"),
        (9, STRANGER, f"got {STRANGER.entity_id.hex()}; sign it with"),
        (5, ISSUER, "must be above 5, the version in force, got 5"),
        (4, ISSUER, "must be above 5, the version in force, got 4; sign it again with a higher one"),
    ],
)
async def test_what_the_issuer_did_not_sign_or_signed_before_is_refused(
    tmp_path: Path, version: int | None, issuer: Identity, problem: str
) -> None:
    async with AsyncExitStack() as stack:
        (node,) = await fleet(stack, tmp_path, 1)
        await node.apply_policy(signed(tmp_path, BEFORE, 5))
        before = node.policy
        other = written(tmp_path, AFTER, "new.toml") if version is None else signed(tmp_path, AFTER, version, issuer)
        with pytest.raises(ConfigError, match=problem):
            await node.apply_policy(other)
        assert node.policy is before


async def test_a_policy_that_this_node_does_not_understand_is_passed_on_and_not_applied(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        first, middle, last = await fleet(stack, tmp_path, 3)
        await first.apply_policy(signed(tmp_path, BEFORE, 1))
        await until(lambda: len({node.policy_hash for node in (first, middle, last)}) == 1)
        notices: list[Notice] = []
        middle.watch(notices.append)
        before = middle.policy_hash
        # As if a newer meshbus had signed it: only nodes that know the key can read it.
        text = "from_the_future = 1\n"
        statement = PolicyStatement.sign(ISSUER, 2, text.encode())
        service = first.live.engine.fleet_policy
        assert service is not None
        first.live.act(lambda _engine, now, out: service.hold(statement, text.encode(), now, out))
        await until(lambda: last.counters.get("refuse", {}).get("policy"))
        assert middle.counters["refuse"]["policy"] == 1
        assert middle.policy_hash == last.policy_hash == before
        (refused,) = [notice for notice in notices if isinstance(notice, PolicyRefused)]
        assert "from_the_future" in refused.problem


async def test_a_policy_that_the_disk_refuses_is_fetched_again(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        first, second = await fleet(stack, tmp_path, 2)
        second._policies._files = ReadOnly()
        await first.apply_policy(signed(tmp_path, AFTER, 1))
        await until(lambda: second.counters.get("refuse", {}).get("policy"))
        service = second.live.engine.fleet_policy
        assert service is not None
        await until(lambda: service.version == 0)
        assert second.policy == parse_policy(BEFORE.encode(), "old")
        # The next offer of the neighbor.
        second._policies._files = Files()
        offering = first.live.engine.fleet_policy
        assert offering is not None
        first.live.act(lambda _engine, now, out: offering.tick(now + 1000, out))
        await until(lambda: second.policy_version == 1)


async def test_a_node_starts_where_it_may_not_write_the_audit_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_self: AuditLog, _row: object) -> None:
        raise ConfigError("audit_log", "cannot be written: Permission denied")

    monkeypatch.setattr(AuditLog, "append", refused)
    async with Node.open(name="gw", psk=PSK, ephemeral=True, policy_file=written(tmp_path, BEFORE)) as node:
        assert node.policy == parse_policy(BEFORE.encode(), "old")
        with pytest.raises(ConfigError, match="cannot be written"):
            await node.apply_policy(written(tmp_path, AFTER, "new.toml"))
        assert node.policy == parse_policy(BEFORE.encode(), "old")
    assert "the policy file is not in the audit log" in caplog.text


async def test_the_owner_of_a_file_may_not_be_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_path: Path) -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(Path, "owner", nobody)
    file = written(tmp_path, BEFORE)
    async with Node.open(name="gw", psk=PSK, ephemeral=True, policy_file=file):
        assert [row.by for row in read_audit(history_of(file)).rows] == ["unknown"]


async def test_a_caller_that_goes_away_does_not_leave_a_change_half_done(tmp_path: Path) -> None:
    file = written(tmp_path, BEFORE)
    async with Node.open(name="gw", psk=PSK, ephemeral=True, policy_file=file) as node:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(node.apply_policy(written(tmp_path, AFTER, "new.toml")))
            await asyncio.sleep(0)
            asking.cancel()
        await until(lambda: node.policy == parse_policy(AFTER.encode(), "new"))
        assert file.read_text("utf-8") == AFTER


async def test_a_file_that_is_gone_is_made_again(tmp_path: Path) -> None:
    file = written(tmp_path, BEFORE)
    async with Node.open(name="gw", psk=PSK, ephemeral=True, policy_file=file) as node:
        file.unlink()
        await node.apply_policy(written(tmp_path, AFTER, "new.toml"))
    assert file.read_text("utf-8") == AFTER


def test_a_node_does_not_start_with_the_policy_of_a_stranger(tmp_path: Path) -> None:
    file = signed(tmp_path, BEFORE, 3, STRANGER)
    with pytest.raises(ConfigError, match=f"got {STRANGER.entity_id.hex()}; sign it with"):
        Node.open(psk=PSK, ephemeral=True, policy_file=file, policy_issuers=[ISSUER.entity_id])


async def test_the_mode_of_the_file_stays(tmp_path: Path) -> None:
    file = written(tmp_path, BEFORE)
    file.chmod(0o640)
    async with Node.open(name="gw", psk=PSK, ephemeral=True, policy_file=file) as node:
        await node.apply_policy(written(tmp_path, AFTER, "new.toml"))
    assert file.stat().st_mode & 0o777 == 0o640
