"""Minutes as integers in Spark: count tables add up by minute, and gold tables compare other times with theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshbus.spark.lake.tableschema import WINDOW_S

if TYPE_CHECKING:
    from pyspark.sql import Column

MINUTE_NS = WINDOW_S * 10**9
MINUTE_US = WINDOW_S * 10**6


def start_of_minute(time: Column, unit: int = MINUTE_US) -> Column:
    """Round an integer time down to its minute; `unit` is a minute in the unit of the time.

    Cheaper than `F.window`, which makes a struct of each row's window.
    """
    from pyspark.sql import functions as F

    return time - F.pmod(time, F.lit(unit))
