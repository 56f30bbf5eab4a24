"""Starting Spark: embedded in this process by default, a cluster by naming it, quiet in either case.

The settings are those that were measured (docs/decisions/0014). Under `spark-submit` the submitter has decided, so only
what the pipeline cannot do without is added. Java is found in spark/run/java.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from meshbus.errors import PipelineError, PipelineFault
from meshbus.spark.run.java import find_java, user_cache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EMBEDDED = "local[*]"

NEEDED = {
    "spark.sql.ansi.enabled": "false",  # a number from elsewhere that overflows is a strange row, never a failed query
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",  # a reader that takes filters fails without it
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.maxConcurrentOutputFileWriters": "8",  # a batch has few hours: no need to sort it by them
    "spark.sql.streaming.stopTimeout": "60s",  # a query that hangs must not hang who stops it
}
"""What the tables and the source rely on, everywhere."""

LOCAL = {
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""What makes an embedded Spark small and quick to start."""

_STACK = "-Xss8m"
_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n%ex{1}
logger.repl.name = org.apache.spark.api.python.PythonGatewayServer
logger.repl.level = error
logger.stream.name = org.apache.spark.sql.execution.streaming
logger.stream.level = fatal
"""
"""Errors only; those of streaming queries are reported by the runner, once."""


def session(
    *,
    master: str | None = None,
    remote: str | None = None,
    name: str = "meshbus",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark, or give the session that is running.

    `master` is a cluster (`spark://host:7077`, `yarn`), `remote` a Spark Connect server (`sc://host`); without both,
    Spark runs inside this process. `settings` go over ours. Raises PipelineError when something is missing.
    """
    if remote is not None and master is not None:
        raise PipelineError(PipelineFault.SETTINGS, "give a master or a remote server, not both")
    spark_type = _spark_session()
    if remote is not None:
        return _connect(spark_type, remote, {**NEEDED, **(settings or {})})
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the option of the builder does not reach the workers
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    chosen = dict(NEEDED)
    builder = spark_type.builder.appName(name)
    if not submitted:
        prepare_java()
        chosen |= {"spark.ui.showConsoleProgress": "false", "spark.driver.extraJavaOptions": java_options()}
        if master is None:
            chosen |= LOCAL
        builder = builder.master(master or EMBEDDED)
    chosen |= settings or {}
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:  # whatever the launcher or the cluster says, in one sentence
        raise PipelineError(
            PipelineFault.NO_SPARK,
            f"Spark did not start: {_first_line(error)}; `meshbus pipeline check` looks for the cause",
        ) from error


def prepare_java() -> None:
    """Let this process and its children find a Java that fits."""
    os.environ["JAVA_HOME"] = str(find_java().home)


def _spark_session() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise PipelineError(PipelineFault.NO_SPARK, "pyspark is not installed: pip install 'meshbus[spark]'") from None
    return SparkSession


def _connect(spark_type: type[SparkSession], remote: str, settings: Mapping[str, str]) -> SparkSession:
    try:
        spark = spark_type.builder.remote(remote).getOrCreate()
        spark.range(1).count()  # nothing is sent before it is needed
    except ImportError as error:
        raise PipelineError(
            PipelineFault.NO_SPARK, f"Spark Connect needs more packages: pip install 'pyspark[connect]' ({error})"
        ) from None
    except Exception as error:
        raise PipelineError(
            PipelineFault.NO_SPARK, f"no Spark Connect server answers at {remote}: {_first_line(error)}"
        ) from error
    for key, value in settings.items():
        spark.conf.set(key, value)
    return spark


def java_options() -> str:
    """Give what Java is started with: room for Spark's regular expressions over long errors, and a log of errors only.

    With the usual stack, the thread of a query that failed with a long traceback dies while it writes its report. The
    file for the log is where a packaged Java's wrapper is.
    """
    place = user_cache() / "log4j2.properties"
    try:
        if not place.exists() or place.read_text("utf-8") != _LOG4J:
            place.parent.mkdir(parents=True, exist_ok=True)
            aside = place.with_name(f"{place.name}.{os.getpid()}")
            aside.write_text(_LOG4J, "utf-8")
            aside.replace(place)
    except OSError:
        return _STACK  # a louder Spark works as well
    return f"{_STACK} -Dlog4j2.configurationFile={Path(place).as_uri()}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
