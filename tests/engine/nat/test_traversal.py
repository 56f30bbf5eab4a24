"""NAT traversal: every pair of NAT types, the choice of a coordinator, and the order of the rungs."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from meshbus.engine.base.notices import HandshakeFailed, Path, PeerGone, Reached
from meshbus.engine.directory.reachability import Nat, NatStatus
from meshbus.engine.nat.traversal import ASK_S
from meshbus.engine.settings import NatConfig
from meshbus.errors import HandshakeError, LocalProtocolError, PeerError
from meshbus.names.identity import Identity
from meshbus.testing.fakenat import NatKind, NatNet
from meshbus.testing.fakenet import FakeNode, FakePath
from meshbus.wire.constants import Subprotocol
from meshbus.wire.datagram import DatagramKind
from meshbus.wire.header import unpack_header
from meshbus.wire.messages.address import Address
from meshbus.wire.messages.rendezvous import PunchIntroduce, PunchRequest, RendezvousMessage, encode_rendezvous
from meshbus.wire.punch import Keepalive, pack_keepalive

OPEN, FULL, HOST, PORT, SYM = NatKind
KINDS = {OPEN: Nat.OPEN, FULL: Nat.CONE, HOST: Nat.CONE, PORT: Nat.CONE, SYM: Nat.SYMMETRIC}
D, P, R = Path.DIRECT, Path.PUNCHED, Path.RELAYED

ENDS = {
    OPEN: {OPEN: D, FULL: D, HOST: P, PORT: P, SYM: P},
    FULL: {OPEN: D, FULL: P, HOST: P, PORT: P, SYM: P},
    HOST: {OPEN: D, FULL: P, HOST: P, PORT: P, SYM: P},
    PORT: {OPEN: D, FULL: P, HOST: P, PORT: P, SYM: R},
    SYM: {OPEN: P, FULL: P, HOST: P, PORT: R, SYM: R},
}
"""How a node of one kind (row) reaches one of another (column)."""


class Town:
    """Two nodes behind boxes, and two open ones that both know."""

    def __init__(self, here: NatKind, there: NatKind, *, seed: int = 1, settle_s: float = 15.0) -> None:
        self.net = NatNet(seed, record=True)
        self.hubs = [self.net.create_at(f"hub {n}", f"198.51.100.{n}") for n in (1, 2)]
        self.net.join(self.hubs[0], self.hubs[1])
        self.here = self.net.create_at("here", "203.0.113.1", here)
        self.there = self.net.create_at("there", "203.0.113.2", there)
        for node in (self.here, self.there):
            for hub in self.hubs:
                self.net.join(node, hub)
        self.net.run(for_s=settle_s)

    def reach(self, **options: object) -> Path | None:
        """Make one reach the other; None if that fails."""
        with self.here.turn() as (engine, now, out):
            engine.traversal.connect(self.there.node_id, now, out, **options)  # type: ignore[arg-type]
        self.net.run_until(lambda: bool(self.here.happened(Reached) or self.here.happened(HandshakeFailed)))
        reached = self.here.happened(Reached)
        return reached[0].path if reached else None

    def counts(self, node: FakeNode) -> dict[str, int]:
        return node.engine.counters.snapshot().get("traversal", {})


@pytest.mark.parametrize("there", NatKind)
@pytest.mark.parametrize("here", NatKind)
def test_every_pair_of_kinds_ends_in_a_session_that_carries_events(here: NatKind, there: NatKind) -> None:
    town = Town(here, there)
    assert town.here.engine.traversal.nat.status.nat is KINDS[here]
    assert town.there.engine.traversal.nat.status.nat is KINDS[there]
    begun = town.net.clock.now
    assert town.reach() is ENDS[here][there]
    assert town.net.clock.now - begun < 15
    town.net.run(for_s=5)
    relayed = ENDS[here][there] is R
    for one, other in ((town.here, town.there), (town.there, town.here)):
        peer = one.engine.peers.require(other.node_id)
        assert (peer.link.home is None) is relayed
        one.forget()
        one.subscribe(other, "town/news")
        town.net.run(for_s=1)
        other.publish("town/news", [b"hello"])
        town.net.run(for_s=1)
        assert one.payloads() == [b"hello"]
    counts = town.counts(town.here)
    assert counts.get("relay_fallback", 0) == relayed
    assert counts.get("punch_succeeded", 0) == (ENDS[here][there] is P)
    if (here, there) == (SYM, SYM):
        assert "punch_attempted" not in counts


def test_who_has_a_direct_session_already_is_reached_at_once() -> None:
    town = Town(OPEN, FULL)
    town.reach()
    with town.here.turn() as (engine, now, out):
        engine.traversal.connect(town.there.node_id, now, out)
        assert out.control == [Reached(town.there.node_id, D)]
        assert out.trains == []


def test_asking_again_for_what_is_under_way_changes_nothing() -> None:
    town = Town(FULL, FULL)
    with town.here.turn() as (engine, now, out):
        engine.traversal.connect(town.there.node_id, now, out)
        assert engine.traversal.reaching == {town.there.node_id}
        sent = len(out.trains)
        engine.traversal.connect(town.there.node_id, now, out)
        assert len(out.trains) == sent == 1
    town.net.run(for_s=5)
    assert town.here.happened(Reached) == [Reached(town.there.node_id, P)]
    assert town.here.engine.traversal.reaching == set()


@pytest.mark.parametrize("both", [False, True])
def test_a_relayed_session_goes_on_until_the_direct_one_takes_its_place(both: bool) -> None:
    town = Town(PORT, PORT)
    hub, here, there = town.hubs[0], town.here, town.there
    with here.turn() as (engine, now, out):
        engine.connect(there.node_id, None, there.engine.public_key, now, out)
    town.net.run_until(lambda: here.has_session_with(there))
    town.net.run(for_s=5)
    assert here.engine.peers.require(there.node_id).link.home is None
    here.subscribe(there, "town/news")
    town.net.run(for_s=1)
    for one, other in ((here, there), (there, here))[: 1 + both]:
        with one.turn() as (engine, now, out):
            engine.traversal.connect(other.node_id, now, out, coordinator=hub.node_id)
    for number in range(100):
        there.publish("town/news", [str(number).encode()], reliable=True)
        town.net.run(for_s=0.1)
    town.net.run(for_s=5)
    assert here.payloads() == [str(number).encode() for number in range(100)]
    for one, other in ((here, there), (there, here)):
        assert one.engine.peers.require(other.node_id).link.home is not None
    assert here.has_session_with(there)


def test_two_that_reach_for_each_other_at_once_meet() -> None:
    town = Town(PORT, HOST)
    with town.there.turn() as (engine, now, out):
        engine.traversal.connect(town.here.node_id, now, out)
    assert town.reach() is P
    town.net.run(for_s=5)
    assert town.here.has_session_with(town.there)
    assert [event.path for event in town.there.happened(Reached)] == [P]


def test_a_node_that_was_asked_by_nobody_where_it_is_asks_its_coordinator() -> None:
    """With one neighbor there is nothing to compare, so the kind stays unknown; punching works all the same."""
    net = NatNet(3)
    hub = net.create_at("hub", "198.51.100.1")
    other = net.create_at("other", "198.51.100.2")
    here = net.create_at("here", "203.0.113.1", PORT)
    there = net.create_at("there", "203.0.113.2", PORT)
    for node, neighbor in ((here, hub), (there, hub), (there, other)):
        net.join(node, neighbor)
    net.run(for_s=15)
    assert here.engine.traversal.nat.status == NatStatus()
    with here.turn() as (engine, now, out):
        engine.traversal.connect(there.node_id, now, out)
    net.run(for_s=3)
    assert here.happened(Reached) == [Reached(there.node_id, P)]


def test_without_a_coordinator_that_answers_the_relay_is_next() -> None:
    town = Town(PORT, PORT)
    for hub in town.hubs:
        hub.engine.reception.handlers[Subprotocol.RENDEZVOUS] = lambda *_: None
    begun = town.net.clock.now
    assert town.reach() is R
    assert ASK_S <= town.net.clock.now - begun < ASK_S + 1
    wire = [p for p in town.net.passages if p.source == ("203.0.113.1", 40_000) and p.at >= begun]
    asked = [p for p in wire if p.kind is DatagramKind.NET and unpack_header(p.datagram).subprotocol_id == 0x0D01]
    assert len(asked) == 4, "asked again while there was time"


def test_lost_messages_are_made_up_for() -> None:
    paths = []
    for seed in range(8):
        town = Town(PORT, PORT, seed=seed)
        town.net.path = FakePath(loss=0.15)
        paths.append(town.reach())
    assert None not in paths
    assert paths.count(P) >= 6


def test_a_coordinator_that_dies_leaves_a_named_failure() -> None:
    town = Town(PORT, PORT)
    for name in ("hub 1", "hub 2"):
        town.net.remove(name)
    assert town.reach() is None
    [failed] = town.here.happened(HandshakeFailed)
    assert failed.node_id == town.there.node_id
    assert town.counts(town.here) == {"failed": 1, "relay_fallback": 1}
    assert town.here.engine.traversal.reaching == set()


def test_without_a_coordinator_and_an_address_it_fails_at_once() -> None:
    town = Town(PORT, PORT)
    stranger = Identity.from_seed(bytes(32))
    with town.here.turn() as (engine, now, out):
        with pytest.raises(PeerError, match="no announcement of it has arrived"):
            engine.traversal.connect(stranger.node_id, now, out)
        with pytest.raises(PeerError, match="no neighbor knows it"):
            engine.traversal.connect(stranger.node_id, now, out, public_key=bytes(range(32)))
        with pytest.raises(PeerError, match="connect to it first"):
            engine.traversal.connect(town.there.node_id, now, out, coordinator=stranger.node_id)
        assert out.trains == []
    assert town.here.engine.traversal.reaching == set()


def test_the_key_of_a_plain_node_must_be_given() -> None:
    net = NatNet(4)
    hub = net.create_at("hub", "198.51.100.1")
    here = net.create_at("here", "203.0.113.1", PORT)
    plain = net.create_at("plain", "203.0.113.2", PORT, profile=False)
    for node in (here, plain):
        net.join(node, hub)
    net.run(for_s=5)
    with here.turn() as (engine, now, out), pytest.raises(LocalProtocolError, match="give public_key"):
        engine.traversal.connect(plain.node_id, now, out)


def test_a_key_that_cannot_be_one_is_refused_at_once_and_forgotten() -> None:
    town = Town(OPEN, OPEN)
    with town.here.turn() as (engine, now, out), pytest.raises(HandshakeError):
        engine.traversal.connect(town.there.node_id, now, out, public_key=bytes(32))
    assert town.here.engine.traversal.reaching == set()


def test_a_known_public_address_is_announced_from_the_start() -> None:
    net = NatNet(5)
    hub = net.create_at("hub", "198.51.100.1")
    public = Address("203.0.113.9", 9000)
    node = net.create("node", nat=NatConfig(public_address=public))
    announcement = node.engine.announcer.current
    assert announcement is not None
    assert announcement.reflex_addr == str(public)
    assert "nat:open" in announcement.tags
    assert hub.engine.announcer.current is not None
    assert hub.engine.announcer.current.reflex_addr is None


def leave_hubs(town: Town) -> None:
    """Make a node forget both open ones."""
    with town.here.turn() as (engine, now, out):
        for hub in town.hubs:
            engine.disconnect(hub.node_id, now, out)


def relayed(town: Town) -> None:
    """Connect both through an open node."""
    with town.here.turn() as (engine, now, out):
        engine.connect(town.there.node_id, None, town.there.engine.public_key, now, out)
    town.net.run_until(lambda: town.here.has_session_with(town.there))


def test_a_relayed_session_is_as_good_as_it_gets_where_no_punch_can_work() -> None:
    town = Town(SYM, SYM)
    relayed(town)
    with town.here.turn() as (engine, now, out):
        engine.traversal.connect(town.there.node_id, now, out)
        assert out.control == [Reached(town.there.node_id, R)]
        assert out.trains == []


def test_a_coordinator_must_be_a_neighbor() -> None:
    town = Town(SYM, SYM)
    relayed(town)
    with town.here.turn() as (engine, now, out), pytest.raises(PeerError, match="must be a neighbor"):
        engine.traversal.connect(7, now, out, public_key=bytes(range(32)), coordinator=town.there.node_id)


def test_a_coordinator_that_does_not_say_where_we_are_seen_is_a_relay_still() -> None:
    net = NatNet(3)
    hub = net.create_at("hub", "198.51.100.1")
    here, there = (net.create_at(name, f"203.0.113.{n}", PORT) for n, name in enumerate(("here", "there"), 1))
    for node in (here, there):
        net.join(node, hub)
    net.run(for_s=5)
    hub.engine.reception.handlers[Subprotocol.REFLEX] = lambda *_: None
    with here.turn() as (engine, now, out):
        engine.traversal.connect(there.node_id, now, out)
    net.run(for_s=4)
    assert here.happened(Reached) == [Reached(there.node_id, R)]


@pytest.mark.parametrize("moment", ["before", "while direct", "while asking"])
def test_the_failure_names_the_missing_neighbors(moment: str) -> None:
    town = Town(OPEN if moment == "while direct" else PORT, PORT)
    for hub in town.hubs:
        hub.engine.reception.handlers[Subprotocol.RENDEZVOUS] = lambda *_: None
    if moment == "before":
        leave_hubs(town)
    with town.here.turn() as (engine, now, out):
        engine.traversal.connect(town.there.node_id, now, out)
    if moment != "before":
        town.net.run(for_s=0.5)
        leave_hubs(town)
    town.net.run(for_s=10)
    [failed] = town.here.happened(HandshakeFailed)
    assert "no neighbor can relay to it" in failed.problem
    assert town.here.engine.traversal.reaching == set()


def test_a_handshake_of_the_application_s_own_is_not_disturbed() -> None:
    town = Town(PORT, PORT)
    with town.here.turn() as (engine, now, out):
        engine.traversal.connect(town.there.node_id, now, out)
        engine.connect(town.there.node_id, ("203.0.113.99", 9), town.there.engine.public_key, now, out)
    town.net.run(for_s=3)
    [failed] = town.here.happened(HandshakeFailed)
    assert "in progress" in failed.problem
    assert town.here.engine.handshakes.connecting == {town.there.node_id}


def test_a_canceled_attempt_ends_without_a_notice() -> None:
    town = Town(OPEN, PORT)
    with town.here.turn() as (engine, now, out):
        engine.traversal.connect(town.there.node_id, now, out)
        assert engine.traversal.cancel(town.there.node_id)
        assert engine.handshakes.cancel_connect(town.there.node_id)
        assert not engine.traversal.cancel(town.there.node_id)
    town.net.run(for_s=30)
    assert not town.here.happened(Reached)
    assert not town.here.happened(HandshakeFailed)
    with town.here.turn() as (engine, now, out):
        engine.traversal.connect(town.there.node_id, now, out)
    town.net.run(for_s=30)
    assert [reached.node_id for reached in town.here.happened(Reached)] == [town.there.node_id], "and may begin again"


def test_a_relayed_session_that_comes_first_does_not_end_the_search() -> None:
    town = Town(OPEN, PORT)
    with town.here.turn() as (engine, now, out):
        engine.traversal.connect(town.there.node_id, now, out)
        engine.handshakes.cancel_connect(town.there.node_id)
    relayed(town)
    town.net.run(for_s=5)
    assert town.here.happened(Reached) == [Reached(town.there.node_id, P)]


def test_what_a_removed_peer_reported_is_dropped() -> None:
    town = Town(PORT, PORT)
    hub, nat = town.hubs[1], town.here.engine.traversal.nat
    assert nat.seen_by(hub.node_id) is not None
    town.net.remove("hub 2")
    town.net.run_until(lambda: hub.node_id in {gone.node_id for gone in town.here.happened(PeerGone)}, 2000.0)
    assert nat.seen_by(hub.node_id) is None


# ── hostile ─────────────────────────────────────────────────────────────────────────────────


class Mallory:
    """A member of the mesh that wants others to send to a victim."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.victim = Address("192.0.2.66", 53)
        self.sent: list[bytes] = []
        inject = town.net.inject

        def watch(source: Hashable, dest: Hashable, datagram: bytes) -> None:
            if isinstance(dest, tuple) and dest[0] == self.victim.host:
                self.sent.append(datagram)
            inject(source, dest, datagram)

        town.net.inject = watch  # type: ignore[method-assign]

    def say(self, node: FakeNode, to: FakeNode, message: RendezvousMessage) -> None:
        with node.turn() as (engine, _now, out):
            engine.peers.require(to.node_id).send_message(Subprotocol.RENDEZVOUS, encode_rendezvous(message), out)


def test_a_request_with_somebody_else_s_address_goes_nowhere() -> None:
    town = Town(PORT, PORT)
    mallory, hub = Mallory(town), town.hubs[0]
    for _ in range(100):
        mallory.say(town.here, hub, PunchRequest(target=town.there.node_id, self_reflex=mallory.victim))
    town.net.run(for_s=10)
    assert mallory.sent == []
    refused = hub.engine.counters.snapshot()["refuse"]
    assert sum(refused.values()) == 100
    assert set(refused) == {"introduction_foreign_address", "introduction_rate"}


def test_a_lying_coordinator_makes_a_node_send_less_than_it_spends() -> None:
    town = Town(PORT, PORT)
    mallory, hub = Mallory(town), town.hubs[0]
    spent: list[int] = []
    town.net.taps.append(lambda p: spent.append(len(p.datagram)) if p.dest == "there" else None)
    for number in range(1000):
        introduction = PunchIntroduce(peer=number + 1, peer_reflex=mallory.victim, fire_at_ms=0)
        mallory.say(hub, town.there, introduction)
    town.net.run(for_s=10)
    assert {len(datagram) for datagram in mallory.sent} == {14}
    assert len(mallory.sent) == 3 * 64
    assert 10 * sum(map(len, mallory.sent)) < sum(spent)
    assert len(town.there.engine.traversal.punches) == 0
    assert town.there.engine.counters.total("refuse") == 1000 - 64


def test_forged_keepalives_start_nothing_and_end_nothing() -> None:
    town = Town(PORT, FULL)
    begun = len(town.net.passages)
    forged = pack_keepalive(Keepalive(node_id=town.here.node_id))
    for number in range(1000):
        town.net.inject(("192.0.2.66", number + 1), ("203.0.113.2", 40_000), forged)
    town.net.run(for_s=0.5)
    answers = [
        p for p in town.net.passages[begun:] if p.source == ("203.0.113.2", 40_000) and p.kind != DatagramKind.NET
    ]
    assert [p for p in answers if p.kind is DatagramKind.KEEPALIVE] == []
    assert town.there.engine.counters.get("drop", "keepalive_unexpected") == 1000
    assert town.reach() is P


def test_an_address_of_a_neighbor_is_not_believed_to_be_another_node_s() -> None:
    """Whoever announces the coordinator's own address would take its session away from us."""
    town = Town(OPEN, OPEN)
    hub_address = town.net.address_of(town.hubs[0])
    with town.there.turn() as (engine, now, out):
        engine.announcer.set_nat(NatStatus(Nat.OPEN, hub_address), now + 20, out)
    town.net.run(for_s=15)
    found = town.here.engine.traversal.addresses.get(town.there.node_id, town.net.clock.now)
    assert found is not None
    assert found.reflex == hub_address
    assert town.reach() is not None
    assert town.counts(town.here)["foreign_address"] >= 1
    hub = town.here.engine.peers.by_address(hub_address)
    assert hub is not None
    assert hub.node_id == town.hubs[0].node_id
