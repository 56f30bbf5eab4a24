"""Ledgers: whatever nodes append, at most one runs a daemon, and what it has written is what the next one reads."""

from __future__ import annotations

import pytest

from meshbus.compute.ledger import PART_BYTES, Entry, Kind, Ledger, decode_entry, encode_entry, split_checkpoint
from meshbus.errors import MalformedPacket
from tests.compute.ledgerworld import ORIGIN, Record, World, Wrong
from tests.seeds import for_each_seed


def read(*entries: Entry) -> Ledger:
    ledger = Ledger(ORIGIN)
    for entry in entries:
        ledger.read(decode_entry(encode_entry(entry)))
    return ledger


def claim(term: int, node: int) -> Entry:
    return Entry(Kind.CLAIM, ORIGIN, term, node)


def checkpoint(term: int, node: int, number: int, content: bytes) -> list[Entry]:
    return list(split_checkpoint(ORIGIN, term, node, number, content))


def test_the_first_of_two_claims_holds() -> None:
    assert read(claim(1, 7), claim(1, 8)).holds(1, 7)
    assert read(claim(1, 7), claim(2, 8)).node == 8


def test_a_checkpoint_counts_when_its_last_part_comes_before_the_next_claim() -> None:
    large = bytes(range(256)) * 100
    assert len(large) > 3 * PART_BYTES
    entries = checkpoint(1, 7, 1, large)
    assert read(claim(1, 7), *entries).snapshot == large
    ledger = read(claim(1, 7), *checkpoint(1, 7, 1, b"first"), *entries[:-1], claim(2, 8), entries[-1])
    assert (ledger.snapshot, ledger.counted) == (b"first", (1, 1))


def test_parts_that_were_written_twice_or_mixed_make_no_checkpoint_of_two() -> None:
    one, two = checkpoint(1, 7, 1, b"a" * 20_000), checkpoint(1, 7, 2, b"b" * 20_000)
    assert read(claim(1, 7), one[0], two[0], one[1], two[1], one[2], two[2]).snapshot == b"b" * 20_000
    assert read(claim(1, 7), *one[:2], *one, *two[1:]).snapshot == b"a" * 20_000
    assert read(claim(1, 7), *checkpoint(1, 7, 3, b"")).snapshot == b""


def test_a_ledger_whose_beginning_is_gone_goes_on_from_what_is_left() -> None:
    ledger = read(*checkpoint(6, 7, 4, b"left"), claim(7, 8))
    assert (ledger.term, ledger.node, ledger.snapshot) == (7, 8, b"left")


def test_other_payloads_are_refused() -> None:
    for payload in (b"", b"nonsense", encode_entry(claim(1, 7))[:-1]):
        with pytest.raises(MalformedPacket):
            decode_entry(payload)


def test_a_late_copy_of_a_checkpoint_does_not_count_again() -> None:
    first, second = checkpoint(1, 7, 1, b"first"), checkpoint(1, 7, 2, b"second")
    ledger = read(claim(1, 7), *first, *second, *first)
    assert (ledger.snapshot, ledger.counted) == (b"second", (1, 2))
    assert read(claim(1, 7), *second, *first).snapshot == b"second"


def test_a_late_copy_does_not_disturb_the_checkpoint_that_is_being_written() -> None:
    one, two = checkpoint(1, 7, 1, b"a" * 20_000), checkpoint(1, 7, 2, b"b" * 20_000)
    ledger = read(claim(1, 7), *two[:2], *one, *two[:1], *two[2:])
    assert (ledger.snapshot, ledger.counted) == (b"b" * 20_000, (1, 2))


def test_a_record_is_old_as_soon_as_a_checkpoint_of_a_later_term_counted() -> None:
    begun = [claim(1, 7), *checkpoint(1, 7, 1, b"first"), claim(2, 8)]
    assert not read(*begun).supersedes(1)  # claimed, and nothing published since
    assert read(*begun).supersedes(0)
    assert read(*begun, *checkpoint(2, 8, 1, b"second")).supersedes(1)
    assert not read().supersedes(0)


def test_a_hand_over_that_is_said_late_changes_nothing() -> None:
    late = claim(2, 8)  # node 7 has handed the daemon over to node 8 in term 1
    assert read(claim(1, 7), claim(2, 9), late).holds(2, 9)
    assert read(claim(1, 7), claim(2, 8), claim(3, 7), late).holds(3, 7)
    assert read(claim(1, 7), late).holds(2, 8)


def test_of_a_ledger_whose_beginning_is_gone_late_entries_do_not_decide() -> None:
    ledger = read(*checkpoint(3, 7, 1, b"late"), *checkpoint(9, 8, 5, b"owner's"), claim(9, 6), claim(3, 7))
    assert (ledger.term, ledger.node, ledger.snapshot) == (9, 8, b"owner's")
    # Of two claims of one term the first is gone; the writer of a checkpoint has read which of them held.
    assert read(claim(9, 6), *checkpoint(9, 8, 5, b"owner's")).holds(9, 8)


@for_each_seed(range(200))
def test_nothing_is_published_twice_or_left_out(seed: int) -> None:
    World(seed, nodes=2 + seed % 2).play(400)


def test_worlds_are_full_of_takeovers_and_of_moves() -> None:
    worlds = [World(seed, nodes=3) for seed in range(20)]
    for world in worlds:
        world.play(400)
    assert sum(world.attempts for world in worlds) > 10
    assert sum(world.members[0].view.term for world in worlds) > 100
    assert sum(len(world.published) for world in worlds) > 1000


class CountsAgain(World):
    """A late copy of a checkpoint counts."""

    def ledger(self) -> Ledger:
        return Forgetful(ORIGIN)


class Forgetful(Ledger):
    def read(self, entry: Entry) -> None:
        if entry.part == 0 and entry.term == self.term:
            self._newest, self.counted = (0, 0), None
        super().read(entry)


class GoesOnFromAnything(World):
    """A node goes on from the record that it has, if it can claim the daemon."""

    def is_old(self, _view: Ledger, _record: Record) -> bool:
        return False


class AsksTheOwner(World):
    """A record of the owner by name is taken for a new one."""

    def is_old(self, view: Ledger, record: Record) -> bool:
        own = [member.number for member in self.members if member.record is record]
        return view.node not in own and view.supersedes(record.term)


@pytest.mark.parametrize("kind", [CountsAgain, GoesOnFromAnything, AsksTheOwner])
def test_a_deliberate_bug_is_found(kind: type[World]) -> None:
    def is_wrong(seed: int) -> bool:
        try:
            kind(seed, nodes=3).play(400)
        except Wrong:
            return True
        return False

    assert any(is_wrong(seed) for seed in range(200))
