"""Test that deadlines behave like a plain dict that is searched."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.base.deadlines import Deadlines

steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 9), st.integers(0, 99)),
        st.tuples(st.just("drop"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("over"), st.just(0), st.integers(0, 99)),
    )
)


@given(steps)
def test_it_equals_a_plain_search(todo: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    plain: dict[int, float] = {}
    for what, key, time in todo:
        match what:
            case "set":
                deadlines.set(key, float(time))
                plain[key] = float(time)
            case "drop":
                assert deadlines.drop(key) == (plain.pop(key, None) is not None)
            case _:
                due = sorted((then, key) for key, then in plain.items() if then <= time)
                assert deadlines.over(time) == [key for _, key in due]
                plain = {key: then for key, then in plain.items() if then > time}
        assert len(deadlines) == len(plain)
        assert list(deadlines) == list(plain)
        assert all((key in deadlines) == (key in plain) for key in range(10))
        assert deadlines.first <= min(plain.values(), default=inf)
        assert deadlines.next() == min(plain.values(), default=None)
        assert deadlines.first == min(plain.values(), default=inf)


def test_deadlines_that_were_met_take_no_room() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(100_000):
        deadlines.set(number, number + 5.0)
        deadlines.drop(number - 10)
    assert len(deadlines) == 10
    assert len(deadlines._heap) < 200


def test_a_deadline_can_be_asked_for() -> None:
    deadlines: Deadlines[str] = Deadlines()
    assert deadlines.get("a") is None
    deadlines.set("a", 2.0)
    deadlines.set("a", 3.0)
    assert deadlines.get("a") == 3.0
    deadlines.drop("a")
    assert deadlines.get("a") is None


def test_at_most_so_many_are_taken_and_the_others_stay_due() -> None:
    deadlines = Deadlines[int]()
    for key in range(5):
        deadlines.set(key, 1.0 + key / 10)
    assert deadlines.over(2.0, 2) == [0, 1]
    assert deadlines.over(0.5, 2) == []
    assert deadlines.next() == 1.2
    assert deadlines.over(2.0) == [2, 3, 4]


def test_nothing_is_due_before_the_earliest_deadline() -> None:
    deadlines: Deadlines[int] = Deadlines()
    assert deadlines.first == inf
    deadlines.set(1, 5.0)
    assert deadlines.first == 5.0
    deadlines.set(1, 7.0)
    assert deadlines.over(6.0) == []
    assert deadlines.first == 7.0
    assert deadlines.over(7.0) == [1]
    assert deadlines.first == inf
