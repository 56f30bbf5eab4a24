"""A batch ends after whole files, stays within its limit, and leaves no log behind for good."""

from hypothesis import given
from hypothesis import strategies as st

from meshbus.spark.run.nextbatch import Waiting, next_ends


@st.composite
def logs(draw: st.DrawFn) -> Waiting:
    files = sorted(draw(st.sets(st.integers(1, 60), max_size=6)))
    end = draw(st.integers(files[-1] if files else 0, 80))
    return Waiting(draw(st.integers(0, end)), end, files)


@given(st.dictionaries(st.sampled_from("abcdefgh"), logs()), st.integers(1, 50), st.integers(0, 9))
def test_a_batch_is_within_its_limit_or_one_file_and_reads_something(
    waiting: dict[str, Waiting], rows: int, turn: int
) -> None:
    ends = next_ends(waiting, rows, turn)
    taken = {name: end - waiting[name].first for name, end in ends.items()}
    assert all(count > 0 for count in taken.values())
    assert all(end <= waiting[name].end for name, end in ends.items())
    assert bool(taken) is any(log.end > log.first for log in waiting.values())
    assert sum(taken.values()) <= rows or len(taken) == 1
    for name, end in ends.items():
        assert end in waiting[name].files or not any(waiting[name].first < file <= end for file in waiting[name].files)


def test_a_log_that_sealed_files_is_taken_up_to_the_last_one_and_others_up_to_their_end() -> None:
    waiting = {"fast": Waiting(100, 950, [100, 400, 800]), "slow": Waiting(3, 7, [])}
    assert next_ends(waiting, 10_000, 0) == {"fast": 800, "slow": 7}
    assert next_ends({"fast": Waiting(800, 950, [100, 400, 800])}, 10_000, 1) == {"fast": 950}


def test_a_part_of_a_file_that_was_read_is_completed() -> None:
    assert next_ends({"a": Waiting(250, 900, [400, 800])}, 10_000, 0) == {"a": 800}
    assert next_ends({"a": Waiting(250, 900, [400, 800])}, 300, 0) == {"a": 400}


def test_files_that_are_larger_than_a_share_take_turns() -> None:
    waiting = {name: Waiting(0, 500, [500]) for name in "abc"}
    first = [next(iter(next_ends(waiting, 600, turn))) for turn in range(3)]
    assert sorted(first) == ["a", "b", "c"]
    assert next_ends(waiting, 100, 0) == {"a": 500}, "a file with more rows than the limit is a batch of its own"


def test_no_log_waits_for_the_backlog_of_another() -> None:
    waiting = {"huge": Waiting(0, 10_000, list(range(1_000, 10_001, 1_000))), "small": Waiting(0, 20, [])}
    assert next_ends(waiting, 3_000, 0) == {"huge": 2_000, "small": 20}
