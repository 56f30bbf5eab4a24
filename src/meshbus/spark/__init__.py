"""The lake: logs and recorded packets as Spark tables, and policy replayed over them.

    import meshbus.spark
    spark = meshbus.spark.session()
    tables = meshbus.spark.tables(spark, "tables")
    tables["gold.channel_stats"].show()

Importing this loads neither pyspark nor pyarrow. Never imports the engine, the node or asyncio: a Spark worker needs none
of them.
"""

from meshbus.spark.session import session
from meshbus.spark.tables import tables

__all__ = ["session", "tables"]
