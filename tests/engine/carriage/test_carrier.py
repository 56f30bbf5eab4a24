"""Messages that are handled above the engine: to the right node, within bounds, and only where a node carries them."""

from __future__ import annotations

from typing import Any

import pytest

from meshbus.engine.base.notices import Carried
from meshbus.engine.carriage import carrier as module
from meshbus.engine.carriage.carrier import MESSAGE_BYTES, carrying
from meshbus.engine.services import SERVICES
from meshbus.engine.session.negotiate import Profile
from meshbus.engine.session.service import Row
from meshbus.errors import LocalProtocolError, PeerError
from meshbus.policy.reason import Reason
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.wire.constants import MAX_EVENT, ROUTED_PAYLOAD, Subprotocol
from tests.engine.fleet import Wiretap, meet

ID, SURE, OURS = Subprotocol.MIGRATION, 0x7EC1, 0x7EC0
CARRIES = frozenset({ID})
TABLE = (
    *SERVICES,
    Row(carrying(OURS), OURS, "ours", profile=True, optional=True),
    Row(carrying(SURE), SURE, "sure", profile=True, optional=True, reliable=True, needs=Subprotocol.RELIABLE),
)
ALL = frozenset({ID, OURS, SURE})


def send(node: FakeNode, other: FakeNode, *messages: bytes, id_: int = ID) -> None:
    with node.turn() as (engine, now, out):
        engine.carrier(id_).send(other.node_id, messages, now, out)
    node.net.run(for_s=0.1)


def heard(node: FakeNode) -> list[tuple[int, int, bytes]]:
    notices = [notice for _, notice in node.control if isinstance(notice, Carried)]
    return [(notice.node_id, notice.subprotocol_id, notice.message) for notice in notices]


def two(**settings: Any) -> tuple[FakeNet, FakeNode, FakeNode]:
    net = FakeNet(seed=5)
    chosen = {"table": TABLE, "carries": ALL, **settings}
    nodes = net.create("left", **chosen), net.create("right", **chosen)
    meet(*nodes)
    return net, *nodes


def test_a_message_reaches_the_node_with_its_sender_and_subprotocol() -> None:
    _, left, right = two()
    for id_ in sorted(ALL):
        send(left, right, b"one", b"two", id_=id_)
    expected = [(left.node_id, id_, message) for id_ in sorted(ALL) for message in (b"one", b"two")]
    assert heard(right) == expected
    assert right.events == []
    assert left.engine.carrier(ID).agreed_with(right.node_id)


def test_between_meshbus_nodes_small_messages_share_packets_and_otherwise_they_do_not() -> None:
    for profile, packets in ((True, 1), (False, 3)):
        net, left, right = two(profile=profile, carries=CARRIES)
        tap = Wiretap(net)
        send(left, right, b"a", b"b", b"c")
        assert tap.messages(ID) == packets
        assert len(heard(right)) == 3
        assert left.engine.carrier(ID).agreed_with(right.node_id) is profile


def test_packets_look_as_those_of_the_reference() -> None:
    net, left, right = two(profile=False, carries=CARRIES)
    tap = Wiretap(net)
    send(left, right, b"message")
    (header,) = [header for header in tap.headers(left, right) if header.subprotocol_id == ID]
    # subprotocols.md §1.
    fields = header.flags, header.stream_id, header.sequence, header.origin_hash, header.channel_hash
    assert (*fields, header.event_count) == (0, ID, 0, 0, 0, 1)
    assert tap.messages(Subprotocol.STREAM_WINDOW) == 0, "0.23 nodes get no grants for it (transport.md §14)"


def test_a_node_that_does_not_carry_it_knows_nothing_of_it() -> None:
    net = FakeNet()
    plain, carrier = net.create("plain"), net.create("carrier", carries=CARRIES)
    meet(plain, carrier)
    assert "subprotocol:0x0500" not in plain.engine.announcer.capabilities.tags
    assert "subprotocol:0x0500" in carrier.engine.announcer.capabilities.tags
    assert not carrier.engine.carrier(ID).agreed_with(plain.node_id)
    with pytest.raises(LocalProtocolError, match="does not carry subprotocol 0x0500"):
        plain.engine.carrier(ID)
    send(carrier, plain, b"hello")
    assert heard(plain) == []
    assert plain.engine.counters.get(*Reason.UNKNOWN_SUBPROTOCOL.counter) == 1


def test_a_profile_message_is_for_those_who_agreed() -> None:
    net = FakeNet()
    one, other = net.create("one", table=TABLE, carries=ALL), net.create("other", table=TABLE, carries=CARRIES)
    meet(one, other)
    with pytest.raises(PeerError, match="it does not use ours"):
        send(one, other, b"hello", id_=OURS)
    with pytest.raises(PeerError, match="connect to it first"), one.turn() as (engine, now, out):
        engine.carrier(ID).send(12345, [b"hello"], now, out)


@pytest.mark.parametrize("profile", [True, False])
def test_over_a_relay_it_reaches_its_destination_and_not_the_relay(profile: bool) -> None:
    # mesh.md §2: with 0.23 nodes a daemon that was to move to a relayed node was restored on the relay.
    net = FakeNet(seed=2)
    source, relay, target = (
        net.create(name, carries=CARRIES, profile=profile) for name in ("source", "relay", "target")
    )
    how = Profile.AUTO if profile else Profile.PLAIN
    meet(source, relay, profile=how)
    meet(relay, target, profile=how)
    net.run_until(lambda: source.engine.mesh.next_hop(target.node_id, net.clock.now) is not None, timeout_s=60)
    with source.turn() as (engine, now, out):
        engine.connect(target.node_id, None, target.engine.public_key, now, out)
    net.run_until(lambda: source.has_session_with(target) and target.has_session_with(source))
    largest = bytes(ROUTED_PAYLOAD - 4)
    send(source, target, b"for the target", largest)
    assert heard(target) == [(source.node_id, ID, b"for the target"), (source.node_id, ID, largest)]
    assert heard(relay) == []


def test_on_a_reliable_stream_a_lossy_path_loses_nothing() -> None:
    net, left, right = two()
    net.path = FakePath(loss=0.2, duplication=0.1)
    for number in range(50):
        send(left, right, b"%d" % number, id_=SURE)
    net.run_until(lambda: len(heard(right)) == 50, timeout_s=120)
    assert [message for *_, message in heard(right)] == [b"%d" % number for number in range(50)]


def test_what_is_too_long_is_refused() -> None:
    _, left, right = two()
    with pytest.raises(LocalProtocolError, match="does not fit into one packet"):
        send(left, right, bytes(MAX_EVENT + 1))


def test_what_waits_is_bounded_for_one_peer_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PEER_BYTES", 4 * (MESSAGE_BYTES + 8))
    monkeypatch.setattr(module, "MAX_CARRIED_BYTES", 6 * (MESSAGE_BYTES + 8))
    net = FakeNet()
    victim, *others = (net.create(name, carries=CARRIES) for name in ("victim", "one", "two"))
    meet(victim, *others)
    for other, kept in zip(others, (4, 2), strict=True):
        send(other, victim, *[bytes(8)] * 9)
        assert len([node_id for node_id, *_ in heard(victim) if node_id == other.node_id]) == kept
    carrier = victim.engine.carrier(ID)
    assert carrier.waiting == 6 * (MESSAGE_BYTES + 8)
    assert victim.engine.counters.get(*Reason.CARRIED_FULL.counter) == 5 + 7
    for _, notice in victim.control:
        if isinstance(notice, Carried):
            carrier.release(notice)
    assert carrier.waiting == 0
    send(others[0], victim, b"there is room again")
    assert heard(victim)[-1] == (others[0].node_id, ID, b"there is room again")
