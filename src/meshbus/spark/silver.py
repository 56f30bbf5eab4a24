"""From bronze to silver: which stretches of numbers a batch holds, which of its rows are new, and what they say.

An event is the same event when publisher, channel and publish number are (across nodes), when log and sequence are
(across replicas), or, where no number is known, when the place in a session's stream is. All functions take DataFrames
and give DataFrames; when they run and where rows are kept is spark/batches.py's business.

Looking up every key of every batch in all of silver would cost more each day. `silver.runs` holds the stretches that are
there already: only a batch whose stretches overlap one of them is compared, and only with the channels concerned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import accumulate
from operator import or_
from typing import TYPE_CHECKING, Any, TypeAlias

from meshbus.spark.codec import Codec, Declaration, decoder
from meshbus.spark.schema import QUARANTINE, SILVER_EVENTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Run: TypeAlias = Mapping[str, Any]
"""A row of silver.runs."""

BY_LOG, BY_PUBLISHER = "log", "publisher"

_PUBLISHED = ["origin", "channel", "pub_seq"]
_LOGGED = ["log_id", "seq"]
_PLACED = ["recorder", "session_id", "stream_id", "packet_seq", "event_index"]
_DECODED = "codec STRING, value STRING, problem STRING"


def with_hour(rows: DataFrame, time: str) -> DataFrame:
    """Add the hour that rows belong to, by the recorder's own clock, which no publisher can set."""
    from pyspark.sql import functions as F

    return rows.withColumn("hour", F.date_format(time, "yyyy-MM-dd'T'HH"))


def runs_of(bronze: DataFrame, earlier: DataFrame) -> DataFrame:
    """Give the stretches of numbers of a batch as rows of silver.runs; `earlier` are those of the batches before."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    logged = bronze.groupBy("channel", "log_id").agg(
        F.min("seq").alias("first"), F.max("seq").alias("last"), F.count("*").alias("events")
    )
    logged = logged.select(
        F.lit(BY_LOG).alias("kind"),
        "channel",
        "log_id",
        F.lit(None).cast("bigint").alias("origin"),
        "first",
        "last",
        "events",
        F.lit(0).cast("bigint").alias("reordered"),
    )
    whose = ["log_id", "channel", "origin"]
    highest = earlier.where(F.col("kind") == BY_PUBLISHER).groupBy(*whose).agg(F.max("last").alias("_highest"))
    numbered = bronze.where(F.col("pub_seq").isNotNull()).select(*whose, "seq", "pub_seq")
    before = Window.partitionBy(*whose).orderBy("seq").rowsBetween(Window.unboundedPreceding, -1)
    late = F.greatest(F.max("pub_seq").over(before), F.col("_highest")) > F.col("pub_seq")
    seen = (
        numbered.join(F.broadcast(highest), whose, "left")
        .withColumn("_late", F.coalesce(late, F.lit(False)).cast("bigint"))
        .groupBy(*whose, "pub_seq")
        .agg(F.count("*").alias("events"), F.sum("_late").alias("reordered"))
    )
    place = F.row_number().over(Window.partitionBy(*whose).orderBy("pub_seq"))
    published = (
        seen.withColumn("_stretch", F.col("pub_seq") - place)
        .groupBy(*whose, "_stretch")
        .agg(
            F.min("pub_seq").alias("first"),
            F.max("pub_seq").alias("last"),
            F.sum("events").alias("events"),
            F.sum("reordered").alias("reordered"),
        )
        .withColumn("kind", F.lit(BY_PUBLISHER))
    )
    return logged.unionByName(published.select(*logged.columns))


def merge_runs(runs: DataFrame) -> DataFrame:
    """Put stretches together that touch or overlap: the same numbers seen as often, in fewer rows."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    whose = ["kind", "channel", "log_id", "origin"]
    ordered = Window.partitionBy(*whose).orderBy("first", "last")
    before = F.max("last").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    begins = F.coalesce(F.col("first") > before + 1, F.lit(True)).cast("bigint")
    numbered = runs.withColumn("_begins", begins).withColumn("_stretch", F.sum("_begins").over(ordered))
    return numbered.groupBy(*whose, "_stretch").agg(
        F.min("first").alias("first"),
        F.max("last").alias("last"),
        F.sum("events").alias("events"),
        F.sum("reordered").alias("reordered"),
    )


def channels_to_compare(runs: Sequence[Run], earlier: Sequence[Run]) -> list[str]:
    """Give the channels of a batch some of whose events silver may have already, by the stretches of both.

    Channels with rows that carry no publish number are among them: only a look at silver tells about those.
    """
    known: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for run in earlier:
        known.setdefault(_whose(run), []).append((run["first"], run["last"]))
    # Reaching how far, stretch by stretch: then one look finds whether any begins before an end and reaches its start.
    reach = {}
    for whose, stretches in known.items():
        stretches.sort()
        reach[whose] = ([first for first, _ in stretches], list(accumulate((last for _, last in stretches), max)))
    found = set()
    numbered: Counter[tuple[str, object]] = Counter()
    logged: Counter[tuple[str, object]] = Counter()
    for run in runs:
        (logged if run["kind"] == BY_LOG else numbered)[run["channel"], run["log_id"]] += run["events"]
        firsts, lasts = reach.get(_whose(run), ([], []))
        place = bisect_right(firsts, run["last"])
        if place and lasts[place - 1] >= run["first"]:
            found.add(run["channel"])
    found |= {channel for (channel, log), rows in logged.items() if rows > numbered[channel, log]}
    return sorted(found)


def _whose(run: Run) -> tuple[object, ...]:
    """Say what the numbers of a stretch count: a log, or a publisher's events wherever they were seen."""
    return (run["kind"], run["channel"], run["log_id"] if run["kind"] == BY_LOG else run["origin"])


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
