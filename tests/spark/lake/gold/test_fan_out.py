"""Subscribers and deliveries equal those of plain Python."""

from typing import Any

from meshbus.spark.lake.gold.fan_out import TABLE
from tests.spark import oracle
from tests.spark.oracle import as_set
from tests.spark.world import SUBSCRIPTIONS


def test_rows_equal_plain_python(read: dict[str, list[dict[str, Any]]]) -> None:
    assert as_set(read["gold.fan_out"]) == as_set(oracle.fan_out(read["silver.events"], SUBSCRIPTIONS))


def test_it_depends_on_the_subscriptions() -> None:
    assert TABLE.with_subscriptions
