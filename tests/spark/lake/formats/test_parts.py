"""Names of parts and of hours, and which parts are combined."""

from pathlib import Path

import pytest

from meshbus.spark.lake.formats.parts import (
    Part,
    format_of,
    hour_name,
    hours_of,
    part_of,
    parts_of,
    run_of_equals,
    successor,
)


@pytest.mark.parametrize(
    "part",
    [Part("events", 0, 0), Part("events", 3, 12), Part("a_1", 5, 5, 2), Part("events", 0, 31, 10)],
)
def test_a_name_says_everything_about_a_part(part: Part) -> None:
    assert part_of(part.folder) == part


@pytest.mark.parametrize("name", ["batch=events-1", "batch=events-000000000001-x", "hour=x", "batch=-000000000001"])
def test_other_names_are_not_parts(name: str) -> None:
    assert part_of(name) is None


def test_parts_are_combined_with_their_equals() -> None:
    def ranges(*pairs: tuple[int, int]) -> list[Part]:
        return [Part("q", first, last) for first, last in pairs]

    assert run_of_equals(ranges((0, 0), (1, 1)), 3) == []
    assert run_of_equals(ranges((0, 0), (1, 1), (2, 2)), 3) == ranges((0, 0), (1, 1), (2, 2))
    assert run_of_equals(ranges((0, 2), (3, 3), (4, 4), (5, 5)), 3) == ranges((3, 3), (4, 4), (5, 5))
    # Batches without files leave holes, and combined parts then span different numbers of batches.
    assert run_of_equals(ranges((0, 3), (4, 6), (9, 16)), 3) == ranges((0, 3), (4, 6), (9, 16))


def test_files_are_grouped_by_the_directories_that_they_are_in() -> None:
    root = Path("/tables/silver/events")
    files = [
        root / name for name in ("batch=b-000000000001/x.parquet", "batch=a-000000000002/hour=h/y.parquet", "z.parquet")
    ]
    assert parts_of(root, files) == [
        Part("a", 2, 2, 0, (files[1],)),
        Part("b", 1, 1, 0, (files[0],)),
        Part("external", 0, 0, 0, (files[2],)),
    ]


def test_the_name_of_a_gold_file_tells_its_hour() -> None:
    names = [hour_name("2026-11-15T09"), hour_name("2026-11-15T08"), hour_name("all")]
    assert list(hours_of(map(Path, [*names, "hour=2026-11-15T10.parquet"]))) == [
        "2026-11-15T08",
        "2026-11-15T09",
        "all",
    ]


def test_the_successor_of_a_part_has_a_higher_generation() -> None:
    assert successor([Part("q", 1, 3, 4)]) == Part("q", 1, 3, 5)
    assert successor([Part("q", 1, 3, 4), Part("q", 4, 4)]) == Part("q", 1, 4)


def test_the_format_of_a_directory_is_recognized(tmp_path: Path) -> None:
    for name, wanted in (
        ("empty", None),
        ("x/batch=a", "parquet"),
        ("y/_delta_log", "delta"),
        ("z/metadata", "iceberg"),
    ):
        (tmp_path / name).mkdir(parents=True)
        assert format_of(tmp_path / name.partition("/")[0]) == wanted
