"""Claim: on the way from a log to gold tables, no stage is much slower than Spark reading and writing the same files.

    python -m bench funnel                                 all of it, in about 15 minutes on two idle cores
    python -m bench funnel --before <tree>                 the chain of another version too, 5 minutes more
    python -m bench funnel --events 1 --json 0.2           other sizes, in millions
    python -m bench funnel --published                     rows without latency, see below
    python -m bench funnel --slope                         the cost per row from 1 to 64 million rows
    python -m bench funnel --slope --workers 2             the same on a cluster of two workers on this machine
    python -m bench funnel --slope --master spark://…      the same on another cluster, whose processors are not counted
    PYTHONPATH=<other>/src python -m bench funnel          another version of meshbus, with the same benchmark

The last table has every committed line with its bound and a verdict. With `--save`, `python -m bench.funnel.capacity` writes
the figures into docs/guide/capacity.md. For `--before`, a tree is what `git archive <commit> |
tar x -C <tree>` makes; that of the pipeline before this work is commit 1538463.

Stages: *append* is `append_batch` of an Arrow column with all columns that a node writes about received events. *Seal* is
the upkeep of the log, which turns hot blocks into Parquet: in turns with appends, as when it keeps up, and in the
background thread while appends run at full speed, until everything is sealed. Appends beside that thread are compared with
appends of the same events that nobody seals, in pairs. *Log to gold* is a whole run of the pipeline
over the sealed logs (`once`), with Spark started and warmed up by a small run before. *Log to silver* is the part of the
same run that its lines of progress assign to batches of events: each line ends the time since the line before it, and the
time belongs to its query. The last refresh of gold tables is therefore not part of it. If a version refreshes gold between
batches, that time is not part of it either; what a version does for gold before it reports a batch of events is.

References: Spark and DuckDB scan the same sealed files and copy all rows (bench/funnel/bare.py), on the same cores; up to
ten million events the best of two, one before and one after the pipeline, which itself runs once: that favors the
references. MB/s are payload bytes. No start of Java is in any figure.

Bias: files are in the system's page cache as far as they fit. Random payloads do not compress, which favors whoever
copies files without looking at them; JSON compresses well. Four channels and sixteen publishers are few, batches are
large, there are no duplicates, packets or census, and no rows arrive late. Rows are those of received events, and gold
measures their latency; with `--published` they are those of a publisher's own log, for versions that compute latencies
too slowly. The cost of a batch until silver and the count tables have its rows is what the lines of progress say. That of
all gold tables is the rest of the difference between runs with one new event and with none, so it includes neither a wait
for the next turn nor the start of a run. Freshness is from the return of `append`
to the line of progress of the refresh after which the table has the event, with a pipeline that looks for rows every
50 ms and has no other load. The chain runs with the default settings of a pipeline and of a node;
bench/funnel/chain.py says when it keeps up.

Every count is checked (sealed rows, copies, silver, the sum over gold); a wrong one ends the benchmark with an error.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

import meshbus
from bench.funnel import slope
from bench.funnel.bare import COPY, DUCK_COPY, DUCK_SCAN, SCAN, best_seconds, jobs
from bench.funnel.chain import ALLOWED_S, Probe
from bench.funnel.cluster import cluster
from bench.funnel.flow import COUNTED, available_formats, batch_cost, config_for, freshness, slowest, source, through
from bench.funnel.load import Load, append_alone, fill, fill_behind, write_by_arrow, write_plainly
from bench.funnel.sustained import MEMORY, chain_table, most_of, rate_of, sustained
from bench.funnel.verdicts import Line, verdict_table
from bench.harness import Cell, Table
from meshbus.spark.run.sparksession import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DISK_BYTES = 400
"""Space per event that must be free: hot blocks and segments, two tables with all rows, and a copy."""
WARM_EVENTS = 4_000
BACKLOG_BYTES = 512_000_000
"""Payloads of the backlog for the sealing thread: 8 million events of 64 bytes. They are prepared in memory."""
APPEND, APPEND_BEHIND = "append", "append, thread behind"
SEAL, SEAL_BEHIND = "seal in turns", "seal, thread behind"
SILVER, GOLD = "log to silver", "log to gold"
ORDER = (APPEND, SEAL, APPEND_BEHIND, SEAL_BEHIND, SCAN, COPY, DUCK_SCAN, DUCK_COPY, SILVER, GOLD)
CLAIMS = (
    ("raw", SILVER, COPY, 0.6, False),
    ("raw", GOLD, COPY, 0.5, False),
    ("raw", GOLD, SCAN, 0.5, True),
    ("JSON", GOLD, COPY, 0.3, False),
)
"""Payloads, stage, reference, the least ratio of their rates, and whether it is only hoped for."""
AGAIN = 10_000_000
"""Most events with which the references run a second time, after the pipeline."""
CHAIN_TIMES = 4.0
"""How many times as many events as with the version before this work the chain must sustain."""
SEAL_LEAST = {64: ("M rows/s", 3.0), 1024: ("MB/s", 800.0)}
"""By payload bytes: the least rate of sealing."""
APPEND_LEAST = 0.8
"""Appends beside the thread that seals, of their rate alone: our reading of "without slowing appends". Both copy through
one memory, and the system has work for both, so not 1; with less, somebody would ask why."""
APPEND_PAIRS = 5
"""Pairs of which the median counts: one pair may meet a pause of the disk. One more before them is not counted: while the
system takes memory for its cache that was not used yet, a write took up to nine times as long on a virtual machine."""
FRESH_S, BATCH_S = 2.0, 0.3
LOOK_S = 0.05
"""How often a pipeline looks for rows and refreshes gold when freshness is measured."""


Done = TypeVar("Done")


class Plan(NamedTuple):
    """What a run measures."""

    events: list[int]
    """Numbers of raw events."""
    json: list[int]
    """Numbers of events with JSON."""
    seconds: float
    """Duration of the long run of the chain; 0 leaves it out."""
    probe_s: float
    first_rate: float
    samples: int
    """Events for freshness; a third of them for the cost of a batch."""
    before: Path | None = None
    """Sources of another version whose chain is measured too."""


QUICK = Plan([16_000], [8_000], seconds=4.0, probe_s=3.0, first_rate=500.0, samples=3)
SIZES = [8_000_000, 32_000_000]
FULL = Plan(SIZES, SIZES, seconds=60.0, probe_s=6.0, first_rate=16_000.0, samples=12)
SLOPE, QUICK_SLOPE = [1_000_000, 4_000_000, 16_000_000, 64_000_000], [4_000, 16_000]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--events", type=millions, help="millions of raw events, separated by commas: 8,32; 0 for none")
    parser.add_argument("--json", type=millions, help="millions of JSON events, separated by commas: 1,4; 0 for none")
    parser.add_argument("--seconds", type=float, help="duration of the chain; 0 leaves it out")
    parser.add_argument("--samples", type=int, help="single events in each format; 0 leaves them out")
    parser.add_argument(
        "--published", action="store_true", help="write logs like a publisher's own, whose rows have no latency"
    )
    parser.add_argument(
        "--master", help="cluster that runs Spark, such as spark://127.0.0.1:7077; by default this process"
    )
    parser.add_argument("--workers", type=int, help="start a cluster of so many workers with one core each for Spark")
    parser.add_argument(
        "--before", type=version, help="tree of another version of meshbus whose chain is measured too, for comparison"
    )
    parser.add_argument("--slope", action="store_true", help="measure only the cost per row at growing sizes")


def millions(text: str) -> list[int]:
    """Parse sizes in millions of events."""
    return [round(float(part) * 1e6) for part in text.split(",") if float(part)]


def version(text: str) -> Path:
    """Return the sources in a tree of meshbus; raises ArgumentTypeError if there are none."""
    source = Path(text).absolute() / "src"
    if not (source / "meshbus").is_dir():
        raise argparse.ArgumentTypeError(
            f"{text} has no src/meshbus; make one with git archive COMMIT | tar x -C {text}"
        )
    return source


def run(quick: bool, options: argparse.Namespace | None = None) -> Iterator[Table]:
    """Measure every stage, one event, and the chain; or, with `--slope`, the cost per row."""
    given = {key: value for key, value in vars(options or argparse.Namespace()).items() if value is not None}
    published, master, workers = given.pop("published", False), given.pop("master", None), given.pop("workers", 0)
    sloping = given.pop("slope", False)
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder, ExitStack() as stack:
        if workers:
            master = stack.enter_context(cluster(Path(folder), workers))
        if sloping:
            plan = Plan(QUICK_SLOPE if quick else SLOPE, [], 0.0, 0.0, 0.0, 0)._replace(**given)
            yield from slope_tables(loads_of(plan, published), master)
        else:
            plan = (QUICK if quick else FULL)._replace(**given)
            yield from funnel_tables(plan, loads_of(plan, published), master)


def loads_of(plan: Plan, published: bool) -> list[Load]:
    """Return the loads of a plan, the raw ones first."""
    return [
        Load(events, json=json, received=not published)
        for json, sizes in ((False, plan.events), (True, plan.json))
        for events in sizes
    ]


@contextmanager
def warmed(loads: Sequence[Load], master: str | None) -> Iterator[tuple[SparkSession, Path]]:
    """Yield a Spark that has run everything once, and a folder that is removed at the end.

    Raises RuntimeError if the disk has too little space for the largest load.
    """
    events = max((load.events for load in loads), default=0)
    with tempfile.TemporaryDirectory(prefix="bench-funnel-") as name:
        folder = Path(name)
        free, needed = shutil.disk_usage(folder).free, events * DISK_BYTES
        told = f"{needed / 1e9:.1f} GB for {events:,} events, {free / 1e9:.1f} GB are free in {folder.parent}"
        if free < needed:
            raise RuntimeError(f"the benchmark may need {told}; set TMPDIR to a larger disk, or measure fewer --events")
        print(f"meshbus of {Path(meshbus.__file__).parent}; may need {told}\n", flush=True)
        spark = session(master=master, settings=MEMORY)
        try:
            for load in (Load(WARM_EVENTS), Load(WARM_EVENTS, json=True)):
                stages(spark, folder, load)
            yield spark, folder
        finally:
            spark.stop()


def funnel_tables(plan: Plan, loads: Sequence[Load], master: str | None) -> Iterator[Table]:
    """Measure the stages of all loads, then single events, then the chain."""
    lines: list[Line] = []
    if loads or plan.samples:
        with warmed(loads, master) as (spark, folder):
            for load in loads:
                rates = stages(spark, folder, load)
                lines += ratio_lines(load, rates)
                yield stage_table(load, rates)
            if loads:
                yield sealing_table(folder, max(load.events for load in loads), lines)
            if plan.samples:
                yield event_table(spark, folder, plan.samples, lines)
    if plan.seconds:
        yield from chain_tables(plan, lines)
    yield verdict_table(lines)


def chain_tables(plan: Plan, lines: list[Line]) -> Iterator[Table]:
    """Measure the chain of this version, and of the one before if it is given."""
    notes = [
        "first line: light load; last line: the result",
        f"caught up: from the last event to gold with every event, at most {ALLOWED_S:g} s more than at light load",
        "rows behind: not in silver when the last event was acknowledged",
    ]
    measured: list[list[Probe]] = []
    for sources in dict.fromkeys((None, plan.before)):
        probes = sustained(sources, first=plan.first_rate, probe_s=plan.probe_s, long_s=plan.seconds)
        measured.append(probes)
        yield chain_table("this version" if sources is None else "the version before", probes, notes)
    # A version that kept up with no rate sustains less than the lowest that was tried, so the quotient is too low.
    ratio = rate_of(measured[0]) / most_of(measured[1]) if len(measured) > 1 else None
    lines.append(Line("chain, events/s of this version / of the one before", ratio, "", CHAIN_TIMES))


def slope_tables(loads: Sequence[Load], master: str | None) -> Iterator[Table]:
    """Measure growing loads of each kind."""
    where = slope.IN_PROCESS if master is None else slope.ON_CLUSTER
    with warmed(loads, master) as (spark, folder):
        for kind, group in groupby(loads, key=lambda load: load.kind):
            yield from slope.tables_of([slope.measure(spark, folder, load) for load in group], kind, where)


def stages(spark: SparkSession, folder: Path, load: Load) -> dict[str, float]:
    """Return the rows per second of each stage and each reference."""
    logs, place, aside = (folder / name for name in ("logs", "tables", "aside"))
    try:
        filled = fill(logs, load)
        references = jobs(spark, filled.paths, load.events, aside)
        best = best_seconds(references, 1)
        spent = through(spark, config_for(logs, place, load), load.events)
        best = best_seconds(references, 1 if load.events <= AGAIN else 0, best)
    finally:
        for path in (logs, place):
            shutil.rmtree(path, ignore_errors=True)
    took = {
        APPEND: filled.append.seconds,
        SEAL: filled.seal.seconds,
        SILVER: spent.silver_s,
        GOLD: spent.gold_s,
        **best,
    }
    return {name: load.events / seconds for name, seconds in took.items()} | behind(folder, load)


def behind(folder: Path, load: Load) -> dict[str, float]:
    """Return the rows per second of appends at full speed, and of the thread that seals them meanwhile."""
    backlog = msgspec.structs.replace(load, events=min(load.events, BACKLOG_BYTES // load.event_bytes))
    filled = fill_aside(fill_behind, folder, backlog)
    return {APPEND_BEHIND: backlog.events / filled.append.seconds, SEAL_BEHIND: backlog.events / filled.seal.seconds}


def fill_aside(how: Callable[[Path, Load], Done], folder: Path, load: Load) -> Done:
    """Fill logs that are only measured and not read."""
    try:
        return how(folder / "filled", load)
    finally:
        shutil.rmtree(folder / "filled", ignore_errors=True)


def sealing_table(folder: Path, events: int, lines: list[Line]) -> Table:
    """Measure the sealing of small and of large events, in turns with appends and in the thread, and appends beside it."""
    rows: list[list[Cell]] = []
    for size, (unit, least) in SEAL_LEAST.items():
        load = Load(min(events, BACKLOG_BYTES // size), raw_bytes=size)
        megabytes = load.events * size / 1e6
        pairs = [
            (fill_aside(append_alone, folder, load), fill_aside(fill_behind, folder, load))
            for _ in range(1 + APPEND_PAIRS)
        ][1:]
        kept = statistics.median(alone.seconds / behind.append.seconds for alone, behind in pairs)
        forms = {
            SEAL: fill_aside(fill, folder, load),
            SEAL_BEHIND: sorted((behind for _, behind in pairs), key=lambda one: one.seal.seconds)[len(pairs) // 2],
        }
        for name, filled in forms.items():
            seal, rate = filled.seal, load.events / filled.seal.seconds
            rates = {"M rows/s": rate / 1e6, "MB/s": rate * size / 1e6}
            lines.append(Line(f"{name}, {size} bytes", rates[unit], unit, least))
            cpu_mb_s = megabytes / seal.cpu_s if seal.cpu_s else math.nan
            arrow = megabytes / write_by_arrow(folder / "plain", load)
            plain = megabytes / write_plainly(folder / "plain", load.events * size)
            appended = load.events / filled.append.seconds / 1e6
            rows.append([size, load.events, name, appended, *rates.values(), cpu_mb_s, arrow, plain])
        lines.append(Line(f"appends beside the sealing thread / alone, {size} bytes", kept, "", APPEND_LEAST))
    return Table(
        "Sealing",
        [
            "bytes", "events", "form", "appends M/s", "seal M rows/s", "MB/s", "MB per CPU s", "pyarrow MB/s",
            "plain write MB/s",
        ],
        rows,
        [
            f"thread behind: from the first append to the last segment; the median of {APPEND_PAIRS}, after one that is not counted",
            "pyarrow: the payloads alone, in memory before, by write_table and fdatasync, in files of 64 MiB, right after",
            "plain write: as many bytes by write and fdatasync: no sealing is faster",
            f"appends beside the thread, of those alone: the median of {APPEND_PAIRS} pairs",
        ],
    )  # fmt: skip


def stage_table(load: Load, rates: Mapping[str, float]) -> Table:
    """Show the rates of one load."""
    cells: list[list[Cell]] = [
        [name, rates[name] / 1e6, rates[name] * load.event_bytes / 1e6, rates[name] / rates[COPY]] for name in ORDER
    ]
    return Table(
        f"{load.events:,} {load.kind} events of {load.event_bytes} bytes",
        ["stage", "M rows/s", "MB/s", f"of {COPY}"],
        cells,
        [
            f"thread behind: {min(load.events, BACKLOG_BYTES // load.event_bytes):,} events",
            f"references: {'best of two' if load.events <= AGAIN else 'one run'}; stages: one run",
        ],
    )


def ratio_lines(load: Load, rates: Mapping[str, float]) -> list[Line]:
    """Return what is claimed about the stages of a load."""
    return [
        Line(
            f"{stage} / {reference}, {load.events / 1e6:g} M {kind}",
            rates[stage] / rates[reference],
            "",
            least,
            wish=wish,
        )
        for kind, stage, reference, least, wish in CLAIMS
        if load.kind == kind
    ]


def event_table(spark: SparkSession, folder: Path, samples: int, lines: list[Line]) -> Table:
    """Measure the cost of a batch with one event, and how soon an event is visible, in each format."""
    rows: list[list[Cell]] = []
    for name in available_formats():
        logs, place = folder / f"live-{name}", folder / f"live-tables-{name}"
        config = config_for(logs, place, Load(1), name, trigger_s=LOOK_S, refresh_s=LOOK_S)
        with source(logs) as events:
            cost = batch_cost(spark, config, events, max(samples // 3, 2))
            waits = freshness(spark, config, events, samples)
            idle = slowest(spark, config, events, max(samples // 4, 1))
        p50, p95 = statistics.median(waits), waits[min(round(0.95 * len(waits)), len(waits) - 1)]
        last = max(idle.waits, key=idle.waits.__getitem__)
        counted = cost.reported_ms / 1e3
        lines.append(Line(f"freshness p50, {name}", p50, "s", FRESH_S, most=True))
        lines.append(Line(f"batch of one event with all gold tables, {name}", cost.seconds, "s", BATCH_S, most=True))
        rows.append(
            [
                name, counted, cost.seconds - counted, cost.cpu_s, len(waits), p50, p95, idle.waits[COUNTED],
                idle.waits[last], last.removeprefix("gold."), 100 * idle.cpu_share,
            ]
        )  # fmt: skip
    return Table(
        "One event: cost of its batch and refresh, and time from append to gold",
        [
            "format", "ingest and counts s", "all gold s", "CPU s", "samples", "fresh p50 s", "p95 s", "idle p50 s",
            "last table s", "which", "idle CPU %",
        ],
        rows,
        [
            "all gold: runs with one new event minus runs with none, minus ingest and counts; CPU: of all that",
            f"fresh: {COUNTED}, one event after the other; idle: the same, after every table has rested",
            "last table: the same, until the last gold table shows the event",
            f"idle CPU: of one core, while nothing comes and the pipeline looks every {LOOK_S:g} s",
        ],
    )  # fmt: skip
