"""By its name Spark finds the data source `meshbus` in this package, without registration."""

from meshbus.spark.io.datasource import DefaultSource

__all__ = ["DefaultSource"]
