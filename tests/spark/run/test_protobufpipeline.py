"""Protobuf through a whole pipeline, with generated classes: evolution, quarantine and rebuild, in open formats."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from pyspark.sql import SparkSession

from meshbus.log.log import Redex
from meshbus.spark.lake.codec import Codec, Declaration
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.pipelineconfig import PipelineConfig
from meshbus.spark.run.rebuild import rebuild
from meshbus.spark.run.runner import run
from tests.spark.lake.messages import NEW, OLD, compile_proto
from tests.spark.readers import rows_by_library

START = datetime(2026, 11, 15, 1, 0, tzinfo=UTC)
EACH = 4
"""Events of each producer, in an hour of its own."""


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_messages_evolve_are_quarantined_and_decoded_again(
    spark: SparkSession, tmp_path: Path, kind: Literal["delta", "iceberg"]
) -> None:
    texts = {"old": OLD, "new": NEW, "changed": OLD.replace("double temp = 1;", "string temp = 1;")}
    made = {
        name: compile_proto(tmp_path, text.replace("package sensors", f"package {kind}_{name}"), f"{kind}_{name}")
        for name, text in texts.items()
    }
    written = {
        "old": [made["old"].module.Reading(temp=number, serial_number=5) for number in range(EACH)],
        "new": [made["new"].module.Reading(temp=number, battery=7) for number in range(EACH)],
        "changed": [made["changed"].module.Reading(temp=f"{number} degrees") for number in range(EACH)],
    }
    with Redex(tmp_path / "log", background=False) as redex:
        for hour, messages in enumerate(written.values()):
            now = int((START + timedelta(hours=hour)).timestamp()) * 10**9
            redex.open("plant").append_batch([one.SerializeToString() for one in messages], recv_ts_ns=now)

    def declared(name: str) -> Declaration:
        return Declaration(
            name="plant",
            codec=Codec.PROTOBUF,
            descriptor=str(made[name].descriptor),
            message=f"{kind}_{name}.Reading",
        )

    config = PipelineConfig(
        tables=str(tmp_path / "tables"), logs=(str(tmp_path / "log"),), format=kind, channels=(declared("old"),)
    )
    run(spark, config, once=True)

    def silver() -> dict[int, dict[str, object]]:
        found = rows_by_library(kind, tmp_path / "tables" / "silver" / "events", ["seq", "value"]).to_pylist()
        assert len({row["seq"] for row in found}) == len(found)
        return {row["seq"]: json.loads(row["value"]) for row in found}

    def refused() -> dict[int, str]:
        found = rows_by_library(kind, tmp_path / "tables" / "silver" / "quarantine", ["seq", "problem"]).to_pylist()
        return {row["seq"]: row["problem"] for row in found}

    first = silver()
    assert sorted(first) == list(range(2 * EACH))
    assert first[1] == {"temp": 1.0, "serialNumber": "5"}
    assert first[EACH + 1] == {"temp": 1.0}, "the descriptor lacks the field that was added"
    problem = "TypeError: temp: expected double, got text, bytes or a message"
    assert refused() == dict.fromkeys(range(2 * EACH, 3 * EACH), problem)

    store = Store(config.tables)
    for hour, name in ((1, "new"), (2, "changed")):
        begin = START + timedelta(hours=hour)
        assert rebuild(spark, store, (declared(name),), begin, begin + timedelta(minutes=1)) == [f"{begin:%Y-%m-%dT%H}"]
    again = silver()
    assert [again[seq] for seq in range(EACH)] == [first[seq] for seq in range(EACH)], "other hours stay as they are"
    assert again[EACH + 1] == {"temp": 1.0, "battery": 7}
    assert again[2 * EACH] == {"temp": "0 degrees"}
    assert refused() == {}
    run(spark, msgspec.structs.replace(config, channels=(declared("new"),)), once=True)
    assert silver() == again
    assert sum(row["events"] for row in store.rows("gold.channel_stats")) == 3 * EACH
