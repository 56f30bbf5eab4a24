"""A pipeline and a sink in a process of their own, to be killed: `python -m tests.spark.killing <folder> <format>`."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from meshbus.spark.lake.codec import Codec, Declaration
from meshbus.spark.run.pipelineconfig import PipelineConfig
from meshbus.spark.run.runner import run
from meshbus.spark.run.sparksession import session
from tests.spark.quick import quick_settings

MSGPACK = 2
"""The number of the channel whose payloads are MessagePack."""


def config_of(folder: Path, kind: str) -> PipelineConfig:
    return PipelineConfig(
        tables=str(folder / "tables"),
        format=kind,  # type: ignore[arg-type]  # read from a command line
        channels=(
            Declaration(name="load/1", codec=Codec.JSON),
            Declaration(name=f"load/{MSGPACK}", codec=Codec.MSGPACK),
        ),
        logs=(str(folder / "log"),),
        max_rows_per_batch=25_000,
        trigger_s=0.0,
        refresh_s=15.0,
        compact_batches=4,
    )


def start_copy(spark: Any, folder: Path, **trigger: Any) -> Any:
    """Copy one channel back into a log through the sink."""
    source = spark.readStream.format("meshbus").option("channels", "load/0").option("maxRowsPerTrigger", 8_000)
    return (
        source.load(str(folder / "log"))
        .select("channel", "seq", "payload")
        .writeStream.format("meshbus")
        .option("path", str(folder / "copies"))
        .option("channel", "copies/load")
        .option("writerId", "copy")
        .option("checkpointLocation", str(folder / "copy-checkpoint"))
        .trigger(**trigger)
        .start()
    )


def payload_of(channel: int, number: int) -> bytes:
    """Return the payload of an event: raw, JSON, or MessagePack, which workers in Python decode."""
    return msgspec.msgpack.encode(number) if channel == MSGPACK else b"%d" % number


def tell(line: dict[str, Any]) -> None:
    """Tell the process that will kill this one how far it is."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(folder: Path, kind: str) -> None:
    """Run until killed."""
    spark = session(settings=quick_settings())
    start_copy(spark, folder, processingTime="0 seconds")
    run(spark, config_of(folder, kind), on_progress=tell)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
