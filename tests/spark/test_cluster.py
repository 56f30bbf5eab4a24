"""The same pipeline on a standalone cluster of two workers, and through Spark Connect: the same tables as here."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyspark
import pytest
from pyspark.sql import SparkSession

from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.pipelineconfig import PipelineConfig
from meshbus.spark.run.runner import run
from tests.children import child
from tests.house.tree import ROOT
from tests.spark.quick import quick_settings
from tests.spark.world import World

SPARK_HOME = Path(pyspark.__file__).parent
PROGRAM = """
import sys, msgspec
from meshbus.spark.run.runner import run
from meshbus.spark.run.sparksession import session
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.pipelineconfig import PipelineConfig

def place(batches):
    import os, time, pyarrow
    for _ in batches:
        time.sleep(0.3)
        yield pyarrow.RecordBatch.from_pydict({"worker": [os.getcwd()]})

config = msgspec.json.decode(sys.argv[1], type=PipelineConfig)
spark = session(**msgspec.json.decode(sys.argv[2]))
try:
    run(spark, config, once=True, on_progress=print)
    hosts = spark.range(8, numPartitions=8).mapInArrow(place, "worker STRING")
    print("WORKERS", len({row["worker"] for row in hosts.collect()}))
finally:
    spark.stop()
"""


DAEMON = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # it lives for seconds: start it quickly
}


@contextmanager
def daemon(*arguments: str, ready: str, folder: Path, **environment: str) -> Iterator[str]:
    """Run a part of Spark until the block ends, and give the line that says it is ready."""
    out = folder / f"{arguments[0].rpartition('.')[2]}-{time.monotonic_ns()}.log"
    with (
        out.open("w") as file,
        child(
            [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
            stdout=file, stderr=subprocess.STDOUT, cwd=folder,
            env=os.environ | DAEMON | environment,
        ) as process,
    ):  # fmt: skip
        for _ in range(600):
            found = re.search(ready, out.read_text())
            if found:
                yield found[0]
                return
            assert process.poll() is None, out.read_text()[-2000:]
            time.sleep(0.1)
        pytest.fail(out.read_text()[-2000:])


def run_there(config: PipelineConfig, **where: Any) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, msgspec.json.encode(config).decode(), json.dumps(where)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def rows_of(tables: Path, name: str) -> list[str]:
    """All rows of a table, without Spark, in an order of their own."""
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in Store(tables).rows(name))


def one_node(world: World, tables: Path) -> PipelineConfig:
    """The logs of one node, so that no two copies of an event race."""
    return msgspec.structs.replace(
        world.config, tables=str(tables), logs=world.config.logs[:1], max_rows_per_batch=100_000
    )


@pytest.fixture(scope="module")
def here(spark: SparkSession, world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables as they are made in this process."""
    tables = tmp_path_factory.mktemp("here")
    run(spark, one_node(world, tables), once=True)
    return tables


TABLES = ("bronze.events", "bronze.packets", "silver.events", "silver.quarantine", "silver.decisions", "gold.gaps",
          "gold.channel_stats", "gold.traffic_matrix", "gold.denials", "gold.top_talkers", "gold.fan_out")  # fmt: skip


@pytest.mark.slow
def test_two_workers_make_the_same_tables(here: Path, world: World, tmp_path: Path) -> None:
    there = one_node(world, tmp_path / "there")
    master = "org.apache.spark.deploy.master.Master"
    worker = "org.apache.spark.deploy.worker.Worker"
    options = ("--host", "127.0.0.1", "--webui-port", "0")
    with daemon(master, *options, "--port", "0", ready=r"spark://127\.0\.0\.1:\d+", folder=tmp_path) as url:
        joined = "Successfully registered with master"
        size = ("--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / "work"))
        with (
            daemon(worker, *options, *size, url, ready=joined, folder=tmp_path),
            daemon(worker, *options, *size, url, ready=joined, folder=tmp_path),
        ):
            settings = {
                "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m",
                "spark.ui.enabled": "false",
            }  # fmt: skip
            quick = quick_settings() | {"spark.sql.shuffle.partitions": "2"}
            told = run_there(there, master=url, settings=settings | quick)
    assert "WORKERS 2" in told
    for name in TABLES:
        assert rows_of(Path(there.tables), name) == rows_of(here, name), name


@pytest.mark.slow
def test_spark_connect_makes_the_same_tables(here: Path, world: World, tmp_path: Path) -> None:
    there = one_node(world, tmp_path / "there")
    server = "org.apache.spark.deploy.SparkSubmit"
    options = {
        "spark.connect.grpc.binding.port": "0", "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
        "spark.sql.python.filterPushdown.enabled": "true",
    }  # fmt: skip
    options = quick_settings() | {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"} | options  # its log tells
    confs = [part for key, value in options.items() for part in ("--conf", f"{key}={value}")]
    main = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]")
    ready = r"Spark Connect server started at: [^\n]*?:\d+"
    with daemon(server, *main, *confs, "spark-internal", ready=ready, folder=tmp_path, PYTHONPATH=str(ROOT)) as line:
        port = line.rpartition(":")[2]
        run_there(there, remote=f"sc://127.0.0.1:{port}")
    for name in TABLES:
        assert rows_of(Path(there.tables), name) == rows_of(here, name), name
