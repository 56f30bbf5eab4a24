"""gold.fan_out: how many subscribers each channel's events had, per hour, as their publishers knew them.

Each event is counted with the roster that its publisher had then (spark/lake/rosters.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshbus.log.schema import Column, ColumnType
from meshbus.spark.lake.goldtable import GoldTable, Section
from meshbus.spark.lake.grouping import added, stacked
from meshbus.spark.lake.rosters import with_rosters
from meshbus.spark.lake.subscribercount import PrefixSubscription, count_subscribers
from meshbus.spark.lake.tableschema import CHANNEL

if TYPE_CHECKING:
    from meshbus.spark.lake.narrow import Scan


def fan_out(events: Any, receipts: Any, census: Any, rows: Scan, *, subscriptions: Sequence[PrefixSubscription]) -> Any:
    """Count events and copies by channel: by rosters, else by the subscriptions of the pipeline, else unknown."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = ["hour", "channel"]
    sent = with_rosters(events, census, rows)
    unknown = pc.if_else(pc.is_null(sent["subscribers"]), sent["events"], 0)
    sent = sent.append_column("unknown", unknown)
    sent = sent.append_column("deliveries", pc.multiply(sent["copies"].cast(pa.int64()), sent["events"]))
    arrived = receipts.filter(receipts["received"]).select([*keys, "recorder", "rows"])
    both = stacked(sent.drop_columns("copies"), arrived)
    measures = {
        "events": (both["events"], "sum"),
        "unknown": (both["unknown"], "sum"),
        "subscribers": (both["subscribers"], "max"),
        "deliveries": (both["deliveries"], "sum"),
        "receivers": (both["recorder"], "count_distinct"),
        "receipts": (pc.fill_null(both["rows"], 0), "sum"),
    }
    counted = added({name: both[name] for name in keys}, measures)
    counted = counted.filter(pc.is_valid(counted["events"]))
    return _with_subscriptions(counted, subscriptions) if subscriptions else counted


def _with_subscriptions(counted: Any, subscriptions: Sequence[PrefixSubscription]) -> Any:
    """Assume the subscriptions of the pipeline for events without a recorded roster."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = counted["channel"].to_pylist()
    known = count_subscribers(set(names), subscriptions)
    told = pa.array([known[name] for name in names], pa.int64())
    guessed = pc.if_else(pc.greater(counted["unknown"], 0), told, None)
    replaced = {
        "subscribers": pc.max_element_wise(counted["subscribers"].cast(pa.int64()), guessed),
        "deliveries": pc.add(pc.fill_null(counted["deliveries"], 0), pc.multiply(counted["unknown"], told)),
        "unknown": pc.multiply(counted["unknown"], 0),
    }
    for name, column in replaced.items():
        counted = counted.set_column(counted.schema.get_field_index(name), name, column)
    return counted


TABLE = GoldTable(
    name="fan_out",
    doc="Number of subscribers and deliveries of each channel, per hour, as the publishers' rosters were at the time.",
    columns=(
        CHANNEL,
        Column(
            "subscribers",
            ColumnType.INT,
            "Largest number of subscribers that a publisher had for an event; null if no roster is recorded.",
            nullable=True,
        ),
        Column("events", ColumnType.BIGINT, "Number of events."),
        Column(
            "deliveries",
            ColumnType.BIGINT,
            "Copies that the publishers sent: each event to each subscriber, and to one member of each group; null if no"
            " roster is recorded.",
            nullable=True,
        ),
        Column("unknown", ColumnType.BIGINT, "Events without a recorded roster, which `deliveries` leaves out."),
        Column("receivers", ColumnType.BIGINT, "Nodes whose logs show that they received events."),
        Column("receipts", ColumnType.BIGINT, "Events in the logs of receivers, once for each."),
    ),
    sources=("silver.event_counts", "silver.receipt_counts", "bronze.census", "silver.events"),
    around=("bronze.census",),
    filtered=("silver.events",),
    compute=fan_out,
    by_arrow=True,
    question="Which channels cause the most deliveries?",
    query="""\
SELECT channel, max(subscribers) AS subscribers, sum(deliveries) AS deliveries, sum(receipts) AS receipts
FROM gold_fan_out GROUP BY channel ORDER BY deliveries DESC LIMIT 10""",
    section=Section("How many subscribers did events have, and what arrived?", "No events have been read."),
    with_subscriptions=True,
)
