"""The lake: logs and recorded packets as Spark tables, and policy replayed over them.

    import meshbus.spark
    spark = meshbus.spark.session()
    tables = meshbus.spark.tables(spark, "tables")
    tables["gold.channel_stats"].show()

Importing this loads neither pyspark nor pyarrow. Never imports the engine, the node or asyncio: a Spark worker needs none
of them.
"""

from meshbus.spark.lake.tables import tables
from meshbus.spark.run.sparksession import session

__all__ = ["session", "tables"]
