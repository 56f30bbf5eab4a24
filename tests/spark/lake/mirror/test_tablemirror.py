"""The copy of a table has the rows of the table after each round, on a real server and in a directory, in each format."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from meshbus.errors import LogError
from meshbus.log import objectstore
from meshbus.log.objectstore import Cancelled, list_names
from meshbus.spark.lake.mirror import tablemirror
from meshbus.spark.lake.mirror.tablemirror import Replaced
from tests.objectserver import ObjectServer, object_server
from tests.spark.lake.formats.made import EVENTS, FAN_OUT, START, commit, event, write_events
from tests.spark.lake.mirror.copies import KINDS, below, commits, copied, read_copy, with_copy

__all__ = ["object_server"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["s3", "file"])
def uri(request: pytest.FixtureRequest, object_server: ObjectServer, tmp_path: Path) -> str:
    return object_server.uri(f"lake/{tmp_path.name}") if request.param == "s3" else (tmp_path / "copies").as_uri()


@pytest.fixture
def local(tmp_path: Path) -> str:
    return (tmp_path / "copies").as_uri()


def test_a_copy_follows_batches_compaction_and_replacement(kind: str, uri: str, tmp_path: Path) -> None:
    both = with_copy(tmp_path / "tables", uri, kind)
    table = both.table
    assert not both.sync()
    for batch in range(4):
        commit(table, batch, range(batch * 10, batch * 10 + 10))
    assert both.sync()
    assert copied(uri, kind) == list(range(40))
    assert table.compact("events", fewest=4, keep=0) == 4
    commit(table, 4, [40])
    assert both.sync()
    assert copied(uri, kind) == list(range(41))
    staged = table.stage()
    write_events(staged, [event(1_000, second=12)])
    table.replace(START + timedelta(seconds=12), START + timedelta(seconds=23), staged)
    assert both.sync()
    assert copied(uri, kind) == [*range(12), *range(23, 41), 1_000]
    rows = {row["seq"]: row for row in read_copy(below(uri, EVENTS), kind).to_pylist()}
    for number in (*range(12), *range(23, 41)):
        wanted = event(number)
        assert {name: rows[number][name] for name in wanted} == wanted


def test_a_round_is_one_commit_and_a_repeat_is_none(kind: str, local: str, tmp_path: Path) -> None:
    both = with_copy(tmp_path / "tables", local, kind)
    commit(both.table, 0, [1])
    both.sync()
    before = commits(local, kind)
    for batch in range(1, 6):
        commit(both.table, batch, [batch + 1])
    both.table.compact("events", fewest=3, keep=0)
    assert both.sync()
    assert commits(local, kind) == before + 1
    assert not both.sync()
    assert not with_copy(tmp_path / "tables", local, kind).sync(), "another process finds it done"
    assert commits(local, kind) == before + 1
    assert copied(local, kind) == [1, 2, 3, 4, 5, 6]


def test_files_that_compaction_links_are_not_copied_again(
    kind: str, local: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshbus.spark.lake.formats.parquetfile.LARGE_BYTES", 20_000)
    both = with_copy(tmp_path / "tables", local, kind)
    for batch in range(2):
        staged = both.table.stage()
        write_events(staged, map(event, range(batch * 1_000, batch * 1_000 + 1_000)), compression="none")
        both.table.commit("events", batch, batch, staged)
    both.sync()
    objects = {name for name, _ in list_names(below(local, EVENTS)) if name.endswith(".parquet")}
    assert both.table.compact("events", fewest=2, keep=0) == 2
    both.sync()
    both = with_copy(tmp_path / "tables", local, kind)
    both.sync()
    assert {name for name, _ in list_names(below(local, EVENTS)) if name.endswith(".parquet")} == objects
    assert copied(local, kind) == list(range(2_000))
    (both.ledgers._folder / f"{EVENTS}.json").unlink()
    with_copy(tmp_path / "tables", local, kind).sync()
    assert copied(local, kind) == list(range(2_000)), "lost names cost a copy, and no row"


def test_expired_rows_stay_in_the_copy_until_their_own_time(kind: str, uri: str, tmp_path: Path) -> None:
    both = with_copy(tmp_path / "tables", uri, kind)
    for batch in range(5):
        commit(both.table, batch, range(batch * 10, batch * 10 + 10))
    both.sync()
    assert both.expire(START + timedelta(seconds=20)) == 2
    both.table.compact("events", fewest=3, keep=0)
    commit(both.table, 5, range(50, 60))
    both.sync()
    assert copied(uri, kind) == list(range(60))
    late = with_copy(tmp_path / "tables", uri, kind)
    late.sync()
    assert copied(uri, kind) == list(range(60)), "a process that remembers nothing finds it in the ledger"
    late.sync(expired=START + timedelta(seconds=15))
    assert copied(uri, kind) == list(range(10, 60))
    late.sync(expired=START + timedelta(days=1))
    assert copied(uri, kind) == list(range(20, 60)), "what the table has is not expired in the copy"
    assert late.ledgers[EVENTS].kept == frozenset()


def test_only_what_was_copied_expires(kind: str, local: str, tmp_path: Path) -> None:
    both = with_copy(tmp_path / "tables", local, kind)
    commit(both.table, 0, [0])
    both.sync()
    commit(both.table, 1, [1])
    assert both.expire(START + timedelta(days=1)) == 1
    assert [row["seq"] for file in both.table.files() for row in pa.parquet.read_table(file.path).to_pylist()] == [1]


def test_a_hour_of_gold_is_replaced(kind: str, uri: str, tmp_path: Path) -> None:
    both = with_copy(tmp_path / "tables", uri, kind, FAN_OUT)
    both.table.put_hour("2026-11-15T10", fan_out("a", "b"), "x")
    both.table.put_hour("2026-11-15T11", fan_out("c"), "x")
    both.sync()
    both.table.put_hour("2026-11-15T10", fan_out("d"), "y")
    both.sync()
    found = read_copy(below(uri, FAN_OUT), kind).to_pylist()
    assert sorted((row["hour"], row["channel"]) for row in found) == [("2026-11-15T10", "d"), ("2026-11-15T11", "c")]


def fan_out(*channels: str) -> pa.Table:
    from meshbus.log.schema import arrow_schema
    from meshbus.spark.lake.catalog import CATALOG

    schema = arrow_schema(CATALOG[FAN_OUT].table, dictionaries=False)
    rows = [
        {
            field.name: 0 if pa.types.is_integer(field.type) else START if pa.types.is_timestamp(field.type) else 0.0
            for field in schema
        }
        | {"channel": channel}
        for channel in channels
    ]
    return pa.Table.from_pylist(rows, schema=schema)


def test_the_copy_carries_the_batches(local: str, tmp_path: Path) -> None:
    import deltalake
    from pyiceberg.table import StaticTable

    for kind in KINDS:
        both = with_copy(tmp_path / f"{kind}-tables", f"{local}/{kind}", kind)
        for batch in range(3):
            commit(both.table, batch, [batch])
        commit(both.table, 7, [70], query="other")
        both.sync()
    delta = deltalake.DeltaTable(below(f"{local}/delta", EVENTS))
    assert (delta.transaction_version("events"), delta.transaction_version("other")) == (2, 7)
    properties = StaticTable.from_metadata(below(f"{local}/iceberg", EVENTS)).properties
    assert (properties["meshbus.batch.events"], properties["meshbus.batch.other"]) == ("2", "7")


def test_a_copy_that_differs_from_its_file_is_not_committed(
    kind: str, local: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = with_copy(tmp_path / "tables", local, kind)
    commit(both.table, 0, [0])
    put = objectstore.put_object

    def damaged(path: Path, uri: str, cancelled: object) -> objectstore.StoredObject:
        stored = put(path, uri)
        place = Path(uri.removeprefix("file://").replace("%3D", "="))
        place.write_bytes(place.read_bytes()[:-1])
        return stored

    with monkeypatch.context() as patch:
        patch.setattr(tablemirror, "put_object", damaged)
        with pytest.raises(LogError, match="bytes that are not the"):
            both.sync()
    assert both.mirror.copied == frozenset()
    assert both.mirror.behind is not None
    assert both.mirror.behind.files == 1
    assert both.sync()
    assert copied(local, kind) == [0]
    assert both.mirror.behind == (0, 0)


def test_a_file_that_is_removed_while_it_is_copied_is_looked_for_again(kind: str, local: str, tmp_path: Path) -> None:
    both = with_copy(tmp_path / "tables", local, kind)
    commit(both.table, 0, [0])
    commit(both.table, 1, [1])
    both.mirror.look()
    (path, _) = (Path(file.path) for file in both.table.files())
    aside = path.rename(path.with_suffix(".aside"))
    with pytest.raises(Replaced):
        both.mirror.sync()
    with pytest.raises(Replaced):
        both.mirror.look()
    aside.rename(path)
    both.sync()
    assert copied(local, kind) == [0, 1]


def test_a_round_ends_when_it_is_cancelled(kind: str, local: str, tmp_path: Path) -> None:
    both = with_copy(tmp_path / "tables", local, kind)
    commit(both.table, 0, [0])
    with pytest.raises(Cancelled):
        both.sync(cancelled=lambda: True)
    both.sync()
    assert copied(local, kind) == [0]


def test_objects_that_nothing_refers_to_are_deleted_a_day_later(
    kind: str, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = with_copy(tmp_path / "tables", uri, kind)
    for batch in range(2):
        commit(both.table, batch, [batch])
    both.sync()
    both.table.compact("events", fewest=2, keep=0)
    both.sync()

    def objects() -> int:
        return sum(name.endswith(".parquet") for name, _ in list_names(below(uri, EVENTS)))

    both.mirror.clean()
    assert objects() == 3, "readers may still need them"
    later = datetime.now(UTC) + timedelta(hours=25)
    monkeypatch.setattr(tablemirror, "datetime", type("Later", (), {"now": lambda *_: later}))
    if kind == "delta":  # its log has the time at which a file left
        monkeypatch.setattr("meshbus.spark.lake.mirror.delta.KEEP_HOURS", 0)
    both.mirror.clean()
    assert objects() == 1
    assert copied(uri, kind) == [0, 1]


def test_what_a_library_says_is_one_plain_sentence(local: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = with_copy(tmp_path / "tables", local, "delta")
    commit(both.table, 0, [0])

    def refuse(*given: object) -> bool:
        raise OSError(
            "Generic S3 error\n \x1b[31m↳\x1b[0m Error performing PUT\n \x1b[31m↳\x1b[0m 500 Internal Server Error"
        )

    monkeypatch.setattr(both.mirror._target, "commit", refuse)
    with pytest.raises(LogError) as caught:
        both.sync()
    assert str(caught.value) == (
        f"cannot commit to {below(local, EVENTS)}: Generic S3 error: Error performing PUT: 500 Internal Server Error;"
        " check the server and its free space"
    )
