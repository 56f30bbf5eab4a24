"""What every format of tables promises: a batch is there once, readers see whole commits, and nothing is lost."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshbus.errors import PipelineError
from meshbus.spark.lake.formats.parts import format_of
from meshbus.spark.lake.formats.parttable import PartTable
from tests.spark.lake.formats.made import (
    EVENTS,
    FAN_OUT,
    FORMATS,
    GAPS,
    RUNS,
    START,
    commit,
    event,
    numbers,
    open_table,
    read,
    spans,
    write_events,
)

each_format = pytest.mark.parametrize("kind", FORMATS)


@pytest.fixture(params=FORMATS)
def events(request: pytest.FixtureRequest, tmp_path: Path) -> PartTable:
    return open_table(EVENTS, tmp_path, request.param)


def again(table: PartTable) -> PartTable:
    """The same table, opened by somebody who remembers nothing."""
    return type(table)(table.folder, table.spec)


def test_a_table_that_nobody_wrote_is_empty(events: PartTable) -> None:
    assert events.files() == []
    assert events.last("events") == -1
    assert events.expire(START) == 0
    events.sweep()


def test_a_batch_that_is_committed_again_changes_nothing(events: PartTable) -> None:
    assert commit(events, 0, [1, 2])
    assert commit(events, 1, [3])
    assert commit(events, 0, [9], query="other")
    assert not commit(events, 1, [3])
    assert not commit(again(events), 0, [1, 2])
    assert numbers(events) == numbers(again(events)) == [1, 2, 3, 9]
    assert spans(events) == [("events", 0, 0), ("events", 1, 1), ("other", 0, 0)]
    assert (events.last("events"), events.last("other"), again(events).last("events")) == (1, 0, 1)


def test_a_batch_without_rows_is_committed(events: PartTable) -> None:
    assert commit(events, 0, [])
    assert not commit(again(events), 0, [])
    assert events.last("events") == again(events).last("events") == 0
    assert events.files() == []


def test_several_batches_are_one_commit(events: PartTable) -> None:
    assert commit(events, 0, range(5), last=4)
    assert not commit(events, 3, [3], last=4)
    assert spans(events) == [("events", 0, 4)]
    with pytest.raises(PipelineError, match="4 is committed already; commit from 5 on"):
        commit(events, 4, [4, 5], last=5)
    assert numbers(events) == [0, 1, 2, 3, 4]


def test_files_are_what_was_staged_with_their_sizes(events: PartTable) -> None:
    staged = events.stage()
    paths = [write_events(staged, [event(number)], name=f"file-{number}") for number in range(3)]
    sizes = {path.name: path.stat().st_size for path in paths}
    (staged / "_SUCCESS").write_bytes(b"")
    events.commit("events", 0, 0, staged)
    assert not staged.exists()
    assert {Path(file.path).name: file.bytes for file in events.files()} == sizes


def test_a_batch_whose_writer_died_before_its_commit_is_not_there(events: PartTable) -> None:
    write_events(events.stage(), [event(1)])
    assert events.files() == []
    assert commit(events, 0, [1])
    events.sweep()
    assert numbers(events) == [1]
    assert not (events.folder / "_aside").exists()


def test_small_files_become_one_and_their_batches_stay_known(events: PartTable) -> None:
    for batch in range(6):
        commit(events, batch, [batch])
    assert events.compact("events", fewest=9) == 0
    assert [events.compact("events", fewest=2) for _ in range(4)] == [2, 2, 2, 0]
    assert spans(events) == [("events", 0, 3), ("events", 4, 4), ("events", 5, 5)]
    assert numbers(events) == list(range(6))
    assert not commit(events, 2, [2])
    assert commit(events, 6, [6])
    assert numbers(again(events)) == list(range(7))


def test_compacted_rows_are_the_rows_that_were_written(events: PartTable) -> None:
    for batch in range(3):
        commit(events, batch, range(batch * 10, batch * 10 + 10))
    assert events.compact("events", fewest=3, keep=0) == 3
    found = sorted(read(events), key=lambda row: row["seq"])
    for row, wanted in zip(found, map(event, range(30)), strict=True):
        assert {name: row[name] for name in wanted} == wanted
        assert row["codec"] is row["value"] is None


def test_large_files_are_linked_and_not_copied(events: PartTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.spark.lake.formats.parquetfile.LARGE_BYTES", 20_000)
    inodes = set()
    for batch in range(4):
        staged = events.stage()
        if batch % 2:
            path = write_events(staged, map(event, range(batch * 1000, batch * 1000 + 1000)), compression="none")
            inodes.add(path.stat().st_ino)
        else:
            write_events(staged, [event(batch)])
        events.commit("events", batch, batch, staged)
    assert events.compact("events", fewest=4, keep=0) == 4
    assert inodes < {Path(file.path).stat().st_ino for file in events.files()}
    assert len(events.files()) == 3
    assert numbers(events) == sorted([0, 2, *range(1000, 2000), *range(3000, 4000)])


def test_batches_without_rows_do_not_stop_compaction(events: PartTable) -> None:
    for batch in range(8):
        commit(events, batch, [batch] if batch % 2 else [])
    while events.compact("events", fewest=2, keep=0):
        pass
    assert numbers(events) == [1, 3, 5, 7]
    assert len(events.files()) == 1
    assert events.last("events") == 7


def test_other_queries_are_not_compacted(events: PartTable) -> None:
    for query in ("events", "repair"):
        for batch in range(2):
            commit(events, batch, [batch], query=query)
    assert events.compact("events", fewest=2, keep=0) == 2
    assert spans(events) == [("events", 0, 1), ("repair", 0, 0), ("repair", 1, 1)]


def test_a_range_of_time_is_replaced_and_the_rest_stays(events: PartTable) -> None:
    for batch in range(4):
        commit(events, batch, range(batch * 10, batch * 10 + 10))
    commit(events, 0, [15, 99], query="repair")
    staged = events.stage()
    write_events(staged, [event(1000, second=15), event(1001, second=24)])
    events.replace(START + timedelta(seconds=15), START + timedelta(seconds=25), staged)
    wanted = [number for number in [*range(40), 99] if not 15 <= number < 25]
    assert numbers(events) == numbers(again(events)) == [*wanted, 1000, 1001]
    assert not staged.exists()
    assert (events.last("events"), events.last("repair")) == (3, 0)
    assert not commit(events, 1, range(10, 20))
    assert commit(events, 4, [40])


def test_a_range_is_replaced_as_often_as_wanted(events: PartTable) -> None:
    commit(events, 0, range(10))
    for round_ in range(3):
        staged = events.stage()
        write_events(staged, [event(1000 + round_, second=5)])
        events.replace(START + timedelta(seconds=5), START + timedelta(seconds=6), staged)
        assert numbers(again(events)) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 1000 + round_]
    events.sweep()
    assert numbers(events) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 1002]


def test_rows_can_be_put_into_a_range_that_has_none(events: PartTable) -> None:
    for second, given in ((100, [100]), (200, [100, 200])):
        staged = events.stage()
        write_events(staged, [event(second)])
        events.replace(START + timedelta(seconds=second), START + timedelta(seconds=second + 1), staged)
        assert numbers(events) == given


@each_format
def test_a_table_without_time_keeps_all_rows(kind: str, tmp_path: Path) -> None:
    runs = open_table(RUNS, tmp_path, kind)
    staged = runs.stage()
    pq.write_table(pa.table({"kind": ["log"], "first": [1], "last": [2]}), staged / "part.parquet")
    runs.commit("events", 0, 0, staged)
    assert runs.expire(START + timedelta(days=999)) == 0
    with pytest.raises(PipelineError, match="runs has no column of time, so no range of time can be replaced"):
        runs.replace(START, START, runs.stage())
    assert [row["first"] for row in read(runs)] == [1]


def test_files_with_only_old_rows_expire(events: PartTable) -> None:
    for batch in range(4):
        commit(events, batch, range(batch * 10, batch * 10 + 10))
    assert events.expire(START + timedelta(seconds=25)) == 2
    assert numbers(events) == numbers(again(events)) == list(range(20, 40))
    assert events.expire(START + timedelta(seconds=25)) == 0
    assert not commit(events, 0, range(10))
    assert events.expire(START + timedelta(days=1)) == 2
    assert events.files() == []
    assert again(events).last("events") == 3


def test_one_of_two_files_of_a_batch_expires(events: PartTable) -> None:
    staged = events.stage()
    for number in (1, 50):
        write_events(staged, [event(number)], name=f"file-{number}")
    events.commit("events", 0, 0, staged)
    assert events.expire(START + timedelta(seconds=10)) == 1
    assert numbers(again(events)) == [50]


def fan_out(channel: str) -> pa.Table:
    counts = {"events": [2], "deliveries": [2], "unknown": [0], "receivers": [1], "receipts": [2]}
    return pa.table({"channel": [channel], "subscribers": [1], **counts})


@each_format
def test_an_hour_of_gold_is_replaced_and_knows_its_sources(kind: str, tmp_path: Path) -> None:
    gold = open_table(FAN_OUT, tmp_path, kind)
    assert gold.sources("2026-01-01T00") == ""
    assert gold.hours() == []
    gold.put_hour("2026-01-01T00", fan_out("a"), "first")
    gold.put_hour("2026-01-01T01", fan_out("b"), "second")
    gold.put_hour("2026-01-01T00", fan_out("c"), "third")
    gold.put_hour("2026-01-01T02", fan_out("d").slice(0, 0), "fourth")
    for table in (gold, again(gold)):
        assert table.hours() == ["2026-01-01T00", "2026-01-01T01", "2026-01-01T02"]
        assert [table.sources(hour) for hour in table.hours()] == ["third", "second", "fourth"]
        assert [(row["hour"], row["channel"]) for row in read(table)] == [
            ("2026-01-01T00", "c"),
            ("2026-01-01T01", "b"),
        ]
        assert len(table.files()) == 3


@each_format
def test_old_hours_of_gold_expire(kind: str, tmp_path: Path) -> None:
    gold = open_table(FAN_OUT, tmp_path, kind)
    for hour in range(5):
        gold.put_hour(f"2026-11-15T{8 + hour:02d}", fan_out(str(hour)), "x")
    assert gold.expire(START + timedelta(minutes=30)) == 2
    assert [row["channel"] for row in read(again(gold))] == ["2", "3", "4"]
    assert gold.sources("2026-11-15T08") == ""
    gold.sweep()
    assert len(gold.files()) == 3


@each_format
def test_a_gold_table_without_hours_is_replaced_as_a_whole(kind: str, tmp_path: Path) -> None:
    gold = open_table(GAPS, tmp_path, kind)
    empty = pa.table({column.name: [] for column in gold.spec})
    gold.put_hour(None, empty, "first")
    gold.put_hour(None, empty, "second")
    assert gold.sources(None) == again(gold).sources(None) == "second"
    assert gold.hours() == []
    assert len(gold.files()) == 1
    assert gold.expire(START) == 0


@each_format
def test_a_table_of_another_format_is_refused(kind: str, tmp_path: Path) -> None:
    commit(open_table(EVENTS, tmp_path, kind), 0, [1])
    gold = open_table(FAN_OUT, tmp_path, kind)
    gold.put_hour("2026-01-01T00", fan_out("a"), "x")
    assert format_of(gold.folder) == kind
    for other in set(FORMATS) - {kind}:
        for name in (EVENTS, FAN_OUT):
            with pytest.raises(
                PipelineError, match=f"has the format '{kind}', not '{other}'; choose '{kind}' or another"
            ):
                open_table(name, tmp_path, other)
    assert format_of(tmp_path / "silver" / "runs") is None


@each_format
def test_a_writer_that_dies_before_its_first_commit_leaves_a_table_that_opens(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files without a log of commits would look like a table of another format."""
    events, gold = open_table(EVENTS, tmp_path, kind), open_table(FAN_OUT, tmp_path, kind)

    def die(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(events), "_drop_replaced" if kind == "parquet" else "_commit", die)
        with pytest.raises(KeyboardInterrupt):
            commit(events, 0, [1])
        if kind != "parquet":
            with pytest.raises(KeyboardInterrupt):
                gold.put_hour("2026-01-01T00", fan_out("a"), "x")
    commit(again(events), 0, [1])
    again(gold).put_hour("2026-01-01T00", fan_out("b"), "y")
    assert numbers(again(events)) == [1]
    assert [row["channel"] for row in read(again(gold))] == ["b"]


@each_format
@pytest.mark.parametrize("name", ["my tables", "ü+&=b"])
def test_a_root_may_have_any_name(name: str, kind: str, tmp_path: Path) -> None:
    table = open_table(EVENTS, tmp_path / name, kind)
    for batch in range(2):
        commit(table, batch, [batch])
    table.compact("events", fewest=2, keep=0)
    table.sweep()
    assert numbers(again(table)) == [0, 1]
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(("kind", "name"), [("delta", "a%20b"), ("iceberg", "a#b"), ("iceberg", "a?b")])
def test_a_path_that_the_library_cannot_handle_is_refused(kind: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=f"contains '.', which tables of the format '{kind}' must not have"):
        open_table(EVENTS, tmp_path / name, kind)


@each_format
def test_a_root_may_be_relative(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = open_table(EVENTS, Path("tables"), kind)
    for batch in range(2):
        commit(table, batch, [batch])
    table.compact("events", fewest=2, keep=0)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert numbers(table) == [0, 1]
    assert all(Path(file.path).is_absolute() for file in table.files())
