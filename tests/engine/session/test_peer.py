"""Test peers: streams outlive sessions, credit does not."""

import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import MAX_STREAMS, Health, PeerTable
from meshbus.errors import LocalProtocolError, PeerError
from meshbus.policy.registry import NegotiatedSet
from meshbus.wire.constants import MAX_EVENT, STREAM_WINDOW, Subprotocol
from meshbus.wire.frames import unpack_frames
from meshbus.wire.header import Header
from meshbus.wire.keys import Role, derive_keys


def link(seed: int, role: Role = Role.INITIATOR) -> Link:
    return Link(derive_keys(bytes([seed]) * 32, role), role, "there", 0.0)


def test_messages_are_one_event_on_the_stream_of_their_subprotocol() -> None:
    peers, out = PeerTable(), Output()
    peer = peers.establish(5, link(1), 0.0)
    for message in (b"first", b"second"):
        peer.send_message(Subprotocol.MEMBERSHIP, message, out)
    opener = link(1, Role.RESPONDER).opener
    for number, (train, message) in enumerate(zip(out.trains, (b"first", b"second"), strict=True)):
        header, plain = opener.open(train.data)
        assert (header.subprotocol_id, header.stream_id, header.sequence, header.flags) == (0x0A00, 0x0A00, number, 0)
        assert [bytes(event) for event in unpack_frames(plain, header.event_count)] == [message]
    with pytest.raises(LocalProtocolError):
        peer.send_message(Subprotocol.MEMBERSHIP, bytes(MAX_EVENT + 1), out)


def test_a_new_session_starts_the_streams_again() -> None:
    peers = PeerTable()
    peer = peers.establish(5, link(1), 0.0)
    peer.tx_stream(7).take(2, 5000)
    peer.rx_stream(7).consume(1, 100, 0.0)
    peer.health = Health.FAILED
    again = peers.establish(5, link(2), 9.0)
    assert again is peer
    assert peer.health is Health.ALIVE
    assert peer.heard_at == 9.0
    assert peer.tx_stream(7).credit == STREAM_WINDOW
    assert peer.tx_stream(7).next_sequence == 0
    assert peer.rx_stream(7).consumed == 0
    assert peers.by_session(link(1).session_id) is None
    assert peers.by_session(link(2).session_id) is peer
    assert len(peers) == 1


def test_unknown_peers_are_named() -> None:
    peers = PeerTable()
    assert peers.get(5) is None
    with pytest.raises(PeerError, match="0000000000000005 is unknown"):
        peers.require(5)
    peers.establish(5, link(1), 0.0)
    assert [peer.node_id for peer in peers] == [5]
    assert peers.remove(5) is not None
    assert peers.remove(5) is None
    assert peers.by_session(link(1).session_id) is None


def test_streams_are_bounded() -> None:
    peer = PeerTable().establish(5, link(1), 0.0)
    for stream_id in range(MAX_STREAMS + 10):
        peer.tx_stream(stream_id)
        peer.rx_stream(stream_id)
    assert len(peer.tx) == len(peer.rx) == MAX_STREAMS


def test_the_profile_is_used_only_after_negotiation() -> None:
    peer = PeerTable().establish(5, link(1), 0.0)
    assert not peer.uses(Subprotocol.RELIABLE)
    peer.negotiated = NegotiatedSet(frozenset({Subprotocol.RELIABLE}))
    assert peer.uses(Subprotocol.RELIABLE)


def test_a_place_belongs_to_the_newest_that_proved_itself_there() -> None:
    peers = PeerTable()
    honest = peers.establish(5, link(1), 0.0)
    claimed = peers.establish(6, link(2, Role.RESPONDER), 1.0)
    assert peers.by_address("there") is honest, "anybody can write an address into the header of a datagram"
    assert peers.neighbors() == [honest]
    claimed.link.opener.open(link(2).seal(Header(), b"").data)
    assert peers.by_address("there") is claimed, "only who receives there can have the keys"
    claimed.health = Health.FAILED
    assert peers.by_address("there") is honest
    peers.remove(5)
    assert peers.by_address("there") is claimed
    peers.remove(6)
    assert peers.by_address("there") is None
    assert peers.neighbors() == []
