"""An Iceberg table in a directory: a new metadata file is the commit, and the hint may be late or lost."""

from pathlib import Path

import pytest
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import LongType, NestedField

from meshbus.spark.lake.formats.icebergfolder import FolderCatalog, QuickTransaction

SCHEMA = Schema(NestedField(1, "number", LongType(), required=False))


@pytest.fixture
def catalog(tmp_path: Path) -> FolderCatalog:
    catalog = FolderCatalog(tmp_path / "silver" / "events")
    catalog.create(SCHEMA, {"first": "1"})
    return catalog


def metadata(catalog: FolderCatalog) -> list[str]:
    return sorted(path.name for path in (catalog._folder / "metadata").iterdir())


def test_a_table_is_created_and_found_again(catalog: FolderCatalog, tmp_path: Path) -> None:
    assert metadata(catalog) == ["v1.metadata.json", "version-hint.text"]
    table = catalog.current(None)
    assert table.properties["first"] == "1"
    assert table.name() == ("silver", "events")
    assert not FolderCatalog(tmp_path / "silver" / "other").exists()
    with pytest.raises(NoSuchTableError):
        FolderCatalog(tmp_path / "silver" / "other").current(None)


def test_a_commit_is_a_new_version_that_others_find_by_the_path(catalog: FolderCatalog) -> None:
    with catalog.current(None).transaction() as transaction:
        transaction.set_properties({"second": "2"})
    assert metadata(catalog) == ["v1.metadata.json", "v2.metadata.json", "version-hint.text"]
    found = StaticTable.from_metadata(str(catalog._folder))
    assert found.properties["second"] == "2"
    assert catalog.current(None).properties["second"] == "2"


def test_a_table_that_did_not_change_is_not_read_again(catalog: FolderCatalog) -> None:
    table = catalog.current(None)
    assert catalog.current(table) is table
    with catalog.current(None).transaction() as transaction:
        transaction.set_properties({"second": "2"})
    assert catalog.current(table).properties["second"] == "2"


@pytest.mark.parametrize("hint", [b"1", b"", b"x", None])
def test_a_hint_that_is_late_or_lost_does_not_hide_a_commit(hint: bytes | None, catalog: FolderCatalog) -> None:
    for number in range(3):
        with catalog.current(None).transaction() as transaction:
            transaction.set_properties({"number": str(number)})
    path = catalog._folder / "metadata" / "version-hint.text"
    if hint is None:
        path.unlink()
    else:
        path.write_bytes(hint)
    assert catalog.current(None).properties["number"] == "2"


def test_a_writer_that_is_overtaken_does_not_overwrite(catalog: FolderCatalog) -> None:
    table = catalog.current(None)
    with pytest.raises(CommitFailedException, match="has been written by another process"):
        catalog._publish(1, table.metadata)
    assert metadata(catalog) == ["v1.metadata.json", "version-hint.text"]


def test_a_change_that_is_based_on_an_older_version_keeps_both(catalog: FolderCatalog) -> None:
    first, second = catalog.current(None), catalog.current(None)
    for table, name in ((first, "a"), (second, "b")):
        with table.transaction() as transaction:
            transaction.set_properties({name: name})
    assert {"a", "b"} <= set(catalog.current(None).properties)


def test_a_transaction_sees_its_own_changes_and_copies_them_once(catalog: FolderCatalog) -> None:
    table = catalog.current(None)
    with QuickTransaction(table) as transaction:
        before = transaction.table_metadata
        assert transaction.table_metadata is before
        transaction.set_properties({"second": "2"})
        assert transaction.table_metadata.properties["second"] == "2"
        assert "second" not in before.properties
    assert table.properties["second"] == "2"
