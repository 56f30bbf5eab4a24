"""Logs and recorded packets as Spark tables, and the replay of policies over them.

    import meshbus.spark
    spark = meshbus.spark.session()
    tables = meshbus.spark.tables(spark, "tables")
    tables["gold.channel_stats"].show()
    meshbus.spark.Figures("tables").latency()              an Altair chart

The rooms, from the top down: `run` (the pipeline and Spark itself), `replay` (policies over recorded packets), `io` (the
data source and sink) and `lake` (the bronze, silver and gold tables). Importing this package loads neither pyspark nor
pyarrow, and never the engine or the node: a Spark worker needs neither.
"""

from meshbus.spark.lake.tables import tables
from meshbus.spark.run.figures import Figures
from meshbus.spark.run.sparksession import session

__all__ = ["Figures", "session", "tables"]
