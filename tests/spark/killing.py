"""A pipeline and a sink in a process of their own, to be killed: `python -m tests.spark.killing <folder>`."""

import sys
from pathlib import Path
from typing import Any

from meshbus.spark.run.pipelineconfig import PipelineConfig
from meshbus.spark.run.runner import run
from meshbus.spark.run.sparksession import session
from tests.spark.quick import quick_settings


def config_of(folder: Path) -> PipelineConfig:
    return PipelineConfig(
        tables=str(folder / "tables"),
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


def tell(line: dict[str, Any]) -> None:
    """Let whoever kills this know how far it is."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(folder: Path) -> None:
    """Run until killed."""
    spark = session(settings=quick_settings())
    start_copy(spark, folder, processingTime="0 seconds")
    run(spark, config_of(folder), on_progress=tell)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
