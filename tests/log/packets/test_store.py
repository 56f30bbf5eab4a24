"""The files of a recorder: bounded, sealed, and whole after a crash at any step."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log.files import Files, Part
from meshbus.log.packets import store as module
from meshbus.log.packets.packed import PACKED_MOST, Packed, pack_rows
from meshbus.log.packets.row import ROW, ROW_WORDS
from meshbus.log.packets.runs import RecordInfo
from meshbus.log.packets.store import GROUP_ROWS, LEAST_BYTES, SEAL_AGE_S, Bounds, PacketStore, folder_of
from meshbus.log.schema import PACKETS, arrow_schema
from tests.log.crash import Disk, Loss, Recorder, Unsynced, lay_out
from tests.log.making import Clock
from tests.log.packets.making import NODE, counters


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make hot files small."""
    monkeypatch.setattr(module, "LEAST_BYTES", 0)
    monkeypatch.setattr(module, "SEAL_ROWS", 10)


def rows(first: int, count: int, channel: int = 0) -> Packed:
    made = np.zeros(count, ROW)
    made["header"]["counter"], made["chash64"] = np.arange(first, first + count), channel
    return pack_rows(made)


def full_rows(first: int, count: int) -> Packed:
    """Return rows in which nearly everything changes."""
    words = np.random.default_rng(first).integers(0, 1 << 64, (count, ROW_WORDS), np.uint64)
    made = words.view(ROW)[:, 0]
    made["header"]["counter"], made["chash64"] = np.arange(first, first + count), 0
    return pack_rows(made)


def open_store(log_dir: Path, *, files: Files | None = None, clock: Clock | None = None, **bounds: Any) -> PacketStore:
    clock = clock or Clock()
    bounds.setdefault("max_bytes", LEAST_BYTES)
    return PacketStore(
        folder_of(log_dir, NODE),
        RecordInfo(NODE, 1),
        Bounds(**bounds),
        clock=clock,
        monotonic=clock.monotonic,
        files=files or Unsynced(),
    )


def size_of(log_dir: Path) -> int:
    return sum(path.stat().st_size for path in log_dir.rglob("*") if path.is_file() and path.parent.name != "_policies")


@pytest.mark.usefixtures("small")
def test_rows_are_kept_in_order_and_sealed_as_parquet(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for first in range(0, 30, 5):
        store.append(rows(first, 5, channel=7), {7: "a/b"})
    store.seal()
    store.append(rows(30, 5), {})
    assert counters(tmp_path) == list(range(35))
    sealed = sorted(store.folder.glob("*.parquet"))
    assert len(sealed) > 1
    tables = [pq.read_table(path) for path in sealed]
    assert all(table.schema.equals(arrow_schema(PACKETS), check_metadata=True) for table in tables)
    assert [value for table in tables for value in table["counter"].to_pylist()] == list(range(30))
    assert {value for table in tables for value in table["channel"].to_pylist()} == {"a/b"}
    store.close()


def test_row_groups_are_as_readers_count_on(tmp_path: Path) -> None:
    store = open_store(tmp_path, max_bytes=1 << 30)
    for first in range(0, GROUP_ROWS + 100, 5_000):
        store.append(rows(first, min(5_000, GROUP_ROWS + 100 - first)), {})
    store.seal()
    (sealed,) = store.folder.glob("*.parquet")
    metadata = pq.ParquetFile(sealed).metadata
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [GROUP_ROWS, 100]
    store.close()


@pytest.mark.parametrize("sealing", [True, False])
def test_bytes_never_pass_their_bound(tmp_path: Path, sealing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", 0)
    monkeypatch.setattr(module, "has_arrow", lambda: sealing)
    store = open_store(tmp_path, max_bytes=300_000)
    random_, number = random.Random(1), 0
    peaks: list[int] = []

    def look(_handle: int) -> None:
        peaks.append(size_of(tmp_path))

    monkeypatch.setattr(store.files, "fsync", look)  # among others when a sealed file lies beside its hot one
    for _ in range(200):
        count = random_.randrange(1, 80)
        store.append(full_rows(number, count), {})
        number += count
        if random_.random() < 0.3:
            store.keep()
        peaks.append(size_of(tmp_path))
    assert 200_000 < max(peaks) <= 300_000
    assert number * PACKED_MOST > 600_000
    found = counters(tmp_path)
    assert found == list(range(number - len(found), number))
    assert store.expired == number - len(found) > 0
    assert len(found) * PACKED_MOST > 100_000
    store.close()


@pytest.mark.usefixtures("small")
def test_age_is_swept(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(tmp_path, clock=clock, max_age_s=3600.0)
    store.append(rows(0, 5), {})
    clock.forward(SEAL_AGE_S)
    store.keep()
    assert len(list(store.folder.glob("*.parquet"))) == 1, "sealed by age, however small"
    clock.forward(3000)
    store.append(rows(5, 5), {})
    store.keep()
    assert counters(tmp_path) == list(range(10))
    clock.forward(700)
    store.keep()
    assert counters(tmp_path) == list(range(5, 10))
    store.close()


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path, max_bytes=LEAST_BYTES)
    with pytest.raises(LogError, match="another node with this identity") as caught:
        open_store(tmp_path, max_bytes=LEAST_BYTES)
    assert caught.value.fault is LogFault.LOCKED
    store.close()
    open_store(tmp_path, max_bytes=LEAST_BYTES).close()


def test_a_bound_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="record_max_bytes"):
        Bounds(max_bytes=LEAST_BYTES - 1)


class Full(Unsynced):
    """A disk with a limited number of free bytes."""

    left = 1 << 30

    def write_some(self, handle: int, parts: Sequence[Part], at: int) -> int:
        size = sum(map(len, parts))
        if size > self.left:
            super().write_some(handle, [b"".join(parts)[: self.left]], at)
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write_some(handle, parts, at)


def test_a_full_disk_loses_what_it_refused_and_nothing_else(tmp_path: Path) -> None:
    disk = Full()
    store = open_store(tmp_path, files=disk, max_bytes=LEAST_BYTES)
    store.append(rows(0, 5), {})
    disk.left = 100
    with pytest.raises(LogError, match="free some space") as caught:
        store.append(full_rows(5, 5), {})
    assert caught.value.fault is LogFault.NO_SPACE
    disk.left = 1 << 30
    store.append(rows(10, 5), {})
    store.seal()
    assert counters(tmp_path) == [*range(5), *range(10, 15)]
    store.close()


def test_what_a_disk_changed_is_counted_when_it_is_sealed(tmp_path: Path) -> None:
    store = open_store(tmp_path, max_bytes=LEAST_BYTES)
    for first in (0, 5, 10):
        store.append(rows(first, 5), {})
    (hot,) = store.folder.glob("_hot/*.hot")
    content = bytearray(hot.read_bytes())
    content[len(content) // 2] ^= 1
    hot.write_bytes(content)
    store.seal()
    assert counters(tmp_path) == list(range(5))
    assert store.damaged == 10
    store.append(rows(15, 5), {})
    (hot,) = store.folder.glob("_hot/*.hot")
    hot.write_bytes(b"nothing of it is left")
    store.seal()
    store.append(rows(20, 5), {})
    assert counters(tmp_path) == [*range(5), *range(20, 25)]
    assert store.damaged == 15
    store.close()


TIGHT = 40_000
"""Bytes of two sealed files, of which even the smallest is large."""


def live(files: Recorder, log_dir: Path) -> None:
    """One scenario: hot files, seals, a restart, expiry; marks tell which counters were begun, kept or expired."""
    begun = kept = expired = 0

    def append(store: PacketStore, count: int, channel: int = 7) -> None:
        nonlocal begun
        begun += count
        files.mark(b"%d %d %d" % (begun, kept, expired))
        store.append(rows(begun - count, count, channel), {7: "a/b"})

    def safe() -> None:
        nonlocal kept
        kept = begun
        files.mark(b"%d %d %d" % (begun, kept, expired))

    store = open_store(log_dir, files=files)
    append(store, 3)
    append(store, 2, channel=0)
    store.sync()
    safe()
    append(store, 6)
    append(store, 4)
    store.keep()
    append(store, 1)
    store.seal()
    safe()
    append(store, 2)
    store.close()
    safe()
    store = open_store(log_dir, files=files, max_bytes=TIGHT)
    for _ in range(4):
        expired = begun
        append(store, 7)
        store.keep()
        store.sync()
        safe()
    assert store.expired
    store.files.close(store._handle)  # the end of a process: nothing is synced
    store.files.close(store._lock)


@pytest.mark.usefixtures("small")
def test_a_crash_at_any_step_leaves_what_was_synced_once(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    (tmp_path / "empty").mkdir()
    files = Recorder(tmp_path / "live")
    live(files, tmp_path / "live" / "root")
    disk = Disk(tmp_path / "empty")
    begun = kept = expired = checked = 0
    seen: set[object] = set()
    for number, step in enumerate(files.steps):
        if step.what == "mark":
            begun, kept, expired = map(int, step.data.split())
            continue
        disk.take(step)
        for loss in Loss:
            image = disk.left(loss, random.Random(number))
            if (image, begun, kept, expired) in seen:
                continue
            seen.add((image, begun, kept, expired))
            place = tmp_path / f"{number}-{loss}"
            lay_out(image, place)
            check(place / "root", begun, range(expired, kept), f"after step {number} ({step.what} {step.path}), {loss}")
            checked += 1
    assert checked > 100


def check(root: Path, begun: int, kept: range, where: str) -> None:
    """A reader sees complete rows without a writer, and after one has opened the folder."""
    for opened in (False, True):
        if opened:
            open_store(root, max_bytes=TIGHT if kept.start else LEAST_BYTES).close()
        elif not (folder_of(root, NODE) / "_hot").is_dir():
            assert not kept, where
            continue
        found = counters(root)
        assert found == sorted(set(found)), f"{where}: twice, or out of order"
        assert not found or found[-1] < begun, where
        assert set(kept) <= set(found), f"{where}: {kept} were synced"


@pytest.mark.usefixtures("small")
def test_a_wall_clock_that_is_set_back_does_not_delay_sealing(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(tmp_path, clock=clock)
    store.append(rows(0, 3), {})
    clock.set_by_hand(-3600)
    clock.forward(SEAL_AGE_S)
    store.keep()
    assert len(list(store.folder.glob("*.parquet"))) == 1
    store.close()
