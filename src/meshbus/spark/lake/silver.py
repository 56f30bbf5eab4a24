"""From bronze to silver: remove duplicate events, and decode payloads.

Two rows are the same event if publisher, channel and publish number are equal (across nodes), if log and sequence are
equal (across replicas), or, for rows without a publish number, if their position in a session's stream is equal. All
functions take and return DataFrames. spark/run/batches.py calls them and writes the results; spark/lake/stretches.py
decides when a comparison with all of silver can be skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from meshbus.spark.lake.codec import Codec, Declaration, decoder
from meshbus.spark.lake.tableschema import QUARANTINE, SILVER_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The three keys that identify an event (spark.md §3): across nodes, across replicas, and without a publish number.
_PUBLISHED = ["origin", "channel", "pub_seq"]
_LOGGED = ["log_id", "seq"]
_PLACED = ["recorder", "session_id", "stream_id", "packet_seq", "event_index"]
_DECODED = "codec STRING, value STRING, problem STRING"


def with_hour(rows: DataFrame, time: str) -> DataFrame:
    """Add the hour of a time column; callers pass the recorder's clock, which publishers cannot set."""
    from pyspark.sql import functions as F

    return rows.withColumn("hour", F.date_format(time, "yyyy-MM-dd'T'HH"))


def first_of_each(bronze: DataFrame) -> DataFrame:
    """Keep one row per event of a batch, the one that was received first."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    numbered, placed = F.col("pub_seq").isNotNull(), F.col("session_id").isNotNull()
    keys: list[Column] = [F.col("channel"), F.col("pub_seq"), F.when(numbered, F.col("origin"))]
    keys += [F.when(~numbered & placed, F.col(name)) for name in _PLACED]
    keys += [F.when(~numbered & ~placed, F.col(name)) for name in _LOGGED]
    place = F.row_number().over(Window.partitionBy(*keys).orderBy("recv_ts_ns", "log_id", "seq"))
    return bronze.withColumn("_place", place).where("_place = 1").drop("_place")


def without(rows: DataFrame, known: DataFrame, channels: Sequence[str]) -> DataFrame:
    """Remove rows whose event is among the `known` rows of the given channels."""
    from pyspark.sql import functions as F

    there = known.where(F.col("channel").isin(*channels))
    for keys in (_LOGGED, _PUBLISHED):
        complete = there.where(F.col(keys[-1]).isNotNull()).select(*keys)
        rows = rows.join(complete, keys, "left_anti")
    # Packet sequences are per session, so a position identifies an event only together with recorder and session.
    nameless = there.where(F.col("pub_seq").isNull() & F.col("session_id").isNotNull()).select(
        *(F.col(name).alias(f"_{name}") for name in _PLACED)
    )
    same = reduce(lambda left, name: left & (F.col(name) == F.col(f"_{name}")), _PLACED, F.col("pub_seq").isNull())
    return rows.join(nameless, same, "left_anti")


def decode_rows(rows: DataFrame, declarations: Sequence[Declaration]) -> DataFrame:
    """Add the columns codec, value and problem; rows of raw channels never leave the JVM."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf

    declared = [declaration for declaration in declarations if declaration.codec is not Codec.RAW]
    raw = rows.withColumns(
        {"codec": F.lit(Codec.RAW.value), "value": F.lit(None).cast("string"), "problem": F.lit(None).cast("string")}
    )
    if not declared:
        return raw
    channel = F.col("channel")
    concerned = reduce(
        or_,
        (
            channel == declaration.name
            if declaration.name is not None
            else channel.startswith(declaration.prefix or "")
            for declaration in declared
        ),
    )
    # arrow_udf infers the kind of function from its annotations, which its type stubs do not express.
    decode = arrow_udf(decoder(tuple(declarations)), _DECODED)  # type: ignore[call-overload]
    decoded = rows.where(concerned).withColumn("_decoded", decode("channel", "payload"))
    return decoded.select(*rows.columns, "_decoded.codec", "_decoded.value", "_decoded.problem").unionByName(
        raw.where(~concerned)
    )


def accepted(decoded: DataFrame) -> DataFrame:
    """Return the decoded rows that belong to silver.events."""
    from pyspark.sql import functions as F

    names = [column.name for column in SILVER_EVENTS]
    return decoded.where(F.col("problem").isNull()).select(*names, "hour")


def refused(decoded: DataFrame) -> DataFrame:
    """Return the decoded rows that belong to silver.quarantine."""
    from pyspark.sql import functions as F

    return decoded.where(F.col("problem").isNotNull()).select(*(column.name for column in QUARANTINE), "hour")
