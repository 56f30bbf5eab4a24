"""Records of daemons as bytes: what was written is read, and every damage is noticed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from meshbus.compute import records
from meshbus.compute.difference import difference
from meshbus.compute.records import (
    CONFIRMED_BYTES,
    decode_checkpoint_file,
    decode_decisions,
    decode_journal,
    encode_change,
    encode_checkpoint_file,
    encode_confirmed,
    encode_decision,
    encode_events,
    encode_mark,
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
OLDER = Decision(origin=2**64 - 1, source=1, target=2, attempt=None, outcome=Outcome.HAND_OVER)


BEFORE, AFTER = bytes(100_000), bytes(50_000) + b"changed" + bytes(60_000)


def journal(*groups: bytes, confirmed: int | None = None) -> bytes:
    whole = b"".join(groups)
    return encode_confirmed(CONFIRMED_BYTES + len(whole) if confirmed is None else confirmed) + whole


def test_what_was_written_is_read() -> None:
    assert decode_checkpoint_file(b"".join(encode_checkpoint_file(NUMBER, STORED))) == (NUMBER, STORED)
    bare = Stored(mark=Mark(status=Status.MOVED), snapshot=b"")
    assert decode_checkpoint_file(b"".join(encode_checkpoint_file(OTHER, bare))) == (OTHER, bare)
    raw = journal(encode_decision(OLDER), encode_decision(DECISION))
    assert decode_decisions(raw) == (DECISION, len(raw))
    assert decode_decisions(b"") == (None, 0)


def test_a_journal_leads_to_the_newest_checkpoint() -> None:
    first = Stored(mark=MARK, snapshot=BEFORE, replayed=EVENTS[:1])
    second = Stored(mark=Mark(status=Status.ACTIVE), snapshot=AFTER, seed=bytes(32))
    changed = encode_change(NUMBER, OTHER, second, difference(BEFORE, AFTER))
    assert len(changed) < 50_000
    groups = [
        encode_events(NUMBER, EVENTS[1:]),
        encode_mark(NUMBER, Mark(status=Status.MOVED)),
        changed,
        encode_mark(OTHER, MARK),
        encode_events(OTHER, EVENTS[:2]),
    ]
    expected = [
        msgspec.structs.replace(first, replayed=EVENTS),
        msgspec.structs.replace(first, replayed=EVENTS, mark=Mark(status=Status.MOVED)),
        second,
        msgspec.structs.replace(second, mark=MARK),
        msgspec.structs.replace(second, mark=MARK, replayed=EVENTS[:2]),
    ]
    for count, after in enumerate(expected, 1):
        raw = journal(*groups[:count])
        assert decode_journal(raw, NUMBER, first) == (OTHER if count > 2 else NUMBER, after, len(raw))


def test_every_changed_byte_and_every_cut_is_noticed() -> None:
    whole: dict[Callable[[bytes], object], bytes] = {
        decode_checkpoint_file: b"".join(encode_checkpoint_file(NUMBER, STORED)),
        decode_decisions: journal(encode_decision(DECISION)),
        lambda raw: decode_journal(raw, NUMBER, STORED): journal(
            encode_mark(NUMBER, MARK), encode_events(NUMBER, EVENTS)
        ),
    }
    for decode, raw in whole.items():
        for place in range(CONFIRMED_BYTES, len(raw)):
            changed = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
            for damaged in (changed, raw[:place]):
                with pytest.raises(MalformedPacket):
                    decode(damaged)


def test_damage_to_what_was_confirmed_loses_nothing() -> None:
    raw = journal(encode_decision(DECISION))
    for place in range(CONFIRMED_BYTES):
        assert decode_decisions(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]) == (DECISION, len(raw))


def test_a_last_group_that_was_cut_off_before_it_was_confirmed_is_left_out() -> None:
    first, second = encode_events(NUMBER, EVENTS[:1]), encode_events(NUMBER, EVENTS[1:])
    bare = msgspec.structs.replace(STORED, replayed=())
    confirmed = CONFIRMED_BYTES + len(first)
    for cut in range(len(second)):
        # What a crash leaves: a part of it, or a page that never reached the disk, with the length before it.
        for rest in (second[:cut], second[:cut] + bytes(len(second) - cut)):
            _, found, end = decode_journal(journal(first, rest, confirmed=confirmed), NUMBER, bare)
            assert (found.replayed, end) == (EVENTS[:1], confirmed)
    whole = journal(first, second, confirmed=confirmed)  # written, and not known to be
    assert decode_journal(whole, NUMBER, bare)[1].replayed == EVENTS
    for start in (b"", bytes(CONFIRMED_BYTES), bytes(40), journal(b"half a gr", confirmed=CONFIRMED_BYTES)):
        assert decode_journal(start, NUMBER, STORED) == (NUMBER, STORED, 0)


def test_the_journal_of_another_checkpoint_is_ignored() -> None:
    raw = journal(encode_events(OTHER, EVENTS), encode_events(NUMBER, EVENTS[1:]))
    assert decode_journal(raw, NUMBER, STORED) == (NUMBER, STORED, 0)


def test_a_record_of_a_later_version_is_refused() -> None:
    raw = b"".join(encode_checkpoint_file(NUMBER, STORED))
    with pytest.raises(MalformedPacket, match="of another kind"):
        decode_checkpoint_file(b"MBDZ" + raw[4:])


@pytest.mark.parametrize("content", [b"", b"\x02\0\0", b"\xff\0\0\0", b"\x05\0\0\0\x91\x81\xa3\xff\xfe\xfd"])
def test_what_is_no_checkpoint_behind_a_right_checksum_is_refused(content: bytes) -> None:
    """Too short for the length, shorter than the length, and a text that is not UTF-8."""
    magic = records._CHECKPOINT
    with pytest.raises(MalformedPacket):
        decode_checkpoint_file(b"".join((magic, records._digest([magic, NUMBER, content]), NUMBER, content)))
