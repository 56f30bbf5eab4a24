from __future__ import annotations

from typing import Any

import pytest

from meshbus.engine.counters import Counters
from meshbus.engine.link import Link
from meshbus.engine.packets import Address, Output
from meshbus.engine.peer import Peer
from meshbus.engine.reflex import NOWHERE, Reflex
from meshbus.wire.constants import Subprotocol
from meshbus.wire.frames import unpack_frames
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.messages.address import Address as Numeric
from meshbus.wire.messages.reflex import ReflexResponse, decode_reflex, encode_reflex
from meshbus.wire.seal import Opener

SECRET = bytes(range(32))


def peer_at(address: Address) -> Peer:
    return Peer(5, Link(derive_keys(SECRET, Role.INITIATOR), Role.INITIATOR, address, 0.0), 0.0)


def answers(address: Address, message: bytes, counters: Counters) -> list[ReflexResponse]:
    """Give what a peer gets back for a message."""
    out = Output()
    Reflex(counters).receive(peer_at(address), message, 0.0, out)
    opener, found = Opener(derive_keys(SECRET, Role.RESPONDER)), []
    for train in out.trains:
        assert train.address == address
        header, payload = opener.open(bytes(train.data))
        assert header.subprotocol_id == header.stream_id == Subprotocol.REFLEX
        found += [decode_reflex(frame) for frame in unpack_frames(payload, header.event_count)]
    return [answer for answer in found if isinstance(answer, ReflexResponse)]


@pytest.mark.parametrize(
    ("address", "told"),
    [
        (("127.0.0.1", 9000), Numeric("127.0.0.1", 9000)),
        (("2001:db8::1", 9, 0, 0), Numeric("2001:db8::1", 9)),
        (("fe80::1%eth0", 9, 0, 2), Numeric("fe80::1", 9)),
        (("a-name", 9), NOWHERE),
        (("10.0.0.1", 1 << 20), NOWHERE),
        ("node-7", NOWHERE),
    ],
)
def test_a_request_is_answered_with_the_address_of_the_session(address: Any, told: Numeric) -> None:
    counters = Counters()
    assert answers(address, b"", counters) == [ReflexResponse(told)]
    assert counters.snapshot() == {}


def test_an_answer_is_not_answered() -> None:
    counters = Counters()
    assert answers(("10.0.0.1", 1), encode_reflex(ReflexResponse(NOWHERE)), counters) == []
    assert counters.snapshot() == {}


@pytest.mark.parametrize("junk", [b"x", bytes(18), bytes(19), bytes(20)])
def test_anything_else_is_counted(junk: bytes) -> None:
    counters = Counters()
    assert answers(("10.0.0.1", 1), junk, counters) == []
    assert counters.snapshot() == {"drop": {"reflex_malformed": 1}}
