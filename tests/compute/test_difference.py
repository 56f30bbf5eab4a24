"""Differences of snapshots: patched, the old one is the new one, and little is written if little has changed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.compute.difference import PAGE_BYTES, Difference, difference, patched
from meshbus.compute.host import DaemonHost
from meshbus.errors import MalformedPacket
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.wire.messages.checkpoint import Checkpoint, InputPosition, PendingOutput, encode_checkpoint
from meshbus.wire.messages.snapshot import StateSnapshot, encode_snapshot
from tests.compute.counter import Counter

DAEMON = Identity.from_seed(bytes(range(32)))


def snapshot(state: bytes, outputs: int, term: int = 0) -> bytes:
    """Return a snapshot whose beginning is longer or shorter."""
    host = DaemonHost(DAEMON, Counter())
    checkpoint = Checkpoint(
        state=state,
        parent_hash=1,
        inputs=(InputPosition(7, ChannelName("in"), outputs),),
        observed=((1, outputs),),
        pending=tuple(PendingOutput(number, bytes(number % 40)) for number in range(outputs)),
        term=term,
    )
    return encode_snapshot(
        StateSnapshot(
            entity_id=DAEMON.entity_id, head=host.head, created_ns=outputs, state=encode_checkpoint(checkpoint)
        )
    )


def size(change: Difference) -> int:
    return len(change.head) + sum(len(page) for _, page in change.pages)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_become_any_others(before: bytes, after: bytes) -> None:
    assert patched(before, difference(before, after)) == after


def test_little_is_written_wherever_the_state_begins() -> None:
    chance = random.Random(1)
    state = bytearray(chance.randbytes(1_000_000))
    before = snapshot(bytes(state), outputs=3)
    for outputs in (0, 1, 50, 300):
        state[chance.randrange(len(state))] ^= 1
        after = snapshot(bytes(state), outputs, term=outputs)
        change = difference(before, after)
        assert size(change) <= len(change.head) + 2 * PAGE_BYTES
        assert patched(before, change) == after
        before = after


@pytest.mark.parametrize("length", [0, 1, PAGE_BYTES, PAGE_BYTES + 1, 5 * PAGE_BYTES - 1, 200_000])
def test_a_state_may_grow_and_shrink(length: int) -> None:
    whole = random.Random(length).randbytes(200_000)
    small, large = snapshot(whole[:length], 2), snapshot(whole, 9)
    for before, after in ((small, large), (large, small)):
        change = difference(before, after)
        assert patched(before, change) == after
        assert size(change) <= abs(len(large) - len(small)) + len(change.head) + 2 * PAGE_BYTES


def test_a_difference_of_something_else_is_noticed() -> None:
    with pytest.raises(MalformedPacket, match="expected 3"):
        patched(b"abc", Difference(b"", 3, ((1, b"x"),)))
