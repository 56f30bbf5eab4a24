"""A batch of packets is in bronze as it was recorded, and in silver with the verdict that was recomputed."""

from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from meshbus.log.packets.recorder import PacketRecorder
from meshbus.spark.io.inputs import Records
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.ingest import Range
from meshbus.spark.run.packetwriter import PacketWriter
from tests.spark.packets import numbered_headers


def test_sealed_and_hot_packets_are_taken_once(spark: SparkSession, tmp_path: Path) -> None:
    recorder = PacketRecorder(tmp_path / "log", 7, background=False)
    recorder.take(numbered_headers(0, 6), np.zeros(1, np.uint8), ts_ns=0, here=True)
    recorder.seal()
    recorder.take(numbered_headers(6, 3), np.zeros(1, np.uint8), ts_ns=0, here=True)
    recorder.drain()
    store = Store(tmp_path / "tables")
    writer = PacketWriter(spark, store, "packets", str(tmp_path / "log"))
    found = Records(str(tmp_path / "log")).look()
    taken = [Range(name, seen, seen.extent.first, seen.extent.end) for name, seen in found.items()]
    for _ in range(2):
        writer.write(0, taken)
    recorder.close()
    for name in ("bronze.packets", "silver.decisions"):
        assert sorted(row["packet_seq"] for row in store.rows(name)) == list(range(9))
    (sealed,) = (tmp_path / "log").glob("_packets/*/*.parquet")
    assert any(Path(path).samefile(sealed) for path in store.paths("bronze.packets"))
    assert writer.last() == 0
