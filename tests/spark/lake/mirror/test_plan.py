"""What a round has to do follows from two lists of files, and a file that was linked keeps its name in the copy."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from meshbus.spark.lake.mirror.plan import LocalFile, changes, kept_beside, name_files


def local(name: str, inode: int = 0, size: int = 1) -> LocalFile:
    return LocalFile(Path("/tables") / name, name, size, (inode, size, 7))


def names(*texts: str) -> frozenset[str]:
    return frozenset(texts)


def test_what_is_missing_and_what_is_too_much() -> None:
    files = {name: local(name, size=size) for name, size in (("b=1/a", 5), ("b=2/a", 7), ("b=3/a", 11))}
    todo = changes(files, names("b=1/a", "b=0/a", "old/a"), names("old/a"))
    assert todo.missing == {"b=2/a": files["b=2/a"], "b=3/a": files["b=3/a"]}
    assert todo.surplus == names("b=0/a")
    assert todo.waiting == (2, 18)
    assert todo.waiting.without(files["b=3/a"]) == (1, 7)


def test_files_have_their_own_names_at_first() -> None:
    files = [local("b=1/a", 1), local("b=2/a", 2)]
    assert name_files(files, names(), {}, {}) == {"b=1/a": files[0], "b=2/a": files[1]}


def test_a_linked_file_keeps_its_name_in_the_copy() -> None:
    linked = local("b=1-2/a", 1)
    assert name_files([linked], names("b=1/a"), {}, {(1, 1, 7): "b=1/a"}) == {"b=1/a": linked}
    assert name_files([linked], names("b=1/a"), {"b=1-2/a": "b=1/a"}, {}) == {"b=1/a": linked}


def test_a_name_that_the_copy_has_no_longer_is_not_used() -> None:
    linked = local("b=1-2/a", 1)
    assert name_files([linked], names("b=9/a"), {"b=1-2/a": "b=1/a"}, {(1, 1, 7): "b=1/a"}) == {"b=1-2/a": linked}


def test_two_files_never_share_an_object() -> None:
    first, second, third = local("b=1/a", 1), local("b=2/a", 1), local("b=3/a", 1)
    known = {(1, 1, 7): "b=1/a"}
    named = name_files([second, first, third], names("b=1/a"), {"b=3/a": "b=1/a"}, known)
    assert named == {"b=1/a": first, "b=2/a": second, "b=3/a": third}
    named = name_files([second, third], names("b=1/a"), {}, known)
    assert sorted(named) == ["b=1/a", "b=3/a"]
    assert named["b=1/a"] is second


def test_an_hour_of_gold_that_the_table_has_again_is_not_kept() -> None:
    old, again, other = (
        f"hour=2026-11-15T{hour}-{digit * 32}.parquet" for hour, digit in (("10", "0"), ("10", "1"), ("11", "2"))
    )
    assert kept_beside([old, other], [again]) == names(other)
    assert kept_beside([old, other], []) == names(old, other)
    assert kept_beside(["batch=e-000000000001/a"], [again]) == names("batch=e-000000000001/a")


short = st.sampled_from([f"b={number}/a" for number in range(6)])


@given(st.dictionaries(short, st.integers(0, 5)), st.sets(short), st.dictionaries(short, short), st.sets(short))
def test_after_the_changes_a_copy_has_each_content_once(
    table: dict[str, int], present: set[str], aliases: dict[str, str], kept: set[str]
) -> None:
    files = [local(name, inode) for name, inode in table.items()]
    known = {(number, 1, 7): f"b={number}/a" for number in range(6)}
    named = name_files(files, frozenset(present), aliases, known)
    assert sorted(file.name for file in named.values()) == sorted(table), "no file is left out"
    todo = changes(named, frozenset(present), frozenset(kept))
    after = (present | set(todo.missing)) - todo.surplus
    assert after == set(named) | (present & kept)
