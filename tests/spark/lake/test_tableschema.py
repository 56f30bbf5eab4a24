"""Every table is documented and Spark understands it."""

import re

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.counts import COUNTS
from meshbus.spark.lake.tableschema import TableSpec

SPECS = pytest.mark.parametrize("spec", CATALOG.values(), ids=CATALOG)


@SPECS
def test_every_column_is_documented_and_named_once(spec: TableSpec) -> None:
    names = [column.name for column in spec]
    assert len(set(names)) == len(names)
    # Spark's partition of an hourly table; a count table has it as a column like any other.
    assert ("hour" in names) is (spec.name in {counts.name for counts in COUNTS})
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
    for spec in CATALOG.values():
        for column in spec:
            expected = types.setdefault(f"{column.name}{'!' if spec.name == 'gold.denials' else ''}", column.type)
            assert expected is column.type, f"{spec.name}.{column.name}"
