"""Lanes: which neighbors get a receive buffer of their own, and that nobody else gets at their port."""

from __future__ import annotations

import errno
import socket  # noqa: TID251 - strangers without a node
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from meshbus.engine.base.counters import Counters
from meshbus.errors import ConfigError
from meshbus.node.driving import lanes as lanes_module
from meshbus.node.driving.lanes import Lanes
from meshbus.node.driving.udp import UdpSocket
from meshbus.policy.reason import Reason
from meshbus.wire.keys import Role

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="lanes need Linux")


@pytest.fixture(params=["127.0.0.1", "0.0.0.0", "::"])
def ours(request: pytest.FixtureRequest) -> Iterator[UdpSocket]:
    try:
        bound = UdpSocket.bind(request.param, 0)
    except ConfigError:
        pytest.skip(f"this machine has no {request.param}")
    with bound:
        yield bound


def neighbor(home: object, role: Role = Role.INITIATOR) -> Any:
    return SimpleNamespace(link=SimpleNamespace(home=home, role=role))


def nothing(_lane: UdpSocket) -> None:
    """Take no notice of a lane."""


def refuse(*_: object) -> None:
    raise OSError(errno.EMFILE, "too many open files")


def loopback(of: UdpSocket, sock: socket.socket) -> Any:
    return of.resolve(*sock.getsockname()[:2])


def test_a_neighbor_has_a_buffer_of_its_own_and_strangers_share_the_other(ours: UdpSocket) -> None:
    lanes = Lanes(ours, Counters())
    here = ("127.0.0.1", ours.address[1])
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as friend,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger,
    ):
        for one in (friend, stranger):
            one.bind(("127.0.0.1", 0))
        lanes.follow([neighbor(loopback(ours, friend)), neighbor(None)], nothing, nothing)
        [lane] = lanes
        for _ in range(ours.receive_buffer // 1000):
            stranger.sendto(bytes(8000), here)
        friend.sendto(b"friend", here)
        batch = lane.drain()
        assert batch is not None
        assert batch.data.tobytes() == b"friend"
        assert batch.runs == [(loopback(ours, friend), 1)]
        batch = ours.drain()
        assert batch is not None
        assert {source for source, _ in batch.runs} == {loopback(ours, stranger)}
        lanes.follow([], nothing, nothing)
        assert not len(lanes)
        assert lane.fileno() == -1


def test_no_other_program_can_share_the_port(ours: UdpSocket) -> None:
    lanes = Lanes(ours, Counters())
    lanes.follow([neighbor(ours.resolve("127.0.0.1", 9))], nothing, nothing)
    [lane] = lanes
    with lane:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as thief:
                thief.setsockopt(socket.SOL_SOCKET, option, 1)
                with pytest.raises(OSError, match="in use"):
                    thief.bind(("127.0.0.1", ours.address[1]))


def test_lanes_are_bounded_and_those_that_this_node_dialed_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes_module, "MAX_LANES", 4)
    monkeypatch.setattr(lanes_module, "MAX_LANES_PER_HOST", 2)
    counters = Counters()
    with UdpSocket.bind("127.0.0.1", 0) as ours:
        lanes = Lanes(ours, counters)
        crowd = [neighbor(("127.0.0.1", 1000 + number), Role.RESPONDER) for number in range(5)]
        lanes.follow(crowd, nothing, nothing)
        assert len(lanes) == 2, "one host with many names"
        assert counters.get(*Reason.REFUSE_LANE.counter) == 3
        kept = set(lanes)
        lanes.follow(reversed(crowd), nothing, nothing)
        assert set(lanes) == kept, "who has a lane keeps it"
        dialed = [neighbor(("127.0.0.1", 2000 + number)) for number in range(3)]
        lanes.follow([*crowd, *dialed], nothing, nothing)
        assert len(lanes) == 4
        assert {lane._socket.getpeername()[1] for lane in lanes} >= {2000, 2001, 2002}
        lanes.follow([], nothing, nothing)


def test_where_the_system_refuses_all_share_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = Counters()
    with UdpSocket.bind("127.0.0.1", 0) as ours:
        lanes = Lanes(ours, counters)
        with monkeypatch.context() as patch:
            patch.setattr(UdpSocket, "open_lane", lambda *_: None)
            lanes.follow([neighbor(("127.0.0.1", 9))], nothing, nothing)
        assert not len(lanes)
        assert counters.get(*Reason.REFUSE_LANE.counter) == 1
        assert ours.open_lane(("no such", 9)) is None
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", refuse)
            assert ours.open_lane(("127.0.0.1", 9)) is None
        monkeypatch.setattr("meshbus.node.driving.udp._LINUX", False)
        assert ours.open_lane(("127.0.0.1", 9)) is None
