"""Announced addresses: the newest signed announcement counts, and a neighbor of the node is recorded."""

from __future__ import annotations

from meshbus.engine.base.counters import Counters
from meshbus.engine.directory.reachability import Nat
from meshbus.engine.nat.addresses import MAX_AGE_S, AnnouncedAddresses
from meshbus.engine.session.peer import PeerTable
from meshbus.names.identity import Identity
from meshbus.wire.messages.address import Address
from meshbus.wire.messages.capability import Announcement
from tests.engine.wires import FarEnd

NODE = Identity.from_seed(bytes(32))
SENDER = FarEnd(PeerTable(), 7).peer
OTHER = FarEnd(PeerTable(), 8).peer


def said(version: int = 1, *, hops: int = 0, signed: bool = True, **fields: object) -> Announcement:
    announcement = Announcement(
        node_id=NODE.node_id,
        entity_id=NODE.entity_id,
        version=version,
        timestamp_ns=0,
        hop_count=hops,
        **fields,  # type: ignore[arg-type]
    )
    return announcement.sign(NODE) if signed else announcement


def test_an_announcement_tells_kind_address_and_profile() -> None:
    table = AnnouncedAddresses(Counters())
    assert table.get(NODE.node_id, 0.0) is None
    table.heard(SENDER, said(tags=("nat:cone", "subprotocol:0x0600"), reflex_addr="192.0.2.1:9001"), 0.0)
    found = table.get(NODE.node_id, 0.0)
    assert found is not None
    assert (found.nat, found.reflex, found.entity_id) == (Nat.CONE, Address("192.0.2.1", 9001), NODE.entity_id)
    assert found.meshbus
    assert found.neighbor is None
    table.heard(SENDER, said(2), 0.0)
    found = table.get(NODE.node_id, 0.0)
    assert found is not None
    assert (found.nat, found.reflex, found.meshbus) == (Nat.UNKNOWN, None, False)


def test_who_heard_it_without_a_detour_is_remembered() -> None:
    table = AnnouncedAddresses(Counters())
    for sender, version, hops, known in (
        (SENDER, 1, 2, None),
        (SENDER, 1, 1, 7),
        (OTHER, 2, 3, 7),
        (SENDER, 2, 0, 7),
        (OTHER, 3, 1, 8),
    ):
        table.heard(sender, said(version, hops=hops), 0.0)
        found = table.get(NODE.node_id, 0.0)
        assert found is not None
        assert found.neighbor == known


def test_unsigned_and_old_words_change_nothing() -> None:
    table = AnnouncedAddresses(Counters())
    table.heard(SENDER, said(5, tags=("nat:open",)), 0.0)
    table.heard(SENDER, said(6, tags=("nat:cone",), signed=False), 0.0)
    table.heard(SENDER, said(4, tags=("nat:cone",)), 0.0)
    found = table.get(NODE.node_id, 0.0)
    assert found is not None
    assert found.nat is Nat.OPEN


def test_a_word_holds_as_long_as_it_says_and_at_most_a_day() -> None:
    table = AnnouncedAddresses(Counters())
    table.heard(SENDER, said(5, ttl_secs=10), 100.0)
    assert table.get(NODE.node_id, 110.0) is not None
    assert table.get(NODE.node_id, 110.1) is None
    table.heard(SENDER, said(4, ttl_secs=10**9), 111.0)
    assert table.get(NODE.node_id, 111.0 + MAX_AGE_S) is not None
    assert table.get(NODE.node_id, 112.0 + MAX_AGE_S) is None
    assert len(table) == 1
