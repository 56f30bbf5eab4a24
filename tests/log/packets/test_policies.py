"""Policies by number: each policy keeps its number."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.files import Files
from meshbus.log.packets import policies
from meshbus.log.packets.policies import POLICIES, PolicyBook, load_policies
from meshbus.policy.channels import Visibility
from meshbus.policy.gatewaypolicy import ChannelPolicy, GatewayPolicy


def policy(number: int) -> GatewayPolicy:
    channel = ChannelPolicy("a/b", Visibility.EXPORTED, enforced=True, exports=(number, 0xFFFFFFFF))
    return GatewayPolicy(local_subnet=number, peer_subnets=(1, 2), channels=(channel,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / POLICIES).mkdir()
    return tmp_path


def test_a_policy_keeps_its_number_over_changes_and_restarts(folder: Path) -> None:
    book = PolicyBook(folder)
    assert [book.number_of(policy(which)) for which in (5, 6, 5)] == [1, 2, 1]
    assert load_policies(folder) == {}, "nothing is written on the way of packets"
    book.write(Files())
    again = PolicyBook(folder)
    assert [again.number_of(policy(which)) for which in (6, 7, 5)] == [2, 3, 1]
    again.write(Files())
    assert load_policies(folder) == {1: policy(5), 2: policy(6), 3: policy(7)}


def test_the_oldest_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "MOST", 3)
    book = PolicyBook(folder)
    for which in range(5):
        book.number_of(policy(which))
        book.write(Files())
    assert sorted(load_policies(folder)) == [3, 4, 5]
    assert book.number_of(policy(0)) == 6, "a number is never used again"


def test_the_error_names_a_file_that_is_not_a_policy(folder: Path) -> None:
    (folder / POLICIES / "notes.json").write_text("[]")
    assert load_policies(folder) == {}
    (folder / POLICIES / "0000000001.json").write_text("{}")
    with pytest.raises(LogError, match=r"0000000001\.json is not a policy"):
        load_policies(folder)


def test_policies_that_the_disk_refuses_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "MAX_UNWRITTEN", 3)
    book = PolicyBook(folder)
    for which in range(10):
        book.number_of(policy(which))
    assert len(book._unwritten) == len(book._numbers) == 3
    book.write(Files())
    assert load_policies(folder) == {8: policy(7), 9: policy(8), 10: policy(9)}
    assert book.number_of(policy(0)) == 11, "a number is never used again"


def test_a_policy_that_cannot_be_read_is_an_error_of_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = PolicyBook(folder)
    book.number_of(policy(1))
    book.write(Files())

    def refuse(_: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(LogError, match="Input/output error") as caught:
        PolicyBook(folder)
    assert caught.value.fault is LogFault.FAILED


def test_a_newer_policy_is_not_read_as_an_old_one(folder: Path) -> None:
    book = PolicyBook(folder)
    book.number_of(policy(1))
    book.write(Files())
    path = folder / POLICIES / "0000000001.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(LogError, match=r"0000000001\.json: recorded policy, version 2, .* newer meshbus") as caught:
        load_policies(folder)
    assert caught.value.fault is LogFault.NEWER


def test_a_policy_from_before_there_were_versions_is_read(folder: Path) -> None:
    (folder / POLICIES / "0000000004.json").write_text('{"local_subnet": 7}')
    assert load_policies(folder) == {4: GatewayPolicy(local_subnet=7)}
