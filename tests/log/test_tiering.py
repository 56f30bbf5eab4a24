"""Which segments move, as pure functions: by age, by bytes, the oldest first, and never one without a copy."""

from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.durability import Tiering
from meshbus.log.tiering import Place, local_bytes, next_to_copy, surplus

NS = 1_000_000_000
URI = "file:///objects"


def places(*kinds: str, size: int = 10) -> list[Place]:
    """Segments that were written a second apart, each `local`, `both` or `remote`."""
    return [
        Place(str(number), size, number * NS, kind != "remote", kind != "local") for number, kind in enumerate(kinds)
    ]


def test_the_oldest_without_a_copy_is_copied_when_it_is_old_enough() -> None:
    parts = places("remote", "both", "local", "local")
    assert next_to_copy(parts, 0, Tiering(URI, after_s=10), 12 * NS) is None
    assert next_to_copy(parts, 0, Tiering(URI, after_s=10), 12 * NS + 1) == "2"
    assert next_to_copy(places("both"), 0, Tiering(URI, after_s=10), 99 * NS) is None


def test_the_oldest_without_a_copy_is_copied_while_too_much_is_only_local() -> None:
    parts = places("remote", "both", "local", "local")
    assert next_to_copy(parts, 5, Tiering(URI, local_bytes=25), 0) is None, "the one with a copy can be removed"
    assert next_to_copy(parts, 6, Tiering(URI, local_bytes=25), 0) == "2"


def test_without_a_limit_of_bytes_every_copied_file_is_removed() -> None:
    parts = places("remote", "both", "local", "both")
    assert list(surplus(parts, 0, Tiering(URI, after_s=1))) == ["1", "3"]


def test_with_a_limit_of_bytes_the_newest_files_stay() -> None:
    parts = places("remote", "both", "both", "both", "local")
    assert list(surplus(parts, 5, Tiering(URI, local_bytes=45))) == []
    assert list(surplus(parts, 5, Tiering(URI, local_bytes=44))) == ["1"]
    assert list(surplus(parts, 5, Tiering(URI, local_bytes=1))) == ["1", "2", "3"]


@given(st.lists(st.sampled_from(["local", "both", "remote"]), max_size=8), st.integers(0, 99), st.integers(0, 50))
def test_only_what_has_a_copy_is_removed_and_no_more_than_needed(kinds: list[str], limit: int, hot: int) -> None:
    parts = places(*kinds)
    gone = list(surplus(parts, hot, Tiering(URI, local_bytes=limit)))
    assert all(parts[int(name)].remote and parts[int(name)].local for name in gone)
    left = local_bytes(parts) + hot - 10 * len(gone)
    assert left <= limit or not [part for part in parts if part.local and part.remote and part.name not in gone]
    assert not gone or left + 10 > limit
