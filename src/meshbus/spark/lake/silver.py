"""From bronze to silver: which rows of a batch are new, and what they say.

An event is the same event when publisher, channel and publish number are (across nodes), when log and sequence are
(across replicas), or, where no number is known, when the place in a session's stream is. All functions take DataFrames
and give DataFrames; when they run and where rows are kept is spark/run/batches.py's business, and what need not be looked
at is spark/lake/stretches.py's.
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

_PUBLISHED = ["origin", "channel", "pub_seq"]
_LOGGED = ["log_id", "seq"]
_PLACED = ["recorder", "session_id", "stream_id", "packet_seq", "event_index"]
_DECODED = "codec STRING, value STRING, problem STRING"


def with_hour(rows: DataFrame, time: str) -> DataFrame:
    """Add the hour that rows belong to, by the recorder's own clock, which no publisher can set."""
    from pyspark.sql import functions as F

    return rows.withColumn("hour", F.date_format(time, "yyyy-MM-dd'T'HH"))


def first_of_each(bronze: DataFrame) -> DataFrame:
    """Keep one row of each event of a batch: the one that stands first in its log."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    numbered, placed = F.col("pub_seq").isNotNull(), F.col("session_id").isNotNull()
    keys: list[Column] = [F.col("channel"), F.col("pub_seq"), F.when(numbered, F.col("origin"))]
    keys += [F.when(~numbered & placed, F.col(name)) for name in _PLACED]
    keys += [F.when(~numbered & ~placed, F.col(name)) for name in _LOGGED]
    place = F.row_number().over(Window.partitionBy(*keys).orderBy("recv_ts_ns", "log_id", "seq"))
    return bronze.withColumn("_place", place).where("_place = 1").drop("_place")


def without(rows: DataFrame, known: DataFrame, channels: Sequence[str]) -> DataFrame:
    """Leave out the rows of some channels whose event is among the known ones."""
    from pyspark.sql import functions as F

    there = known.where(F.col("channel").isin(*channels))
    for keys in (_LOGGED, _PUBLISHED):
        complete = there.where(F.col(keys[-1]).isNotNull()).select(*keys)
        rows = rows.join(complete, keys, "left_anti")
    nameless = there.where(F.col("pub_seq").isNull() & F.col("session_id").isNotNull()).select(
        *(F.col(name).alias(f"_{name}") for name in _PLACED)
    )
    same = reduce(lambda left, name: left & (F.col(name) == F.col(f"_{name}")), _PLACED, F.col("pub_seq").isNull())
    return rows.join(nameless, same, "left_anti")


def decode_rows(rows: DataFrame, declarations: Sequence[Declaration]) -> DataFrame:
    """Add codec, value and problem as each channel declares; rows of raw channels never leave the JVM."""
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
    # It reads the kind from the annotations of the function, which its stubs do not know.
    decode = arrow_udf(decoder(tuple(declarations)), _DECODED)  # type: ignore[call-overload]
    decoded = rows.where(concerned).withColumn("_decoded", decode("channel", "payload"))
    return decoded.select(*rows.columns, "_decoded.codec", "_decoded.value", "_decoded.problem").unionByName(
        raw.where(~concerned)
    )


def accepted(decoded: DataFrame) -> DataFrame:
    """Give the rows of silver.events among decoded ones."""
    from pyspark.sql import functions as F

    names = [column.name for column in SILVER_EVENTS]
    return decoded.where(F.col("problem").isNull()).select(*names, "hour")


def refused(decoded: DataFrame) -> DataFrame:
    """Give the rows of silver.quarantine among decoded ones."""
    from pyspark.sql import functions as F

    return decoded.where(F.col("problem").isNotNull()).select(*(column.name for column in QUARANTINE), "hour")
