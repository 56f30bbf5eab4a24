"""A test of many seeds plays each of them once, and names the one that failed."""

import re
from pathlib import Path

import pytest

from tests.house.tree import ROOT, name_of
from tests.seeds import for_each_seed

played: list[int] = []


@for_each_seed(range(3))
@pytest.mark.parametrize("factor", [10])
def test_every_seed_is_played_with_the_same_fixtures(seed: int, tmp_path: Path, factor: int) -> None:
    assert (tmp_path / "marker").exists() == (seed > 0)
    (tmp_path / "marker").touch()
    played.append(seed * factor)
    assert played == [0, 10, 20][: len(played)]


def test_the_failing_seed_is_named() -> None:
    @for_each_seed([4, 7, 9])
    def fail(seed: int) -> None:
        assert seed != 7, "unlucky"

    with pytest.raises(AssertionError, match=r"^seed 7: AssertionError: unlucky") as caught:
        fail()
    assert isinstance(caught.value.__cause__, AssertionError)


def test_an_error_of_another_kind_is_named_too() -> None:
    @for_each_seed(range(2))
    def fail(seed: int) -> None:
        raise KeyError("missing")

    with pytest.raises(AssertionError, match="seed 0: KeyError: 'missing'"):
        fail()


def test_no_test_is_listed_once_per_seed() -> None:
    pattern = re.compile(r"parametrize\(\s*[\"']seeds?[\"']")
    found = [name_of(path) for path in (ROOT / "tests").rglob("test_*.py") if pattern.search(path.read_text("utf-8"))]
    assert not found, f"{found}: use for_each_seed, which loops and names the seed that failed"
