"""The Spark process of the demo: run the pipeline over the fleet's logs, replay a proposed policy, write the report.

    python -m meshbus.demo.lake DIRECTORY

It does what `meshbus pipeline run`, `replay` and `report` do, in one Spark session, so that Spark starts only once. It is a
process of its own so that it can start while the fleet runs, be ended at any moment together with its Java, and keep
Spark's output out of the demo's. It prints `Ready`, waits for a line on standard input, prints `Read` for each step of
progress and `Found` at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any

import msgspec

from meshbus.demo.process import Process, follow_parent, run_child, say
from meshbus.demo.roles import PIPELINE, PROPOSED_POLICY, REPORT
from meshbus.spark.lake.tables import tables
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.replay.replay import Replay, replay_packets
from meshbus.spark.run.pipelineconfig import load_config, load_policy
from meshbus.spark.run.report import write_report
from meshbus.spark.run.sparksession import java_options, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_ENDS_S = 10.0
"""How long Java may take to exit before it is killed; it usually takes less than a second."""


def _settings() -> dict[str, str]:
    """Return Spark settings for seconds of work: code that runs a few times is not worth compiling."""
    return {
        "spark.driver.extraJavaOptions": f"{java_options()} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.shuffle.partitions": "1",
    }


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Spark has started."""


class Read(msgspec.Struct, frozen=True, tag=True):
    """Progress: the number of rows read so far."""

    rows: int


class Found(msgspec.Struct, frozen=True, tag=True):
    """The tables and the report are complete."""

    tables: str
    rows: int
    judged: int
    """Recorded verdicts that were recomputed."""
    same: int
    """Recomputed verdicts that equal the recorded ones."""
    replay: Replay
    """The result of the proposed policy."""


ANSWER: msgspec.json.Decoder[Ready | Read | Found] = msgspec.json.Decoder(Ready | Read | Found)
GO = b"go\n"
"""The line that tells the process to read the logs."""


def make_tables(spark: SparkSession, folder: Path) -> Found:
    """Fill the tables, compare verdicts, replay the proposed policy, and write the report."""
    from meshbus.spark.run.runner import run  # imports pyspark, which `session` has checked by now

    settings = load_config(folder / PIPELINE)
    rows = 0

    def progressed(line: Mapping[str, Any]) -> None:
        nonlocal rows
        rows += line.get("rows", 0)
        say(pack(Read(rows)))

    run(spark, settings, once=True, on_progress=progressed)
    store = Store(settings.tables)
    same, judged = _agreement(spark, store)
    replay = replay_packets(spark, store, load_policy(folder / PROPOSED_POLICY))
    (folder / REPORT).write_text(write_report(store, replay=replay), "utf-8")
    return Found(settings.tables, rows, judged, same, replay)


def _agreement(spark: SparkSession, store: Store) -> tuple[int, int]:
    from pyspark.sql.functions import count, count_if

    decisions = tables(spark, store.root)["silver.decisions"].where("agrees IS NOT NULL")
    (row,) = decisions.agg(count_if("agrees").alias("same"), count("*").alias("judged")).collect()
    return row["same"], row["judged"]


def _end(spark: SparkSession) -> None:
    """Stop Spark and wait for its Java process, which otherwise outlives this process by a moment."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # the only place where Spark keeps the process
    spark.stop()
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_JAVA_ENDS_S)
    except TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


def pack(line: Ready | Read | Found) -> bytes:
    """Encode a message as one line."""
    return msgspec.json.encode(line) + b"\n"


def lake_process(folder: Path, news: Callable[[Ready | Read | Found], bool]) -> Process[Ready | Read | Found]:
    """Prepare the process for the directory of a demo."""
    command = ("-m", "meshbus.demo.lake", str(folder))
    return Process("spark", *command, says=ANSWER.decode, errors=folder / "spark-stderr.txt", news=news)


def main() -> None:
    """Start Spark, wait for a line, and report what was found."""
    go = follow_parent()
    spark = session(name="meshbus demo", settings=_settings())
    say(pack(Ready()))
    go.wait()
    found = make_tables(spark, Path(sys.argv[1]))
    _end(spark)
    say(pack(found))


if __name__ == "__main__":
    run_child(main)
