"""Start a Spark session: embedded in this process by default, or on a cluster, and without log noise.

The settings were chosen by measurement (docs/decisions/0014). Under `spark-submit` the submitter configures Spark, so only
the settings that the pipeline requires are added. Java is found by spark/run/java.py.
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
CHECK_HINT = "run 'meshbus pipeline check' to find the cause"
"""What to do when Spark does not start; `meshbus pipeline check` itself leaves it out."""

NEEDED = {
    "spark.sql.ansi.enabled": "false",  # an extreme number in a row must give an odd result, not fail the query
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",  # spark.md §2: without it, a reader with pushFilters fails
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # as in the files of logs; other engines expect it
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",  # a job costs more than looking at some files
    "spark.sql.streaming.stopTimeout": "60s",  # stopping a query that hangs must not hang
}
"""Settings that the tables and the data source require everywhere."""

LOCAL = {
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings that make an embedded Spark small and fast to start."""

_STACK = "-Xss8m"
"""Thread stack size: with the default, Spark's regular expressions overflow on a failure with a long traceback."""
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
"""Log errors only; the runner reports those of streaming queries, once."""


def session(
    *,
    master: str | None = None,
    remote: str | None = None,
    name: str = "meshbus",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark, or return the running session.

    `master` is a cluster (`spark://host:7077`, `yarn`), `remote` a Spark Connect server (`sc://host`); without either,
    Spark runs inside this process. `settings` override the defaults. Raises PipelineError if Spark cannot be started.
    """
    if remote is not None and master is not None:
        raise PipelineError(PipelineFault.SETTINGS, "set either master or remote, not both")
    spark_type = _spark_session()
    if remote is not None:
        return _connect(spark_type, remote, {**NEEDED, **(settings or {})})
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # spark.md §8: the builder's option has no effect
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
    except Exception as error:  # the launcher and the cluster raise many types
        raise PipelineError(
            PipelineFault.NO_SPARK,
            f"Spark did not start: {_first_line(error)}; {CHECK_HINT}",
        ) from error


def java_ended() -> bool:
    """Return whether the Java that this process started for Spark has ended; False if others started it, or nobody did.

    Spark itself says so only when it is next used, which may be hours later.
    """
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # PySpark has no public name for it
    return process is not None and process.poll() is not None


def prepare_java() -> None:
    """Set JAVA_HOME of this process and its children to a suitable Java."""
    os.environ["JAVA_HOME"] = str(find_java().home)


def _spark_session() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise PipelineError(
            PipelineFault.NO_SPARK, "pyspark is not installed; run: pip install 'meshbus[spark]'"
        ) from None
    return SparkSession


def _connect(spark_type: type[SparkSession], remote: str, settings: Mapping[str, str]) -> SparkSession:
    try:
        spark = spark_type.builder.remote(remote).getOrCreate()
        spark.range(1).count()  # connect now: the client connects with the first query
    except ImportError as error:
        raise PipelineError(
            PipelineFault.NO_SPARK, f"Spark Connect needs more packages ({error}); run: pip install 'pyspark[connect]'"
        ) from None
    except Exception as error:
        raise PipelineError(
            PipelineFault.NO_SPARK,
            f"no Spark Connect server answers at {remote} ({_first_line(error)}); check the address",
        ) from error
    for key, value in settings.items():
        spark.conf.set(key, value)
    return spark


def java_options() -> str:
    """Return the options for Java: a larger stack, and a log configuration that shows errors only.

    The log configuration is written to the user's cache directory.
    """
    place = user_cache() / "log4j2.properties"
    try:
        if not place.exists() or place.read_text("utf-8") != _LOG4J:
            place.parent.mkdir(parents=True, exist_ok=True)
            aside = place.with_name(f"{place.name}.{os.getpid()}")
            aside.write_text(_LOG4J, "utf-8")
            aside.replace(place)
    except OSError:
        return _STACK  # Spark works without the log configuration
    return f"{_STACK} -Dlog4j2.configurationFile={Path(place).as_uri()}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
