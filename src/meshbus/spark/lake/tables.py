"""Access to the tables by name, as DataFrames, for notebooks and scripts.

Read-only. The files are managed by spark/lake/tablestore.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from meshbus.errors import ConfigError
from meshbus.log.payload import TYPED
from meshbus.spark.lake.codec import Codec, Declaration, form_of
from meshbus.spark.lake.decode import typed_rows
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

    def channel(
        self, channel: str, schema: str = "", *, codec: str = "json", descriptor: str = "", message: str = ""
    ) -> DataFrame:
        """Return the events of a channel with their fields in a column `data`, and why it is null in a column `problem`.

        `schema` has the fields in Spark's DDL syntax: `temp DOUBLE, unit STRING`. The codec is json, msgpack, arrow (then
        `data` is an array with the rows of each event) or protobuf, which needs the file of a descriptor set and a
        message, and no schema. Raises ConfigError if they do not fit together.
        """
        from pyspark.sql import functions as F

        declared = Declaration(name=channel, codec=_codec(codec), schema=schema, descriptor=descriptor, message=message)
        if not schema and declared.codec is not Codec.PROTOBUF:
            raise ConfigError("schema", f"is required for codec {codec}: the fields, such as temp DOUBLE, unit STRING")
        return typed_rows(self["silver.events"].where(F.col("channel") == channel), form_of(declared))

    def create_views(self) -> list[str]:
        """Create a temporary SQL view of each table, such as `gold_channel_stats`, and return their names."""
        names = []
        for name in self:
            view = name.replace(".", "_")
            self[name].createOrReplaceTempView(view)
            names.append(view)
        return names


def _codec(name: str) -> Codec:
    if name not in TYPED:
        raise ConfigError("codec", f"unknown codec {name!r}; choose from {', '.join(sorted(TYPED))}")
    return Codec(name)


def tables(spark: SparkSession, path: Path | str) -> Tables:
    """Return the tables in a directory; raises PipelineError if it does not exist."""
    return Tables(spark, open_store(path))
