"""Definition of a gold table: columns, sources, computation, and its text in the guide and in the report.

Each module in spark/lake/gold/ defines one `TABLE` of this type, and nothing else has to be edited to add a table:
spark/lake/catalog.py discovers it, spark/run/refresh.py computes it, spark/lake/guide.py documents it and
spark/run/report.py draws it.

`compute` is a pure function of rows: of Arrow tables (`by_arrow`), which costs milliseconds if it reads counts, or of
DataFrames, for whatever needs Spark. It receives the rows of some hours (all rows if the table is not hourly) and returns
the result rows of those hours. Hours are always recomputed as a whole, never updated in place, so late rows, repairs and
retries need no special handling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from meshbus.log.schema import Column, Table
from meshbus.spark.lake.charts import Chart
from meshbus.spark.lake.formats.parquetfile import fit, row_schema
from meshbus.spark.lake.tableschema import Layer, TableSpec

if TYPE_CHECKING:
    from meshbus.spark.lake.narrow import Scan
    from meshbus.spark.lake.subscribercount import PrefixSubscription

Rows: TypeAlias = Sequence[Mapping[str, Any]]
"""All rows of a gold table, as the report reads them."""
Scans: TypeAlias = "Callable[[str], Scan | None]"
"""Opens a table that has a row for each event, to be read in part; None if it has no files."""


def no_scans(_: str) -> None:
    """Open nothing: the tables with a row for each event are not at hand."""


def _no_facts(_: Rows) -> dict[str, int]:
    return {}


class Drawn(msgspec.Struct, frozen=True):
    """What the report shows of a gold table."""

    charts: tuple[Chart, ...] = ()
    """Figures (spark/lake/charts.py); none if there is nothing to draw."""
    notes: tuple[str, ...] = ()
    """Sentences, as plain text."""
    rows: Rows = ()
    """Rows of a table; the names of the columns are those of the first row."""
    words: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Words in the figures and the table, with what they mean."""


def _table_only(rows: Rows, _: Scans) -> Drawn:
    return Drawn(rows=rows)


class Section(msgspec.Struct, frozen=True):
    """How the report and notebooks show a gold table."""

    title: str
    """The question that it answers."""
    empty: str
    """Text shown instead of the rows when there are none."""
    draw: Callable[[Rows, Scans], Drawn] = _table_only
    """Returns what to show for at least one row, in which nodes have their names (spark/lake/named.py)."""
    facts: Callable[[Rows], Mapping[str, int]] = _no_facts
    """Returns numbers for the summary at the top of the report, by label."""


class GoldTable(msgspec.Struct, frozen=True, kw_only=True):
    """One gold table."""

    name: str
    """Without the layer, such as `channel_stats`; also the name of the module."""
    doc: str
    """One sentence for the guide; also stored in the table's files."""
    columns: tuple[Column, ...]
    sources: tuple[str, ...]
    """Qualified names of the bronze and silver tables that it is computed from.

    Count tables (spark/lake/counts.py) where they have what is needed: the cost of a table should not grow with the rows
    of an hour.
    """
    compute: Callable[..., Any]
    """Takes the rows of each source, in order, and `subscriptions` if `with_subscriptions` is set; returns rows."""
    question: str
    """A question that the table answers, for the guide and examples/gold_tables.py."""
    query: str
    """SQL over the views of `Tables.create_views` that answers the question."""
    section: Section
    hourly: bool = True
    around: tuple[str, ...] = ()
    """Sources of which the hours around are read too: their rows hold for later times, by clocks that may differ."""
    filtered: tuple[str, ...] = ()
    """Sources with a row per event, of which only a few are read: by Arrow through a `Scan` (spark/lake/narrow.py). They do
    not make an hour out of date: the count tables of the same rows do."""
    by_arrow: bool = False
    """Whether `compute` takes and returns Arrow tables in the driver, not DataFrames."""
    with_subscriptions: bool = False
    """Whether the table depends on the subscriptions in the pipeline's configuration; if they change, it is recomputed."""

    @property
    def spec(self) -> TableSpec:
        """The columns and layout of the table."""
        return TableSpec(Layer.GOLD, Table(self.name, self.doc, self.columns), hourly=self.hourly)

    def rows(self, sources: Sequence[Any], subscriptions: Sequence[PrefixSubscription] = ()) -> Any:
        """Compute the rows from those of each source, with the columns and types of the table and its hour."""
        options = {"subscriptions": subscriptions} if self.with_subscriptions else {}
        computed = self.compute(*sources, **options)
        if self.by_arrow:
            return fit(computed, row_schema(self.spec, hour=self.hourly))
        from pyspark.sql import functions as F

        return computed.select(*(F.col(field.name).cast(field.dataType) for field in self.spec.struct()))
