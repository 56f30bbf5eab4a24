"""The tables for people who ask questions: by name, as DataFrames, in a notebook or a script.

Reads what spark/lake/tablestore.py keeps; writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from meshbus.errors import PipelineError, PipelineFault
from meshbus.spark.lake.tablestore import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Tables(Mapping[str, "DataFrame"]):
    """All tables of a pipeline by name, such as `gold.channel_stats`; each look gives the table as it is then."""

    def __init__(self, spark: SparkSession, store: Store) -> None:
        self._spark = spark
        self._store = store

    def __getitem__(self, name: str) -> DataFrame:
        return self._store.read(self._spark, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.catalog)

    def __len__(self) -> int:
        return len(self._store.catalog)

    def reading(self) -> AbstractContextManager[None]:
        """Keep the files of tables that were looked up in the block until it ends, while a pipeline runs on."""
        return self._store.reading()

    def channel(self, channel: str, schema: str) -> DataFrame:
        """Give the events of a channel with json, msgpack or arrow payloads, these parsed into a column `data`.

        `schema` is what the payloads hold, as Spark writes it: `temp DOUBLE, unit STRING`.
        """
        from pyspark.sql import functions as F

        events = self["silver.events"].where(F.col("channel") == channel)
        return events.withColumn("data", F.from_json("value", schema))

    def create_views(self) -> list[str]:
        """Make a temporary view of each table for SQL, such as `gold_channel_stats`, and give their names."""
        names = []
        for name in self:
            view = name.replace(".", "_")
            self[name].createOrReplaceTempView(view)
            names.append(view)
        return names


def tables(spark: SparkSession, path: Path | str) -> Tables:
    """Give the tables below a folder; raises PipelineError when it is no folder."""
    if not Path(path).is_dir():
        raise PipelineError(
            PipelineFault.BAD_TABLE, f"{path} is no folder of tables: `meshbus pipeline run` makes them"
        )
    return Tables(spark, Store(path))
