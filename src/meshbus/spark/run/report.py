"""Write the tables as one HTML page with figures and tables: one file, readable without a network and without Spark.

Each gold table says what it shows (`Section` in spark/lake/goldtable.py), spark/run/figures.py adds what is not in a gold
table, and spark/run/reportpage.py is the page around them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from meshbus.spark.lake.goldtable import Drawn, Rows
from meshbus.spark.lake.tableschema import WINDOW_S
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.figures import CHANGE, LAG, Figures, policy_changes
from meshbus.spark.run.reportpage import Part, Summary, page

if TYPE_CHECKING:
    from meshbus.spark.replay.replay import Replay

_ORDER = ("channel_stats", "traffic_matrix", "denials", "latency", "gaps", "replication_lag", "moves", "fan_out",
          "top_talkers", "nodes")  # fmt: skip
"""Gold tables in the order in which they are read; others follow."""
_MINUTES = "gold.channel_stats"
_NOT_REPLAYED = "No policy was replayed; 'meshbus pipeline report TABLES --policy FILE' shows what it would change."


def write_report(store: Store, *, replay: Replay | None = None) -> str:
    """Return the report as HTML: a summary, then a part for each gold table, the readers of the logs, and a replayed policy."""
    figures = Figures(store)
    facts: dict[str, int] = {}
    parts = []
    for name in sorted(store.catalog.gold, key=_place):
        section, rows = store.catalog.gold[name].section, figures.rows(name)
        facts |= section.facts(rows)
        shown = figures.drawn(name, rows) if rows else Drawn(notes=(section.empty,))
        parts.append(Part(section.title, name, shown))
    parts.append(Part(LAG, "the pipeline", figures.lag()))
    changes = Drawn(notes=(_NOT_REPLAYED,)) if replay is None else policy_changes(replay)
    parts.append(Part(CHANGE, "recorded packets, judged again", changes))
    return page(parts, Summary(datetime.now(UTC), facts, _period(figures.rows(_MINUTES))))


def _period(rows: Rows) -> tuple[datetime, datetime] | None:
    """Return the minutes with the first and the last events."""
    starts = [row["window_start"] for row in rows]
    return (min(starts), max(starts) + timedelta(seconds=WINDOW_S)) if starts else None


def _place(name: str) -> int:
    short = name.removeprefix("gold.")
    return _ORDER.index(short) if short in _ORDER else len(_ORDER)
