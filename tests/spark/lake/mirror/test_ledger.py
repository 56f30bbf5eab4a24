"""The ledger tells what expired from what was replaced, also after a crash, and to whom a copy belongs."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from meshbus.errors import PipelineError, PipelineFault
from meshbus.spark.lake.mirror.ledger import FOLDER, Ledger, Ledgers, check_place, name_below, settle_all
from meshbus.spark.lake.tablestore import Store
from tests.spark.lake.formats.made import EVENTS, START, commit

DAY = datetime(2026, 11, 15, tzinfo=UTC)


def names(*texts: str) -> frozenset[str]:
    return frozenset(texts)


def test_what_left_the_table_is_kept_and_the_rest_is_not(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "t.json")
    ledger.begin({"a": DAY, "b": DAY + timedelta(days=1)})
    assert ledger.kept == names("a", "b"), "a round must not remove what is leaving just now"
    ledger.settle(names("b", "c"))
    assert ledger.kept == Ledger(tmp_path / "t.json").kept == names("a")
    ledger.settle(names())
    assert ledger.kept == names("a")


def test_kept_files_have_the_names_of_the_copy(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "t.json")
    ledger.rename({"new/a": "old/a"})
    ledger.begin({"new/a": DAY, "b": DAY + timedelta(days=1)})
    ledger.settle(names())
    assert ledger.kept == names("old/a", "b")
    assert ledger.kept_before(DAY + timedelta(hours=1)) == names("old/a")
    ledger.forget(names("old/a", "x"))
    assert Ledger(tmp_path / "t.json").kept == names("b")
    assert Ledger(tmp_path / "t.json").aliases == {"new/a": "old/a"}


def test_unused_objects_are_remembered_with_their_time(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "t.json")
    ledger.note_unused({"a": DAY})
    assert Ledger(tmp_path / "t.json").unused == {"a": DAY}


def test_a_crash_between_note_and_expiry_is_settled_by_the_table(tmp_path: Path) -> None:
    store = Store(tmp_path, table_format="delta")
    store.create()
    ledgers, table = Ledgers(tmp_path, "s3://bucket/lake"), store.table(EVENTS)
    settle_all(store)
    for batch in range(2):
        commit(table, batch, [batch])  # type: ignore[arg-type]  # it is a table of parts
    folder = store.folder(EVENTS)
    first, second = (name_below(folder, file.path) for file in table.files())
    ledgers[EVENTS].begin({first: START, second: START})
    table.expire(START + timedelta(days=1), [file.path for file in table.files()][:1])
    settle_all(Store(tmp_path))  # as after a crash
    assert Ledger(tmp_path / FOLDER / f"{EVENTS}.json").kept == names(first)


def test_a_copy_has_one_place_whatever_the_address_of_its_server(tmp_path: Path) -> None:
    check_place(tmp_path, None)
    first = Ledgers(tmp_path, "s3://bucket/lake?endpoint_override=http://10.0.0.7:9000")
    assert Ledgers(tmp_path, "s3://bucket/lake/?region=eu-west-1").id == first.id
    with pytest.raises(
        PipelineError, match=r"have their copy at s3://bucket/lake, not at s3://bucket/other; set mirror to that"
    ) as caught:
        Ledgers(tmp_path, "s3://bucket/other")
    assert caught.value.fault is PipelineFault.SETTINGS
    with pytest.raises(PipelineError, match="not at None"):
        check_place(tmp_path, None)


def test_a_damaged_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(b"{")
    with pytest.raises(PipelineError, match=r"t\.json cannot be read; restore it"):
        Ledger(tmp_path / "t.json")
