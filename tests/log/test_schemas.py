"""What payloads were when they were written is beside the log, and no crash or damage makes it something else."""

from pathlib import Path

import msgspec
import pytest

from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log.payload import Codec
from meshbus.log.schemas import SCHEMAS, Version, declare, read_versions, version_at

OLD = Version(0, Codec.JSON, "temp DOUBLE")
NEW = Version(100, Codec.JSON, "temp DOUBLE, unit STRING")


def test_an_entry_is_valid_until_the_next_one(tmp_path: Path) -> None:
    assert read_versions(tmp_path) == ()
    assert declare(tmp_path, NEW)
    assert declare(tmp_path, OLD)
    versions = read_versions(tmp_path)
    assert versions == (OLD, NEW)
    assert [version_at(versions, seq) for seq in (0, 99, 100, 10**9)] == [OLD, OLD, NEW, NEW]
    assert version_at((NEW,), 99) is None


def test_declaring_the_same_again_changes_nothing(tmp_path: Path) -> None:
    assert declare(tmp_path, OLD)
    before = (tmp_path / SCHEMAS).stat().st_mtime_ns
    assert not declare(tmp_path, Version(50, Codec.JSON, "temp DOUBLE"))
    assert (tmp_path / SCHEMAS).stat().st_mtime_ns == before


def test_an_entry_at_the_same_sequence_is_replaced(tmp_path: Path) -> None:
    declare(tmp_path, OLD)
    better = Version(0, Codec.MSGPACK)
    assert declare(tmp_path, better)
    assert read_versions(tmp_path) == (better,)


def test_a_descriptor_set_is_kept_with_the_entry(tmp_path: Path) -> None:
    version = Version(0, Codec.PROTOBUF, message="x.Y", descriptor=bytes(range(256)))
    declare(tmp_path, version)
    assert read_versions(tmp_path) == (version,)


@pytest.mark.parametrize("entry", [{"codec": "xml"}, {"codec": "json", "schema": "a WHAT"}])
def test_an_entry_that_is_none_is_an_error_and_not_raw_payloads(tmp_path: Path, entry: dict[str, str]) -> None:
    (tmp_path / SCHEMAS).write_bytes(msgspec.json.encode({"version": 1, "schemas": [{"first": 0, **entry}]}))
    with pytest.raises(LogError, match="declare the schemas again") as caught:
        read_versions(tmp_path)
    assert caught.value.fault is LogFault.CORRUPT


def test_the_file_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.log.schemas._MOST", 1)
    declare(tmp_path, OLD)
    with pytest.raises(ConfigError, match="which is the limit"):
        declare(tmp_path, NEW)
    monkeypatch.setattr("meshbus.log.schemas._LONGEST", 3)
    with pytest.raises(ConfigError, match="has 4 bytes, at most 3"):
        Version(0, Codec.PROTOBUF, message="x.Y", descriptor=b"1234")
