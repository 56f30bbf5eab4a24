"""Access to the tables by name, as DataFrames, for notebooks and scripts.

Read-only. The files are managed by spark/lake/tablestore.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from meshbus.spark.lake.tablestore import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Tables(Mapping[str, "DataFrame"]):
    """The tables of a pipeline by name, such as `gold.channel_stats`; each lookup returns the current rows."""

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
        """Keep the files of tables that are looked up in the `with` block until it ends, while a pipeline runs."""
        return self._store.reading()

    def channel(self, channel: str, schema: str) -> DataFrame:
        """Return the events of a channel with json, msgpack or arrow payloads, parsed into a column `data`.

        `schema` has the fields of the payloads in Spark's DDL syntax: `temp DOUBLE, unit STRING`.
        """
        from pyspark.sql import functions as F

        events = self["silver.events"].where(F.col("channel") == channel)
        return events.withColumn("data", F.from_json("value", schema))

    def create_views(self) -> list[str]:
        """Create a temporary SQL view of each table, such as `gold_channel_stats`, and return their names."""
        names = []
        for name in self:
            view = name.replace(".", "_")
            self[name].createOrReplaceTempView(view)
            names.append(view)
        return names


def tables(spark: SparkSession, path: Path | str) -> Tables:
    """Return the tables in a directory; raises PipelineError if it does not exist."""
    return Tables(spark, open_store(path))
