"""Records of daemons as bytes: what was written is read, and every damage is noticed."""

from __future__ import annotations

import pytest

from meshbus.compute.records import (
    decode_checkpoint_file,
    decode_decision_file,
    decode_event_groups,
    decode_mark_file,
    encode_checkpoint_file,
    encode_decision_file,
    encode_event_group,
    encode_mark_file,
)
from meshbus.compute.store import Decision, Mark, Outcome, Status, Stored
from meshbus.errors import MalformedPacket
from meshbus.wire.messages.causal import CausalLink
from meshbus.wire.messages.migration import BufferedEvent

NUMBER, OTHER = b"12345678", b"87654321"
MARK = Mark(status=Status.STAGED, attempt=2**64 - 1, orchestrator=2**63, target=7, moves=3, begun=(1, 2**64 - 1))
EVENTS = tuple(BufferedEvent(CausalLink(2**64 - 1, 0, number, 1), b"event %d" % number, number) for number in range(3))
STORED = Stored(mark=MARK, snapshot=bytes(range(256)), seed=bytes(32), replayed=EVENTS[:1])
DECISION = Decision(origin=2**64 - 1, source=1, target=2, attempt=None, outcome=Outcome.TAKE_BACK)


def test_what_was_written_is_read() -> None:
    assert decode_checkpoint_file(b"".join(encode_checkpoint_file(NUMBER, STORED))) == (NUMBER, STORED)
    bare = Stored(mark=Mark(status=Status.MOVED), snapshot=b"")
    assert decode_checkpoint_file(b"".join(encode_checkpoint_file(OTHER, bare))) == (OTHER, bare)
    assert decode_mark_file(b"".join(encode_mark_file(NUMBER, MARK))) == (NUMBER, MARK)
    assert decode_decision_file(b"".join(encode_decision_file(DECISION))) == DECISION


def test_every_changed_byte_and_every_cut_is_noticed() -> None:
    whole = {
        decode_checkpoint_file: b"".join(encode_checkpoint_file(NUMBER, STORED)),
        decode_mark_file: b"".join(encode_mark_file(NUMBER, MARK)),
        decode_decision_file: b"".join(encode_decision_file(DECISION)),
    }
    for decode, raw in whole.items():
        for place in range(len(raw)):
            changed = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
            for damaged in (changed, raw[:place]):
                with pytest.raises(MalformedPacket):
                    decode(damaged)


def test_a_last_group_that_was_cut_off_is_left_out_and_a_damaged_one_before_it_is_noticed() -> None:
    first, second = encode_event_group(NUMBER, EVENTS[:2]), encode_event_group(NUMBER, EVENTS[2:])
    assert decode_event_groups(first + second, NUMBER) == (EVENTS, len(first + second))
    for cut in range(len(second)):
        assert decode_event_groups(first + second[:cut], NUMBER) == (EVENTS[:2], len(first))
    # A page that never reached the disk: the length is there, the content is not.
    assert decode_event_groups(first + second[:4] + bytes(len(second) - 4), NUMBER) == (EVENTS[:2], len(first))
    with pytest.raises(MalformedPacket):
        decode_event_groups(first[:-1] + b"\xff" + second, NUMBER)


def test_events_of_another_checkpoint_are_ignored() -> None:
    raw = encode_event_group(OTHER, EVENTS) + encode_event_group(NUMBER, EVENTS[1:])
    assert decode_event_groups(raw, NUMBER) == (EVENTS[1:], len(raw))


def test_a_record_of_a_later_version_is_refused() -> None:
    strange = b"".join(encode_mark_file(NUMBER, MARK))
    body = encode_decision_file(DECISION)
    assert strange[:4] != body[0]
    with pytest.raises(MalformedPacket, match="of another kind"):
        decode_decision_file(strange)
