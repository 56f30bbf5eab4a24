"""`meshbus pipeline` from the command line, in a process of its own: a log becomes tables and a report."""

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshbus.cli.exit import Exit
from meshbus.cli.pipeline import _mirror_line, _progress_line
from meshbus.errors import PipelineError, PipelineFault
from meshbus.log.log import Redex
from meshbus.spark.run.sparksession import CHECK_HINT
from tests.cli.conftest import Meshbus
from tests.cli.running import SCRIPT


@pytest.fixture
def tools(tmp_path: Path) -> str:
    """A PATH with every tool of this machine but Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for tool in Path(place).glob("*"):
            if not tool.name.startswith("java") and not (folder / tool.name).exists():
                (folder / tool.name).symlink_to(tool)
    return str(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)  # it starts Spark
def test_from_a_log_to_tables_and_a_report_without_a_system_java(home: Path, tools: str, meshbus: Meshbus) -> None:
    with Redex("log", background=False) as redex:
        redex.open("sensors/temp").append_batch([b'{"t":%d}' % n for n in range(100)])
    Path("pipeline.toml").write_text(
        'logs = ["log"]\ntables = "tables"\n[[channels]]\nprefix = "sensors/"\ncodec = "json"\nschema = "t INT NOT NULL"\n'
    )
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": tools}
    environment["JAVA_TOOL_OPTIONS"] = (
        "-XX:TieredStopAtLevel=1"  # it runs once: compiling it well costs more than it saves
    )
    ran = subprocess.run(
        [SCRIPT, "pipeline", "run", "pipeline.toml", "--once", "--json"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == Exit.OK, ran.stderr
    lines = [msgspec.json.decode(line) for line in ran.stdout.splitlines()]
    assert [line["rows"] for line in lines if "batch" in line] == [100]
    assert lines[-1]["state"] == "stopped"
    shown = meshbus("pipeline", "status", "tables")
    assert shown.row["queries"][0]["rows"] == 100
    drawn = meshbus("pipeline", "report", "tables")
    assert "sensors/temp" in Path(drawn.row["report"]).read_text()


def test_the_check_lists_missing_requirements(meshbus: Meshbus, home: Path) -> None:
    assert meshbus("pipeline", "status", "tables").err == (
        "meshbus: no pipeline has run on tables; check the path, or run 'meshbus pipeline run'\n"
    )
    assert (
        "tables is not a table directory; run 'meshbus pipeline run' first"
        in meshbus("pipeline", "report", "tables").err
    )
    assert "cannot be read" in meshbus("pipeline", "run", "none.toml").err
    refused = meshbus("pipeline", "replay", "tables", "--policy", "none.toml")
    assert refused.code == Exit.USAGE
    Path("policy.toml").write_text('subnet = "1"\n')
    unknown = meshbus("pipeline", "replay", "tables", "--policy", "policy.toml", "--recorder", "gateway")
    assert "must be a node id of 16 hex digits, got 'gateway'" in unknown.err
    assert "no pipeline is running on tables" in meshbus("pipeline", "stop", "tables").err


@pytest.mark.parametrize(("option", "address"), [("--master", "spark://nowhere:1"), ("--remote", "sc://nowhere")])
def test_the_check_names_the_wrong_address(
    meshbus: Meshbus, monkeypatch: pytest.MonkeyPatch, option: str, address: str
) -> None:
    def fail(**_: object) -> None:
        raise PipelineError(PipelineFault.NO_SPARK, f"Spark did not start: all masters are unresponsive; {CHECK_HINT}")

    monkeypatch.setattr("meshbus.spark.run.sparksession.session", fail)
    result = meshbus("pipeline", "check", option, address)
    assert result.code == Exit.FAILED
    rows = {row["check"]: row for row in result.rows}
    assert rows["spark"]["found"] == "Spark did not start: all masters are unresponsive"
    assert rows["spark"]["to_do"] == f"check the address after {option}"
    assert ("java" in rows) is (option == "--master"), "a server has a Java of its own"


def test_progress_is_told_in_words() -> None:
    batch: dict[str, Any] = {"at": "now", "query": "events", "batch": 0, "rows": 1000, "rows_per_s": 64.9, "ms": 15418}
    lines: list[dict[str, Any]] = [
        batch | {"lag": 0},
        batch | {"lag": 2500, "rows": 1},
        {"at": "now", "query": "gold", "hours": {"gold.gaps": 1, "gold.fan_out": 2}},
        {"at": "now", "query": "counts", "files": 2, "ms": 270},
        {"at": "now", "query": "events", "problem": "the disk is full; free some space"},
    ]
    assert [_progress_line(line) for line in lines] == [
        "events: batch 0 with 1000 rows in 15.4 s (65 a second), nothing left to read",
        "events: batch 0 with 1 row in 15.4 s (65 a second), 2,500 left to read",
        "gold: 2 tables refreshed: fan_out, gaps",
        "counts: files 2, ms 270",
        "events: the disk is full; free some space",
    ]


def test_the_status_shows_what_waits_to_be_copied_and_why() -> None:
    mirror = {"place": "s3://bucket/lake", "state": "waiting", "files": 3, "bytes": 900, "behind_s": 12.5}
    said = [
        _mirror_line(mirror | changes)
        for changes in (
            {"problem": "it does not answer"},
            {"state": "copying", "files": None, "bytes": None, "problem": ""},
            {"state": "current", "problem": ""},
        )
    ]
    assert said == [
        "copy at s3://bucket/lake waiting: 3 files with 900 bytes for 12.5 s: it does not answer",
        "copy at s3://bucket/lake copying: not compared with the tables for 12.5 s",
        "copy at s3://bucket/lake current: up to date",
    ]


def test_a_copy_needs_a_format_with_atomic_commits(meshbus: Meshbus, home: Path) -> None:
    refused = meshbus("pipeline", "run", "--log", "log", "--mirror", "s3://bucket/lake")
    assert refused.code == Exit.USAGE
    assert "mirror: requires format 'delta' or 'iceberg', got 'parquet'" in refused.err
