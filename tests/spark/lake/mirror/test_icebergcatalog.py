"""An Iceberg table on object storage is found by its place, and by its newest version even if the hint is late."""

from pathlib import Path

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import LongType, NestedField

from meshbus.log.objectstore import delete_object, join_uri, write_object
from meshbus.spark.lake.mirror.icebergcatalog import StorageCatalog

SCHEMA = Schema(NestedField(1, "number", LongType(), required=False))


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return (tmp_path / "silver" / "events").as_uri()


def change(catalog: StorageCatalog, name: str) -> None:
    with catalog.current(None).transaction() as transaction:
        transaction.set_properties({name: "1"})


def test_a_commit_is_a_new_version_that_others_find_by_the_place(uri: str) -> None:
    catalog = StorageCatalog(uri, uri)
    assert not catalog.exists()
    catalog.create(SCHEMA, {"first": "1"})
    change(catalog, "second")
    found = StaticTable.from_metadata(uri)
    assert (found.properties["first"], found.properties["second"]) == ("1", "1")
    assert found.metadata_location == f"{uri}/metadata/v2.metadata.json"
    assert StorageCatalog(uri, uri).current(None).name() == ("silver", "events")


@pytest.mark.parametrize("hint", [b"1", b"x", None])
def test_a_hint_that_is_late_or_lost_does_not_hide_a_commit(hint: bytes | None, uri: str) -> None:
    catalog = StorageCatalog(uri, uri)
    catalog.create(SCHEMA, {})
    change(catalog, "a")
    change(catalog, "b")
    place = join_uri(uri, "metadata", "version-hint.text")
    delete_object(place) if hint is None else write_object(place, hint)
    assert StorageCatalog(uri, uri).current(None).properties == {"a": "1", "b": "1"}
    change(StorageCatalog(uri, uri), "c")
    assert StaticTable.from_metadata(uri).properties == {"a": "1", "b": "1", "c": "1"}


def test_a_version_that_exists_is_not_replaced(uri: str) -> None:
    catalog = StorageCatalog(uri, uri)
    table = catalog.create(SCHEMA, {})
    with pytest.raises(CommitFailedException, match=r"v1\.metadata\.json has been written by another process"):
        catalog._publish(1, table.metadata)
