"""The times of the failure detector on a simulated network, and what a goodbye ends at once."""

import pytest

from meshbus.engine.base.notices import Acked, DownReason, PeerFailed, PeerGone
from meshbus.engine.session.peer import Health
from meshbus.names.channel import ChannelName
from meshbus.policy.capability import CapabilitySet
from meshbus.testing.fakenet import FakePath
from meshbus.testing.simulation import Simulation
from meshbus.wire.constants import MAX_REPLAY_JUMP

NOWHERE = FakePath(loss=1.0)


def pair(heartbeat_s: float = 1.0, session_timeout_s: float = 6.0) -> Simulation:
    sim = Simulation(heartbeat_s=heartbeat_s, session_timeout_s=session_timeout_s)
    sim.build([(0, 1)])
    for number in (0, 1):
        with sim.node(number).turn() as (engine, now, out):
            engine.announce(CapabilitySet(), now, out)  # without it there is no profile, and no goodbye
    sim.run(for_s=4.5 * heartbeat_s)  # nothing is on its way now
    return sim


@pytest.mark.parametrize(("heartbeat_s", "session_timeout_s"), [(1.0, 6.0), (0.5, 2.0), (5.0, 30.0)])
def test_a_peer_that_is_silent_for_session_timeout_s_has_failed(heartbeat_s: float, session_timeout_s: float) -> None:
    sim = pair(heartbeat_s, session_timeout_s)
    here, there = sim.node(0), sim.node(1)
    peer = here.engine.peers.require(there.node_id)
    sim.unlink(0, 1)
    began = peer.heard_at
    while sim.now < began + session_timeout_s / 2:
        assert peer.health is Health.ALIVE
        sim.run(for_s=heartbeat_s / 4)
    sim.run(for_s=heartbeat_s)
    assert peer.health is Health.SUSPECTED
    sim.run(for_s=session_timeout_s)
    ((failed_at, failure),) = [(at, event) for at, event in here.control if isinstance(event, PeerFailed)]
    assert failure == PeerFailed(there.node_id, DownReason.SILENT)
    # Judged with every heartbeat, so at most one of them later.
    assert session_timeout_s <= failed_at - began <= session_timeout_s + heartbeat_s


def test_two_lost_heartbeats_fail_no_peer_with_the_defaults() -> None:
    sim = pair(5.0, 30.0)
    sim.unlink(0, 1)
    sim.run(for_s=12.0)
    sim.link(0, 1)
    sim.run(for_s=60.0)
    for number in (0, 1):
        assert sim.node(number).happened(PeerFailed) == []


def test_who_waits_for_the_answer_of_a_peer_that_leaves_is_told_at_once() -> None:
    sim = pair()
    here, there = sim.node(0), sim.node(1)
    channel = ChannelName("sensors/lidar")
    sim.net.set_path(here.name, there.name, NOWHERE, both=False)
    request = here.subscribe(there, channel)
    asked_at = sim.now
    with there.turn() as (engine, now, out):
        engine.close(now, out)
    sim.run(for_s=1.0)
    assert here.happened(PeerGone) == [PeerGone(there.node_id, DownReason.LEFT)]
    told = [(at, event) for at, event in here.control if isinstance(event, Acked)]
    assert [event for _, event in told] == [Acked(request, there.node_id, channel, accepted=False, gone=True)]
    assert told[0][0] - asked_at < 1.0


@pytest.mark.parametrize("sender", [0, 1])
def test_after_a_million_lost_packets_there_is_a_new_session(sender: int) -> None:
    sim = pair()
    here, there = sim.node(sender), sim.node(1 - sender)
    peer = here.engine.peers.require(there.node_id)
    old = peer.link.session_id
    peer.link.sealer.take(MAX_REPLAY_JUMP + 1)  # as if so many had been sent, and none had arrived
    sim.run(for_s=20.0)
    new = here.engine.peers.require(there.node_id).link.session_id
    assert new != old
    assert there.engine.peers.require(here.node_id).link.session_id == new
    assert [gone.reason for gone in there.happened(PeerGone)] == [DownReason.OVERRUN]
    assert there.engine.counters.get("drop", "replayed") > 0
