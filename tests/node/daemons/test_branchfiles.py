"""Branches on disk: whole or not there, and no more than are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshbus.compute.heldchain import LostBranch, branch_of
from meshbus.errors import LogError
from meshbus.node.daemons import branchfiles as module
from meshbus.node.daemons.branchfiles import BranchFiles
from tests.compute.test_causal import ORIGIN, chain


def branch(*payloads: bytes) -> LostBranch:
    return branch_of(ORIGIN, chain(*payloads))


def test_branches_are_read_as_they_were_written(tmp_path: Path) -> None:
    files = BranchFiles(tmp_path)
    assert files.load(ORIGIN) == []
    branches = [branch(b"a", b"b"), branch(b"c", bytes(8000))]
    for one in (*branches, branches[0]):
        files.save(one)
    assert sorted(files.load(ORIGIN), key=lambda one: one.record.forked_origin) == sorted(
        branches, key=lambda one: one.record.forked_origin
    )
    assert files.load(ORIGIN + 1) == []


def test_a_damaged_file_is_left_out(tmp_path: Path) -> None:
    files = BranchFiles(tmp_path)
    files.save(branch(b"a"))
    (path,) = (tmp_path / "histories" / f"{ORIGIN:016x}").iterdir()
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
        assert files.load(ORIGIN) == []
        path.write_bytes(whole[:at])
        assert files.load(ORIGIN) == []


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BRANCHES", 2)
    files = BranchFiles(tmp_path)
    for number in range(5):
        files.save(branch(b"%d" % number))
    assert len(files.load(ORIGIN)) == 2
    assert branch(b"4") in files.load(ORIGIN)


def test_a_disk_that_refuses_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "histories").write_bytes(b"in the way")
    with pytest.raises(LogError, match="histories"):
        BranchFiles(tmp_path).save(branch(b"a"))
