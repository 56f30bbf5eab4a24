"""The demo's lake: the pipeline, embedded, over what the fleet logged; were the verdicts right; and what if.

    python -m meshbus.demo.lake FOLDER

Everything here is what `meshbus pipeline run`, `replay` and `report` do, in one Spark, so that it starts once. It has a
process of its own, so that it can start while the fleet runs, be ended at any moment together with its Java, and keep
what Spark writes to itself. It says `Ready`, waits for a line, and says `Read` now and then and `Found` at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any

import msgspec

from meshbus.demo.cast import PIPELINE, PROPOSED_POLICY, REPORT
from meshbus.demo.process import Process, follow_parent, run_child, say
from meshbus.spark.lake.tables import tables
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.replay.replay import Replay, replay_packets
from meshbus.spark.run.pipelineconfig import load_config, load_policy
from meshbus.spark.run.report import write_report
from meshbus.spark.run.sparksession import java_options, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_ENDS_S = 10.0
"""Before it is killed."""


def _settings() -> dict[str, str]:
    """Give what suits seconds of work: code that runs a few times is not worth compiling well, or at all."""
    return {
        "spark.driver.extraJavaOptions": f"{java_options()} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.shuffle.partitions": "1",
    }


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Spark has started."""


class Read(msgspec.Struct, frozen=True, tag=True):
    """So many rows are in silver."""

    rows: int


class Found(msgspec.Struct, frozen=True, tag=True):
    """The tables and the report are there."""

    tables: str
    rows: int
    judged: int
    """Verdicts that were recomputed from the policy in force then."""
    same: int
    """Those that came out as they were recorded."""
    replay: Replay
    """What the proposed policy would have done."""


ANSWER: msgspec.json.Decoder[Ready | Read | Found] = msgspec.json.Decoder(Ready | Read | Found)
GO = b"go\n"


def make_tables(spark: SparkSession, folder: Path) -> Found:
    """Fill the tables, judge every verdict again, replay the proposed policy, write the report."""
    from meshbus.spark.run.runner import run  # it needs pyspark, and by now that is there

    settings = load_config(folder / PIPELINE)
    rows = 0

    def told(news: Mapping[str, Any]) -> None:
        nonlocal rows
        rows += news.get("rows", 0)
        say(pack(Read(rows)))

    run(spark, settings, once=True, told=told)
    store = Store(settings.tables)
    same, judged = _agreement(spark, store)
    replay = replay_packets(spark, store, load_policy(folder / PROPOSED_POLICY))
    (folder / REPORT).write_text(write_report(store), "utf-8")
    return Found(settings.tables, rows, judged, same, replay)


def _agreement(spark: SparkSession, store: Store) -> tuple[int, int]:
    from pyspark.sql.functions import count, count_if

    decisions = tables(spark, store.root)["silver.decisions"].where("agrees IS NOT NULL")
    (row,) = decisions.agg(count_if("agrees").alias("same"), count("*").alias("judged")).collect()
    return row["same"], row["judged"]


def _end(spark: SparkSession) -> None:
    """Stop Spark, and wait for the end of its Java, which otherwise outlives this process by a moment."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # Spark keeps the process that it started nowhere else
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
    """Write a line."""
    return msgspec.json.encode(line) + b"\n"


def lake_process(folder: Path, news: Callable[[Ready | Read | Found], bool]) -> Process[Ready | Read | Found]:
    """Prepare the process for a demo's folder."""
    command = ("-m", "meshbus.demo.lake", str(folder))
    return Process("spark", *command, says=ANSWER.decode, errors=folder / "spark-stderr.txt", news=news)


def main() -> None:
    """Start Spark, wait to be told to go on, and say what was found."""
    told = follow_parent()
    spark = session(name="meshbus demo", settings=_settings())
    say(pack(Ready()))
    told.wait()
    found = make_tables(spark, Path(sys.argv[1]))
    _end(spark)
    say(pack(found))


if __name__ == "__main__":
    run_child(main)
