"""Commits to Iceberg tables: files described by their footers, and properties with them; snapshots do not pile up."""

from pathlib import Path

import pytest
from pyiceberg.table import Table
from pyiceberg.types import FixedType

from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.formats import icebergcommit
from meshbus.spark.lake.formats.icebergcommit import (
    commit_files,
    data_file,
    files_of,
    iceberg_catalogs,
    iceberg_schema,
    needed_metadata,
    writable_table,
)
from tests.spark.lake.formats.made import EVENTS, FAN_OUT, GAPS, event, write_events

SPEC = CATALOG[EVENTS]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = iceberg_catalogs().FolderCatalog(tmp_path / "silver" / "events")
    return writable_table(catalog, None, SPEC, {"mine": "1"})


def test_a_table_is_made_with_its_columns_and_properties(table: Table) -> None:
    assert table.schema().column_names == iceberg_schema(SPEC).column_names
    assert table.properties["mine"] == "1"
    assert "schema.name-mapping.default" in table.properties
    assert writable_table(table.catalog, table, SPEC) is table  # type: ignore[arg-type]  # it is the catalog above


def test_a_table_of_an_earlier_version_gets_the_columns_that_it_lacks(table: Table) -> None:
    with table.update_schema() as update:
        update.delete_column("value")
    again = writable_table(table.catalog, table, SPEC)  # type: ignore[arg-type]  # it is the catalog above
    assert "value" in again.schema().column_names


def test_files_and_properties_are_one_commit(table: Table, tmp_path: Path) -> None:
    path = write_events(tmp_path, [event(3), event(5)])
    file = data_file(f"file://{path}", path, table.schema())
    assert (file.record_count, file.file_size_in_bytes) == (2, path.stat().st_size)
    commit_files(table, [], [file], {"batch": "1"})
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert table.properties["batch"] == "1"
    assert [found.file_path for found in files_of(table, snapshot)] == [f"file://{path}"]
    assert table.scan().to_arrow().column("seq").to_pylist() == [3, 5]
    needed = list(needed_metadata(table))
    assert snapshot.manifest_list in needed
    assert len(needed) == 2
    commit_files(table, [file], [], {})
    assert table.scan().to_arrow().num_rows == 0
    commit_files(table, [], [], {"batch": "2"})
    assert (table.properties["batch"], len(table.history())) == ("2", 2)


def test_old_snapshots_are_forgotten(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icebergcommit, "_SNAPSHOTS", 2)
    for number in range(4):
        path = write_events(tmp_path, [event(number)], name=str(number))
        commit_files(table, [], [data_file(f"file://{path}", path, table.schema())], {})
    assert len(table.snapshots()) == 2
    assert sorted(table.scan().to_arrow().column("seq").to_pylist()) == [0, 1, 2, 3]


def test_columns_have_the_types_of_iceberg() -> None:
    assert iceberg_schema(SPEC).find_type("log_id") == FixedType(16)
    assert "hour" in iceberg_schema(CATALOG[FAN_OUT]).column_names
    assert "hour" not in iceberg_schema(CATALOG[GAPS]).column_names
