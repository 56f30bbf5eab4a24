"""Every table is documented, Spark understands it, and the guide says what the code says."""

import re

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from meshbus.spark.lake.tableschema import TABLES, Layer, TableSpec
from meshbus.spark.run.refresh import _SOURCES
from tests.house.tree import ROOT

SPECS = pytest.mark.parametrize("spec", TABLES.values(), ids=TABLES)
PAGE = ROOT / "docs" / "guide" / "tables.md"


@SPECS
def test_every_column_is_documented_and_named_once(spec: TableSpec) -> None:
    names = [column.name for column in spec]
    assert len(set(names)) == len(names)
    assert "hour" not in names
    assert spec.table.doc.endswith(".")
    for column in spec:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", column.name)
        assert column.doc.endswith(".")


@SPECS
def test_spark_reads_the_ddl(spark: SparkSession, spec: TableSpec) -> None:
    struct = StructType.fromDDL(spec.ddl)
    assert isinstance(struct, StructType)
    assert struct.fieldNames() == [column.name for column in spec] + ["hour"] * spec.hourly
    assert all(field.nullable for field in spec.struct())


def test_columns_of_the_same_name_have_the_same_type() -> None:
    types: dict[str, object] = {}
    for spec in TABLES.values():
        for column in spec:
            expected = types.setdefault(f"{column.name}{'!' if spec.name == 'gold.denials' else ''}", column.type)
            assert expected is column.type, f"{spec.name}.{column.name}"


def test_every_gold_table_says_what_it_is_made_of() -> None:
    assert set(_SOURCES) == {name for name, spec in TABLES.items() if spec.layer is Layer.GOLD}


def section_of(spec: TableSpec) -> str:
    lines = [f"### {spec.name}", "", spec.table.doc, "", "| column | type | null | meaning |", "|---|---|---|---|"]
    for column in spec:
        kind = f"{column.type.value}, bit-cast" if column.bit_cast else column.type.value
        lines.append(f"| `{column.name}` | {kind} | {'yes' if column.nullable else ''} | {column.doc} |")
    return "\n".join(lines)


@SPECS
def test_the_guide_has_the_table_as_it_is(spec: TableSpec) -> None:
    assert section_of(spec) in PAGE.read_text("utf-8"), f"docs/guide/tables.md must say:\n\n{section_of(spec)}"
