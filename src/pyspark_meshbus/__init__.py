"""Entry point through which Spark finds the data source `meshbus` by the name of this package, without registration."""

from meshbus.spark.io.datasource import DefaultSource

__all__ = ["DefaultSource"]
