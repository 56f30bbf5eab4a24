"""The source: what Spark reads is what the log holds, in a batch, in steps, and while the log goes on."""

import datetime as dt
import json
import shutil
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from meshbus.errors import ConfigError, LogError
from meshbus.log.durability import LogConfig, Retention, Tiering
from meshbus.log.log import Redex
from meshbus.spark.io.datasource import BatchReader, Options, StreamReader
from meshbus.spark.run.failure import sentence_of_failure
from tests.log.packets.making import CHANNELS, KINDS, traffic
from tests.log.packets.test_parquet import sealed
from tests.spark.world import World, rows_of_logs

FIRST = "alarms"
SECOND = "sensors/lidar"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Two logs, half sealed and half hot."""
    root = tmp_path / "log"
    with Redex(root, recorder=2**63 + 5, background=False) as redex:
        for channel, rows in ((FIRST, 40), (SECOND, 100)):
            log = redex.open(channel, origin=2**64 - 3)
            log.append_batch([b"%d" % number for number in range(rows // 2)], headers={"k": b"v"})
            log.seal()
            log.append_batch([b"%d" % number for number in range(rows // 2, rows)])
    return root


def options(root: Path, **given: str) -> Options:
    return Options.read({"path": str(root), **given})


def rows_read(reader: Any, partitions: Any) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for partition in partitions:
        for batch in reader.read(partition):
            found += zip(batch.column("channel").to_pylist(), batch.column("seq").to_pylist(), strict=True)
    return found


def everything(*, first: int = 0) -> list[tuple[str, int]]:
    return [(FIRST, seq) for seq in range(first, 40)] + [(SECOND, seq) for seq in range(first, 100)]


def test_spark_reads_every_cell_as_the_log_has_it(spark: SparkSession, world: World) -> None:
    root = Path(world.config.logs[0])
    read = spark.read.format("meshbus").load(str(root)).toArrow().to_pylist()
    for row in read:
        row["headers"] = None if row["headers"] is None else list(row["headers"])
    order = itemgetter("channel", "seq")
    assert sorted(read, key=order) == sorted(rows_of_logs(root), key=order)


def test_a_large_event_is_one_row(spark: SparkSession, tmp_path: Path) -> None:
    frames = [np.random.default_rng(size).bytes(size) for size in (17 << 20, 5, 200_000, 2 << 20)]
    with Redex(tmp_path, background=False) as redex:
        log = redex.open(SECOND)
        log.append_batch(frames[:2])
        log.seal()
        log.append_batch(frames[2:])
    read = spark.read.format("meshbus").load(str(tmp_path))
    rows = read.select("seq", F.length("payload").alias("size"), F.sha2("payload", 256).alias("hash")).collect()
    expected = {(seq, len(frame), sha256(frame).hexdigest()) for seq, frame in enumerate(frames)}
    assert {(row["seq"], row["size"], row["hash"]) for row in rows} == expected
    # A step that may take fewer bytes than an event has still takes one.
    reader = StreamReader(options(tmp_path, startingOffsets="earliest"))
    start, seen = reader.initialOffset(), list[int]()
    while True:
        end = reader.latestOffset(start, ReadMaxBytes(1 << 20))
        if end == start:
            break
        seen += [seq for _, seq in rows_read(reader, reader.partitions(start, end))]
        start = end
    assert seen == [0, 1, 2, 3]


def test_spark_alone_reads_sealed_packets(spark: SparkSession, tmp_path: Path) -> None:
    """Without us: all encodings of our files, and a condition that row groups answer by what they say of themselves."""
    path = tmp_path / "a.parquet"
    rows = np.concatenate([traffic(kind, 1000, seed=1)[0] for kind in KINDS])
    recorded = sealed(path, rows, {channel.hash: str(channel) for channel in CHANNELS}, group=1000).drop(["ts"])
    table = spark.read.parquet(str(path)).withColumn("ts", F.unix_micros("ts"))
    found = [row.asDict() for row in table.collect()]
    assert [row.pop("ts") for row in found] == [row["ts_ns"] // 1000 for row in found]
    assert found == recorded.to_pylist()
    counter, channel = next((row["counter"], row["channel"]) for row in found[1700:] if row["channel"])
    chosen = table.where((F.col("counter") == counter) & (F.col("channel") == channel)).collect()
    expected = [row for row in found if (row["counter"], row["channel"]) == (counter, channel)]
    assert [row["packet_seq"] for row in chosen] == [row["packet_seq"] for row in expected]


def test_segments_are_read_from_object_storage_also_if_they_move_after_planning(
    spark: SparkSession, logs: Path, tmp_path: Path
) -> None:
    reader = BatchReader(options(logs, rowsPerPartition="7"))
    planned = reader.partitions()
    with Redex(logs, background=False) as redex:
        for channel in (FIRST, SECOND):
            assert redex.open(channel, LogConfig(tier=Tiering(f"file://{tmp_path}/store", after_s=0))).tier() == 1
    assert list(logs.glob("*/*.parquet")) == []
    assert rows_read(reader, planned) == everything()
    table = spark.read.format("meshbus").load(str(logs))
    assert sorted((row["channel"], row["seq"]) for row in table.collect()) == everything()


def test_conditions_are_pushed_down_and_still_true(spark: SparkSession, logs: Path) -> None:
    table = spark.read.format("meshbus").option("columns", "channel,seq,payload").load(str(logs))
    assert table.columns == ["channel", "seq", "payload"]
    chosen = table.where((F.col("channel") == SECOND) & (F.col("seq") >= 90) & (F.col("payload") != b"95"))
    assert sorted(row["seq"] for row in chosen.collect()) == [90, 91, 92, 93, 94, 96, 97, 98, 99]
    later = spark.read.format("meshbus").load(str(logs)).where(F.col("recv_ts") > "2100-01-01")
    assert later.count() == 0


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("channel",), FIRST)], [(FIRST, seq) for seq in range(40)]),
        ([In(("channel",), (SECOND, "x")), LessThan(("seq",), 3)], [(SECOND, seq) for seq in range(3)]),
        ([GreaterThan(("seq",), 97)], [(SECOND, 98), (SECOND, 99)]),
        ([GreaterThanOrEqual(("seq",), 38), LessThanOrEqual(("seq",), 39)], [(FIRST, 38), (FIRST, 39), (SECOND, 38), (SECOND, 39)]),
        ([EqualTo(("seq",), 7)], [(FIRST, 7), (SECOND, 7)]),
        ([EqualTo(("channel",), FIRST), EqualTo(("channel",), SECOND)], []),
        ([GreaterThan(("recv_ts_ns",), 2**62)], []),
        ([LessThan(("ts",), dt.datetime(2000, 1, 1, tzinfo=dt.UTC))], []),
        ([LessThan(("origin",), 5)], everything()),
    ],
)  # fmt: skip
def test_a_condition_reads_less_without_spark_s_help(logs: Path, filters: list[Any], expected: list[Any]) -> None:
    reader = BatchReader(options(logs))
    assert list(reader.pushFilters(filters)) == filters
    assert rows_read(reader, reader.partitions()) == expected


def test_a_range_of_sequences_can_be_asked_for(logs: Path) -> None:
    reader = BatchReader(options(logs, startingSeq="10", endingSeq="12"))
    assert rows_read(reader, reader.partitions()) == [(FIRST, 10), (FIRST, 11), (SECOND, 10), (SECOND, 11)]


def expire(root: Path) -> int:
    """Expire the first sequences of a log, and return the first available one."""
    with Redex(root, background=False) as redex:
        log = redex.open(FIRST, LogConfig(retention=Retention(max_events=1)))
        log.seal()
        log.expire()
        return log.first_seq


def test_a_range_that_expired_is_an_error_or_is_passed_over(logs: Path) -> None:
    first = expire(logs)
    assert first > 0
    reader = BatchReader(options(logs, startingSeq="0", channels=FIRST))
    with pytest.raises(LogError, match=f"the first available is {first}"):
        reader.partitions()
    patient = BatchReader(options(logs, startingSeq="0", channels=FIRST, failOnGap="false"))
    assert rows_read(patient, patient.partitions()) == [(FIRST, seq) for seq in range(first, 40)]


@pytest.mark.parametrize("rows", ["1", "7", "1000"])
def test_parts_cover_everything_once(logs: Path, rows: str) -> None:
    reader = BatchReader(options(logs, rowsPerPartition=rows))
    assert rows_read(reader, reader.partitions()) == everything()


def test_a_stream_reads_in_steps_and_sees_what_is_appended(logs: Path) -> None:
    reader = StreamReader(options(logs, maxRowsPerTrigger="33"))
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    at, found = reader.initialOffset(), []
    for step in range(100):
        following = reader.latestOffset(at, limit)
        if following == at:
            break
        found += rows_read(reader, reader.partitions(at, following))
        reader.commit(following)
        at = following
        if step == 1:
            with Redex(logs, background=False) as redex:
                log = redex.open("new/one")
                log.append_batch([b"x"] * 5)
                redex.open(SECOND).seal()
    assert sorted(found) == sorted([*everything(), *(("new/one", seq) for seq in range(5))])
    latest = reader.reportLatestOffset()
    assert latest["next"] == at["next"]
    assert latest["lag"] == {"rows": 0, "bytes": 0}


def test_a_run_that_ends_by_itself_does_not_chase_the_writer(logs: Path) -> None:
    reader = StreamReader(options(logs))
    reader.prepareForTriggerAvailableNow()
    with Redex(logs, background=False) as redex:
        redex.open(FIRST).append(b"later")
        redex.open("later").append(b"later")
    at = reader.initialOffset()
    end = reader.latestOffset(at, ReadAllAvailable())
    assert end["next"] == {FIRST: 40, SECOND: 100, "later": 0}


def test_progress_shows_rates_lag_and_bytes_of_a_source(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    """`Trigger.AvailableNow` with a limit: every batch says how much it has and how much it leaves."""
    source = spark.readStream.format("meshbus").option("maxRowsPerTrigger", "50").load(str(logs))
    writer = source.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    told = [json.loads(progress.json)["sources"][0] for progress in query.recentProgress]
    batches = [source for source in told if source["numInputRows"]]
    assert [source["numInputRows"] for source in batches] == [50, 50, 40]
    assert [source["latestOffset"]["batch"]["rows"] for source in batches] == [50, 50, 40]
    assert [source["latestOffset"]["lag"]["rows"] for source in batches] == [90, 40, 0]
    for source in batches:
        assert source["processedRowsPerSecond"] > 0
        assert source["latestOffset"]["next"] == {FIRST: 40, SECOND: 100}
        assert (source["latestOffset"]["lag"]["bytes"] > 0) == (source["latestOffset"]["lag"]["rows"] > 0)
    read = sum(source["latestOffset"]["batch"]["bytes"] for source in batches)
    stored = Options.read({"path": str(logs)}).input().look().values()
    assert read == pytest.approx(sum(seen.rows.stored_bytes for seen in stored), rel=0.01)  # type: ignore[attr-defined]


def test_bytes_can_limit_a_step(logs: Path) -> None:
    reader = StreamReader(options(logs, maxBytesPerTrigger="500"))
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxBytes)
    at = reader.initialOffset()
    step = reader.latestOffset(at, limit)
    assert 0 < sum(step["next"].values()) < 140


def test_the_offset_is_published_beside_the_logs(logs: Path) -> None:
    reader = StreamReader(options(logs, consumer="dashboard"))
    reader.commit(reader.reportLatestOffset())
    published = json.loads((logs / "_consumers" / "dashboard.json").read_text())
    assert published["next"] == {FIRST: 40, SECOND: 100}
    assert published["consumer"] == "dashboard"


def test_a_stream_that_was_overtaken_says_so(logs: Path) -> None:
    reader = StreamReader(options(logs, channels=FIRST))
    at = reader.initialOffset()
    first = expire(logs)
    end = reader.latestOffset(at, ReadAllAvailable())
    with pytest.raises(LogError, match=f"sequences 0 to {first - 1} expired .* first available is {first}") as caught:
        reader.partitions(at, end)
    assert caught.value.first_available == first
    patient = StreamReader(options(logs, channels=FIRST, failOnGap="false"))
    assert rows_read(patient, patient.partitions(at, end)) == [(FIRST, seq) for seq in range(first, 40)]


def test_a_damaged_block_is_named(logs: Path) -> None:
    reader = StreamReader(options(logs, channels=FIRST))
    at = reader.initialOffset()
    end = reader.latestOffset(at, ReadAllAvailable())
    (hot,) = logs.glob("alarms-*/_hot/*.hot")
    content = bytearray(hot.read_bytes())
    content[len(content) // 2] ^= 1
    hot.write_bytes(content)
    other = StreamReader(options(logs, channels=FIRST))
    with pytest.raises(
        LogError, match="'alarms': the log ends before sequence 20, but 39 was there: a block is damaged"
    ):
        other.partitions(at, end)


def test_a_channel_that_disappears_is_named(logs: Path) -> None:
    reader = StreamReader(options(logs))
    at = reader.initialOffset()
    end = reader.latestOffset(at, ReadAllAvailable())
    shutil.rmtree(next(logs.glob("alarms-*")))
    with pytest.raises(LogError, match="'alarms' is gone"):
        StreamReader(options(logs)).partitions(at, end)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "is required; pass the directory"),
        ({"path": "x", "channel": "a"}, "unknown option channel; choose from path, table"),
        ({"path": "x", "maxRowsPerTrigger": "many"}, "maxRowsPerTrigger"),
        ({"path": "x", "maxRowsPerTrigger": "0"}, "must be at least 1"),
        ({"path": "x", "consumer": "../up"}, "not a path"),
        ({"path": "x", "table": "peers"}, "peers"),
        ({"path": "x", "table": "packets", "channels": "a"}, "apply to events only"),
        ({"path": "x", "table": "packets", "startingSeq": "1"}, "apply to events only"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Options.read(given)


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown column temperature; choose from channel"):
        Options.read({"path": "x", "columns": "seq, temperature"}).shape()


def test_options_come_in_any_case() -> None:
    assert Options.read({"PATH": "x", "maxrowspertrigger": "5"}).max_rows_per_trigger == 5


def fails(table: DataFrame) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own classes differ between releases
        table.count()
    return sentence_of_failure(caught.value)


def test_through_spark_every_mistake_is_one_sentence(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    read = spark.read.format("meshbus")
    assert fails(read.load(str(tmp_path / "none"))) == f"{tmp_path}/none is not a folder of logs; check the path"
    segment = next(logs.glob("alarms-*/*.parquet"))
    content = bytearray(segment.read_bytes())
    content[-200:] = bytes(200)
    segment.write_bytes(content)
    assert "is damaged" in fails(read.load(str(logs)))
    (next(logs.glob("alarms-*")) / "_manifest.json").write_text("{}")
    assert "not a manifest" in fails(read.load(str(logs)))


@pytest.fixture
def stock(spark: SparkSession) -> SparkSession:
    """A session as Spark makes it, without the settings of ours."""
    other = spark.newSession()
    other.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    return other


def test_a_session_that_was_not_made_by_meshbus_reads_the_same(stock: SparkSession, logs: Path) -> None:
    table = stock.read.format("meshbus").load(str(logs))
    assert table.count() == 140
    chosen = table.where((F.col("channel") == SECOND) & (F.col("seq") >= 98))
    assert sorted(row["payload"] for row in chosen.collect()) == [b"98", b"99"]


def test_a_table_can_be_created_over_logs(stock: SparkSession, logs: Path) -> None:
    stock.sql(f"CREATE TABLE every USING meshbus OPTIONS (path '{logs}')")
    chosen = f"OPTIONS (path '{logs}', channels '{FIRST}', columns 'seq,payload')"
    stock.sql(f"CREATE TABLE alarm USING meshbus {chosen} TBLPROPERTIES (team 'x')")
    stock.sql(f"CREATE TABLE placed USING meshbus LOCATION '{logs}'")
    try:
        assert stock.sql("SELECT count(*) AS n FROM every").collect()[0]["n"] == 140
        assert stock.table("alarm").columns == ["seq", "payload"]
        assert stock.sql("SELECT payload FROM alarm WHERE seq = 39").collect()[0]["payload"] == b"39"
        assert stock.table("placed").where("seq < 2").count() == 4
    finally:
        for name in ("every", "alarm", "placed"):
            stock.sql(f"DROP TABLE {name}")


def test_a_misspelled_option_is_refused_in_a_table_too(stock: SparkSession, logs: Path) -> None:
    with pytest.raises(Exception, match="unknown option") as caught:
        stock.sql(f"CREATE TABLE wrong USING meshbus OPTIONS (path '{logs}', channel 'a')")
    assert "unknown option channel; choose from path" in sentence_of_failure(caught.value)


def test_a_table_with_columns_of_its_own_says_what_to_do(stock: SparkSession, logs: Path) -> None:
    stock.sql(f"CREATE TABLE own (seq BIGINT) USING meshbus OPTIONS (path '{logs}')")
    try:
        assert "OPTIONS (path '/var/lib/meshbus') without columns of its own" in fails(stock.table("own"))
    finally:
        stock.sql("DROP TABLE own")


def test_a_schema_of_the_users_is_honored(stock: SparkSession, logs: Path) -> None:
    table = stock.read.format("meshbus").schema("payload BINARY, seq BIGINT, log_id BINARY").load(str(logs))
    assert table.columns == ["payload", "seq", "log_id"]
    assert sorted(row["payload"] for row in table.where("seq = 99").collect()) == [b"99"]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("seq STRING", "column seq is bigint in the table, got string; leave the schema out"),
        ("seq BIGINT, weather STRING", "unknown column weather; choose from channel, seq"),
        ("ts_ns BIGINT NOT NULL", "column ts_ns may be null; leave NOT NULL out"),
    ],
)
def test_a_schema_that_cannot_be_honored_is_refused_in_one_sentence(
    stock: SparkSession, logs: Path, schema: str, problem: str
) -> None:
    assert problem in fails(stock.read.format("meshbus").schema(schema).load(str(logs)))


def test_rows_are_written_in_a_batch(stock: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "out"
    rows = stock.createDataFrame([(b"%d" % number, number) for number in range(50)], "payload BINARY, ts_ns BIGINT")
    writer = rows.repartition(3).write.format("meshbus").option("channel", "out").mode("append")
    writer.save(str(root))
    writer.save(str(root))
    expected = sorted([(b"%d" % number, number) for number in range(50)] * 2)
    assert sorted((row["payload"], row["ts_ns"]) for row in rows_of_logs(root)) == expected
    assert [path.name for path in root.iterdir() if path.name.startswith("_")] == []


def test_a_log_is_not_overwritten(stock: SparkSession, tmp_path: Path) -> None:
    rows = stock.createDataFrame([(b"1",)], "payload BINARY").write.format("meshbus").option("channel", "out")
    with pytest.raises(Exception, match="cannot be overwritten") as caught:
        rows.mode("overwrite").save(str(tmp_path))
    assert "a log cannot be overwritten; use .mode('append')" in sentence_of_failure(caught.value)
