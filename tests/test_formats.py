"""A format says which versions are read, and refuses the others with one sentence that says what to do."""

import pytest

from meshbus.errors import ConfigError
from meshbus.formats import Format, take_file_version


def format_of(version: int, oldest: int) -> Format:
    return Format(
        name="log mark", where="_mark", what="marks", version=version, oldest=oldest, mark="a field", refused="the log"
    )


@pytest.mark.parametrize(("version", "oldest", "readable"), [(1, 1, "version 1"), (3, 1, "versions 1 to 3")])
def test_what_is_readable_is_said_in_words(version: int, oldest: int, readable: str) -> None:
    form = format_of(version, oldest)
    assert form.readable == readable
    assert [form.problem(found) for found in range(oldest, version + 1)] == [None] * (version - oldest + 1)


def test_a_newer_version_is_refused_with_what_to_do() -> None:
    assert format_of(3, 2).problem(4) == (
        "log mark, version 4, was written by a newer meshbus; this one reads versions 2 to 3; use the meshbus that wrote"
        " it, or a newer one; nothing was changed"
    )


@pytest.mark.parametrize("found", [1, 0, -7])
def test_a_version_that_is_no_longer_read_is_refused_too(found: int) -> None:
    assert format_of(3, 2).problem(found) == (
        f"log mark, version {found}, was written by an older meshbus; this one reads versions 2 to 3; use the meshbus"
        " that wrote it, or start without this file; nothing was changed"
    )


def test_the_version_of_a_file_that_people_write_need_not_be_there() -> None:
    for table in ({"name": "a"}, {"name": "a", "file_version": 1}):
        take_file_version(table, "node.toml")
        assert table == {"name": "a"}


@pytest.mark.parametrize(
    ("version", "problem"), [(2, "newer meshbus"), (0, "a whole number from 1 on"), ("1", "got '1'")]
)
def test_another_version_of_a_file_that_people_write_is_refused(version: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"file_version \(from node.toml\): .*{problem}"):
        take_file_version({"file_version": version}, "node.toml")
