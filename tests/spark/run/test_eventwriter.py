"""A batch of events is in every table once: as whole files where that is possible, and only what is new in silver."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from meshbus.log.log import Redex
from meshbus.log.replicated import ReplicatedLog
from meshbus.node.replicas.replicarecords import rows_of
from meshbus.spark.io.inputs import Logs
from meshbus.spark.lake.codec import Codec, Declaration
from meshbus.spark.lake.formats.folders import FolderTable
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.eventwriter import TABLES, EventWriter, Known
from meshbus.spark.run.ingest import Range
from meshbus.wire.record import Record, pack_record

JSON = (Declaration(name="a", codec=Codec.JSON),)


def fill(folder: Path, channel: str, payloads: list[bytes], *, seal: bool, **columns: Any) -> None:
    with Redex(folder, background=False) as redex:
        log = redex.open(channel)
        log.append_batch(payloads, **columns)
        if seal:
            log.seal()


def ranges(folder: Path) -> list[Range]:
    found = Logs(str(folder), lambda _: True).look()
    return [Range(name, seen, seen.extent.first, seen.extent.end) for name, seen in found.items()]


def seqs(store: Store, name: str) -> list[tuple[str, int]]:
    return sorted((row["channel"], row["seq"]) for row in store.rows(name))


def segment(folder: Path) -> Path:
    (found,) = folder.glob("*/*.parquet")
    return found


def test_a_sealed_file_of_a_raw_channel_is_in_bronze_and_silver_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path / "tables")
    fill(tmp_path / "log", "raw", [b"x"] * 9, seal=True)
    writer = EventWriter(spark, store, "events", Known(store), lambda: JSON)
    writer.write(0, ranges(tmp_path / "log"))
    for name in ("bronze.events", "silver.events"):
        (path,) = store.paths(name)
        assert Path(path).samefile(segment(tmp_path / "log"))
        assert seqs(store, name) == [("raw", seq) for seq in range(9)]
    rows = store.read(spark, "silver.events").collect()
    assert {(row["codec"], row["value"], row["payload"]) for row in rows} == {(None, None, b"x")}
    assert writer.last() == 0


def test_what_another_node_logged_too_is_not_written_again(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path / "tables")
    known = Known(store)
    for number, (first, count) in enumerate(((0, 6), (0, 6), (3, 6))):
        fill(
            tmp_path / str(number),
            "raw",
            [b"x"] * count,
            seal=True,
            origin=5,
            pub_seq=list(range(first, first + count)),
        )
        query = f"events_{number}"
        EventWriter(spark, store, query, known).write(0, ranges(tmp_path / str(number)))
    assert len(store.rows("bronze.events")) == 18
    assert sorted(row["pub_seq"] for row in store.rows("silver.events")) == list(range(9))
    files = [pq.ParquetFile(path).metadata.num_rows for path in store.paths("silver.events")]
    assert sorted(files) == [3, 6], "a file of which nothing is new adds no file"


def replica(folder: Path, epochs: list[int], committed: int, *, seal: bool) -> None:
    """Write what a member of a replicated channel has on its disk, event by event with the epoch that appended it."""
    records = [pack_record(Record(b"%d.%d" % (seq, epoch), seq, 5)) for seq, epoch in enumerate(epochs)]
    with ReplicatedLog.open(folder, "raw", bytes(16), recorder=len(epochs), background=False) as log:
        for seq, epoch in enumerate(epochs):
            payloads, columns = rows_of(records[seq : seq + 1])
            log.append(epoch, seq, payloads, **columns)
        log.sync()
        log.commit_to(committed)
        log.keep()
        if seal:
            log.committed.seal()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_replicas_are_one_log_whichever_is_read_first_and_whoever_is_behind(
    spark: SparkSession, tmp_path: Path, order: tuple[int, ...]
) -> None:
    replica(tmp_path / "0", [1] * 5 + [2] * 4, 7, seal=True)  # the leader: two events are not committed
    replica(tmp_path / "1", [1] * 5 + [2] * 2, 6, seal=False)  # has heard of fewer commits
    replica(tmp_path / "2", [1] * 5 + [1] * 3, 5, seal=True)  # its last events will be set aside
    store = Store(tmp_path / "tables")
    known = Known(store)
    for number in order:
        EventWriter(spark, store, f"events_{number}", known).write(0, ranges(tmp_path / str(number)))
    assert len(store.rows("bronze.events")) == 7 + 6 + 5, "bronze has every copy"
    silver = sorted((row["seq"], bytes(row["payload"])) for row in store.rows("silver.events"))
    assert silver == [(seq, b"%d.%d" % (seq, 1 if seq < 5 else 2)) for seq in range(7)]


def test_events_of_a_declared_channel_are_decoded_and_bad_ones_are_in_quarantine(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = Store(tmp_path / "tables")
    fill(tmp_path / "log", "a", [b'{"n":%d}' % n for n in range(5)] + [b"{"], seal=True)
    fill(tmp_path / "log", "a", [b'{"n":9}', b"["], seal=False)
    fill(tmp_path / "log", "b", [b"x"] * 2, seal=False)
    EventWriter(spark, store, "events", Known(store), lambda: JSON).write(0, ranges(tmp_path / "log"))
    silver = {(row["channel"], row["seq"]): row["value"] for row in store.read(spark, "silver.events").collect()}
    expected = {("a", n): f'{{"n":{n}}}' for n in range(5)} | {("a", 6): '{"n":9}', ("b", 0): None, ("b", 1): None}
    assert silver == expected
    assert seqs(store, "silver.quarantine") == [("a", 5), ("a", 7)]
    assert len(store.rows("bronze.events")) == 10


def test_ordinary_json_becomes_silver_without_spark(tmp_path: Path) -> None:
    def log(name: str, first: int, end: int, *, seal: bool) -> None:
        numbers = list(range(first, end))
        payloads = [b'{"n":%d}' % number for number in numbers]
        fill(tmp_path / name, "a", payloads, seal=seal, origin=5, pub_seq=numbers)

    store = Store(tmp_path / "tables")
    log("here", 0, 5, seal=True)
    log("here", 5, 6, seal=False)
    log("there", 3, 8, seal=True)
    known = Known(store)
    for query in ("here", "there"):
        EventWriter(None, store, query, known, lambda: JSON).write(0, ranges(tmp_path / query))  # type: ignore[arg-type]
    found = [(row["pub_seq"], row["codec"], row["value"]) for row in store.rows("silver.events")]
    assert sorted(found) == [(number, "json", f'{{"n":{number}}}') for number in range(8)]
    assert store.rows("silver.quarantine") == []


def test_a_batch_that_was_interrupted_at_any_commit_is_completed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "tables")
    fill(tmp_path / "log", "a", [b'{"n":%d}' % n for n in range(5)] + [b"{"], seal=True)
    fill(tmp_path / "log", "b", [b"x"] * 4, seal=False)
    add: Callable[..., None] = FolderTable._add
    deaths = 0

    def dying(self: FolderTable, *arguments: Any) -> None:
        add(self, *arguments)
        raise KeyboardInterrupt  # after the rename, before anybody knows

    monkeypatch.setattr(FolderTable, "_add", dying)
    for _ in range(9):
        writer = EventWriter(spark, store, "events", Known(store), lambda: JSON)
        if writer.last() == 0:
            break
        try:
            writer.write(0, ranges(tmp_path / "log"))
        except KeyboardInterrupt:
            deaths += 1
    assert deaths == len(TABLES)
    everything = [("a", seq) for seq in range(6)] + [("b", seq) for seq in range(4)]
    assert seqs(store, "bronze.events") == everything
    assert seqs(store, "silver.events") == sorted(set(everything) - {("a", 5)})
    assert seqs(store, "silver.quarantine") == [("a", 5)]


def test_what_a_failed_batch_found_is_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(tmp_path / "tables")
    known = Known(store)
    fill(tmp_path / "log", "raw", [b"x"] * 3, seal=True)
    taken = ranges(tmp_path / "log")
    log = bytes.fromhex(taken[0].seen.extent.log_id)
    with suppress(OSError), known.during_batch() as held:
        held.add([{"kind": "log", "channel": "raw", "log_id": log, "first": 0, "last": 2}])
        raise OSError("the disk is full")
    EventWriter(spark, store, "events", known).write(0, taken)
    assert len(store.rows("silver.events")) == 3
