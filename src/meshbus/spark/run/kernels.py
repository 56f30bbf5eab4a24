"""Loads the kernels that a pipeline uses while it starts, so that no batch waits for them: payloads, and packet records.

Sealed logs are read by pyarrow, and hot logs of events need no kernel. The processes that Spark starts for Python functions
load what they need by their first use.
"""

from __future__ import annotations

import numpy as np

from meshbus import beside
from meshbus.log.packets.packed import hashes_in, pack_rows
from meshbus.log.packets.row import ROW
from meshbus.log.packets.runs import Piece, RecordInfo, runs_of
from meshbus.log.payload import Codec
from meshbus.log.schema import PACKETS
from meshbus.spark.lake.codec import Form
from meshbus.spark.lake.jsoncheck import surely_valid


def load_kernels() -> None:
    """Begin to load them, and return."""
    beside.run(_use)


def _use() -> None:
    import pyarrow as pa

    payloads = pa.array([b"{}"], pa.binary())
    for codec in (Codec.JSON, Codec.UTF8):
        surely_valid(Form(codec), payloads)
    packed = pack_rows(np.zeros(2, ROW))
    hashes_in(packed)
    runs_of([Piece(packed, 0, 2)], RecordInfo(0, 1), [column.name for column in PACKETS])
