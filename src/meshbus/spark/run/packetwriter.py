"""Write a batch of recorded packets: bronze.packets as it was recorded, and silver.decisions with recomputed verdicts.

A sealed file becomes a file of bronze.packets as it is. Spark judges the packets by the policies that were in force. silver.decisions is committed last: it marks the batch as complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshbus.log.schema import PACKETS, arrow_schema
from meshbus.policy.reason import Reason
from meshbus.spark.io.inputs import recorded_policies
from meshbus.spark.lake.tableschema import DECISIONS
from meshbus.spark.replay.expressions import judge_versions
from meshbus.spark.run.pieces import pieces_of, put_file
from meshbus.spark.run.rowsfile import RowsFile

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from meshbus.spark.lake.tablestore import Store
    from meshbus.spark.run.ingest import Range

TABLES = ("bronze.packets", "silver.decisions")
"""In the order of their commits."""


class PacketWriter:
    """The tables of one query over packet records."""

    def __init__(self, spark: SparkSession, store: Store, query: str, recorded: str) -> None:
        """Prepare to write; `recorded` is the directory that nodes log to, with their policies beside the records."""
        self._spark, self._store, self._query, self._recorded = spark, store, query, recorded

    def last(self) -> int:
        """Return the last complete batch, or -1."""
        return self._store.table(TABLES[-1]).last(self._query)

    def write(self, batch: int, taken: list[Range]) -> None:
        """Write a batch."""
        bronze, decisions = (self._store.table(name) for name in TABLES)
        staged, judged = bronze.stage(), decisions.stage()
        _write_pieces(staged, taken)
        if any(staged.iterdir()):
            packets = self._store.read_files(self._spark, "bronze.packets", [str(staged)])
            self._store.write_files(self._decide(packets), judged)
        bronze.commit(self._query, batch, batch, staged)
        decisions.commit(self._query, batch, batch, judged)

    def _decide(self, packets: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        judged = judge_versions(packets, recorded_policies(self._recorded), "recomputed")
        # CROWDED: the gateway forwarded the packet, and it was dropped afterwards for lack of room.
        said = F.when(F.col("reason") == Reason.CROWDED.code, F.lit(0)).otherwise(F.col("reason"))
        judged = judged.withColumn("agrees", F.col("recomputed") == said)
        return judged.select(*(column.name for column in DECISIONS))


def _write_pieces(folder: Path, taken: list[Range]) -> None:
    import pyarrow as pa

    schema = arrow_schema(PACKETS, dictionaries=False)
    with RowsFile(folder / "rows.parquet") as rest:
        for one in taken:
            for piece in pieces_of(one.seen, one.first, one.end):
                # A file that is taken whole is opened too: damage is an error here, not in every later query.
                columns = None if piece.file is None else [one.seen.time]
                rows = pa.Table.from_batches(list(one.seen.rows.batches(piece.first, piece.end, columns)))
                if piece.file is None:
                    rest.write(rows.cast(schema))
                else:
                    put_file(piece.file, folder, f"{one.name}-{piece.first:020d}.parquet")
