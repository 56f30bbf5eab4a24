"""Names of files: short, without collisions, and nothing that a Parquet reader mistakes for data."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.folder import (
    HOT,
    LOCK,
    MANIFEST,
    OLD,
    aside,
    folder_of,
    hot_files,
    hot_name,
    is_aside,
    is_log_folder,
    old_path,
    segment_name,
    segment_range,
)
from meshbus.names.channel import ChannelName

NAMES = st.text("abz09-_./", min_size=1, max_size=255).filter(
    lambda text: not text.startswith("/") and not text.endswith("/") and "//" not in text
    and not {".", ".."} & set(text.split("/"))
)  # fmt: skip


@given(NAMES)
def test_a_folder_name_is_short_visible_and_ends_in_the_hash(name: str) -> None:
    folder = folder_of(Path("root"), ChannelName(name)).name
    assert len(folder) <= 80 + 17
    assert folder[0] not in "._"
    assert "/" not in folder
    assert folder.endswith(f"-{ChannelName(name).hash:016x}")


def test_names_that_read_alike_have_folders_of_their_own() -> None:
    assert folder_of(Path(), ChannelName("a/b")) != folder_of(Path(), ChannelName("a_b"))


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_a_segment_is_named_by_its_range(first: int, end: int) -> None:
    assert segment_range(segment_name(first, end)) == (first, end)
    path = Path(segment_name(first, end))
    assert segment_range(aside(path).name) is None
    assert segment_range(old_path(Path(), path.name).name) is None


def test_only_segments_look_like_data_to_other_readers() -> None:
    segment = Path("c") / segment_name(0, 5)
    others = [Path("c") / MANIFEST, Path("c") / LOCK, Path("c") / HOT / hot_name(5), aside(segment)]
    others += [old_path(Path("c"), segment.name)]
    for path in others:
        assert any(part.startswith("_") for part in path.parts[1:])
        assert path.suffix != ".parquet"
    assert segment.suffix == ".parquet"
    assert OLD in old_path(Path("c"), segment.name).parts


def test_a_log_that_lost_its_empty_folder_has_no_hot_files(tmp_path: Path) -> None:
    assert hot_files(tmp_path) == []


def test_other_files_are_neither_segments_nor_hot_files(tmp_path: Path) -> None:
    (tmp_path / HOT).mkdir()
    for name in (hot_name(7), hot_name(3), "notes.txt", "7.hot", aside(Path(hot_name(9))).name):
        (tmp_path / HOT / name).touch()
    assert [(first, path.name) for first, path in hot_files(tmp_path)] == [(3, hot_name(3)), (7, hot_name(7))]
    assert segment_range("part-0.parquet") is None
    assert is_aside(aside(Path(MANIFEST)))
    assert not is_aside(Path(MANIFEST))


def test_only_the_folder_of_a_channel_may_hold_a_log() -> None:
    assert is_log_folder(folder_of(Path(), ChannelName("sensors/lidar")).name)
    for name in ("events", "_consumers", "_hot", "x-12", "_packets-0123456789abcdef"):
        assert not is_log_folder(name)
