"""The copy of an Iceberg table: its owner, its commits, and objects that nothing refers to."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from meshbus.errors import PipelineError
from meshbus.log.objectstore import list_names
from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.mirror.iceberg import IcebergTarget, location_of
from tests.spark.lake.formats.made import EVENTS, event, write_events
from tests.spark.lake.mirror.test_delta import put


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_events(tmp_path, [event(1)])


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return (tmp_path / "copies" / "silver" / "events").as_uri()


def test_files_are_added_and_removed_in_one_snapshot(uri: str, file: Path) -> None:
    target = IcebergTarget(uri, CATALOG[EVENTS], "me")
    assert target.names() == frozenset()
    assert target.clean({}, datetime.now(UTC)) == {}
    for name in ("a.parquet", "b.parquet"):
        put(uri, name, file)
    assert target.commit({"a.parquet": file}, [], {"events": 0})
    assert target.commit({"b.parquet": file}, ["a.parquet"], {"events": 1})
    assert not target.commit({}, [], {"events": 1})
    assert target.commit({}, [], {"events": 2}), "a batch without rows"
    assert target.names() == IcebergTarget(uri, CATALOG[EVENTS], "me").names() == frozenset({"b.parquet"})
    found = StaticTable.from_metadata(uri)
    assert len(found.history()) == 2
    assert found.properties["meshbus.batch.events"] == "2"
    assert found.scan().to_arrow().num_rows == 1


def test_another_owner_is_refused(uri: str, file: Path) -> None:
    put(uri, "a.parquet", file)
    IcebergTarget(uri, CATALOG[EVENTS], "me").commit({"a.parquet": file}, [], {})
    with pytest.raises(PipelineError, match="is not the copy of these tables"):
        IcebergTarget(uri, CATALOG[EVENTS], "you").names()


def test_objects_are_deleted_when_they_were_unused_for_a_day(uri: str, file: Path) -> None:
    target = IcebergTarget(uri, CATALOG[EVENTS], "me")
    for name in ("a.parquet", "b.parquet", "left-by-a-crash.parquet"):
        put(uri, name, file)
    target.commit({"a.parquet": file}, [], {})
    target.commit({"b.parquet": file}, ["a.parquet"], {})
    now = datetime.now(UTC)
    unused = target.clean({}, now)
    assert unused == {"a.parquet": now, "left-by-a-crash.parquet": now}
    assert target.clean(unused, now + timedelta(hours=23)) == unused
    assert target.clean(unused | {"gone": now}, now + timedelta(hours=24)) == {}
    assert [name for name, _ in list_names(uri) if name.endswith(".parquet")] == ["b.parquet"]
    target.forget()
    assert target.names() == frozenset({"b.parquet"})
    assert StaticTable.from_metadata(uri).scan().to_arrow().num_rows == 1


def test_a_location_has_no_options() -> None:
    assert location_of("s3://bucket/lake?endpoint_override=http://10.0.0.7:9000") == "s3://bucket/lake"
