"""The figures of the report, one by one, for notebooks.

    figures = meshbus.spark.Figures("tables")
    figures.latency()                                    an Altair chart: show it, change it, save it
    figures.policy_change(spark, "proposed.toml")         the same, of a policy that is not in force

Reads the files of the tables with pyarrow; needs neither Spark nor Java, except for a replay. A figure without data is a sentence that says so.
spark/run/report.py writes the same figures into one page.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshbus.errors import PipelineError
from meshbus.spark.lake import charts
from meshbus.spark.lake.charts import Chart
from meshbus.spark.lake.goldtable import Drawn
from meshbus.spark.lake.named import names_of, with_names
from meshbus.spark.lake.narrow import Scan
from meshbus.spark.lake.tablestore import Store, open_store
from meshbus.spark.run.control import status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from meshbus.spark.replay.replay import Change, Replay

NODES = "gold.nodes"
LAG = "How far behind are the readers of the logs?"
NO_LAG = "No pipeline has read these tables."
CHANGE = "What would the proposed policy change?"
_CASES = ("in force", "proposed")
_FORWARD = "forward"


class Figures:
    """The figures of the tables in one directory."""

    def __init__(self, tables: Path | str | Store) -> None:
        """Open tables; raises PipelineError if there is no such directory."""
        self.store = tables if isinstance(tables, Store) else open_store(tables)
        nodes = self.store.rows(NODES) if NODES in self.store.catalog else []
        self._names = names_of(nodes)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a gold table, with the names of nodes; raises PipelineError if the table is unknown."""
        return [with_names(row, self._names) for row in self.store.rows(name)]

    def drawn(self, name: str, rows: list[dict[str, Any]]) -> Drawn:
        """Return everything that the report shows of a gold table with these rows, of which there is at least one."""
        with self.store.reading():
            return self.store.catalog.gold[name].section.draw(rows, self._scan)

    def of(self, name: str) -> Chart:
        """Return the figure of a gold table; a sentence if there is nothing to draw. Raises PipelineError as `rows` does."""
        rows = self.rows(name)
        section = self.store.catalog.gold[name].section
        shown = self.drawn(name, rows) if rows else Drawn(notes=(section.empty,))
        if shown.charts:
            return shown.charts[0]
        return charts.sentence(" ".join(shown.notes) or f"{name} is shown as a table.", title=section.title)

    def events_over_time(self) -> Chart:
        """Return how many events arrived on each channel, from seconds to days."""
        return self.of("gold.channel_stats")

    def latency(self) -> Chart:
        """Return how long events were on the way: percentiles by channel, publisher and receiver."""
        return self.of("gold.latency")

    def traffic_matrix(self) -> Chart:
        """Return what gateways passed and dropped between subnets; what arrived, if no gateway recorded packets."""
        return self.of("gold.traffic_matrix")

    def denials(self) -> Chart:
        """Return dropped packets by reason and publisher."""
        return self.of("gold.denials")

    def gaps(self) -> Chart:
        """Return when events or packets were lost."""
        return self.of("gold.gaps")

    def replication_lag(self) -> Chart:
        """Return how long each replica was behind the first."""
        return self.of("gold.replication_lag")

    def moves(self) -> Chart:
        """Return where daemons ran, and when they moved."""
        return self.of("gold.moves")

    def consumer_lag(self) -> Chart:
        """Return how many rows the queries of the pipeline had still to read."""
        shown = self.lag()
        return shown.charts[0] if shown.charts else charts.sentence(" ".join(shown.notes), title=LAG)

    def lag(self) -> Drawn:
        """Return what the report shows of the pipeline as a reader of logs."""
        try:
            found = status(self.store.root)
        except PipelineError:
            return Drawn(notes=(NO_LAG,))
        rows = [
            {"reader": query["name"], "read": query["rows"], "rows_behind": query["lag"], "bytes_behind": query["lag_bytes"],
             "seconds_behind": query["lag_s"], "problem": query["problem"] or None}
            for query in found["queries"]
        ]  # fmt: skip
        behind = {(row["reader"], "rows"): row["rows_behind"] for row in rows if row["rows_behind"]}
        at = datetime.fromisoformat(found["at"]).astimezone(UTC)
        notes = [f"The pipeline is {found['state']}; this was so at {at:%Y-%m-%d %H:%M:%S} UTC."]
        if unknown := [row["reader"] for row in rows if row["rows_behind"] is None]:
            notes.append(f"Unknown: the lag of {', '.join(unknown)}.")
        elif rows and not behind:
            notes.append("Every reader has read everything.")
        drawn = (charts.stacked_bars(behind, title=LAG, unit="rows to read", what="behind"),) if behind else ()
        return Drawn(drawn, tuple(notes), rows)

    def policy_change(self, spark: SparkSession, policy: Path | str) -> Chart:
        """Replay a proposed policy, a TOML file of a node, and return what passed and what was dropped by it and before."""
        from meshbus.spark.replay.replay import replay_packets
        from meshbus.spark.run.pipelineconfig import load_policy

        shown = policy_changes(replay_packets(spark, self.store, load_policy(Path(policy))))
        return shown.charts[0] if shown.charts else charts.sentence(" ".join(shown.notes), title=CHANGE)

    def _scan(self, name: str) -> Scan | None:
        paths = self.store.paths(name)
        return Scan(self.store.catalog.spec(name), paths) if paths else None


def policy_changes(replay: Replay) -> Drawn:
    """Return what the report shows of a replayed policy: only channels and subnets with changed verdicts."""
    changed = [change for change in replay.changes if change.recorded != change.proposed]
    note = f"The policy changes the verdict of {replay.changed:,} of {replay.packets:,} packets."
    if not changed:
        return Drawn(notes=(note,))
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    touched = {_path(change) for change in changed}
    for change in replay.changes:
        if _path(change) in touched:
            for case, verdict in zip(_CASES, (change.recorded, change.proposed), strict=True):
                counts[_path(change), case, "passed" if verdict == _FORWARD else "dropped"] += change.packets
    rows = [
        {"channel": change.channel, "from": change.src, "to": change.dst, "in_force": change.recorded,
         "proposed": change.proposed, "packets": change.packets, "bytes": change.bytes}
        for change in changed
    ]  # fmt: skip
    chart = charts.before_after(counts, title=CHANGE, unit="packets", order=_CASES)
    return Drawn((chart,), (note,), rows)


def _path(change: Change) -> str:
    return f"{change.channel or 'unknown channel'}: {change.src} → {change.dst}"
