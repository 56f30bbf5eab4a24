"""The newest events in memory are a part of the log without gaps, whatever is appended and set aside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.replicas import recent
from meshbus.engine.replicas.recent import Recent

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60)


@given(STEPS, st.integers(0, 60), st.integers(0, 20))
def test_what_is_kept_is_what_the_log_has(steps: list[tuple[bool, int]], at: int, max_events: int) -> None:
    log: list[bytes] = []
    kept = Recent()
    for number, (appends, count) in enumerate(steps):
        if appends:
            events = tuple(b"%d.%d" % (number, place) for place in range(count))
            kept.append(len(log), events)
            log += events
        else:
            del log[max(0, len(log) - count) :]
            kept.truncate(len(log))
    assert (at in kept) == (at < len(log))
    if at in kept:
        assert kept.read(at, at + max_events, 1 << 20, 4) == tuple(log[at : at + max_events])


def test_as_much_is_read_as_fits() -> None:
    kept = Recent()
    kept.append(5, (b"aa", b"bb"))
    kept.append(7, (b"cc", b"dd"))
    assert kept.read(5, 99, 18, 4) == (b"aa", b"bb", b"cc")
    assert kept.read(6, 99, 17, 4) == (b"bb", b"cc")
    assert kept.read(8, 99, 5, 4) == ()


def test_the_oldest_appends_go_and_the_newest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "KEPT_BYTES", 10)
    kept = Recent()
    for first in range(0, 40, 2):
        kept.append(first, (bytes(3), bytes(3)))
    # Two appends are enough; a third is the newest, and makes no room by itself.
    assert [seq for seq in range(50) if seq in kept] == [34, 35, 36, 37, 38, 39]
    kept.append(40, (bytes(100),))
    kept.append(41, (b"x",))
    assert [seq for seq in range(50) if seq in kept] == [40, 41]


def test_what_a_log_lacks_is_counted_in_bytes_of_appends() -> None:
    kept = Recent()
    assert kept.nbytes_from(0) == 0
    kept.append(5, (b"aa", b"bb"))
    kept.append(7, (b"c",))
    assert [kept.nbytes_from(seq) for seq in (4, 5, 6, 7, 8)] == [None, 5, 5, 1, 0]
