"""Claim: replaying a policy in the workers costs little more than reading the columns, and a fifth of moving the rows.

Bias. Everything runs in one embedded Spark (`local[1]`, which still overlaps a thread of Java with a Python process), on
files that the operating system has in memory, and one table of packets written several times: real months of packets
compress differently and come from a disk. The scan, against which the forms of the gateway are held, finds the highest
value of each of the same columns and decides nothing. Every form ends in the same counts, which are compared before a
figure is printed. Source and Parquet read the same events to Spark's noop sink; payloads are random, so Parquet is shown
at its worst. Freshness is from the return of `append` to the replaced gold file, with one idle pipeline: nothing else
competes.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.harness import Cell, Table
from meshbus.log.log import Redex
from meshbus.log.schema import PACKETS, arrow_schema, signed
from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.policy.channels import Visibility
from meshbus.policy.snapshot import ChannelPolicy, GatewayPolicy
from meshbus.spark.gateway import COLUMNS, Judge, judge_frame
from meshbus.spark.replay import judge_files
from meshbus.spark.runner import run as run_pipeline
from meshbus.spark.runner import stop
from meshbus.spark.session import LOCAL, session
from meshbus.spark.settings import PipelineConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUBNETS = (0x03000000, 0x03070000, 0x03070500, 0x04000000, 0x05000000)
CHANNELS = tuple(f"plant/line{number}/state" for number in range(64))
BLOCK = 1_000_000
"""Packets of one file."""
EVENT_BYTES = 100


def run(quick: bool) -> list[Table]:
    """Measure the forms of the gateway, the source, and the way to gold."""
    files, events, rounds = (2, 200_000, 2) if quick else (16, 4_000_000, 3)
    spark = session(master="local[1]", settings={**LOCAL, "spark.driver.memory": "3g"})
    try:
        with tempfile.TemporaryDirectory(prefix="meshbus-bench-") as folder:
            root = Path(folder)
            paths = write_packets(root / "packets", files)
            return [
                gateway_table(spark, paths, rounds),
                scaling_table(spark, paths),
                source_table(spark, root, events, rounds),
                freshness_table(spark, root, 5 if quick else 20),
            ]
    finally:
        spark.stop()


def policy() -> GatewayPolicy:
    """Every visibility, some exports."""
    kinds = list(Visibility)
    return GatewayPolicy(
        local_subnet=SUBNETS[0],
        peer_subnets=SUBNETS[1:-1],
        channels=tuple(
            ChannelPolicy(
                name=name,
                visibility=kinds[place % 4],
                exports=SUBNETS[1:3] if kinds[place % 4] is Visibility.EXPORTED else (),
            )
            for place, name in enumerate(CHANNELS[:-4])
        ),
    )


def write_packets(folder: Path, files: int) -> list[Path]:
    """Write the columns that a replay reads, one table as many times as there are files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)
    hashes = np.array([ChannelName(name).hash for name in CHANNELS], np.uint64)
    chosen = rng.integers(0, len(CHANNELS), BLOCK)
    subnets = signed(np.array(SUBNETS, np.uint32))
    known: dict[str, Any] = {
        "verdict": np.zeros(BLOCK, np.int16),
        "reason": np.zeros(BLOCK, np.int16),
        "route_ttl": rng.choice([0, 8, 64], BLOCK, p=[0.01, 0.29, 0.7]),
        "ttl": rng.choice([0, 4], BLOCK),
        "hops": rng.integers(0, 5, BLOCK),
        "subprotocol_id": np.where(rng.random(BLOCK) < 0.02, 0x0A00, 0),
        "chash": (hashes[chosen] & np.uint64(0xFFFF)).astype(np.int64),
        "stream_id": signed(hashes[chosen] | np.uint64(PUBLISH_STREAM_BIT)),
        "origin": rng.integers(0, 1000, BLOCK),
        "src": rng.choice(subnets, BLOCK),
        "dst": rng.choice(subnets, BLOCK),
        "channel": np.array(CHANNELS)[chosen],
        "ts": 1_794_780_000_000_000 + np.arange(BLOCK) * 10,
        "sampling_rate": np.ones(BLOCK, np.int32),
        "payload_len": rng.integers(0, 8000, BLOCK),
        "packet_seq": np.arange(BLOCK),
    }
    fields = [field for field in arrow_schema(PACKETS) if field.name in known or field.name == "guard"]
    arrays = [
        pa.nulls(BLOCK, field.type) if field.name == "guard" else pa.array(known[field.name]).cast(_plain(field.type))
        for field in fields
    ]
    table = pa.table(arrays, names=[field.name for field in fields])
    folder.mkdir()
    paths = [folder / f"{number:04d}.parquet" for number in range(files)]
    pq.write_table(table, paths[0], compression="zstd", row_group_size=131_072)
    for path in paths[1:]:
        path.write_bytes(paths[0].read_bytes())
    return paths


def _plain(kind: Any) -> Any:
    import pyarrow as pa

    return pa.string() if pa.types.is_dictionary(kind) else kind


def timed(cases: dict[str, Callable[[], Any]], rounds: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Give the median seconds of each case, run in turns after one warm-up, and what it gave."""
    given = {name: case() for name, case in cases.items()}
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in seconds.items()}, given


def gateway_table(spark: SparkSession, paths: list[Path], rounds: int) -> Table:
    """Compare the forms of the gateway with the scan of the same columns."""
    rows = BLOCK * len(paths)
    names = [str(path) for path in paths]
    cases: dict[str, Callable[[], Any]] = {
        "bare scan": lambda: scan(spark, names),
        "Column expressions": lambda: counts_of(judge_frame(spark, spark.read.parquet(*names), policy())),
        "in-worker kernel": lambda: counts_in_worker(spark, paths),
        "mapInArrow": lambda: counts_by_map(spark, names),
    }
    seconds, given = timed(cases, rounds)
    verdicts = [given[name] for name in cases if name != "bare scan"]
    assert verdicts[0] == verdicts[1] == verdicts[2], f"the forms disagree: {verdicts}"
    cells: list[list[Cell]] = [
        [name, rows / took / 1e6, seconds["bare scan"] / took, seconds["mapInArrow"] / took]
        for name, took in seconds.items()
    ]
    return Table(
        f"gateway over {rows:,} recorded packets, median of {rounds}",
        ["form", "Mrow/s", "of the bare scan", "times mapInArrow"],
        cells,
    )


def scan(spark: SparkSession, names: list[str]) -> Any:
    """Read the columns that a verdict depends on, and decide nothing."""
    return spark.read.parquet(*names).groupBy().max(*COLUMNS).collect()


def counts_of(judged: DataFrame) -> dict[int, int]:
    """Count verdicts."""
    return {row["judged"]: row["count"] for row in judged.groupBy("judged").count().collect()}


def counts_in_worker(spark: SparkSession, paths: list[Path]) -> dict[int, int]:
    """Count verdicts where the files are read."""
    found = judge_files(spark, paths, policy()).where("NOT sample").groupBy("proposed").sum("packets").collect()
    return {row["proposed"]: row["sum(packets)"] for row in found}


def counts_by_map(spark: SparkSession, names: list[str]) -> dict[int, int]:
    """Count verdicts of rows that crossed from Java to Python."""
    judge = Judge(policy())

    def work(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            verdicts, _ = judge.judge_batch(batch)
            yield pa.RecordBatch.from_pydict({"judged": verdicts})

    rows = spark.read.parquet(*names).select(*COLUMNS)
    return counts_of(rows.mapInArrow(work, "judged SMALLINT"))


def scaling_table(spark: SparkSession, paths: list[Path]) -> Table:
    """Replay once, twice and four times as much."""
    cells: list[list[Cell]] = []
    base = 0.0
    for times in (1, 2, 4):
        seconds, _ = timed({"replay": lambda times=times: counts_in_worker(spark, paths * times)}, 1)  # type: ignore[misc]
        took = seconds["replay"]
        base = base or took
        cells.append([BLOCK * len(paths) * times, took, took / times / base])
    return Table("in-worker replay of more rows", ["rows", "seconds", "per row, of the first"], cells)


def source_table(spark: SparkSession, root: Path, events: int, rounds: int) -> Table:
    """Compare the source with Parquet, and measure bronze."""
    rng = np.random.default_rng(2)
    step = 50_000
    with Redex(root / "log", background=False) as redex:
        for number in range(4):
            log = redex.open(f"load/{number}")
            for _ in range(0, events // 4, step):
                data = rng.bytes(step * EVENT_BYTES)
                log.append_batch((np.arange(step + 1, dtype=np.int64) * EVENT_BYTES, data))
            log.seal()
    sealed = [str(path) for path in (root / "log").glob("*/*.parquet")]
    few = "channel,seq,ts,origin,src"
    cases: dict[str, Callable[[], Any]] = {
        "Parquet, all columns": lambda: _noop(spark.read.parquet(*sealed)),
        "source, all columns": lambda: _noop(spark.read.format("meshbus").load(str(root / "log"))),
        "Parquet, 5 columns": lambda: _noop(spark.read.parquet(*sealed).select(*few.split(","))),
        "source, 5 columns": lambda: _noop(spark.read.format("meshbus").option("columns", few).load(str(root / "log"))),
    }
    seconds, _ = timed(cases, rounds)
    began = time.perf_counter()
    config = PipelineConfig(tables=str(root / "bulk"), logs=(str(root / "log"),))
    told: list[dict[str, Any]] = []
    run_pipeline(spark, config, once=True, told=told.append)
    whole = time.perf_counter() - began
    cells: list[list[Cell]] = [[name, events / took / 1e6] for name, took in seconds.items()]
    cells.append(["pipeline, bronze to gold", events / whole / 1e6])
    return Table(f"{events:,} events of {EVENT_BYTES} bytes, median of {rounds}", ["what", "Mrow/s"], cells)


def _noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def freshness_table(spark: SparkSession, root: Path, samples: int) -> Table:
    """Append one event at a time to a followed log, and wait until gold counts it."""
    import pyarrow.parquet as pq

    log_root, tables = root / "live", root / "live-tables"
    waits = []
    with Redex(log_root, background=False) as redex:
        log = redex.open("live")
        log.append(b"first")
        config = PipelineConfig(tables=str(tables), logs=(str(log_root),), trigger_s=0.0, refresh_s=0.0)
        thread = threading.Thread(target=run_pipeline, args=(spark, config))
        thread.start()

        def counted() -> int:
            found = 0
            for path in (tables / "gold" / "channel_stats").glob("hour=*.parquet"):
                found += sum(pq.ParquetFile(path).read(["events"]).column("events").to_pylist())
            return found

        try:
            for expected in range(1, samples + 3):
                start = time.perf_counter()
                while counted() < expected:
                    time.sleep(0.01)
                waits.append(time.perf_counter() - start)
                log.append(b"next")
        finally:
            stop(tables, timeout_s=120)
            thread.join()
    waits = sorted(waits[2:])  # the first ones wait for code to be compiled
    middle, last = statistics.median(waits), waits[-1]
    return Table("append to gold, one event at a time", ["samples", "p50 s", "worst s"], [[len(waits), middle, last]])
