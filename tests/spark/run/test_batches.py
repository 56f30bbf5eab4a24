"""A batch goes on where it stopped, and what was in quarantine comes to silver once its declaration is right."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from meshbus.log.log import Redex
from meshbus.spark.lake.codec import Codec, Declaration
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.batches import EventBatches, repair

WRONG = (Declaration(name="a", codec=Codec.MSGPACK),)
RIGHT = (Declaration(name="a", codec=Codec.JSON),)


def rows(spark: SparkSession, folder: Path) -> object:
    with Redex(folder, background=False) as redex:
        redex.open("a").append_batch([b'{"n":%d}' % n for n in range(5)] + [b"\xc1"])
        redex.open("b").append_batch([b"x"] * 4)
    return spark.read.format("meshbus").load(str(folder))


def seqs(spark: SparkSession, store: Store, name: str) -> list[tuple[str, int]]:
    return sorted((row["channel"], row["seq"]) for row in store.read(spark, name).collect())


ALL = [("a", seq) for seq in range(6)] + [("b", seq) for seq in range(4)]


def test_a_batch_that_died_at_any_step_goes_on_and_repair_moves_what_is_good(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, store = rows(spark, tmp_path / "log"), Store(tmp_path / "tables")
    batches = EventBatches(str(store.root), "events", WRONG)
    name = Store._name
    deaths = 0

    def dying(self: Store, aside: Path, place: Path) -> None:
        name(self, aside, place)
        raise KeyboardInterrupt  # after the rename, before anybody knows

    monkeypatch.setattr(Store, "_name", dying)
    for _ in range(9):
        try:
            batches(source, 0)  # type: ignore[arg-type]
        except KeyboardInterrupt:
            deaths += 1
        else:
            break
    assert deaths == 4
    assert seqs(spark, store, "bronze.events") == ALL
    assert seqs(spark, store, "silver.events") == [("b", seq) for seq in range(4)]
    assert seqs(spark, store, "silver.quarantine") == [("a", seq) for seq in range(6)]
    monkeypatch.undo()
    assert repair(store, spark, RIGHT) == 5
    assert repair(store, spark, RIGHT) == 0
    assert seqs(spark, store, "silver.events") == sorted(set(ALL) - {("a", 5)})
    assert seqs(spark, store, "silver.quarantine") == [("a", 5)]
