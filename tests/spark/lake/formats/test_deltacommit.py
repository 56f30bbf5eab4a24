"""Actions of a Delta log describe files by their footers; tables of an earlier version get the columns that they lack."""

import json
import sys
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from meshbus.errors import PipelineError
from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.formats.deltacommit import (
    add_action,
    add_columns,
    commit_actions,
    create_log,
    delta_library,
    delta_schema,
    paths_of,
    remove_action,
)
from tests.spark.lake.formats.made import EVENTS, FAN_OUT, GAPS, START, event, write_events

SPEC = CATALOG[EVENTS]


def test_a_file_is_described_by_its_footer(tmp_path: Path) -> None:
    file = write_events(tmp_path, [event(3), event(5)])
    action = add_action("x/part.parquet", file, SPEC, rows=False)
    stats = json.loads(action.stats)
    assert (action.path, action.size, action.data_change) == ("x/part.parquet", file.stat().st_size, False)
    assert stats["numRecords"] == 2
    assert (stats["minValues"]["seq"], stats["maxValues"]["seq"]) == (3, 5)
    assert stats["minValues"]["recv_ts"] == f"{START:%Y-%m-%d}T10:00:03.000000Z"
    assert stats["nullCount"]["seq"] == 0


def test_actions_and_batches_are_one_version(tmp_path: Path) -> None:
    log = create_log(tmp_path.as_uri(), SPEC, description="a copy")
    file = write_events(tmp_path, [event(1)])
    commit_actions(log, [add_action("part.parquet", file, SPEC)], {"events": 4, "other": 2})
    log.update_incremental()
    assert (log.version(), paths_of(log)) == (1, ["part.parquet"])
    assert (log.transaction_version("events"), log.transaction_version("other")) == (4, 2)
    commit_actions(log, [remove_action("part.parquet")], {})
    log.update_incremental()
    assert paths_of(log) == []
    found = deltalake.DeltaTable(tmp_path)
    assert (found.metadata().name, found.metadata().description) == (EVENTS, "a copy")


def test_missing_columns_are_added(tmp_path: Path) -> None:
    few = pa.schema([field for field in pa.schema(delta_schema(SPEC)) if field.name != "value"])
    log = deltalake.DeltaTable.create(tmp_path.as_uri(), deltalake.Schema.from_arrow(few))
    add_columns(log, SPEC)
    assert [field.name for field in log.schema().fields][-1] == "value"
    add_columns(log, SPEC)
    assert log.version() == 1


def test_columns_have_the_types_that_delta_knows() -> None:
    fields = {field.name: field for field in pa.schema(delta_schema(SPEC))}
    assert fields["log_id"].type == pa.binary()
    assert "hour" not in fields
    assert "hour" in {field.name for field in delta_schema(CATALOG[FAN_OUT]).fields}
    assert "hour" not in {field.name for field in delta_schema(CATALOG[GAPS]).fields}


def test_without_delta_rs_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(PipelineError, match="run: pip install 'meshbus\\[delta\\]'"):
        delta_library()
