"""An older build on directories of this one: it reads and continues the logs, or refuses them and changes nothing."""

from __future__ import annotations

from pathlib import Path

from meshbus.log.folder import MANIFEST
from meshbus.log.reader import LogReader
from tests.log.making import CHANNEL, numbered, open_log, payloads
from tests.log.replicas import open_replica
from tests.upgrade.older import run

CONTINUE = f"""
import sys
from meshbus import Redex
with Redex(sys.argv[1]) as redex:
    log = redex.open({CHANNEL!r})
    print(len(list(log.read_range(0, log.next_seq))))
    log.append_batch([b"of the older build"] * 3)
    log.seal()
"""
OPEN_REPLICA = f"""
import sys
from meshbus.log.replicated import ReplicatedLog
with ReplicatedLog.open(sys.argv[1], {CHANNEL!r}, bytes(range(16))) as log:
    print(log.tail, log.recovered.ballot.decode(), log.recovered.damaged)
"""
REFUSE = f"""
import sys
from meshbus import Redex
from meshbus.errors import LogError
try:
    Redex(sys.argv[1]).open({CHANNEL!r})
except LogError as error:
    print(error.fault, error)
"""


def test_the_older_build_continues_a_log_and_this_one_continues_it_again(older: Path, tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 10))
        log.seal()
        log.append_batch(numbered(10, 5))
    assert run(older, CONTINUE, tmp_path) == "15"
    with open_log(tmp_path) as log:
        assert log.report.clean
        log.append(b"of this build")
    events = payloads(LogReader(tmp_path, CHANNEL).snapshot().events())
    assert events == [*numbered(0, 15), *[b"of the older build"] * 3, b"of this build"]


def test_the_older_build_opens_a_replica_as_it_is(older: Path, tmp_path: Path) -> None:
    with open_replica(tmp_path) as log:
        log.persist(b"ballot")
        log.append(1, 0, numbered(0, 10))
        log.sync()
        log.commit_to(10)
    assert run(older, OPEN_REPLICA, tmp_path) == "10 ballot False"
    with open_replica(tmp_path) as log:
        assert (log.tail, log.committed_tail, log.recovered.damaged) == (10, 10, False)


def test_the_older_build_refuses_a_version_that_it_does_not_know_and_changes_nothing(
    older: Path, tmp_path: Path
) -> None:
    with open_log(tmp_path) as log:
        log.append_batch(numbered(0, 10))
    (folder,) = tmp_path.iterdir()
    path = folder / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":9'))
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    said = run(older, REFUSE, tmp_path)
    assert said.startswith("newer")
    assert "version 9 was written by a newer meshbus" in said
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
