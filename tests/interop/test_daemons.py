"""Moves of daemons between real nodes and ours: each role, two and three parties, small and large states."""

import pytest

from meshbus.wire.messages.migration import count_chunks
from meshbus.wire.messages.snapshot import decode_snapshot
from tests.interop.daemonlab import SIZES, ask, compute_peer, expect, go, move, spawn, wire
from tests.interop.lab import Lab
from tests.interop.ourdaemons import OurDaemons, carrying_node
from tests.interop.test_daemons_reference import ARRIVAL, whole


@pytest.mark.parametrize("sealed", [True, False])
async def test_ours_is_source_and_orchestrator(lab: Lab, sealed: bool) -> None:
    ours, target = OurDaemons(await carrying_node(lab)), compute_peer(lab)
    spy = await wire(lab, ours.node, target)
    if sealed:
        ours.keys[target.node_id] = target.public_key
    go(target)
    for size in SIZES:
        seed, origin = ours.spawn(size)
        await expect(target, seed, origin, envelope=sealed)
        spy.heard.clear()
        ended = await ours.move(origin, ours.node.node_id, target.node_id)
        assert ended.error is None
        raw = whole(spy)
        assert (decode_snapshot(raw).envelope is not None) is sealed
        assert spy.names("O", "T") == [*["O SnapshotReady"] * count_chunks(len(raw)), *ARRIVAL]
        assert origin not in ours.registry
        assert await ask(target, "deliver", origin, 7, 2, b"second") == [b"2"]


@pytest.mark.parametrize("sealed", [True, False])
async def test_ours_is_target(lab: Lab, sealed: bool) -> None:
    ours, source = OurDaemons(await carrying_node(lab)), compute_peer(lab)
    # Who begins the session knows the key of the other one.
    spy = await (wire(lab, source, ours.node) if sealed else wire(lab, ours.node, source))
    go(source)
    for size in SIZES:
        seed, origin = await spawn(source, size)
        ours.expect(seed, origin, envelope=sealed)
        spy.heard.clear()
        await move(source, origin, source.node_id, ours.node.node_id, envelope=sealed)
        raw = whole(spy)
        assert (decode_snapshot(raw).envelope is not None) is sealed
        parts = ["O SnapshotReady"] * count_chunks(len(raw))
        assert spy.names(*("OT" if sealed else "TO")) == [*parts, *ARRIVAL]
        await ours.runs(origin)
        assert ours.deliver(origin, 2) == [b"2"]
    assert await ask(source, "daemon_count") == 0


@pytest.mark.parametrize("sealed", [True, False])
async def test_ours_is_orchestrator(lab: Lab, sealed: bool) -> None:
    ours, source, target = OurDaemons(await carrying_node(lab)), compute_peer(lab), compute_peer(lab)
    to_source, to_target = await wire(lab, ours.node, source), await wire(lab, ours.node, target)
    if sealed:
        await wire(lab, source, target)
    go(source, target)
    for size in SIZES:
        seed, origin = await spawn(source, size)
        await expect(target, seed, origin, envelope=sealed)
        for spy in (to_source, to_target):
            spy.heard.clear()
        ended = await ours.move(origin, source.node_id, target.node_id)
        assert ended.error is None
        raw = whole(to_source)
        assert (decode_snapshot(raw).envelope is not None) is sealed
        parts = count_chunks(len(raw))
        assert to_source.names("O", "S") == [
            "O TakeSnapshot",
            *["S SnapshotReady"] * parts,
            *("O CutoverNotify", "S CleanupComplete"),
        ]
        assert to_target.names("O", "T") == [*["O SnapshotReady"] * parts, *ARRIVAL]
        assert await ask(target, "deliver", origin, 7, 2, b"second") == [b"2"]
        assert await ask(source, "daemon_count") == 0


@pytest.mark.parametrize("sealed", [True, False])
async def test_ours_is_orchestrator_and_target(lab: Lab, sealed: bool) -> None:
    ours, source = OurDaemons(await carrying_node(lab)), compute_peer(lab)
    spy = await (wire(lab, source, ours.node) if sealed else wire(lab, ours.node, source))
    go(source)
    for size in SIZES:
        seed, origin = await spawn(source, size)
        ours.expect(seed, origin, envelope=sealed)
        spy.heard.clear()
        ended = await ours.move(origin, source.node_id, ours.node.node_id)
        assert ended.error is None
        raw = whole(spy)
        assert (decode_snapshot(raw).envelope is not None) is sealed
        assert spy.names(*("SO" if sealed else "OS")) == [
            "O TakeSnapshot",
            *["S SnapshotReady"] * count_chunks(len(raw)),
            *("O CutoverNotify", "S CleanupComplete"),
        ]
        assert ours.deliver(origin, 2) == [b"2"]


@pytest.mark.parametrize("sealed", [True, False])
async def test_a_real_node_moves_a_daemon_from_ours_to_a_real_one(lab: Lab, sealed: bool) -> None:
    ours, orchestrator, target = OurDaemons(await carrying_node(lab)), compute_peer(lab), compute_peer(lab)
    to_source, to_target = await wire(lab, orchestrator, ours.node), await wire(lab, orchestrator, target)
    if sealed:
        await wire(lab, ours.node, target)
        ours.keys[target.node_id] = target.public_key
    go(orchestrator, target)
    for size in SIZES:
        seed, origin = ours.spawn(size)
        await expect(target, seed, origin, envelope=sealed)
        for spy in (to_source, to_target):
            spy.heard.clear()
        await move(orchestrator, origin, ours.node.node_id, target.node_id, envelope=sealed)
        raw = whole(to_source)
        assert (decode_snapshot(raw).envelope is not None) is sealed
        parts = count_chunks(len(raw))
        assert to_source.names("O", "S") == [
            "O TakeSnapshot",
            *["S SnapshotReady"] * parts,
            *("O CutoverNotify", "S CleanupComplete"),
        ]
        assert to_target.names("O", "T") == [*["O SnapshotReady"] * parts, *ARRIVAL]
        assert origin not in ours.registry
        assert await ask(target, "deliver", origin, 7, 2, b"second") == [b"2"]


@pytest.mark.parametrize("sealed", [True, False])
async def test_a_real_node_moves_a_daemon_from_a_real_one_to_ours(lab: Lab, sealed: bool) -> None:
    ours, orchestrator, source = OurDaemons(await carrying_node(lab)), compute_peer(lab), compute_peer(lab)
    to_source, to_target = await wire(lab, orchestrator, source), await wire(lab, orchestrator, ours.node)
    if sealed:
        await wire(lab, source, ours.node)
    go(orchestrator, source)
    for size in SIZES:
        seed, origin = await spawn(source, size)
        ours.expect(seed, origin, envelope=sealed)
        for spy in (to_source, to_target):
            spy.heard.clear()
        await move(orchestrator, origin, source.node_id, ours.node.node_id, envelope=sealed)
        raw = whole(to_target)
        assert (decode_snapshot(raw).envelope is not None) is sealed
        parts = ["O SnapshotReady"] * count_chunks(len(raw))
        assert to_target.names("O", "T") == [*parts, *ARRIVAL]
        await ours.runs(origin)
        assert ours.deliver(origin, 2) == [b"2"]
        assert await ask(source, "daemon_count") == 0
