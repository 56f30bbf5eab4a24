"""Ledgers: whatever nodes append, at most one runs a daemon, and what it has written is what the next one reads."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from meshbus.compute.ledger import PART_BYTES, Entry, Kind, Ledger, decode_entry, encode_entry, split_checkpoint
from meshbus.errors import MalformedPacket

ORIGIN = 2**64 - 1


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
    ledger = read(claim(1, 7), claim(1, 8), claim(3, 9))
    assert (ledger.term, ledger.node) == (1, 7)
    assert read(claim(1, 7), claim(2, 8)).node == 8


def test_a_checkpoint_counts_when_its_last_part_comes_before_the_next_claim() -> None:
    large = bytes(range(256)) * 100
    assert len(large) > 3 * PART_BYTES
    entries = checkpoint(1, 7, 1, large)
    assert read(claim(1, 7), *entries).snapshot == large
    ledger = read(claim(1, 7), *checkpoint(1, 7, 1, b"first"), *entries[:-1], claim(2, 8), entries[-1])
    assert (ledger.snapshot, ledger.counted) == (b"first", (1, 1))
    assert read(claim(1, 7), *checkpoint(1, 8, 1, b"not mine")).snapshot is None


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


def test_whoever_claims_when_there_is_one_owner_and_nothing_counted_is_lost() -> None:
    """Nodes read the log late, claim and write with what they know; the one order decides."""
    for seed in range(300):
        chance = random.Random(seed)
        log = list[Entry]()
        views = {node: Ledger(ORIGIN) for node in range(1, 4)}
        places = dict.fromkeys(views, 0)
        published = list[int]()
        counts = dict.fromkeys(views, 0)
        for _ in range(120):
            node = chance.choice(list(views))
            view = views[node]
            for entry in log[places[node] :][: chance.randrange(6)]:
                view.read(entry)
                places[node] += 1
            if view.node != node:
                if chance.random() < 0.2:
                    log.append(claim(view.term + 1, node))
                continue
            if view.counted is not None and view.counted[0] == view.term:
                published.append(int(view.snapshot or b"0"))  # its outputs are published, under their number
            if chance.random() < 0.7:
                counts[node] += 1
                following = int(view.snapshot or b"0") + 1
                log += checkpoint(view.term, node, counts[node], b"%d" % following)
        whole = read(*log)
        counted = list[int]()
        follower = Ledger(ORIGIN)
        for entry in log:
            before = follower.counted
            follower.read(entry)
            if follower.counted != before:
                counted.append(int(follower.snapshot or b""))
        # Every checkpoint follows from the one before it, or repeats it, and only counted ones were published.
        assert all(after - before in (0, 1) for before, after in pairwise(counted)), seed
        assert set(published) <= set(counted), f"seed {seed}"
        assert whole.node is None or whole.node in views
