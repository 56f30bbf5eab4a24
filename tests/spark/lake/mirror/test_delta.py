"""The copy of a Delta table: its options, its owner, and what another writer may do."""

from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pytest

from meshbus.errors import PipelineError
from meshbus.spark.lake.catalog import CATALOG
from meshbus.spark.lake.mirror.delta import DeltaTarget, split_uri
from tests.spark.lake.formats.made import EVENTS, event, write_events


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_events(tmp_path, [event(1)])


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return (tmp_path / "copies" / "silver" / "events").as_uri()


def put(uri: str, name: str, file: Path) -> None:
    place = Path(uri.removeprefix("file://")) / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(file.read_bytes())


def test_a_copy_that_does_not_exist_has_no_files(uri: str) -> None:
    target = DeltaTarget(uri, CATALOG[EVENTS], "me")
    assert target.names() == frozenset()
    assert target.clean({}, datetime.now(UTC)) == {}


def test_files_are_added_and_removed_in_one_version(uri: str, file: Path) -> None:
    target = DeltaTarget(uri, CATALOG[EVENTS], "me")
    for name in ("a.parquet", "b.parquet"):
        put(uri, name, file)
    assert target.commit({"a.parquet": file}, [], {"events": 0})
    assert target.commit({"b.parquet": file}, ["a.parquet"], {"events": 1})
    assert not target.commit({}, [], {"events": 1})
    assert target.commit({}, [], {"events": 2}), "a batch without rows"
    assert target.names() == DeltaTarget(uri, CATALOG[EVENTS], "me").names() == frozenset({"b.parquet"})
    found = deltalake.DeltaTable(uri)
    assert found.version() == 3
    assert found.to_pyarrow_table().num_rows == 1
    assert found.metadata().name == EVENTS


def test_another_owner_is_refused(uri: str, file: Path) -> None:
    put(uri, "a.parquet", file)
    DeltaTarget(uri, CATALOG[EVENTS], "me").commit({"a.parquet": file}, [], {})
    with pytest.raises(PipelineError, match="is not the copy of these tables"):
        DeltaTarget(uri, CATALOG[EVENTS], "you").names()


def test_a_second_writer_of_a_version_fails_and_reads_again(uri: str, file: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        put(uri, name, file)
    first, second = (DeltaTarget(uri, CATALOG[EVENTS], "me") for _ in range(2))
    first.commit({"a.parquet": file}, [], {"events": 0})
    second.names()
    first.commit({"b.parquet": file}, ["a.parquet"], {"events": 1})
    with pytest.raises(deltalake.exceptions.CommitFailedError):
        second.commit({"b.parquet": file}, ["a.parquet"], {"events": 1})
    second.forget()
    assert second.names() == frozenset({"b.parquet"})


def test_options_are_those_of_delta_rs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    place, options = split_uri("s3://bucket/lake?endpoint_override=http://10.0.0.7:9000&region=eu-west-1")
    assert place == "s3://bucket/lake"
    assert options["endpoint_url"] == "http://10.0.0.7:9000"
    assert options["allow_http"] == "true"
    assert options["region"] == "eu-west-1"
    _, options = split_uri("s3://bucket/lake")
    assert not {"endpoint_url", "region"} & set(options)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://s3.example.org")
    _, options = split_uri("s3://bucket/lake")
    assert (options["endpoint_url"], options["allow_http"]) == ("https://s3.example.org", "false")
    assert split_uri("file:///lake") == ("file:///lake", {})
