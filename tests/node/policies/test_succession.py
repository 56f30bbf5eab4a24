"""A running node goes on under another key, under load: no session ends, nothing is lost, and the old key is refused."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from meshbus.engine.base.notices import PeerGone, PeerInsecure
from meshbus.errors import ConfigError, HandshakeError, Timeout
from meshbus.keyfile import (
    create_identity,
    load_identity,
    load_succession,
    replace_file,
    replace_identity,
    save_certificate,
)
from meshbus.log.reader import LogReader
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.node.audit import AuditKind, read_audit
from meshbus.node.channels.subscription import Subscription
from meshbus.node.node import Node
from meshbus.node.peers.noticelog import Notice, RotationRefused, SecretRotated
from meshbus.node.policies import succession as subject
from meshbus.node.policies.revocationfile import load_revocations
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.policy.invites import InviteSpec
from meshbus.wire.certificate import Certificate
from meshbus.wire.messages.revocation import Revocation
from meshbus.wire.messages.token import PermissionToken, Scope
from tests.patience import PATIENCE_S

FLEET = 5
CHANNEL = "fleet/poses"
PSK = bytes(range(32))


def member(folder: Path, **settings: Any) -> Node:
    folder.mkdir(exist_ok=True)
    given = {"identity": folder / "id.toml", "psk": PSK.hex(), "bind": "127.0.0.1:0", **settings}
    return Node.open(handshake_timeout_s=0.5, **given)


async def until(holds: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - other nodes decide it
            await asyncio.sleep(0.02)


def watched(node: Node) -> list[Notice]:
    found: list[Notice] = []
    node.watch(found.append)
    return found


async def fleet(stack: AsyncExitStack, tmp_path: Path, count: int, **settings: Any) -> list[Node]:
    nodes = [await stack.enter_async_context(member(tmp_path / str(n), **settings)) for n in range(count)]
    for number, node in enumerate(nodes):
        for other in nodes[:number]:
            await node.connect(other.address, public_key=other.public_key)
    await until(lambda: all(is_whole(nodes)))
    return nodes


def is_whole(nodes: list[Node]) -> list[bool]:
    """Return for all pairs of nodes whether their session is secure, and signed by their present keys."""
    return [one.live.engine.secure.is_signed(other.node_id) for one in nodes for other in nodes if one is not other]


def links(nodes: list[Node]) -> set[int]:
    return {peer.link.session_id for node in nodes for peer in node.live.engine.peers}


class Load:
    """Events of all nodes: the others read those of the first one, by its id or by a prefix, and it reads all of them."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.sent: list[list[bytes]] = [[] for _ in nodes]
        self.got: list[list[bytes]] = [[] for _ in nodes[1:]]
        """What each of the others got of the first node."""
        self.by_first: list[list[bytes]] = [[] for _ in nodes]
        self._stop = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Publish while the block runs, and afterwards wait until everything has arrived."""
        first, *others = self.nodes
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            readers = []
            for number, node in enumerate(others):
                chosen = (
                    node.subscribe(f"{CHANNEL}/0", publisher=first.node_id)
                    if number % 2
                    else node.subscribe(f"{CHANNEL}/")
                )
                subscription = await stack.enter_async_context(chosen)
                readers.append(tasks.create_task(self._read(subscription, number)))
            mine = await stack.enter_async_context(first.subscribe(f"{CHANNEL}/"))
            readers.append(tasks.create_task(self._read(mine, None)))
            loading = [tasks.create_task(self._publish(number)) for number in range(len(self.nodes))]
            yield
            self._stop.set()
            await asyncio.gather(*loading)
            await until(lambda: all(events == self.sent[0] for events in self.got))
            await until(lambda: self.by_first[1:] == self.sent[1:])
            for reader in readers:
                reader.cancel()

    async def goes_on(self) -> None:
        """Wait until every reader has some hundred events more."""
        before = [len(events) for events in self.got]
        await until(lambda: all(len(events) > seen + 200 for events, seen in zip(self.got, before, strict=True)))

    async def _publish(self, number: int) -> None:
        # All five nodes run on one loop, so that one of them may have to wait for long on a busy machine.
        publisher = self.nodes[number].publisher(f"{CHANNEL}/{number}", reliable=True, wait_s=60.0)
        sent = self.sent[number]
        while not self._stop.is_set():
            batch = [b"%d %08d" % (number, one) for one in range(len(sent), len(sent) + 20)]
            await publisher.publish_batch(batch)
            sent.extend(batch)
            await asyncio.sleep(0)

    async def _read(self, subscription: Subscription, reader: int | None) -> None:
        async for event in subscription:
            if reader is None:
                self.by_first[int(event.payload.split()[0])].append(event.payload)
            elif event.channel == f"{CHANNEL}/0":
                self.got[reader].append(event.payload)


async def test_a_fleet_of_five_under_load_loses_nothing_when_a_node_gets_another_key(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nodes = await fleet(stack, tmp_path, FLEET)
        rover, *others = nodes
        notices = [watched(node) for node in nodes]
        old, old_file = rover.node_id, (tmp_path / "0" / "id.toml").read_text()
        load = Load(nodes)
        ids: list[int] = []
        async with load.running():
            before = links(nodes)
            for _ in range(2):  # a second change follows from the first
                await load.goes_on()
                changes = await rover.rotate_identity(by="test", timeout_s=PATIENCE_S)
                assert len(changes) == 1, changes
                ids.append(rover.node_id)
            await load.goes_on()
        assert len({old, *ids}) == 3
        assert links(nodes) == before  # the same sessions, which were secure all the time
        assert all(is_whole(nodes))
        for found in notices:
            assert not any(isinstance(notice, PeerGone | PeerInsecure) for notice in found)
        assert rover.public_key == load_identity(tmp_path / "0" / "id.toml").entity_id
        for node in others:
            assert rover.node_id in node.pins
            assert not {old, ids[0]} & set(node.pins)
            assert node.live.engine.revocations.heir_id(old) == rover.node_id
        # A copy of the old key finds no one.
        replace_file(tmp_path / "copy.toml", old_file, "identity")
        copy = await stack.enter_async_context(
            member(tmp_path, identity=tmp_path / "copy.toml", handshake_attempts=1, revocations=tmp_path / "none.toml")
        )
        with pytest.raises(HandshakeError):
            await copy.connect(others[0].address, public_key=others[0].public_key)
        rows = read_audit(tmp_path / "0" / "id.audit").rows
        assert [(row.kind, row.result, row.by) for row in rows if row.kind == AuditKind.ROTATION] == [
            (AuditKind.ROTATION, "applied", "test")
        ] * 2
        assert any(isinstance(notice, SecretRotated) for notice in notices[0])


async def test_a_restart_of_any_node_finds_the_new_key_and_the_settings_with_the_old_one_still_lead_to_it(
    tmp_path: Path,
) -> None:
    async with member(tmp_path / "rover") as rover:
        old_key, old, address = rover.public_key, rover.node_id, rover.address
        settings: dict[str, Any] = {
            "peers": [{"address": address, "public_key": old_key.hex()}],
            "subscriptions": [{"channel": CHANNEL, "publisher": old, "log": False}],
        }
        async with member(tmp_path / "dock", **settings) as dock:
            await until(lambda: rover.roster.members(CHANNEL) == [dock.node_id])
            await until(lambda: all(is_whole([rover, dock])))
            await rover.rotate_identity(timeout_s=PATIENCE_S)
            assert [one.node_id for one in dock.dialing] == [rover.node_id]
            assert rover.roster.members(CHANNEL) == [dock.node_id]
            await until(lambda: dock.revocations_saved)
        async with member(tmp_path / "dock", **settings) as dock:
            await until(lambda: all(is_whole([rover, dock])))
            assert [one.node_id for one in dock.dialing] == [rover.node_id]
            assert list(dock.pins) == [rover.node_id]
            await until(lambda: rover.roster.members(CHANNEL) == [dock.node_id])
            assert (await dock.connect(address, public_key=old_key)).node_id == rover.node_id
            async with dock.subscribe(CHANNEL, publisher=old) as subscription:
                assert subscription.publishers == (rover.node_id,)
        new_key = rover.public_key
    async with member(tmp_path / "rover") as again:
        assert again.public_key == new_key
        assert [one.heir for one in again.revocations] == [new_key]


async def test_a_crash_leaves_one_key_and_the_record_only_with_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever step fails, the next start has one identity, and the record if and only if it has the new one."""
    place = tmp_path / "rover" / "id.toml"
    async with member(tmp_path / "rover") as rover:
        old = rover.public_key
        with monkeypatch.context() as patch:

            def crash(*_: object) -> None:
                raise ConfigError("identity", "killed before the file was replaced")

            patch.setattr(subject, "replace_identity", crash)
            with pytest.raises(ConfigError, match="killed"):
                await rover.rotate_identity()
        assert rover.public_key == old
        assert (load_identity(place).entity_id, load_succession(place)) == (old, None)
        assert rover.revocations == []
        # As if it was killed right after the file was replaced: nothing else was written.
        new = Identity.generate(lambda size: bytes(range(size)))
        record = Revocation.succeed(Identity.from_seed(rover.identity.seed), new, at=1, reason="new key")
    replace_identity(place, new, record)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    async with member(tmp_path / "rover") as again:
        assert again.public_key == new.entity_id
        assert again.revocations == [record]
        await until(lambda: again.revocations_saved)
        async with member(tmp_path / "dock") as dock:
            await again.connect(dock.address, public_key=dock.public_key)
            await until(lambda: dock.revocations == [record])
    assert load_revocations(place.with_name("id.revocations.toml")) == (record,)


def issued(tmp_path: Path, issuer: Identity, name: str) -> dict[str, Any]:
    """Return the settings of a node in a fleet with an issuer."""
    policy = tmp_path / f"{name}.policy.toml"
    policy.write_text("")
    return {"policy_issuers": [issuer.entity_id.hex()], "policy_file": policy}


async def test_an_issuer_signs_where_the_fleet_has_one(tmp_path: Path) -> None:
    issuer = create_identity(tmp_path / "issuer.toml")
    async with AsyncExitStack() as stack:
        rover = await stack.enter_async_context(member(tmp_path / "rover", **issued(tmp_path, issuer, "rover")))
        dock = await stack.enter_async_context(member(tmp_path / "dock", **issued(tmp_path, issuer, "dock")))
        await rover.connect(dock.address, public_key=dock.public_key)
        await until(lambda: all(is_whole([rover, dock])))
        notices, old = watched(rover), rover.public_key
        with pytest.raises(ConfigError, match="--identity"):
            await rover.rotate_identity()
        unsigned = await rover.prepare_identity("leaves the factory", issuer=issuer.entity_id)
        with pytest.raises(ConfigError, match="not signed by its issuer"):
            await rover.rotate_identity(unsigned)
        stale = unsigned.endorse(issuer)
        record = (await rover.prepare_identity("leaves the factory", issuer=issuer.entity_id)).endorse(issuer)
        with pytest.raises(ConfigError, match="not prepared by this node"):
            await rover.rotate_identity(stale)
        assert rover.public_key == old
        await rover.rotate_identity(record, timeout_s=PATIENCE_S)
        assert rover.public_key == record.heir
        await until(lambda: dock.revocations == [record])
        assert sum(isinstance(notice, RotationRefused) for notice in notices) == 3


async def test_a_node_with_the_key_of_an_issuer_signs_for_itself(tmp_path: Path) -> None:
    issuer = create_identity(tmp_path / "issuer.toml")
    settings = {**issued(tmp_path, issuer, "rover"), "issuer_key": tmp_path / "issuer.toml"}
    async with member(tmp_path / "rover", **settings) as rover:
        await rover.rotate_identity()
        assert rover.revocations[0].issuer == issuer.entity_id


async def test_subscriptions_rest_on_tokens_of_the_old_key(tmp_path: Path) -> None:
    issuer = create_identity(tmp_path / "issuer.toml")
    async with AsyncExitStack() as stack:
        rover, dock = await fleet(stack, tmp_path, 2, trusted_issuers=[issuer.entity_id.hex()])
        registry = ChannelConfigRegistry()
        registry.insert(ChannelConfig(name=ChannelName(CHANNEL), require_token=True))
        dock.set_channel_configs(registry)

        def token(node: Node, scope: Scope) -> PermissionToken:
            return PermissionToken.issue(
                issuer, node.public_key, scope, CHANNEL, ttl_s=3600, now=time.time_ns() // 10**9, entropy=os.urandom
            )

        dock.add_token(token(dock, Scope.PUBLISH))
        rover.add_token(token(rover, Scope.SUBSCRIBE))
        publisher = dock.publisher(CHANNEL, reliable=True)
        async with rover.subscribe(CHANNEL) as subscription:
            await rover.rotate_identity(timeout_s=PATIENCE_S)
            assert (await publisher.publish(b"one")).delivered == 1
            async with asyncio.timeout(PATIENCE_S):
                batch = await subscription.next_batch()
            assert batch is not None
            assert list(batch.payloads()) == [b"one"]
        async with rover.subscribe(CHANNEL) as again:  # presented again, by the heir
            assert again.publishers == (dock.node_id,)


async def test_what_ties_a_node_to_its_key_is_refused_with_what_to_do_first(tmp_path: Path) -> None:
    async with member(tmp_path / "off", secure="off") as node:
        with pytest.raises(ConfigError, match="set it to auto"):
            await node.rotate_identity()
    async with member(tmp_path / "renews", renew_tokens_s=60) as node:
        with pytest.raises(ConfigError, match="rotate the key of the issuer first"):
            await node.rotate_identity()
    create_identity(tmp_path / "issuer.toml")
    async with member(tmp_path / "invites", issuer_key=tmp_path / "issuer.toml") as node:
        await node.invite(InviteSpec(name="newcomer"))
        with pytest.raises(ConfigError, match="withdraw them"):
            await node.rotate_identity()
    async with AsyncExitStack() as stack:
        rover, plain = await fleet_of_two(stack, tmp_path)
        key = rover.public_key
        with pytest.raises(ConfigError, match=f"{plain.node_id:016x} cannot follow"):
            await rover.rotate_identity()
        assert rover.public_key == key
        rover.disconnect(plain.node_id)
        await rover.rotate_identity()
        assert rover.public_key != key
        row = read_audit(tmp_path / "rover" / "id.audit").rows[0]
        assert (row.result, row.kind) == ("refused", AuditKind.ROTATION)
        assert "cannot follow" in (row.problem or "")


async def fleet_of_two(stack: AsyncExitStack, tmp_path: Path) -> tuple[Node, Node]:
    """Return a node, and a peer that has no profile, as a net-mesh node."""
    rover = await stack.enter_async_context(member(tmp_path / "rover"))
    plain = await stack.enter_async_context(member(tmp_path / "plain", profile=False))
    await plain.connect(rover.address, public_key=rover.public_key)
    await until(lambda: rover.peers)
    return rover, plain


async def test_peers_that_do_not_answer_are_named_and_nothing_changes(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        rover, dock = await fleet(stack, tmp_path, 2)
        key = rover.public_key
        dock.live.driver.close()  # like a machine that is switched off
        with pytest.raises(Timeout, match=f"{dock.node_id:016x}; nothing was changed"):
            await rover.rotate_identity(timeout_s=0.6)
        assert rover.public_key == key
        assert rover.revocations == []


async def test_a_certificate_of_the_old_key_is_that_of_the_heir(tmp_path: Path) -> None:
    issuer = create_identity(tmp_path / "issuer.toml")
    async with member(tmp_path / "rover") as rover:
        certificate = Certificate(
            issuer=issuer.entity_id,
            subject=rover.public_key,
            serial=1,
            not_before=1,
            not_after=4_000_000_000,
            subnet=SubnetId.GLOBAL,
            name="rover",
            tags=(),
        ).signed_by(issuer)
        save_certificate(tmp_path / "rover" / "rover.cert", certificate)
        await rover.rotate_identity()
        await until(lambda: rover.revocations_saved)
    async with member(tmp_path / "rover", certificate=tmp_path / "rover" / "rover.cert") as again:
        assert again.certificate == certificate
    with pytest.raises(ConfigError, match="is of the key"):
        member(tmp_path / "other", certificate=tmp_path / "rover" / "rover.cert")


async def test_logs_of_both_ends_have_the_same_origin_and_number_for_every_event(tmp_path: Path) -> None:
    """Otherwise tables would have an event twice: once of the publisher's log, once of the subscriber's."""
    async with AsyncExitStack() as stack:
        settings = {"log_dir": tmp_path / "rover" / "logs", "channels": [{"name": CHANNEL, "log": "published"}]}
        rover = await stack.enter_async_context(member(tmp_path / "rover", unlisted_channels="open", **settings))
        settings = {"log_dir": tmp_path / "dock" / "logs", "channels": [{"name": CHANNEL, "log": "received"}]}
        dock = await stack.enter_async_context(member(tmp_path / "dock", unlisted_channels="open", **settings))
        await rover.connect(dock.address, public_key=dock.public_key)
        await until(lambda: all(is_whole([rover, dock])))
        publisher, stop = rover.publisher(CHANNEL, reliable=True), asyncio.Event()
        origin = rover.identity.origin_hash
        subscription = await stack.enter_async_context(dock.subscribe(CHANNEL))
        received = sent = 0

        async def load() -> None:
            nonlocal sent
            while not stop.is_set():
                await publisher.publish_batch([b"%d" % one for one in range(sent, sent + 20)])
                sent += 20
                await asyncio.sleep(0)

        async def read() -> None:
            nonlocal received
            async for _ in subscription:
                received += 1

        async with asyncio.TaskGroup() as tasks:
            reading, loading = tasks.create_task(read()), tasks.create_task(load())
            await until(lambda: received > 200)
            await rover.rotate_identity(timeout_s=PATIENCE_S)
            before = received
            await until(lambda: received > before + 200)
            stop.set()
            await loading
            await until(lambda: received == sent)
            reading.cancel()
    rows = [
        [(event.origin, event.pub_seq) for event in LogReader(tmp_path / place, CHANNEL).snapshot().events()]
        for place in ("rover/logs/published", "dock/logs/received")
    ]
    assert rows[0] == rows[1]
    assert len(rows[0]) == sent
    assert {one for one, _ in rows[0]} == {origin}  # until the next start: numbers count with it


async def test_members_of_replicated_channels_and_hosts_of_daemons_keep_their_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"name": CHANNEL, "replicas": ["rover", "dock", "base"]}
    async with member(tmp_path / "rover", name="rover", log_dir=tmp_path / "logs", channels=[entry]) as rover:
        with pytest.raises(ConfigError, match="meshbus replica remove"):
            await rover.rotate_identity()
    async with member(tmp_path / "host", daemons_dir=tmp_path / "daemons", log_dir=tmp_path / "host" / "logs") as host:
        monkeypatch.setattr(host.daemons, "list", lambda: ["one"])
        with pytest.raises(ConfigError, match="meshbus daemon move"):
            await host.rotate_identity()
        monkeypatch.undo()
        await host.rotate_identity()
