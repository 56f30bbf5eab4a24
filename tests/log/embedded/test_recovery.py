"""Opening a folder: created once, repaired after a crash, refused if that would hide a loss."""

import shutil
import struct
from pathlib import Path

import pytest
import xxhash

from meshbus.errors import LogError, LogFault
from meshbus.log.durability import NEVER
from meshbus.log.embedded.block import BlockHeader, BlockKey, block_key, unpack_block
from meshbus.log.embedded.logmanifest import load_manifest
from meshbus.log.embedded.recovery import create_hot, recover
from meshbus.log.files import Files
from meshbus.log.folder import MANIFEST, aside, segment_name
from meshbus.names.channel import ChannelName
from tests.log.making import CHANNEL, NOW, numbered, open_log, payloads


def folder_in(root: Path) -> Path:
    (folder,) = root.iterdir()
    return folder


def test_the_log_id_is_drawn_once(tmp_path: Path) -> None:
    for draw in (1, 2):
        found = recover(Files(), tmp_path, ChannelName(CHANNEL), NOW, bytes([draw]).__mul__)
        assert found.manifest.id_bytes == bytes([1]) * 16


def test_a_clean_log_is_left_alone(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        assert log.report.created
        log.append_batch(numbered(0, 4))
        log.seal()
        log.append_batch(numbered(4, 4))
    with open_log(tmp_path) as log:
        assert log.report.clean
        assert not log.report.created
        assert payloads(log.read_range(0, 8)) == numbered(0, 8)
        assert (log.next_seq, log.durable_seq) == (8, 8)


def test_a_torn_tail_is_cut_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 4))
    (path,) = tmp_path.glob("*/_hot/*.hot")
    path.write_bytes(path.read_bytes() + block_key(log.log_id).magic + b" and half a block")
    with open_log(tmp_path) as log:
        assert (log.report.cut_bytes, log.report.clean) == (21, False)
        assert "cut off" in log.report.cut_why
        assert "recovered" in caplog.text
        assert log.append(b"next") == 4
        assert payloads(log.read_range(0, 9)) == [*numbered(0, 4), b"next"]
    with open_log(tmp_path) as log:
        assert log.report.clean


def forged_block(first: int, durable: int, magic: bytes = b"MBBK", seed: int = 0) -> bytes:
    """A block in a payload that says that everything below `durable` was synced."""
    fields = struct.pack("<QqQII16s32x", first, 0, durable, 1, 0, bytes(16))
    return struct.pack("<4sIQ", magic, 32, xxhash.xxh3_64_intdigest(fields, seed)) + fields


@pytest.mark.parametrize("claim", [(9, 9), (2**62, 2**62), (1, 2**63 - 1)])
def test_a_forged_block_in_an_event_does_not_turn_a_torn_tail_into_damage(
    tmp_path: Path, claim: tuple[int, int]
) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 4))
        log.append(forged_block(*claim) + b"the rest of the event")
    (path,) = tmp_path.glob("*/_hot/*.hot")
    path.write_bytes(path.read_bytes()[:-8])
    with open_log(tmp_path) as log:
        assert payloads(log.read_range(0, 9)) == numbered(0, 4)
        assert log.report.cut_bytes


def test_a_claim_is_bounded_by_what_can_have_been_written_even_by_someone_who_knows_the_key(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        key = block_key(log.log_id)
        log.append_batch(numbered(0, 4))
        log.append(forged_block(2**62, 2**62, *key) + forged_block(1, 2**40, *key) + b"the rest of the event")
    (path,) = tmp_path.glob("*/_hot/*.hot")
    path.write_bytes(path.read_bytes()[:-8])
    with open_log(tmp_path) as log:
        assert log.next_seq == 4


def test_the_search_for_blocks_after_a_torn_tail_computes_no_checksum_for_forged_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 4))
        log.append(struct.pack("<4sIQQqQII16s", b"MBBK", 1 << 16, 0, 5, 0, 5, 1, 0, bytes(16)) * 4_096)
    (path,) = tmp_path.glob("*/_hot/*.hot")
    path.write_bytes(path.read_bytes()[:-8])
    tried: list[int] = []

    def counted(buffer: memoryview, at: int, key: BlockKey) -> BlockHeader:
        tried.append(at)
        return unpack_block(buffer, at, key)

    monkeypatch.setattr("meshbus.log.embedded.hot.unpack_block", counted)
    with open_log(tmp_path) as log:
        assert log.next_seq == 4
    assert len(tried) < 16


def test_damage_is_not_hidden(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 4))
        log.sync()
        log.append(b"later")
    (path,) = tmp_path.glob("*/_hot/*.hot")
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(LogError, match="restore the file from a copy") as caught:
        open_log(tmp_path)
    assert caught.value.fault is LogFault.CORRUPT
    assert path.read_bytes() == content, "nothing was touched"


def test_files_that_never_got_their_name_go(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    folder = folder_in(tmp_path)
    left = [aside(folder / MANIFEST), aside(folder / segment_name(0, 5))]
    for path in left:
        path.write_bytes(b"half")
    with open_log(tmp_path) as log:
        assert set(log.report.removed) == {path.name for path in left}
    assert not any(path.exists() for path in left)


def test_a_segment_without_manifest_goes_when_its_rows_are_elsewhere_and_stays_otherwise(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 4))
        log.seal()
        log.append_batch(numbered(4, 4))
    folder = folder_in(tmp_path)
    covered = [folder / segment_name(4, 8), folder / segment_name(0, 8)]
    uncovered = folder / segment_name(8, 12)
    for path in (*covered, uncovered):
        path.write_bytes(b"parquet, one hopes")
    with open_log(tmp_path) as log:
        assert set(log.report.removed) == {path.name for path in covered}
        assert log.report.foreign == (uncovered.name,)
        assert payloads(log.read_range(0, 8)) == numbered(0, 8)
    assert uncovered.exists()


def test_a_segment_whose_hot_file_lost_rows_becomes_part_of_the_log(tmp_path: Path) -> None:
    with open_log(tmp_path, fsync=NEVER, seal_bytes=300) as log:
        log.append_batch(numbered(0, 4))
        folder = folder_in(tmp_path)
        (hot,) = folder.glob("_hot/*.hot")
        whole = hot.stat().st_size
        log.append_batch(numbered(4, 4))
        log.append_batch(numbered(8, 2))  # in the next file
        cut, manifest = hot.read_bytes()[:whole], (folder / MANIFEST).read_bytes()
        log.keep()
        assert not hot.exists()
    # As if neither the manifest nor the end of the hot file had reached the disk.
    hot.write_bytes(cut)
    (folder / MANIFEST).write_bytes(manifest)
    with open_log(tmp_path) as log:
        assert log.report.removed == (hot.name,)
        assert log.report.foreign == ()
        (segment,) = load_manifest(folder).segments
        assert (segment.first, segment.end, segment.group_rows) == (0, 8, 8)
        assert payloads(log.read_range(0, 10)) == numbered(0, 10)
        assert log.verify() == []
        assert log.append(b"next") == 10
    with open_log(tmp_path) as log:
        assert log.report.clean


def test_retired_segments_leave_the_sight_of_plain_readers(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for first in (0, 4):
            log.append_batch(numbered(first, 4))
            log.seal()
        log.compact()
    folder = folder_in(tmp_path)
    for old in (folder / "_old").iterdir():  # as if moving them had not reached the disk
        old.rename(folder / old.name.removesuffix(".old"))
    open_log(tmp_path).close()
    assert [path.name for path in folder.glob("*.parquet")] == [segment_name(0, 8)]
    assert len(list((folder / "_old").iterdir())) == 2


def test_events_without_a_manifest_are_not_taken_for_a_new_log(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append(b"x")
    (folder_in(tmp_path) / MANIFEST).unlink()
    with pytest.raises(LogError, match="holds events but no"):
        open_log(tmp_path)


def test_the_folder_of_another_channel_is_refused(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    folder = folder_in(tmp_path)
    with pytest.raises(LogError, match="is the log of") as caught:
        recover(Files(), folder, ChannelName("other"), NOW)
    assert caught.value.fault is LogFault.FOREIGN


def test_a_hot_file_that_cannot_be_begun_leaves_nothing(tmp_path: Path) -> None:
    class Full(Files):
        def write(self, *_: object) -> int:
            raise OSError(28, "No space left on device")

    open_log(tmp_path).close()
    folder = folder_in(tmp_path)
    before = sorted(folder.rglob("*"))
    with pytest.raises(OSError, match="No space"):
        create_hot(Full(), folder, load_manifest(folder), 99, NOW)
    assert sorted(folder.rglob("*")) == before


def test_a_copied_log_opens_elsewhere(tmp_path: Path) -> None:
    with open_log(tmp_path / "a") as log:
        log.append_batch(numbered(0, 4))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with open_log(tmp_path / "b") as log:
        assert payloads(log.read_range(0, 4)) == numbered(0, 4)
