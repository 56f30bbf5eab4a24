"""Loads the kernels that decode payloads while a pipeline starts, so that its first batch does not wait for them.

Other kernels of a pipeline, those that read and seal logs, are loaded by their first use: no loop waits for them.
"""

from __future__ import annotations

from meshbus import beside
from meshbus.log.payload import Codec
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
