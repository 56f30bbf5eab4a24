"""What real nodes do when a daemon moves among them, without a node of ours: the ground on which test_daemons stands."""

import pytest

from meshbus.testing.realpeer import RealPeerError
from meshbus.wire.messages.migration import BufferedEvents, SnapshotReady, count_chunks
from meshbus.wire.messages.snapshot import decode_snapshot
from tests.interop.daemonlab import SIZES, ask, compute_peer, expect, go, move, spawn, wire
from tests.interop.lab import Lab
from tests.interop.spy import Spy

ENVELOPE_BYTES, SNAPSHOT_BYTES = 209, 94
"""Of a snapshot: what an envelope adds, and everything else but the state (compute.md §2)."""
ARRIVAL = ["T RestoreComplete", "O BufferedEvents", "T ReplayComplete", "O ActivateTarget", "T ActivateAck"]
"""What target and orchestrator say to each other after the snapshot (compute.md §5)."""


def whole(spy: Spy) -> bytes:
    """Put the heard parts of a snapshot together; real nodes may change their order."""
    parts = {message.chunk_index: message.chunk for _, message in spy.heard if isinstance(message, SnapshotReady)}
    return b"".join(parts[index] for index in sorted(parts))


async def test_two_nodes(lab: Lab) -> None:
    source, target = compute_peer(lab), compute_peer(lab)
    spy = await wire(lab, source, target)
    go(source, target)
    for size in SIZES:
        for envelope in (True, False):
            seed, origin = await spawn(source, size)
            await expect(target, seed, origin, envelope=envelope)
            spy.heard.clear()
            await move(source, origin, source.node_id, target.node_id, envelope=envelope)
            raw = whole(spy)
            assert len(raw) == SNAPSHOT_BYTES + size + ENVELOPE_BYTES * envelope
            assert (decode_snapshot(raw).envelope is not None) is envelope
            assert spy.names("O", "T") == [*["O SnapshotReady"] * count_chunks(len(raw)), *ARRIVAL]
            assert [message.events for _, message in spy.heard if isinstance(message, BufferedEvents)] == [()]
            assert await ask(target, "deliver", origin, 7, 2, b"second") == [b"2"]
    assert (await ask(source, "daemon_count"), await ask(target, "daemon_count")) == (0, len(SIZES) * 2)


@pytest.mark.parametrize("sealed", [True, False])
async def test_three_nodes(lab: Lab, sealed: bool) -> None:
    orchestrator, source, target = (compute_peer(lab) for _ in range(3))
    to_source = await wire(lab, orchestrator, source)
    to_target = await wire(lab, orchestrator, target)
    if sealed:
        # A source seals whenever it has called the target itself: TakeSnapshot does not say whether to (compute.md §3).
        await wire(lab, source, target)
    go(orchestrator, source, target)
    for size in SIZES:
        seed, origin = await spawn(source, size)
        await expect(target, seed, origin, envelope=sealed)
        for spy in (to_source, to_target):
            spy.heard.clear()
        await move(orchestrator, origin, source.node_id, target.node_id, envelope=sealed)
        raw = whole(to_source)
        assert (decode_snapshot(raw).envelope is not None) is sealed
        parts = count_chunks(len(raw))
        assert to_source.names("O", "S") == [
            "O TakeSnapshot",
            *["S SnapshotReady"] * parts,
            *("O CutoverNotify", "S CleanupComplete"),
        ]
        assert to_target.names("O", "T") == [*["O SnapshotReady"] * parts, *ARRIVAL]
        assert whole(to_target) == raw
        assert await ask(target, "deliver", origin, 7, 2, b"second") == [b"2"]


async def test_failures(lab: Lab) -> None:
    source, target = compute_peer(lab), compute_peer(lab)
    spy = await wire(lab, source, target)
    go(source, target)

    async def fails(kind: str, target_kind: str, text: str, *, expected: bool = True) -> list[str]:
        seed, origin = await spawn(source, 8, kind)
        if expected:
            await expect(target, seed, origin, envelope=False, kind=target_kind)
        spy.heard.clear()
        with pytest.raises(RealPeerError, match=text):
            await move(source, origin, source.node_id, target.node_id, envelope=False)
        return spy.names("S", "T")

    assert await fails("stateless", "stateless", "state-failed") == []
    refused = ["S SnapshotReady", "T MigrationFailed"]
    assert await fails("counter", "counter", "factory-not-found", expected=False) == refused
    assert await fails("counter", "refusing", "state-failed") == refused
    assert (await ask(source, "daemon_count"), await ask(target, "daemon_count")) == (3, 0)
