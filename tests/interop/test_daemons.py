"""Moves of daemons between real nodes and ours: each role, two and three parties, small and large states."""

from pathlib import Path

import pytest

from meshbus.wire.messages.snapshot import decode_snapshot
from tests.interop.daemonlab import SIZES, ask, compute_peer, expect, go, move, spawn, wire
from tests.interop.lab import Lab
from tests.interop.nodedaemons import NodeDaemons
from tests.interop.test_daemons_reference import ARRIVAL, whole

DEPARTURE = ["O TakeSnapshot", "S SnapshotReady", "O CutoverNotify", "S CleanupComplete"]
"""What orchestrator and source say to each other (compute.md §5)."""


@pytest.mark.parametrize("sealed", [True, False])
async def test_ours_is_source_and_orchestrator(lab: Lab, tmp_path: Path, sealed: bool) -> None:
    ours, target = await NodeDaemons.open(lab, tmp_path), compute_peer(lab)
    # Who begins the session knows the key of the other one.
    spy = await (wire(lab, ours.node, target) if sealed else wire(lab, target, ours.node))
    go(target)
    for size in SIZES:
        seed, origin = await ours.spawn(size)
        await expect(target, seed, origin, envelope=sealed)
        spy.heard.clear()
        await ours.move(origin, ours.node.node_id, target.node_id)
        raw = whole(spy)
        assert (decode_snapshot(raw).envelope is not None) is sealed
        assert spy.order(*(("O", "T") if sealed else ("T", "O"))) == ["O SnapshotReady", *ARRIVAL]
        assert not ours.runs(origin)
        assert await ask(target, "deliver", origin, 7, 2, b"second") == [b"2"]


@pytest.mark.parametrize("sealed", [True, False])
async def test_ours_is_target(lab: Lab, tmp_path: Path, sealed: bool) -> None:
    ours, source = await NodeDaemons.open(lab, tmp_path), compute_peer(lab)
    spy = await (wire(lab, source, ours.node) if sealed else wire(lab, ours.node, source))
    go(source)
    for size in SIZES:
        seed, origin = await spawn(source, size)
        await ours.expect(seed, origin)
        spy.heard.clear()
        await move(source, origin, source.node_id, ours.node.node_id, envelope=sealed)
        raw = whole(spy)
        assert (decode_snapshot(raw).envelope is not None) is sealed
        assert spy.order(*(("O", "T") if sealed else ("T", "O"))) == ["O SnapshotReady", *ARRIVAL]
        await ours.started(origin)
        assert await ours.deliver(origin, 2) == [b"2"]
    assert await ask(source, "daemon_count") == 0


@pytest.mark.parametrize("sealed", [True, False])
async def test_ours_is_orchestrator(lab: Lab, tmp_path: Path, sealed: bool) -> None:
    ours, source, target = await NodeDaemons.open(lab, tmp_path), compute_peer(lab), compute_peer(lab)
    to_source, to_target = await wire(lab, ours.node, source), await wire(lab, ours.node, target)
    if sealed:
        await wire(lab, source, target)
    go(source, target)
    for size in SIZES:
        seed, origin = await spawn(source, size)
        await expect(target, seed, origin, envelope=sealed)
        for spy in (to_source, to_target):
            spy.heard.clear()
        await ours.move(origin, source.node_id, target.node_id)
        raw = whole(to_source)
        assert (decode_snapshot(raw).envelope is not None) is sealed
        assert to_source.order("O", "S") == DEPARTURE
        assert to_target.order("O", "T") == ["O SnapshotReady", *ARRIVAL]
        assert await ask(target, "deliver", origin, 7, 2, b"second") == [b"2"]
        assert await ask(source, "daemon_count") == 0


@pytest.mark.parametrize("sealed", [True, False])
async def test_ours_is_orchestrator_and_target(lab: Lab, tmp_path: Path, sealed: bool) -> None:
    ours, source = await NodeDaemons.open(lab, tmp_path), compute_peer(lab)
    spy = await (wire(lab, source, ours.node) if sealed else wire(lab, ours.node, source))
    go(source)
    for size in SIZES:
        seed, origin = await spawn(source, size)
        await ours.expect(seed, origin)
        spy.heard.clear()
        await ours.move(origin, source.node_id, ours.node.node_id)
        raw = whole(spy)
        assert (decode_snapshot(raw).envelope is not None) is sealed
        assert spy.order(*(("S", "O") if sealed else ("O", "S"))) == DEPARTURE
        assert await ours.deliver(origin, 2) == [b"2"]


@pytest.mark.parametrize("sealed", [True, False])
async def test_a_real_node_moves_a_daemon_from_ours_to_a_real_one(lab: Lab, tmp_path: Path, sealed: bool) -> None:
    ours, orchestrator, target = await NodeDaemons.open(lab, tmp_path), compute_peer(lab), compute_peer(lab)
    to_source, to_target = await wire(lab, orchestrator, ours.node), await wire(lab, orchestrator, target)
    if sealed:
        await wire(lab, ours.node, target)
    go(orchestrator, target)
    for size in SIZES:
        seed, origin = await ours.spawn(size)
        await expect(target, seed, origin, envelope=sealed)
        for spy in (to_source, to_target):
            spy.heard.clear()
        await move(orchestrator, origin, ours.node.node_id, target.node_id, envelope=sealed)
        raw = whole(to_source)
        assert (decode_snapshot(raw).envelope is not None) is sealed
        assert to_source.order("O", "S") == DEPARTURE
        assert to_target.order("O", "T") == ["O SnapshotReady", *ARRIVAL]
        assert not ours.runs(origin)
        assert await ask(target, "deliver", origin, 7, 2, b"second") == [b"2"]


@pytest.mark.parametrize("sealed", [True, False])
async def test_a_real_node_moves_a_daemon_from_a_real_one_to_ours(lab: Lab, tmp_path: Path, sealed: bool) -> None:
    ours, orchestrator, source = await NodeDaemons.open(lab, tmp_path), compute_peer(lab), compute_peer(lab)
    to_source, to_target = await wire(lab, orchestrator, source), await wire(lab, orchestrator, ours.node)
    if sealed:
        await wire(lab, source, ours.node)
    go(orchestrator, source)
    for size in SIZES:
        seed, origin = await spawn(source, size)
        await ours.expect(seed, origin)
        for spy in (to_source, to_target):
            spy.heard.clear()
        await move(orchestrator, origin, source.node_id, ours.node.node_id, envelope=sealed)
        raw = whole(to_target)
        assert (decode_snapshot(raw).envelope is not None) is sealed
        assert to_source.order("O", "S") == DEPARTURE
        assert to_target.order("O", "T") == ["O SnapshotReady", *ARRIVAL]
        await ours.started(origin)
        assert await ours.deliver(origin, 2) == [b"2"]
        assert await ask(source, "daemon_count") == 0
