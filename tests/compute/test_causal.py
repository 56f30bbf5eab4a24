from __future__ import annotations

import pytest

from meshbus.compute.causal import ChainFault, ChainHead, EntityLog, check_chain, check_link
from meshbus.errors import LocalProtocolError, MalformedPacket
from meshbus.wire.messages.causal import MAX_SEQUENCE, CausalEvent, CausalLink, pack_link
from tests.vectors import load

ORIGIN = 0xABCDEF0123456789


def chain(*payloads: bytes, origin: int = ORIGIN) -> list[CausalEvent]:
    head = ChainHead(CausalLink(origin))
    return [head.emit(payload, 0) for payload in payloads]


def log_of(*payloads: bytes) -> EntityLog:
    log = EntityLog(ORIGIN)
    log.extend(chain(*payloads))
    return log


def test_a_chain_has_the_links_of_the_reference() -> None:
    vector = load("subprotocols")["causal"]["chain"]
    events = chain(*map(bytes.fromhex, vector["payloads"]), origin=vector["origin_hash"])
    assert [pack_link(event.link).hex() for event in events] == vector["links"]
    assert check_chain(events) is None


def test_links_are_checked_in_the_documented_order() -> None:
    first, second = chain(b"a", b"b")
    assert check_link(first, second.link) is None
    assert check_link(first, CausalLink(1, 0, 9, 0)) == ChainFault.ORIGIN_MISMATCH
    assert check_link(first, CausalLink(ORIGIN, 0, 9, 0)) == ChainFault.SEQUENCE_GAP
    assert check_link(first, CausalLink(ORIGIN, 0, 2, 0)) == ChainFault.PARENT_HASH_MISMATCH


def test_every_change_of_a_chain_is_found() -> None:
    events = chain(b"a", b"b", b"c")
    for index in range(2):
        changed = [*events]
        changed[index] = CausalEvent(events[index].link, b"x")
        assert check_chain(changed) == ChainFault.PARENT_HASH_MISMATCH
    assert check_chain([events[0], events[2]]) == ChainFault.SEQUENCE_GAP


def test_a_chain_ends_with_the_last_number() -> None:
    head = ChainHead(CausalLink(ORIGIN, sequence=MAX_SEQUENCE))
    with pytest.raises(LocalProtocolError, match="no further"):
        head.emit(b"", 0)


def test_a_log_takes_only_the_next_event() -> None:
    log, events = log_of(b"a"), chain(b"a", b"b", b"c")
    assert log.append(events[0]) == ChainFault.DUPLICATE
    assert log.append(events[2]) == ChainFault.SEQUENCE_GAP
    assert log.append(CausalEvent(CausalLink(1, sequence=2), b"")) == ChainFault.ORIGIN_MISMATCH
    assert log.append(events[1]) is None
    with pytest.raises(MalformedPacket, match="duplicate"):
        log.extend(events[1:])
    assert log.head == events[1]


def test_genesis_is_taken_by_an_empty_log_without_payload_only() -> None:
    genesis = CausalLink(ORIGIN)
    assert EntityLog(ORIGIN).append(CausalEvent(genesis, b"")) is None
    assert EntityLog(ORIGIN).append(CausalEvent(genesis, b"x")) == ChainFault.GENESIS_PAYLOAD


def test_ranges_and_pruning() -> None:
    log, events = log_of(b"a", b"b", b"c", b"d"), chain(b"a", b"b", b"c", b"d")
    assert log.range(2, 3) == events[1:3]
    assert log.after(2) == events[2:]
    log.prune_through(2)
    assert log.anchor == events[1]
    assert log.events == events[2:]
    assert (log.get(2), log.get(3), log.get(5)) == (None, events[2], None)
    assert log.range(1, 3) == [events[2]]
    log.prune_through(1)
    assert log.events == events[2:]
    assert log.origin_hash == ORIGIN
