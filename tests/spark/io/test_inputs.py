"""Records of packets as the source reads them: sealed and hot without overlap, in steps, while they are written."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, GreaterThan, In
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from meshbus.errors import LogError, LogFault
from meshbus.log.log import Redex
from meshbus.log.packets.recorder import PacketRecorder
from meshbus.log.payload import Codec
from meshbus.log.schemas import Version, declare
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.spark.io.datasource import BatchReader, Options, StreamReader
from meshbus.spark.io.inputs import Logs, Records, pack, recorded_policies, stored_schemas
from meshbus.spark.io.offsets import Gap
from tests.spark.packets import numbered_headers, read_record
from tests.spark.world import World, rows_of_logs

ONE, OTHER = 7, 2**63 + 9


def take(recorder: PacketRecorder, first: int, count: int) -> None:
    recorder.take(numbered_headers(first, count), np.zeros(1, np.uint8), ts_ns=first, here=True)
    recorder.drain()


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Two records, one of them half sealed."""
    for node_id, count in ((ONE, 40), (OTHER, 100)):
        recorder = PacketRecorder(tmp_path, node_id, background=False)
        take(recorder, 0, count // 2)
        if node_id == OTHER:
            recorder.seal()
        take(recorder, count // 2, count - count // 2)
        recorder.close()
    return tmp_path


def options(root: Path, **given: str) -> Options:
    return Options.read({"path": str(root), "table": "packets", **given})


def rows_read(reader: Any, partitions: Any) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for partition in partitions:
        for batch in reader.read(partition):
            found += zip(batch.column("recorder").to_pylist(), batch.column("packet_seq").to_pylist(), strict=True)
    return found


def everything() -> list[tuple[int, int]]:
    return [(ONE, seq) for seq in range(40)] + [(OTHER - 2**64, seq) for seq in range(100)]


def test_spark_reads_every_cell_as_the_record_has_it(spark: SparkSession, world: World) -> None:
    log_dir = Path(world.config.logs[0])
    table = spark.read.format("meshbus").option("table", "packets").load(str(log_dir))
    expected = read_record(log_dir)
    assert table.orderBy("ts_ns", "counter", "verdict").toArrow().cast(expected.schema).to_pylist() == sorted(
        expected.to_pylist(), key=lambda row: (row["ts_ns"], row["counter"], row["verdict"])
    )
    assert table.where(F.col("recorder") == 5).count() == 0


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("recorder",), ONE)], [(ONE, seq) for seq in range(40)]),
        ([In(("recorder",), (OTHER - 2**64, 5)), GreaterThan(("ts_ns",), 49)], everything()[90:]),
        ([EqualTo(("channel",), "a")], everything()),
    ],
)
def test_a_condition_reads_less(records: Path, filters: list[Any], expected: list[Any]) -> None:
    reader = BatchReader(options(records))
    assert list(reader.pushFilters(filters)) == filters
    assert rows_read(reader, reader.partitions()) == expected


def test_a_stream_reads_in_steps_while_the_recorder_writes_and_seals(records: Path) -> None:
    reader = StreamReader(options(records, maxRowsPerTrigger="33"))
    at, found = reader.initialOffset(), []
    recorder = PacketRecorder(records, ONE, background=False)
    for step in range(100):
        following = reader.latestOffset(at, ReadMaxRows(33))
        if following == at:
            break
        partitions = reader.partitions(at, following)
        if step in {1, 3}:
            take(recorder, 40 if step == 1 else 60, 20)
            recorder.seal()  # what was planned as hot is sealed by now
        found += rows_read(reader, partitions)
        at = following
    recorder.close()
    assert sorted(found) == sorted([*everything(), *((ONE, seq) for seq in range(40, 80))])
    assert at["next"] == {f"{ONE:016x}": 80, f"{OTHER:016x}": 100}
    assert reader.reportLatestOffset()["next"] == at["next"]


def test_a_reader_that_was_overtaken_says_so_or_goes_on(tmp_path: Path) -> None:
    recorder = PacketRecorder(tmp_path, ONE, background=False)
    take(recorder, 0, 10)
    recorder.seal()
    reader = StreamReader(options(tmp_path))
    at = reader.initialOffset()
    planned = reader.latestOffset(at, ReadAllAvailable())
    (sealed,) = (tmp_path / "_packets").rglob("*.parquet")
    sealed.unlink()  # as retention does
    with pytest.raises(LogError, match=r"rows 0 to 9 expired"):
        reader.partitions(at, planned)
    take(recorder, 10, 5)
    end = reader.latestOffset(at, ReadAllAvailable())
    with pytest.raises(LogError, match=r"record of 0+7: rows 0 to 9 expired .* the first available is 10") as caught:
        reader.partitions(at, end)
    assert caught.value.first_available == 10
    patient = StreamReader(options(tmp_path, failOnGap="false"))
    assert rows_read(patient, patient.partitions(at, end)) == [(ONE, seq) for seq in range(10, 15)]
    recorder.close()
    shutil.rmtree(tmp_path / "_packets" / f"{ONE:016x}")
    with pytest.raises(LogError, match=r"the packet record of 0+7 is gone from"):
        reader.partitions(at, end)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 60))
def test_small_parts_are_read_together(sizes: list[int], rows: int) -> None:
    splits = [{"number": number, "first": 7, "end": 7 + size} for number, size in enumerate(sizes)]
    packed = pack(splits, rows)
    assert [split for together in packed for split in together] == splits
    counts = [sum(split["end"] - split["first"] for split in together) for together in packed]
    assert all(count <= rows or len(together) == 1 for count, together in zip(counts, packed, strict=True))
    assert all(one + other > rows for one, other in pairwise(counts)) or rows <= max(sizes)


def test_a_node_s_published_and_received_logs_are_kept_apart(tmp_path: Path) -> None:
    for folder, count in (("published", 3), ("received", 5)):
        with Redex(tmp_path / folder, background=False) as redex:
            redex.open("a/b").append_batch([folder.encode()] * count)
    assert {
        name: (seen.whose, seen.extent.end) for name, seen in Logs(str(tmp_path), lambda _: True).look().items()
    } == {
        "published:a/b": ("a/b", 3),
        "received:a/b": ("a/b", 5),
    }
    reader = BatchReader(Options.read({"path": str(tmp_path)}))
    reader.pushFilters([EqualTo(("channel",), "a/b")])
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert sum(map(len, batches)) == 8


def test_logs_say_what_is_gone(records: Path) -> None:
    gap = Gap("a/b", 3, 5)
    assert Logs(str(records), lambda _: True).gap_error(gap).fault is LogFault.UNKNOWN
    assert Logs(str(records), lambda _: True).look() == {}


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="none is not a directory of logs"):
        Records(str(tmp_path / "none")).look()
    assert Records(str(tmp_path)).look() == {}


def test_policies_are_found_by_recorder_and_version(records: Path) -> None:
    policies = [GatewayPolicy(local_subnet=subnet) for subnet in (1, 2)]
    recorder = PacketRecorder(records, OTHER, background=False)
    for policy in policies:
        recorder.set_policy(policy, ())
        take(recorder, 0, 1)
    recorder.close()
    assert recorded_policies(str(records)) == {(OTHER - 2**64, n): policy for n, policy in enumerate(policies, 1)}


def test_a_world_has_events_and_packets_in_one_folder(world: World) -> None:
    log_dir = Path(world.config.logs[0])
    assert len(rows_of_logs(log_dir)) > 0
    assert len(read_record(log_dir)) > 0


def test_stored_schemas_are_found_below_a_log_dir(tmp_path: Path) -> None:
    for kind, channels in (("published", "ab"), ("received", "a")):
        with Redex(tmp_path / kind, background=False) as redex:
            for channel in channels:
                redex.open(channel).append(b"{}")
    assert stored_schemas(str(tmp_path)) == ()
    (log,) = Logs(str(tmp_path / "received"), lambda _: True).folders()
    declare(log, Version(0, Codec.UTF8))
    declare(log, Version(5, Codec.JSON, "n INT"))
    found = stored_schemas(str(tmp_path))
    seen = Logs(str(tmp_path), lambda _: True).look()["received:a"]
    assert [(one.channel, one.version.first, one.end) for one in found] == [("a", 0, 5), ("a", 5, None)]
    assert {one.log_id.hex() for one in found} == {seen.extent.log_id}
