"""The checker finds planted violations, and accepts histories without any."""

from __future__ import annotations

import pytest

from tests.engine.replicas.checker import Checker, Violation


def history() -> Checker:
    """Three events acknowledged by a majority, one by a leader's disk alone."""
    found = Checker()
    found.lead(1, 7)
    found.acknowledge(0, (b"a", b"b"))
    found.end_read(found.begin(), 2)
    found.acknowledge(2, (b"c",))
    found.acknowledge_local(3, (b"d",))
    return found


WHOLE = {0: b"a", 1: b"b", 2: b"c"}


def test_a_history_without_a_violation_is_accepted() -> None:
    history().final({1: WHOLE, 2: WHOLE}, {b"d"}, wiped=False)
    history().final({1: WHOLE | {3: b"d"}, 2: {2: b"c", 3: b"d"}}, set(), wiped=False)


@pytest.mark.parametrize(
    ("logs", "words"),
    [
        ({1: {0: b"a", 1: b"b"}, 2: {0: b"a", 1: b"b"}}, "committed event 2 is lost"),
        ({1: {0: b"a", 1: b"b", 2: b"x"}}, "committed event 2 is lost"),
        ({1: WHOLE, 2: {0: b"a", 1: b"x", 2: b"c"}}, "differs at 1"),
        ({1: WHOLE, 2: {0: b"a", 1: b"b"}}, "lacks 2"),
        ({1: WHOLE, 2: {}}, "lacks 0 and 2 more"),
    ],
)
def test_what_is_wrong_with_the_logs_is_found(logs: dict[int, dict[int, bytes]], words: str) -> None:
    with pytest.raises(Violation, match=words):
        history().final(logs, {b"d"}, wiped=False)


def test_a_local_event_that_is_nowhere_is_found() -> None:
    with pytest.raises(Violation, match="neither in the log nor set aside"):
        history().final({1: WHOLE}, set(), wiped=False)
    history().final({1: WHOLE}, set(), wiped=True)


def test_two_leaders_of_one_epoch_are_found() -> None:
    found = history()
    found.lead(2, 8)
    with pytest.raises(Violation, match="nodes 7 and 8 both lead epoch 1"):
        found.lead(1, 8)


def test_a_number_that_is_used_twice_is_found() -> None:
    with pytest.raises(Violation, match="two committed events have number 1"):
        history().acknowledge(1, (b"x",))
    with pytest.raises(Violation, match="two committed events have number 2"):
        history().commit(2, b"x")


def test_a_read_that_misses_an_answer_given_before_it_began_is_found() -> None:
    found = history()
    begun = found.begin()
    found.acknowledge(3, (b"e",))
    found.end_read(begun, 3)
    with pytest.raises(Violation, match="a read ends at 3, although 4 was answered"):
        found.end_read(found.begin(), 3)
    found.end_read(found.begin(), 9)
    with pytest.raises(Violation, match="a read ends at 4, although 9 was answered"):
        found.end_read(found.begin(), 4)


def test_an_append_that_comes_before_an_answer_given_before_it_began_is_found() -> None:
    found = history()
    begun = found.begin()
    found.acknowledge(3, (b"e",))
    found.acknowledge(4, (b"f",), begun)
    with pytest.raises(Violation, match="an append got number 4, although 5 was answered"):
        found.acknowledge(4, (b"f",), found.begin())


def test_a_read_of_more_than_the_log_has_is_found() -> None:
    found = history()
    found.end_read(found.begin(), 4)
    with pytest.raises(Violation, match="a read ended at 4, and the log ends at 3"):
        found.final({1: WHOLE}, {b"d"}, wiped=False)


def test_an_event_that_is_there_twice_or_was_refused_is_found() -> None:
    with pytest.raises(Violation, match="an event is there twice, as 0 and 3"):
        history().final({1: WHOLE | {3: b"a"}}, {b"d"}, wiped=False)
    found = history()
    found.refuse((b"no", b"d"))
    with pytest.raises(Violation, match="event 3 was refused and is in the log"):
        found.final({1: WHOLE | {3: b"d"}}, set(), wiped=False)
