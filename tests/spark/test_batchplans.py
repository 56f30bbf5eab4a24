"""What Spark does for the batches of a pipeline: single stages that read and write files, and no rows in the driver."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.runner import run
from tests.spark.world import World

COLLECTING = ("collect", "head", "take", "toArrow", "toLocalIterator", "toPandas")
GROUP = "batches"


def test_no_batch_shuffles_or_collects_rows(
    spark: SparkSession, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every codec, broken payloads, events that two nodes logged, and packets with verdicts."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("rows were collected in the driver")

    for name in COLLECTING:
        monkeypatch.setattr(DataFrame, name, refuse)
    spark.sparkContext.setJobGroup(GROUP, "the batches of a pipeline")
    try:
        run(spark, msgspec.structs.replace(world.config, tables=str(tmp_path)), once=True)
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # removes it
    told = spark.sparkContext.statusTracker()
    jobs = [told.getJobInfo(job) for job in told.getJobIdsForGroup(GROUP)]
    assert jobs, "Spark had nothing to do, so nothing was looked at"
    stages = {job.jobId: len(job.stageIds) for job in jobs if job is not None}
    assert set(stages.values()) == {1}, f"a shuffle divides a job into stages: {stages}"
    monkeypatch.undo()
    assert len(Store(tmp_path).rows("silver.events")) == len(Store(world.tables).rows("silver.events"))
