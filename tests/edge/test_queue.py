"""One peer's queue: whole messages, both bounds, and counts that add up."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.edge.queue import Loss, PeerQueue, pack_parcel


def sized(size: int) -> bytes:
    return bytes([size % 256]) * size


def test_the_newest_is_dropped_at_the_high_water_mark() -> None:
    queue = PeerQueue(high_water=3)
    accepted = [queue.offer(pack_parcel([(bytes([n]),)])) for n in range(5)]
    assert accepted == [True, True, True, False, False]
    assert queue.take(2) == [b"\0", b"\1"]
    assert queue.offer(pack_parcel([(b"x",)]))
    assert queue.take(100) == [b"\2", b"x"]
    assert queue.stats().dropped == {Loss.HIGH_WATER: 2, Loss.QUEUE_BYTES: 0, Loss.PEER_GONE: 0}


def test_bytes_are_bounded_too_but_one_large_message_passes() -> None:
    queue = PeerQueue(max_bytes=10)
    assert queue.offer(pack_parcel([(sized(11),)]))
    assert not queue.offer(pack_parcel([(b"",), (b"x",)]))
    assert queue.take(1) == [sized(11)]
    assert not queue.offer(pack_parcel([(sized(6),), (sized(6),)]))
    assert queue.offer(pack_parcel([(sized(10),)]))
    assert not queue.offer(pack_parcel([(b"x",)]))
    assert queue.stats().dropped == {Loss.HIGH_WATER: 0, Loss.QUEUE_BYTES: 5, Loss.PEER_GONE: 0}


def test_a_parcel_of_several_messages_is_one_buffer_and_one_of_one_keeps_its_own() -> None:
    parts = (b"head", b"a large body")
    assert pack_parcel([parts]).buffers is parts
    joined = pack_parcel([parts, (b"next",)])
    assert (list(joined.buffers), joined.messages, joined.size) == ([b"heada large bodynext"], 2, 20)


def test_the_same_object_comes_out() -> None:
    wire = sized(20)
    queue = PeerQueue()
    queue.offer(pack_parcel([(wire,)]))
    assert queue.take(1 << 20)[0] is wire


def test_what_waits_when_a_peer_leaves_is_counted() -> None:
    queue = PeerQueue()
    queue.offer(pack_parcel([(b"a",), (b"b",)]))
    queue.close()
    assert queue.take(100) == []
    assert (queue.stats().dropped[Loss.PEER_GONE], queue.stats().matched, queue.pending_bytes) == (2, 2, 0)


STEPS = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 30), min_size=1, max_size=4)), max_size=60)


@given(STEPS, st.integers(1, 8), st.integers(1, 60))
def test_nothing_is_lost_without_a_count_and_the_bounds_hold(
    steps: list[tuple[bool, list[int]]], high_water: int, max_bytes: int
) -> None:
    queue = PeerQueue(high_water=high_water, max_bytes=max_bytes)
    model: deque[tuple[bytes, int]] = deque()
    offered = received = dropped = 0
    for is_offer, sizes in steps:
        if is_offer:
            parcel = pack_parcel([(sized(size),) for size in sizes])
            offered += len(sizes)
            waiting, size = sum(count for _, count in model), sum(len(data) for data, _ in model)
            alone = not model and len(sizes) == 1
            fits = waiting + len(sizes) <= high_water and (alone or size + sum(sizes) <= max_bytes)
            assert queue.offer(parcel) == fits
            if fits:
                model.append((b"".join(map(sized, sizes)), len(sizes)))
            else:
                dropped += len(sizes)
        else:
            limit = sizes[0]
            taken = queue.take(limit)
            expected = [model.popleft() for _ in taken]
            received += sum(count for _, count in expected)
            assert taken == [data for data, _ in expected]
            assert taken or not model
            assert len(taken) <= 1 or sum(map(len, taken)) <= limit
            assert not model or sum(map(len, taken)) + len(model[0][0]) > limit
        stats = queue.stats()
        assert stats.matched == offered == received + stats.pending + dropped
        assert (stats.taken, sum(stats.dropped.values())) == (received, dropped)
        assert stats.pending_bytes == sum(len(data) for data, _ in model)


@pytest.mark.parametrize("limit", [0, 1])
def test_a_take_always_makes_progress(limit: int) -> None:
    queue = PeerQueue()
    for _ in range(3):
        queue.offer(pack_parcel([(b"abc",)]))
    assert [queue.take(limit) for _ in range(4)] == [[b"abc"], [b"abc"], [b"abc"], []]
