"""Answer one question with each gold table: `python examples/gold_tables.py tables`."""

from __future__ import annotations

import sys

import meshbus.spark
from meshbus.spark.lake.catalog import CATALOG


def main(path: str) -> None:
    """Run the example query of every gold table in a directory of tables."""
    spark = meshbus.spark.session()
    meshbus.spark.tables(spark, path).create_views()
    for table in CATALOG.gold.values():
        print(f"\n{table.question}\n\n{table.query}\n")  # noqa: T201 - an example prints
        spark.sql(table.query).show(truncate=False)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
