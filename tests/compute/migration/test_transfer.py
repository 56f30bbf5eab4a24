from __future__ import annotations

from meshbus.compute.migration.transfer import Transfer
from meshbus.wire.messages.migration import CHUNK_BYTES, SnapshotReady


def test_a_snapshot_is_sent_in_bursts_and_again_when_asked() -> None:
    snapshot = bytes(range(250)) * 100
    transfer = Transfer(9, 1, 2, 3, snapshot)
    sent, was_done = [*transfer.burst(3)], transfer.done
    transfer.restart()
    sent += transfer.burst(3)
    assert (was_done, transfer.done) == (False, True)
    assert transfer.burst(3) == []
    chunks = [message.chunk for _, message in sent if isinstance(message, SnapshotReady)]
    assert b"".join(chunks) == snapshot
    assert [len(chunk) for chunk in chunks] == [CHUNK_BYTES] * 3 + [4000]
    assert {to for to, _ in sent} == {9}
    transfer.restart()
    assert transfer.burst(9) == sent
