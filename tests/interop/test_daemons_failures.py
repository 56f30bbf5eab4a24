"""Moves between real nodes and ours that go wrong: in each phase a message that is lost, and a party that refuses or dies.

Wherever the daemon is afterwards, it is at one node, and it has lost nothing. A 0.23 node repeats nothing, and forgets
its half of a move without a word when its own wait ends (compute.md §7): where that decides, the test says so.
"""

import asyncio

import pytest

from meshbus.compute.migration.base import Phase
from meshbus.errors import MigrationError, MigrationFault
from meshbus.testing.realpeer import RealPeer, RealPeerError
from meshbus.wire.messages.causal import CausalLink
from meshbus.wire.messages.migration import (
    ActivateAck,
    ActivateTarget,
    BufferedEvents,
    CleanupComplete,
    CutoverNotify,
    MigrationFailed,
    MigrationMessage,
    ReplayComplete,
    RestoreComplete,
    SnapshotReady,
    TakeSnapshot,
)
from tests.interop.daemonlab import ask, compute_peer, expect, go, move, spawn, wire
from tests.interop.lab import Lab, eventually, eventually_there
from tests.interop.ourdaemons import OurDaemons, carrying_node
from tests.interop.spy import Spy

LARGE = 20_000


def lose(spy: Spy, kind: type[MigrationMessage], count: int = 1) -> None:
    """Hold back the next messages of a kind."""
    left = count

    def drops(_sender: int, message: MigrationMessage) -> bool:
        nonlocal left
        dropped = isinstance(message, kind) and left > 0
        left -= dropped
        return dropped

    spy.drops = drops


def heard(spy: Spy, kind: type[MigrationMessage]) -> bool:
    """Return whether a message of a kind was sent."""
    return any(isinstance(message, kind) for _, message in spy.heard)


async def count_at(peer: RealPeer, count: int) -> None:
    """Wait until a real node has so many daemons."""
    await eventually_there(peer.call, "daemon_count", gives=lambda found: found == count)


class Pair:
    """Our node and a real one."""

    def __init__(self, ours: OurDaemons, peer: RealPeer, spy: Spy) -> None:
        self.ours, self.peer, self.spy = ours, peer, spy

    @classmethod
    async def join(cls, lab: Lab, *, daemons: bool = True) -> "Pair":
        ours, peer = OurDaemons(await carrying_node(lab)), compute_peer(lab)
        spy = await wire(lab, ours.node, peer)
        if daemons:
            go(peer)
        else:
            peer.start()
        return cls(ours, peer, spy)

    async def leave(self, origin: int) -> MigrationError | None:
        """Move a daemon from our node to the real one."""
        ended = await self.ours.move(origin, self.ours.node.node_id, self.peer.node_id)
        return ended.error

    async def come(self, origin: int, seconds: float = 1.0) -> None:
        """Move a daemon from the real node to ours; the real one drives."""
        ids = self.peer.node_id, self.ours.node.node_id
        await move(self.peer, origin, *ids, envelope=False, seconds=seconds)


# ── our node is source and orchestrator ─────────────────────────────────────────────────────


async def test_ours_repeats_what_was_lost_on_the_way_to_a_real_target(lab: Lab) -> None:
    pair = await Pair.join(lab)
    for kind in (SnapshotReady, RestoreComplete, BufferedEvents, ReplayComplete, ActivateTarget, ActivateAck):
        seed, origin = pair.ours.spawn(LARGE)
        await expect(pair.peer, seed, origin, envelope=False)
        lose(pair.spy, kind)
        assert await pair.leave(origin) is None, kind
        assert origin not in pair.ours.registry
        assert await ask(pair.peer, "deliver", origin, 7, 2, b"second") == [b"2"]


async def test_events_that_came_during_a_move_are_replayed_at_a_real_target(lab: Lab) -> None:
    pair = await Pair.join(lab)
    seed, origin = pair.ours.spawn(8)
    await expect(pair.peer, seed, origin, envelope=False)
    lose(pair.spy, ReplayComplete)
    pair.ours.begin(origin, pair.ours.node.node_id, pair.peer.node_id)
    for sequence in range(2, 12):
        assert pair.ours.deliver(origin, sequence) == []
    assert (await pair.ours.ended(origin)).error is None
    assert await ask(pair.peer, "deliver", origin, 7, 12, b"next") == [b"12"]


async def test_a_real_target_refuses(lab: Lab) -> None:
    pair = await Pair.join(lab)
    seed, origin = pair.ours.spawn(8)
    error = await pair.leave(origin)
    assert error is not None
    assert error.fault == MigrationFault.FACTORY_NOT_FOUND
    await expect(pair.peer, seed, origin, envelope=False, kind="refusing")
    error = await pair.leave(origin)
    assert error is not None
    assert error.fault == MigrationFault.STATE_FAILED
    assert await ask(pair.peer, "daemon_count") == 0
    assert pair.ours.deliver(origin, 2) == [b"2"]


async def test_a_real_target_runs_no_daemons(lab: Lab) -> None:
    pair = await Pair.join(lab, daemons=False)
    _, origin = pair.ours.spawn(8)
    error = await pair.leave(origin)
    assert error is not None
    assert error.fault == MigrationFault.COMPUTE_NOT_SUPPORTED
    assert pair.ours.deliver(origin, 2) == [b"2"]


async def test_a_daemon_without_state_does_not_leave(lab: Lab) -> None:
    pair = await Pair.join(lab)
    _, origin = pair.ours.spawn(8, "stateless")
    with pytest.raises(MigrationError, match="returned None"):
        pair.ours.begin(origin, pair.ours.node.node_id, pair.peer.node_id)
    assert pair.spy.heard == []
    assert pair.ours.deliver(origin, 2) == [b"2"]


async def test_a_daemon_that_fails_in_the_replay_goes_on_here(lab: Lab) -> None:
    """The real target does not say that an event failed (compute.md §6), so our node waits, and takes the move back."""
    pair = await Pair.join(lab)
    seed, origin = pair.ours.spawn(8)
    await expect(pair.peer, seed, origin, envelope=False, kind="failing")
    pair.ours.begin(origin, pair.ours.node.node_id, pair.peer.node_id)
    assert pair.ours.deliver(origin, 2) == []
    assert (await pair.ours.ended(origin)).error is not None
    await count_at(pair.peer, 0)
    assert pair.ours.deliver(origin, 3) == [b"3"]


@pytest.mark.parametrize("kind", [RestoreComplete, ReplayComplete])
async def test_a_real_target_dies(lab: Lab, kind: type[MigrationMessage]) -> None:
    pair = await Pair.join(lab)
    seed, origin = pair.ours.spawn(8)
    await expect(pair.peer, seed, origin, envelope=False)
    lose(pair.spy, kind, 1000)
    pair.ours.begin(origin, pair.ours.node.node_id, pair.peer.node_id)
    await eventually(lambda: heard(pair.spy, kind), "the answer that is lost")
    pair.peer.kill()
    assert (await pair.ours.ended(origin)).error is not None
    assert pair.ours.deliver(origin, 2) == [b"2"]


async def test_ours_cancels(lab: Lab) -> None:
    pair = await Pair.join(lab)
    seed, origin = pair.ours.spawn(8)
    await expect(pair.peer, seed, origin, envelope=False)
    lose(pair.spy, ReplayComplete, 1000)
    pair.ours.begin(origin, pair.ours.node.node_id, pair.peer.node_id)
    await count_at(pair.peer, 1)
    pair.ours.cancel(origin)
    error = (await pair.ours.ended(origin)).error
    assert error is not None
    assert error.fault == MigrationFault.CANCELED
    await count_at(pair.peer, 0)
    assert pair.ours.deliver(origin, 2) == [b"2"]


# ── our node is target, a real one drives ───────────────────────────────────────────────────


async def test_ours_refuses(lab: Lab) -> None:
    pair = await Pair.join(lab)
    seed, origin = await spawn(pair.peer, 8)
    with pytest.raises(RealPeerError, match="factory-not-found"):
        await pair.come(origin)
    pair.ours.expect(seed, origin, envelope=False, kind="refusing")
    with pytest.raises(RealPeerError, match="refused 8 bytes"):
        await pair.come(origin)
    _, other = await spawn(pair.peer, 8)
    pair.ours.expect(seed, other, envelope=True)
    with pytest.raises(RealPeerError, match="no identity envelope"):
        await pair.come(other)
    for one in (origin, other):
        assert await ask(pair.peer, "deliver", one, 7, 2, b"second") == [b"2"]


async def test_a_real_orchestrator_tries_again_after_its_time_is_up(lab: Lab) -> None:
    """It says nothing when it gives up, and its daemon goes on: the second snapshot counts.

    Our target does not repeat its answers to it: a ReplayComplete that comes after its second attempt has begun makes it
    stop the daemon at once (test_a_real_orchestrator_believes_a_late_answer).
    """
    pair = await Pair.join(lab)
    for kind in (SnapshotReady, RestoreComplete, BufferedEvents, ReplayComplete):
        seed, origin = await spawn(pair.peer, LARGE)
        pair.ours.expect(seed, origin, envelope=False)
        lose(pair.spy, kind)
        with pytest.raises(RealPeerError, match="timed out"):
            await pair.come(origin, seconds=0.3)
        assert origin not in pair.ours.registry
        assert await ask(pair.peer, "deliver", origin, 7, 2, b"second") == [b"2"]
        await pair.come(origin)
        await pair.ours.runs(origin)
        assert pair.ours.deliver(origin, 3) == [b"3"], kind
    assert await ask(pair.peer, "daemon_count") == 0


async def test_a_real_orchestrator_believes_a_late_answer(lab: Lab) -> None:
    pair = await Pair.join(lab)
    _, origin = await spawn(pair.peer, 8)
    lose(pair.spy, SnapshotReady)
    moving = pair.peer.begin("move", origin, pair.peer.node_id, pair.ours.node.node_id, envelope=False, seconds=0.5)
    await eventually(lambda: heard(pair.spy, SnapshotReady), "the snapshot")
    pair.ours.say(pair.peer.node_id, ReplayComplete(origin=origin, replayed_seq=1, target_head=CausalLink(origin)))
    await eventually(lambda: heard(pair.spy, ActivateTarget), "the end of the move, which has not begun here")
    assert await ask(pair.peer, "daemon_count") == 0
    with pytest.raises(RealPeerError, match="timed out"):
        await asyncio.wrap_future(moving)


async def test_the_word_to_begin_is_lost(lab: Lab) -> None:
    """The real source has stopped, and says it no second time: the copy here is kept, and does not begin by itself."""
    pair = await Pair.join(lab)
    seed, origin = await spawn(pair.peer, 8)
    pair.ours.expect(seed, origin, envelope=False)
    lose(pair.spy, ActivateTarget)
    await pair.come(origin, seconds=0.3)  # complete, as far as a real orchestrator is concerned
    pair.ours.tick(after_s=100.0)
    assert pair.ours.phase(origin) is Phase.REPLAY
    assert origin not in pair.ours.registry
    assert await ask(pair.peer, "daemon_count") == 0


async def test_the_confirmation_that_it_runs_here_is_lost(lab: Lab) -> None:
    pair = await Pair.join(lab)
    seed, origin = await spawn(pair.peer, 8)
    pair.ours.expect(seed, origin, envelope=False)
    lose(pair.spy, ActivateAck)
    await pair.come(origin, seconds=0.3)  # complete, as far as a real orchestrator is concerned
    assert pair.ours.deliver(origin, 2) == [b"2"]
    assert await ask(pair.peer, "daemon_count") == 0


async def test_a_real_orchestrator_cancels(lab: Lab) -> None:
    pair = await Pair.join(lab)
    seed, origin = await spawn(pair.peer, 8)
    pair.ours.expect(seed, origin, envelope=False)
    lose(pair.spy, ReplayComplete, 1000)
    moving = pair.peer.begin("move", origin, pair.peer.node_id, pair.ours.node.node_id, envelope=False, seconds=20.0)
    await eventually(lambda: pair.ours.phase(origin) is Phase.REPLAY, "the replay here")
    await ask(pair.peer, "cancel", origin)
    # A move that is gone counts as a success there (compute.md §7).
    await asyncio.wrap_future(moving)
    await eventually(lambda: pair.ours.phase(origin) is None, "the move to be forgotten")
    assert origin not in pair.ours.registry
    assert await ask(pair.peer, "deliver", origin, 7, 2, b"second") == [b"2"]


# ── our node drives two real ones ───────────────────────────────────────────────────────────


class Trio:
    """Our node, which drives, and two real ones."""

    def __init__(self, ours: OurDaemons, source: RealPeer, target: RealPeer) -> None:
        self.ours, self.source, self.target = ours, source, target
        self.spies: list[Spy] = []

    @classmethod
    async def join(cls, lab: Lab) -> "Trio":
        trio = cls(OurDaemons(await carrying_node(lab)), compute_peer(lab), compute_peer(lab))
        trio.spies = [await wire(lab, trio.ours.node, peer) for peer in (trio.source, trio.target)]
        go(trio.source, trio.target)
        return trio

    async def move(self, origin: int) -> MigrationError | None:
        """Move a daemon from the one to the other."""
        ended = await self.ours.move(origin, self.source.node_id, self.target.node_id)
        return ended.error


async def test_ours_drives_two_real_nodes_and_a_message_is_lost(lab: Lab) -> None:
    """A real source ignores a second TakeSnapshot (compute.md §7), so a lost part of the snapshot ends the move."""
    trio = await Trio.join(lab)
    stay = (TakeSnapshot, SnapshotReady, RestoreComplete)
    at = {trio.source: 0, trio.target: 0}
    for kind in (*stay, BufferedEvents, ReplayComplete, CutoverNotify, CleanupComplete, ActivateTarget, ActivateAck):
        seed, origin = await spawn(trio.source, 8)
        await expect(trio.target, seed, origin, envelope=False)
        for spy in trio.spies:
            lose(spy, kind)
        error = await trio.move(origin)
        assert (error is not None) is (kind in stay), kind
        there = trio.source if kind in stay else trio.target
        assert await ask(there, "deliver", origin, 7, 2, b"second") == [b"2"]
        at[there] += 1
        for peer, count in at.items():
            await count_at(peer, count)


async def test_real_nodes_refuse_what_ours_drives(lab: Lab) -> None:
    trio = await Trio.join(lab)
    seed, origin = await spawn(trio.source, 8)
    error = await trio.move(origin)
    assert error is not None
    assert error.fault == MigrationFault.FACTORY_NOT_FOUND
    await expect(trio.target, seed, origin, envelope=False, kind="refusing")
    error = await trio.move(origin)
    assert error is not None
    assert error.fault == MigrationFault.STATE_FAILED
    assert heard(trio.spies[0], MigrationFailed), "the source must hear that the move is over"
    _, stateless = await spawn(trio.source, 8, "stateless")
    error = await trio.move(stateless)  # a real source does not say that it cannot (compute.md §5)
    assert error is not None
    assert error.fault == MigrationFault.TIMED_OUT
    for one in (origin, stateless):
        assert await ask(trio.source, "deliver", one, 7, 2, b"second") == [b"2"]
    assert await ask(trio.target, "daemon_count") == 0


# ── our node is the source, a real one drives ───────────────────────────────────────────────


@pytest.mark.parametrize("kind", [SnapshotReady, CleanupComplete])
async def test_a_real_orchestrator_loses_an_answer_of_our_source(lab: Lab, kind: type[MigrationMessage]) -> None:
    """It repeats nothing. Before the handover our daemon goes on when nothing is heard for too long."""
    ours, orchestrator, target = OurDaemons(await carrying_node(lab)), compute_peer(lab), compute_peer(lab)
    to_source = await wire(lab, orchestrator, ours.node)
    await wire(lab, orchestrator, target)
    go(orchestrator, target)
    seed, origin = ours.spawn(8)
    await expect(target, seed, origin, envelope=False)
    lose(to_source, kind)
    with pytest.raises(RealPeerError, match="timed out"):
        await move(orchestrator, origin, ours.node.node_id, target.node_id, envelope=False, seconds=0.3)
    if kind is SnapshotReady:
        assert ours.deliver(origin, 2) == []
        await ours.freed(origin)
        assert ours.deliver(origin, 3) == [b"3"]
        assert await ask(target, "daemon_count") == 0
    else:
        assert origin not in ours.registry
        assert await ask(target, "daemon_count") == 1
