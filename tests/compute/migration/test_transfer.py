from __future__ import annotations

import random
from collections.abc import Sequence

from meshbus.compute.migration.reassembler import Reassembler
from meshbus.compute.migration.transfer import FIRST_WINDOW, MAX_WINDOW, Transfer
from meshbus.wire.messages.migration import CHUNK_BYTES, PartsMissing, SnapshotReady
from tests.seeds import for_each_seed


def report(total: int, *ranges: tuple[int, int], seq: int = 3) -> PartsMissing:
    return PartsMissing(origin=1, attempt=2, seq_through=seq, total_chunks=total, ranges=ranges)


def sent(transfer: Transfer, count: int = 1000) -> list[int]:
    """Send what may be sent, and return the parts."""
    return [message.chunk_index for _, message in transfer.burst(count) if isinstance(message, SnapshotReady)]


def windowed(total: int) -> Transfer:
    return Transfer(9, 1, 2, 3, bytes(total * CHUNK_BYTES))


def test_to_a_plain_target_a_snapshot_is_sent_in_bursts_and_again_when_asked() -> None:
    snapshot = bytes(range(250)) * 100
    transfer = Transfer(9, 1, None, 3, snapshot)
    first, was_done = [*transfer.burst(3)], transfer.done
    transfer.restart()  # still being sent
    first += transfer.burst(3)
    assert (was_done, transfer.done) == (False, True)
    assert transfer.burst(3) == []
    parts = [message for _, message in first if isinstance(message, SnapshotReady)]
    assert b"".join(part.chunk for part in parts) == snapshot
    assert {(to, part.origin, part.attempt) for (to, _), part in zip(first, parts, strict=True)} == {(9, 1, None)}
    transfer.restart()
    assert transfer.burst(9) == first


def test_parts_wait_for_the_target_and_the_window_grows_and_shrinks() -> None:
    transfer = windowed(2000)
    assert sent(transfer) == list(range(FIRST_WINDOW))
    assert transfer.ready == 0
    transfer.report(report(2000, (FIRST_WINDOW, 2000)))
    assert sent(transfer) == list(range(FIRST_WINDOW, 3 * FIRST_WINDOW))
    transfer.report(report(2000, (3 * FIRST_WINDOW, 2000)))
    assert transfer.ready == 4 * FIRST_WINDOW
    sent(transfer)
    # One was lost: half of the window.
    transfer.report(report(2000, (100, 101), (200, 2000)))
    assert transfer.ready < 4 * FIRST_WINDOW
    for arrived in range(300, 1900, 50):
        sent(transfer)
        transfer.report(report(2000, (100, 101), (arrived, 2000)))
        assert transfer.ready <= MAX_WINDOW


def test_after_the_last_part_only_the_missing_ones_follow() -> None:
    transfer = windowed(10)
    assert sent(transfer) == list(range(10))
    transfer.report(report(10, (2, 4), (7, 8), seq=99))  # about another snapshot
    transfer.report(report(10, (2, 4), (7, 10)))  # the last part is on its way, or lost
    assert sent(transfer) == []
    transfer.restart()
    assert sent(transfer) == [9]
    transfer.report(report(10, (2, 4), (7, 8)))
    assert not transfer.is_windowed
    assert sent(transfer, 2) == [2, 3]
    transfer.report(report(10, (7, 8)))  # from before the end of the round
    assert sent(transfer) == [7, 9]
    transfer.finish()
    transfer.report(report(10, (7, 8)))
    transfer.restart()
    assert transfer.ready == 0


def passes(parts: Sequence[tuple[int, object]], rng: random.Random, loss: float) -> list[SnapshotReady]:
    return [part for _, part in parts if isinstance(part, SnapshotReady) and rng.random() >= loss]


@for_each_seed(range(20))
def test_a_snapshot_arrives_whatever_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    snapshot = rng.randbytes(rng.randrange(1, 400) * CHUNK_BYTES - rng.randrange(CHUNK_BYTES))
    transfer, target = Transfer(9, 1, 2, 3, snapshot), Reassembler(1 << 24)
    loss, needed = rng.choice([0.0, 0.01, 0.3]), 0
    for _ in range(2000):
        parts = passes(transfer.burst(32), rng, loss)
        if not parts and transfer.ready == 0:
            transfer.restart()
        needed += len(parts)
        for part in parts:
            if target.feed(part, 5, 0) == snapshot:
                assert needed <= 3 * part.total_chunks + 100, "only what is missing is sent again"
                return
            missing = target.missing(part, 5)
            if missing is not None and rng.random() >= loss:
                transfer.report(report(part.total_chunks, *missing))
    raise AssertionError("it has not arrived")
