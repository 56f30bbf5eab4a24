"""Every module in spark/lake/gold/ is a table, and a wrong definition is refused by name."""

import msgspec
import pytest

from meshbus.errors import PipelineError
from meshbus.spark.lake.catalog import CATALOG, Catalog, discover
from meshbus.spark.lake.gold.gaps import TABLE
from meshbus.spark.lake.goldtable import GoldTable
from meshbus.spark.lake.tableschema import Layer
from tests.house.tree import PACKAGE


def test_every_module_of_gold_is_a_table_of_the_same_name() -> None:
    modules = sorted(path.stem for path in (PACKAGE / "spark" / "lake" / "gold").glob("[a-z]*.py"))
    tables = discover()
    assert [table.name for table in tables] == modules
    assert all(isinstance(table, GoldTable) for table in tables)


def test_tables_are_listed_layer_by_layer() -> None:
    layers = [spec.layer for spec in CATALOG.values()]
    assert layers == sorted(layers, key=list(Layer).index)
    assert {name for name, spec in CATALOG.items() if spec.layer is Layer.GOLD} == set(CATALOG.gold)
    assert len(CATALOG) == len(layers)


def test_an_unknown_table_is_named_with_those_there_are() -> None:
    with pytest.raises(PipelineError, match=r"unknown table 'events'; choose from bronze\.events, bronze\.packets"):
        CATALOG.spec("events")


def test_a_name_is_given_once() -> None:
    with pytest.raises(PipelineError, match=r"gold\.gaps is defined twice"):
        CATALOG.with_gold(TABLE)


def test_a_source_is_a_bronze_or_silver_table() -> None:
    for source in ("silver.nothing", "gold.gaps"):
        table = msgspec.structs.replace(TABLE, sources=(source,))
        with pytest.raises(PipelineError, match=rf"gold\.gaps: unknown source '{source}'; choose from bronze\.events"):
            Catalog([table])
