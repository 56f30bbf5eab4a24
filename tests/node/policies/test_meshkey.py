"""The mesh key of running nodes is replaced under load: no session ends, nothing is lost, and the old key is refused."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from meshbus.engine.base.notices import PeerGone
from meshbus.errors import ConfigError, HandshakeError
from meshbus.keyfile import MeshKey, create_next_psk, create_psk, format_mesh_key, load_mesh_key, replace_file
from meshbus.node.audit import AuditKind, read_audit
from meshbus.node.node import Node
from meshbus.node.peers.noticelog import Notice, RotationRefused, SecretRotated
from meshbus.node.policies.keeper import Via
from meshbus.policy.reason import Reason
from tests.patience import PATIENCE_S

FAR = 4_000_000_000
"""The end of a window that lasts as long as any test."""
FLEET = 5
CHANNEL = "fleet/poses"


def opened(folder: Path, **settings: Any) -> Node:
    folder.mkdir(exist_ok=True)
    given = {"identity": folder / "id.toml", "psk_file": folder / "mesh.key", **settings}
    return Node.open(bind="127.0.0.1:0", handshake_timeout_s=0.5, **given)


def member(folder: Path, key: MeshKey, **settings: Any) -> Node:
    folder.mkdir()
    replace_file(folder / "mesh.key", format_mesh_key(key), "psk")
    return opened(folder, **settings)


async def until(holds: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - other nodes decide it
            await asyncio.sleep(0.02)


def watched(node: Node) -> list[Notice]:
    found: list[Notice] = []
    node.watch(found.append)
    return found


def sessions(nodes: list[Node]) -> set[tuple[int, int, int]]:
    return {(node.node_id, peer.node_id, peer.link.session_id) for node in nodes for peer in node.live.engine.peers}


def all_secure(nodes: list[Node]) -> bool:
    peers = [peer for node in nodes for peer in node.live.engine.peers]
    return len(peers) == FLEET * (FLEET - 1) and all(peer.link.epoch for peer in peers)


async def test_a_fleet_of_five_changes_its_mesh_key_under_load(tmp_path: Path) -> None:
    create_psk(tmp_path / "first.key")
    first = load_mesh_key(tmp_path / "first.key")
    second = create_next_psk(tmp_path / "second.key", first, FAR)
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(member(tmp_path / str(n), first)) for n in range(FLEET)]
        for number, node in enumerate(nodes):
            for other in nodes[:number]:
                await node.connect(other.address, public_key=other.public_key)
        await until(lambda: all_secure(nodes))
        publisher = nodes[0].publisher(CHANNEL, reliable=True)
        notices = [watched(node) for node in nodes]
        received: list[list[bytes]] = [[] for _ in nodes]

        async def read(number: int) -> None:
            async for event in subscriptions[number - 1]:
                received[number].append(event.payload)

        subscriptions = [
            await stack.enter_async_context(node.subscribe(CHANNEL, publisher=nodes[0].node_id)) for node in nodes[1:]
        ]
        sent: list[bytes] = []
        stop = asyncio.Event()

        async def load() -> None:
            while not stop.is_set():
                batch = [b"%08d" % number for number in range(len(sent), len(sent) + 50)]
                await publisher.publish_batch(batch)
                sent.extend(batch)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(read(number)) for number in range(1, FLEET)]
            loading = tasks.create_task(load())
            before = sessions(nodes)
            for number, node in enumerate(nodes):
                await until(lambda seen=number: len(received[1]) > 500 * (seen + 1))
                await node.rotate_psk(tmp_path / "second.key", by="test")
            keyed = [peer for node in nodes for peer in node.live.engine.peers]
            await until(lambda: all(peer.link.mesh_key == second.key for peer in keyed))
            # The end of the window, as an operator brings it forward when every node has the key.
            ended = MeshKey(second.key, second.root)
            for number, node in enumerate(nodes):
                replace_file(tmp_path / str(number) / "mesh.key", format_mesh_key(ended), "psk")
                await node.rotate_psk(via=Via.SIGHUP)
            await until(lambda: len(received[1]) > 500 * (FLEET + 2))
            stop.set()
            await loading
            await until(lambda: all(len(events) == len(sent) for events in received[1:]))
            for reader in readers:
                reader.cancel()
        assert all(events == sent for events in received[1:])
        assert sessions(nodes) == before
        assert not any(isinstance(notice, PeerGone) for found in notices for notice in found)
        rows = read_audit(tmp_path / "3" / "id.audit").rows
        assert (rows[0].kind, rows[0].result, rows[0].by) == (AuditKind.ROTATION, "applied", "test")
        assert len(rows) == 2
        stranger = await stack.enter_async_context(member(tmp_path / "stranger", first, handshake_attempts=1))
        with pytest.raises(HandshakeError):
            await stranger.connect(nodes[0].address, public_key=nodes[0].public_key)
        assert nodes[0].live.engine.counters.get(*Reason.HANDSHAKE_RETIRED_KEY.counter) >= 1


async def test_what_does_not_follow_from_the_key_in_force_is_refused_with_a_reason_and_a_row(tmp_path: Path) -> None:
    create_psk(tmp_path / "first.key")
    create_psk(tmp_path / "foreign.key")
    first = load_mesh_key(tmp_path / "first.key")
    second = create_next_psk(tmp_path / "second.key", first, FAR)
    create_next_psk(tmp_path / "third.key", second, FAR)
    create_next_psk(tmp_path / "late.key", first, 1000)
    other = MeshKey(second.key, second.root, bytes(32), FAR)
    replace_file(tmp_path / "other.key", format_mesh_key(other), "psk")
    async with member(tmp_path / "a", first) as node:
        notices = watched(node)
        for name, complaint in (
            ("foreign", "belongs to another mesh"),
            ("third", "does not name the key in force as its previous one"),
            ("late", "accepts the previous key only until 1970-01-01 00:16:40 UTC, which is over"),
            ("none", "the file does not exist"),
        ):
            with pytest.raises(ConfigError, match=complaint):
                await node.rotate_psk(tmp_path / f"{name}.key", by="test")
        assert load_mesh_key(tmp_path / "a" / "mesh.key") == first
        assert await node.rotate_psk() == ()
        await node.rotate_psk(tmp_path / "second.key")
        with pytest.raises(ConfigError, match="names another previous key than the one that was replaced here"):
            await node.rotate_psk(tmp_path / "other.key")
        assert [type(notice) for notice in notices if isinstance(notice, (SecretRotated, RotationRefused))] == [
            *[RotationRefused] * 4, SecretRotated, RotationRefused,
        ]  # fmt: skip
        results = [row.result for row in read_audit(tmp_path / "a" / "id.audit").rows]
        assert results == [*["refused"] * 4, "applied", "refused"]
    async with opened(tmp_path / "a") as again:
        assert again.live.engine.mesh_keys.current == second.key
        assert again.live.engine.mesh_keys.previous is not None


async def test_a_node_without_a_key_file_or_an_audit_log_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create_psk(tmp_path / "first.key")
    create_next_psk(tmp_path / "second.key", load_mesh_key(tmp_path / "first.key"), FAR)
    psk = load_mesh_key(tmp_path / "first.key").key
    async with Node.open(psk=psk, ephemeral=True) as node:
        with pytest.raises(ConfigError, match="move the key to a file, set psk_file to it, and restart the node"):
            await node.rotate_psk(tmp_path / "second.key")
        assert "is not in the audit log" in caplog.text


async def test_what_is_named_after_the_mesh_key_keeps_its_name(tmp_path: Path) -> None:
    create_psk(tmp_path / "first.key")
    first = load_mesh_key(tmp_path / "first.key")
    second = create_next_psk(tmp_path / "second.key", first, FAR)
    async with member(tmp_path / "a", first) as before, member(tmp_path / "b", second) as after:
        assert before._mesh_key.root == after._mesh_key.root == first.key
