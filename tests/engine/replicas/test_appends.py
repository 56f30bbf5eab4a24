from __future__ import annotations

from meshbus.engine.replicas.appends import Appends
from meshbus.engine.replicas.records import Acknowledged, Acks, Out, Unresolved


def test_one_commit_acknowledges_everything_before_it() -> None:
    waiting, out = Appends(100, 1000), Out()
    waiting.add(1, 0, [b""] * 3, Acks.MAJORITY)
    waiting.add(2, 3, [b""] * 2, Acks.LOCAL)
    waiting.add(3, 5, [b""], Acks.MAJORITY)
    waiting.add(4, 6, [b""] * 4, Acks.MAJORITY)
    waiting.reached(Acks.MAJORITY, 9, out, confirmed=True)
    assert out.notices == [Acknowledged(1, 0, 3, Acks.MAJORITY, True), Acknowledged(3, 5, 1, Acks.MAJORITY, True)]
    out = Out()
    waiting.reached(Acks.LOCAL, 5, out, confirmed=False)
    assert out.notices == [Acknowledged(2, 3, 2, Acks.LOCAL, False)]


def test_what_waits_is_bounded_and_one_append_always_fits() -> None:
    waiting, out = Appends(3, 10), Out()
    assert waiting.has_room([bytes(99)] * 9)
    waiting.add(1, 0, [b"1234", b""], Acks.MAJORITY)
    assert waiting.has_room([b"123456"])
    assert not waiting.has_room([b"1234567"]), "too many bytes"
    assert not waiting.has_room([b"", b""]), "too many events"
    waiting.reached(Acks.MAJORITY, 2, out, confirmed=True)
    assert waiting.has_room([b"12345", b"12345", b""])


def test_what_was_not_acknowledged_is_reported_in_the_order_of_the_log() -> None:
    waiting, out = Appends(100, 1000), Out()
    waiting.add(1, 0, [b""] * 3, Acks.MAJORITY)
    waiting.add(2, 3, [b""] * 2, Acks.LOCAL)
    waiting.add(3, 5, [b""], Acks.MAJORITY)
    waiting.give_up(out)
    assert out.notices == [Unresolved(1, 0, 3), Unresolved(2, 3, 2), Unresolved(3, 5, 1)]
    waiting.give_up(out := Out())
    assert out.notices == []
