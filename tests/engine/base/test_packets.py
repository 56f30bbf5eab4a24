"""Test packet batches, trains and outputs."""

from meshbus.engine.base.notices import PeerRecovered
from meshbus.engine.base.packets import Output, PacketBatch, Train


def test_datagrams_become_a_batch() -> None:
    batch = PacketBatch.of([("a", b"12345"), ("b", b""), ("a", b"678")])
    assert len(batch) == 3
    assert [batch.data[s : s + n].tobytes() for s, n in zip(batch.starts, batch.lengths, strict=True)] == [
        b"12345",
        b"",
        b"678",
    ]
    assert list(batch.runs) == [("a", 1), ("b", 1), ("a", 1)]
    assert len(PacketBatch.of([])) == 0


def test_a_train_is_cut_at_its_segments() -> None:
    assert list(Train("a", b"aabbc", 2).datagrams()) == [b"aa", b"bb", b"c"]
    assert list(Train("a", memoryview(b"aabb"), 2).datagrams()) == [b"aa", b"bb"]


def test_outputs_add_up() -> None:
    first, second = Output(), Output()
    first.send("a", b"x")
    second.send("b", b"yy")
    second.control.append(PeerRecovered(1))
    second.forwarded, second.parts = 2, 3
    first.merge(second)
    assert [(train.address, train.segment) for train in first.trains] == [("a", 1), ("b", 2)]
    assert first.control == [PeerRecovered(1)]
    assert (first.forwarded, first.parts) == (2, 3)
    assert Output().trains is not Output().trains
