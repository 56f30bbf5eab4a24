"""Groups, percentiles and the latest facts equal those of plain Python."""

import random
from collections import defaultdict

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from meshbus.spark.lake.grouping import Groups, added, latest, numbered, stacked

KEYS = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([1, -(2**63), None])), max_size=30)


def table(rows: list[tuple[str | None, int | None]]) -> pa.Table:
    text, number = ([row[at] for row in rows] for at in (0, 1))
    return pa.table({"text": pa.array(text, pa.string()), "number": pa.array(number, pa.int64())})


@given(KEYS)
def test_equal_keys_have_one_number_and_null_is_a_key(rows: list[tuple[str | None, int | None]]) -> None:
    seen: dict[object, int] = {}
    expected = [seen.setdefault(row, len(seen)) for row in rows]
    assert numbered(table(rows), ["text", "number"]).tolist() == expected
    groups = Groups(table(rows), ["text", "number"])
    assert [(row["text"], row["number"]) for row in groups.keys.to_pylist()] == list(seen)
    assert [expected.index(number) for number in range(len(groups))] == groups.firsts.tolist()


def test_sums_stay_with_their_keys_and_are_null_where_every_value_is() -> None:
    rows = pa.table({"key": [*"abab"], "size": [2**62, None, 5, None]})
    found = Groups(rows, ["key"]).add_up({"size": (rows["size"], "sum"), "rows": (None, "count_all")})
    assert found.to_pylist() == [{"key": "a", "size": 2**62 + 5, "rows": 2}, {"key": "b", "size": None, "rows": 2}]
    assert added({"key": rows["key"]}, {"size": (rows["size"], "sum")}).num_rows == 2


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-1e6, 1e6) | st.none(), st.integers(1, 40)), max_size=40))
def test_percentiles_equal_those_of_numpy(rows: list[tuple[int, float | None, int]]) -> None:
    held: dict[int, list[float]] = defaultdict(list)
    for key, value, count in rows:
        held[key] += [] if value is None else [value] * count
    kinds = {"key": pa.int64(), "value": pa.float64(), "rows": pa.int64()}
    given_rows = pa.table(
        {name: pa.array([row[at] for row in rows], kind) for at, (name, kind) in enumerate(kinds.items())}
    )
    groups = Groups(given_rows, ["key"])
    for share in (0.0, 0.5, 0.95, 0.99, 1.0):
        (found,) = groups.percentiles(given_rows["value"], given_rows["rows"], [share])
        for one, result in zip(groups.keys["key"].to_pylist(), found.to_pylist(), strict=True):
            if held[one]:
                np.testing.assert_allclose(result, np.percentile(held[one], share * 100), rtol=1e-12, atol=1e-6)
            else:
                assert result is None


def test_the_latest_fact_is_found_whatever_others_know() -> None:
    rng = random.Random(3)
    for _ in range(50):
        facts = sorted((rng.randrange(4), rng.randrange(20)) for _ in range(rng.randrange(12)))
        questions = [(rng.randrange(5), rng.randrange(-1, 21)) for _ in range(12)]
        whose, at = np.array(facts, np.int64).reshape(-1, 2).T
        of, until = np.array(questions, np.int64).T
        before, after = latest(whose, at, of, until)
        for place, (owner, time) in enumerate(questions):
            earlier = [n for n, (who, when) in enumerate(facts) if who == owner and when <= time]
            later = [n for n, (who, when) in enumerate(facts) if who == owner and when > time]
            assert (before[place], after[place]) == (max(earlier, default=-1), min(later, default=-1))


def test_a_column_that_a_table_lacks_is_null() -> None:
    found = stacked(pa.table({"a": [1]}), pa.table({"a": [2], "b": ["x"]}))
    assert found.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]
