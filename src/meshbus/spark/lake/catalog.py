"""The list of all tables, and the discovery of gold tables.

A gold table is a module in spark/lake/gold/ with a `TABLE`. Everything that handles tables reads them from the catalog
of its `Store`, so a program can also add a gold table without a module: `Store(root, CATALOG.with_gold(mine))`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules

from meshbus.errors import PipelineError, PipelineFault
from meshbus.spark.lake import gold
from meshbus.spark.lake.goldtable import GoldTable
from meshbus.spark.lake.tableschema import FIXED_TABLES, TableSpec

_LARGE = {"bronze.events", "bronze.packets", "silver.events", "silver.quarantine", "silver.decisions"}
"""Tables with a row for each event or packet."""


class Catalog(Mapping[str, TableSpec]):
    """Tables by qualified name: bronze and silver in processing order, then gold."""

    def __init__(self, gold_tables: Iterable[GoldTable]) -> None:
        """Raise PipelineError if a gold table repeats a name or has an unknown source."""
        self.gold: dict[str, GoldTable] = {}
        """Gold tables by qualified name."""
        # Gold is computed from bronze and silver only, so that the tables can be refreshed in any order.
        fixed = {spec.name: spec for spec in FIXED_TABLES}
        for table in gold_tables:
            name = table.spec.name
            if name in self.gold:
                raise PipelineError(PipelineFault.BAD_TABLE, f"{name} is defined twice; rename one of them")
            for source in table.sources:
                if source not in fixed:
                    raise PipelineError(
                        PipelineFault.BAD_TABLE, f"{name}: unknown source {source!r}; choose from {', '.join(fixed)}"
                    )
            if table.by_arrow and (unfit := _LARGE & set(table.sources) - set(table.filtered)):
                raise PipelineError(
                    PipelineFault.BAD_TABLE,
                    f"{name}: {min(unfit)} has a row for each event, too many for by_arrow; add it to filtered, or use counts",
                )
            self.gold[name] = table
        self._specs = fixed | {name: table.spec for name, table in self.gold.items()}

    def __getitem__(self, name: str) -> TableSpec:
        return self._specs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def spec(self, name: str) -> TableSpec:
        """Return the table of a name; raises PipelineError if there is none."""
        if name not in self._specs:
            raise PipelineError(
                PipelineFault.BAD_TABLE, f"unknown table {name!r}; choose from {', '.join(self._specs)}"
            )
        return self._specs[name]

    def with_gold(self, table: GoldTable) -> Catalog:
        """Return a catalog with one more gold table."""
        return Catalog([*self.gold.values(), table])


def discover() -> list[GoldTable]:
    """Return the gold tables of the modules in spark/lake/gold/, sorted by name."""
    found: list[GoldTable] = []
    for module in iter_modules(gold.__path__, f"{gold.__name__}."):
        table = import_module(module.name).TABLE
        found.append(table)
    return found


CATALOG = Catalog(discover())
"""The tables of this installation."""
