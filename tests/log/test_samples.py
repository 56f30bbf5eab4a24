"""Logs that older versions wrote, kept as they were: today's reader opens every one of them.

A new format version adds a folder here: `python -m tests.log.test_samples tests/log/samples/v2`, once, with the code that
introduces it. A sample is never changed afterwards.
"""

import base64
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshbus.log.durability import Retention
from meshbus.log.embedded.block import FORMAT_VERSION
from meshbus.log.folder import LOCK
from meshbus.log.reader import LogReader, list_channels
from tests.log.making import CHANNEL, Clock, open_log

SAMPLES = Path(__file__).with_name("samples")
VERSIONS = sorted(path.name for path in SAMPLES.iterdir())


def spell(value: Any) -> Any:
    """Convert a value of a row to JSON."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return [[key, spell(item)] for key, item in value]
        case int() | str() | None:
            return value
    return value.isoformat()


def rows_of(root: Path) -> list[dict[str, Any]]:
    batches = LogReader(root, CHANNEL).snapshot().batches()
    return [{name: spell(value) for name, value in row.items()} for batch in batches for row in batch.to_pylist()]


def make_sample(root: Path) -> None:
    """Write a log that uses everything of the format: every kind of column, headers, segments, what has expired."""
    with open_log(root, clock=Clock(), retention=Retention(max_events=8), grace_s=0) as log:
        log.append_batch([b"expired"] * 3)
        log.seal()
        log.append(b"sealed")
        log.append(b"sealed", headers={"content-type": b"text/plain"}, origin=2**64 - 1, src=7)
        log.append_batch([b"sealed", b""], pub_seq=None, session_id=5, stream_id=6, decision=3)
        log.seal()
        log.append_batch(
            [b"hot", b"", b"hot"],
            pub_seq=np.ma.array([1, 2, 3], mask=[False, True, False]),
            ts_ns=np.array([-1, 0, 1_999]),
            packet_seq=np.array([2**63, 1, 2], np.uint64),
            event_index=np.array([0, 1, 0]),
            ttl=255,
            headers=[None, {}, {"a": b"1", "b": b""}],
        )
        log.append(b"hot")
        log.expire()
    for path in root.rglob(LOCK):
        path.unlink()
    (root / "expected.json").write_text(json.dumps(rows_of(root), indent=1) + "\n", "utf-8")


def test_there_is_a_sample_of_every_version() -> None:
    assert [f"v{version}" for version in range(1, FORMAT_VERSION + 1)] == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_a_sample_is_read_as_it_was_written(version: str) -> None:
    expected = json.loads((SAMPLES / version / "expected.json").read_text("utf-8"))
    assert rows_of(SAMPLES / version) == expected
    assert [entry.channel for entry in list_channels(SAMPLES / version)] == [CHANNEL]
    assert LogReader(SAMPLES / version, CHANNEL).verify() == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_sample_can_be_appended_to(version: str, tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / version, tmp_path / version)
    before = rows_of(tmp_path / version)
    with open_log(tmp_path / version, retention=Retention(max_events=1), grace_s=0) as log:
        assert log.report.clean
        assert log.append(b"today") == before[-1]["seq"] + 1
        log.seal()
        log.compact()
        assert rows_of(tmp_path / version)[:-1] == before
        log.append(b"x")
        assert log.expire()
        assert log.verify() == []


if __name__ == "__main__":
    make_sample(Path(sys.argv[1]))
