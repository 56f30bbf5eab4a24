"""Claim: judging recorded packets costs little more than reading them, if they stay in the JVM or never enter it.

Bias: the gateway is measured in `local[1]`: each form gets one task at a time, which for mapInArrow still means a Java
thread and a Python process. Files are in the system's page cache. They contain copies of one block of a million packets,
in the form in which a recorder returns them and bronze stores them; real data compresses differently and comes from a
disk. In the block, channels, subnets and hops are random for each packet, which is the worst case for branch prediction;
real packets come in trains. The bare scan finds the highest value of each column that a form reads (for a text, the
longest) and judges nothing; no cheaper way to make Spark read columns was found. Column expressions end in the highest
verdict, like the scan, and in a second row in counts of every verdict. All other forms end in counts, and all counts are
compared before a figure is printed. The in-worker kernel reads the columns of the scan; the in-worker replay reads three
more, counts by channel and subnets, and finds samples. Ratios by processor time (Java with its compiler and collector, and
Python) vary less than wall-clock ratios on a shared machine.

Source and Parquet read the same events into Spark's noop sink; payloads are random, which is the worst case for Parquet.
From there on, Spark has all cores. Freshness is the time from the return of `append` to the replaced gold file, one event
at a time with one idle pipeline and no other load.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.harness import Cell, Table, processor_seconds
from meshbus.log.arrow import wanted
from meshbus.log.log import Redex
from meshbus.log.packets.arrow import to_batch
from meshbus.log.packets.packed import pack_rows
from meshbus.log.packets.row import JUDGED, NOT_ASKED, ROUTED, ROW
from meshbus.log.packets.runs import Piece, RecordInfo
from meshbus.log.schema import PACKETS, spark_ddl
from meshbus.names.channel import ChannelName
from meshbus.policy.channels import Visibility
from meshbus.policy.fate import Fate
from meshbus.policy.gatewaypolicy import ChannelPolicy, GatewayPolicy
from meshbus.policy.guard import AuthVerdict
from meshbus.policy.verdict import VERDICTS
from meshbus.spark.io.inputs import Logs
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.replay.expressions import judge_frame
from meshbus.spark.replay.kernelgateway import COLUMNS, Judge
from meshbus.spark.replay.replay import judge_files
from meshbus.spark.replay.tally import BATCH_ROWS, READ, Chosen, plan
from meshbus.spark.run.control import stop
from meshbus.spark.run.eventwriter import EventWriter, Known
from meshbus.spark.run.ingest import Ingest
from meshbus.spark.run.pipelineconfig import PipelineConfig
from meshbus.spark.run.plans import Plans
from meshbus.spark.run.runner import run as run_pipeline
from meshbus.spark.run.sparksession import LOCAL, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUBNETS = (0x03000000, 0x03070000, 0x03070500, 0x04000000, 0x05000000)
CHANNELS = tuple(ChannelName(f"plant/line{number}/state") for number in range(64))
BLOCK = 1_000_000
"""Packets per file."""
EVENT_BYTES = 100
_FEW = ("channel", "seq", "ts", "origin", "src")

Case = Callable[[], Any]


def run(quick: bool) -> list[Table]:
    """Measure the forms of the gateway, the source, and the path to gold."""
    files, events, rounds, samples = (1, 200_000, 1, 1) if quick else (16, 4_000_000, 3, 20)
    memory = {"spark.driver.memory": "3g"}
    with tempfile.TemporaryDirectory(prefix="meshbus-bench-") as folder:
        root = Path(folder)
        spark = session(master="local[1]", settings=LOCAL | memory)
        try:
            paths = write_packets(spark, root, 4 * files)
            tables = [gateway_table(spark, paths[:files], rounds), scaling_table(spark, paths, max(rounds - 1, 1))]
        finally:
            spark.stop()
        spark = session(settings=memory)
        try:
            return [*tables, source_table(spark, root, events, rounds), freshness_table(spark, root, samples)]
        finally:
            spark.stop()


def policy(*, proposed: bool) -> GatewayPolicy:
    """Return a policy with all visibilities, exports and publishers; the proposal changes every eighth channel."""
    kinds = list(Visibility)
    channels = []
    for place, name in enumerate(CHANNELS[:-4]):
        visibility = kinds[(place + (proposed and place % 8 == 0)) % len(kinds)]
        channels.append(
            ChannelPolicy(
                name,
                visibility,
                enforced=place % 8 > 5,
                exports=SUBNETS[1:3] if visibility is Visibility.EXPORTED else (),
                publishers=tuple(range(8)) if place % 16 > 13 else None,
            )
        )
    return GatewayPolicy(local_subnet=SUBNETS[0], peer_subnets=SUBNETS[1:-1], channels=tuple(channels))


def recorded() -> Any:
    """Return a block of packets in the form of a recorder."""
    rng = np.random.default_rng(1)
    hashes, streams = (
        np.array([getattr(name, kind) for name in CHANNELS], np.uint64) for kind in ("hash", "stream_id")
    )
    chosen = rng.integers(0, len(CHANNELS), BLOCK)
    rows = np.zeros(BLOCK, ROW)
    header, route = rows["header"], rows["route"]
    header["hop_ttl"] = rng.choice([0, 4], BLOCK)
    header["hop_count"] = rng.integers(0, 5, BLOCK)
    header["subprotocol_id"] = np.where(rng.random(BLOCK) < 0.02, 0x0A00, 0)
    header["channel_hash"] = hashes[chosen] & np.uint64(0xFFFF)
    header["stream_id"] = streams[chosen]
    header["session_id"] = rng.integers(1, 50, BLOCK)
    header["counter"] = header["sequence"] = np.arange(BLOCK)
    header["origin_hash"] = rng.integers(0, 200, BLOCK)
    header["payload_len"] = rng.integers(0, 8000, BLOCK)
    header["event_count"] = rng.integers(1, 50, BLOCK)
    route["ttl"] = rng.choice([0, 8, 64], BLOCK, p=[0.01, 0.29, 0.7])
    rows["present"] = ROUTED | JUDGED
    rows["src"], rows["dst"] = (rng.choice(np.array(SUBNETS, np.uint32), BLOCK) for _ in range(2))
    rows["guard"] = np.where(chosen % 8 > 5, rng.choice([*AuthVerdict], BLOCK), NOT_ASKED)
    rows["policy_version"] = 1
    rows["ts_ns"] = 1_794_780_000_000_000_000 + np.arange(BLOCK) * 1_000
    rows["previous_hop"] = rng.integers(1, 9, BLOCK)
    rows["chash64"] = hashes[chosen]
    rows["reason"] = policy(proposed=False).judge_again(
        header.copy(), rows["src"].copy(), rows["dst"].copy(), route["ttl"].copy(), rows["guard"]
    )
    rows["verdict"] = np.where(rows["reason"] == 0, Fate.FORWARDED, Fate.DROPPED)
    whole = Piece(pack_rows(rows), 0, BLOCK)
    return to_batch([whole], {name.hash: name for name in CHANNELS}, RecordInfo(7, 1), wanted(table=PACKETS))


def write_packets(spark: SparkSession, root: Path, files: int) -> list[Path]:
    """Write a block of packets with Spark, and copy it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    block = root / "block.parquet"
    pq.write_table(pa.Table.from_batches([recorded()]), block)
    spark.read.schema(spark_ddl(PACKETS)).parquet(str(block)).write.parquet(str(root / "written"))
    [first] = (root / "written").glob("*.parquet")
    paths = [root / "packets" / f"{number:04d}.parquet" for number in range(files)]
    paths[0].parent.mkdir()
    for path in paths:
        shutil.copyfile(first, path)
    return paths


class Took(NamedTuple):
    """The time of a case: the median of its rounds."""

    seconds: float
    """Wall-clock time."""
    cpu: float
    """Processor time of this process, Java and the workers together."""


def timed(cases: Mapping[str, Case], rounds: int, *, warm: int = 2) -> tuple[dict[str, Took], dict[str, Any]]:
    """Measure cases in interleaved rounds after a warm-up; return their times and results."""
    given = {name: case() for _ in range(warm) for name, case in cases.items()}
    found: dict[str, list[Took]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            start, before = time.perf_counter(), processor_seconds()
            case()
            found[name].append(Took(time.perf_counter() - start, processor_seconds() - before))
    medians = {name: Took(*map(statistics.median, zip(*took, strict=True))) for name, took in found.items() if took}
    return medians, given


def gateway_table(spark: SparkSession, paths: Sequence[Path], rounds: int) -> Table:
    """Compare the forms of the gateway with a scan of the same columns."""
    rows = BLOCK * len(paths)
    cases: dict[str, Case] = {
        "scan": lambda: scan(packets_of(spark, paths), COLUMNS),
        "columns": lambda: judged_by_columns(spark, paths).agg({"judged": "max"}).collect(),
        "counted": lambda: counts_of(judged_by_columns(spark, paths)),
        "worker": lambda: counts_of_tasks(spark, paths),
        "wider scan": lambda: scan(packets_of(spark, paths), READ),
        "replay": lambda: counts_in_worker(spark, paths),
    }
    timed(cases, 0, warm=rounds)  # Java has compiled a form after about a minute
    cases["map"] = lambda: counts_of(judged_by_map(spark, paths))
    took, given = timed(cases, rounds, warm=1)
    assert given["counted"] == given["map"] == given["worker"], f"the forms disagree: {given}"
    with_subnets = counts_of(judged_by_columns(spark, paths).where("src IS NOT NULL"))
    assert given["replay"] == with_subnets, f"the forms disagree: {given['replay']}, {with_subnets}"
    shown = {
        f"bare scan of {len(COLUMNS)} columns": ("scan", "scan"),
        "Column expressions": ("columns", "scan"),
        "Column expressions, counted": ("counted", "scan"),
        "in-worker kernel, counted": ("worker", "scan"),
        "mapInArrow, counted": ("map", "scan"),
        f"bare scan of {len(READ)} columns": ("wider scan", "wider scan"),
        "in-worker replay": ("replay", "wider scan"),
    }
    cells: list[list[Cell]] = [
        [
            title,
            rows / took[form].seconds / 1e6,
            took[base].seconds / took[form].seconds,
            took[base].cpu / took[form].cpu,
            took["map"].seconds / took[form].seconds,
            took["map"].cpu / took[form].cpu,
        ]
        for title, (form, base) in shown.items()
    ]
    return Table(
        f"Gateway over {rows:,} recorded packets, median of {rounds}",
        ["form", "Mrow/s", "of the bare scan", "by CPU time", "times mapInArrow", "by CPU time"],
        cells,
    )


def packets_of(spark: SparkSession, paths: Sequence[Path]) -> DataFrame:
    """Return files of packets as a DataFrame."""
    return spark.read.schema(spark_ddl(PACKETS)).parquet(*map(str, paths))


def scan(packets: DataFrame, columns: Sequence[str]) -> Any:
    """Read columns without judging."""
    from pyspark.sql import functions

    touched = [functions.octet_length(name) if name == "channel" else functions.col(name) for name in columns]
    return packets.groupBy().agg(*(functions.max(column) for column in touched)).collect()


def judged_by_columns(spark: SparkSession, paths: Sequence[Path]) -> DataFrame:
    """Judge in the JVM."""
    return judge_frame(packets_of(spark, paths), policy(proposed=True))


def judged_by_map(spark: SparkSession, paths: Sequence[Path]) -> DataFrame:
    """Judge rows that are passed from Java to Python."""
    judge = Judge(policy(proposed=True))

    def work(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            verdicts, meant = judge.judge_batch(batch)
            yield pa.RecordBatch.from_pydict({"judged": pa.array(verdicts.astype(np.int16), mask=~meant)})

    return packets_of(spark, paths).select(*COLUMNS).mapInArrow(work, "judged SMALLINT")


def counts_of(judged: DataFrame) -> dict[int | None, int]:
    """Count each verdict by a condition: Spark's grouping costs more than judging (docs/decisions/0020)."""
    from pyspark.sql import functions

    verdict = functions.col("judged")
    codes = [None, *range(VERDICTS)]
    [counts] = judged.agg(*(functions.count_if(verdict.eqNullSafe(code)) for code in codes)).collect()
    return {code: count for code, count in zip(codes, counts, strict=True) if count}


def counts_by_columns(spark: SparkSession, paths: Sequence[Path]) -> dict[int | None, int]:
    """Count verdicts in the JVM."""
    return counts_of(judged_by_columns(spark, paths))


def counts_in_worker(spark: SparkSession, paths: Sequence[Path]) -> dict[int, int]:
    """Count verdicts in the workers that read the files."""
    counted = judge_files(spark, paths, policy(proposed=True))
    found = counted.where("NOT sample").groupBy("proposed").sum("packets").collect()
    return {row["proposed"]: row["sum(packets)"] for row in found}


def counts_of_tasks(spark: SparkSession, paths: Sequence[Path]) -> dict[int | None, int]:
    """Only count verdicts in the workers that read the files, from the same columns as the forms in the JVM."""
    tasks, judge = plan(paths, Chosen()), Judge(policy(proposed=True))

    def work(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        for number in (number for batch in batches for number in batch.column("id").to_pylist()):
            counts = np.zeros(VERDICTS + 1, np.int64)
            for path, groups in tasks[number]:
                with pq.ParquetFile(path, memory_map=True) as file:
                    for rows in file.iter_batches(BATCH_ROWS, groups, COLUMNS, use_threads=False):
                        verdicts, meant = judge.judge_batch(rows)
                        counts += np.bincount(np.where(meant, verdicts, VERDICTS), minlength=VERDICTS + 1)
            kinds = pa.array([*range(VERDICTS), None], pa.int16())
            yield pa.RecordBatch.from_pydict({"judged": kinds, "packets": pa.array(counts)})

    counted = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, "judged SMALLINT, packets BIGINT")
    found = counted.groupBy("judged").sum("packets").collect()
    return {row["judged"]: row["sum(packets)"] for row in found if row["sum(packets)"]}


def scaling_table(spark: SparkSession, paths: Sequence[Path], rounds: int) -> Table:
    """Judge a quarter, half and all of the files."""
    sizes = [len(paths) // 4, len(paths) // 2, len(paths)]
    cases: dict[str, Case] = {}
    for size in sizes:
        cases[f"scan {size}"] = partial(scan, packets_of(spark, paths[:size]), COLUMNS)
        cases[f"columns {size}"] = partial(counts_by_columns, spark, paths[:size])
        cases[f"worker {size}"] = partial(counts_in_worker, spark, paths[:size])
    took, _ = timed(cases, rounds, warm=0)
    cells: list[list[Cell]] = []
    for size in sizes:
        row: list[Cell] = [BLOCK * size]
        for form in ("scan", "columns", "worker"):
            here, first = took[f"{form} {size}"], took[f"{form} {sizes[0]}"]
            row += [here.seconds, here.seconds * sizes[0] / size / first.seconds]
        cells.append(row)
    return Table(
        "Scaling: seconds, and seconds per row relative to the first row",
        ["rows", "bare scan", "per row", "Column expressions", "per row", "in-worker replay", "per row"],
        cells,
    )


def source_table(spark: SparkSession, root: Path, events: int, rounds: int) -> Table:
    """Compare the source with Parquet, and measure ingest into silver and the path to gold."""
    rng = np.random.default_rng(2)
    step, folder = 50_000, root / "log"
    with Redex(folder, background=False) as redex:
        for number in range(4):
            log = redex.open(f"load/{number}")
            for _ in range(0, events // 4, step):
                log.append_batch((np.arange(step + 1, dtype=np.int64) * EVENT_BYTES, rng.bytes(step * EVENT_BYTES)))
            log.seal()
    sealed = [str(path) for path in folder.glob("*/*.parquet")]
    source = spark.read.format("meshbus")
    cases: dict[str, Case] = {
        "Parquet, all columns": lambda: _noop(spark.read.parquet(*sealed)),
        "source, all columns": lambda: _noop(source.load(str(folder))),
        "Parquet, 5 columns": lambda: _noop(spark.read.parquet(*sealed).select(*_FEW)),
        "source, 5 columns": lambda: _noop(
            spark.read.format("meshbus").option("columns", ",".join(_FEW)).load(str(folder))
        ),
    }
    took, _ = timed(cases, rounds, warm=1)
    seconds = {name: case.seconds for name, case in took.items()}
    began = time.perf_counter()
    ingest(spark, folder, root / "ingested")
    seconds["ingest into bronze and silver"] = time.perf_counter() - began
    began = time.perf_counter()
    run_pipeline(spark, PipelineConfig(tables=str(root / "bulk"), logs=(str(folder),)), once=True)
    seconds["pipeline, log to gold"] = time.perf_counter() - began
    cells: list[list[Cell]] = [[name, events / took / 1e6] for name, took in seconds.items()]
    return Table(
        f"{events:,} events of {EVENT_BYTES} bytes, median of {rounds}; ingest and pipeline run once",
        ["operation", "Mrow/s"],
        cells,
    )


def ingest(spark: SparkSession, folder: Path, tables: Path) -> None:
    """Take a log into bronze and silver like the pipeline, without the later steps."""
    store = Store(tables)
    writer = EventWriter(spark, store, "events", Known(store))
    source, plans = Logs(str(folder), lambda _: True), Plans(tables, "events")
    rows = PipelineConfig().max_rows_per_batch
    query = Ingest("events", str(folder), source, plans, writer, rows=rows, fail_on_gap=True)
    while query.turn() is not None:
        pass


def _noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def freshness_table(spark: SparkSession, root: Path, samples: int) -> Table:
    """Append one event at a time to a log that a pipeline follows, and wait until gold counts it."""
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
    waits = sorted(waits[2:])  # the first ones include compilation
    middle, last = statistics.median(waits), waits[-1]
    return Table(
        "Latency from append to gold, one event at a time",
        ["samples", "p50 s", "worst s"],
        [[len(waits), middle, last]],
    )
