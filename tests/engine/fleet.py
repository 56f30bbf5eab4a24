"""Nodes that have met on a fake network, and a tap on the wire between them."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from meshbus.engine.base.notices import Acked
from meshbus.engine.base.packets import Address
from meshbus.engine.session.negotiate import Profile
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath, Passage
from meshbus.wire.constants import Flags, Subprotocol
from meshbus.wire.datagram import DatagramKind
from meshbus.wire.header import Header, unpack_header

CHANNEL = "sensors/lidar"

_NOT_DATA = int(Flags.HANDSHAKE | Flags.HEARTBEAT)


class Wiretap:
    """Reads the header of every packet that is sent; payloads stay sealed."""

    def __init__(self, net: FakeNet) -> None:
        self.packets: list[tuple[Address, Address, Header]] = []
        self.datagrams: list[Passage] = []
        net.taps.append(self._see)

    def _see(self, passage: Passage) -> None:
        self.datagrams.append(passage)
        if passage.kind is DatagramKind.NET:
            self.packets.append((passage.source, passage.dest, unpack_header(passage.datagram)))

    def data(self, source: FakeNode | None = None, dest: FakeNode | None = None) -> list[Header]:
        """Return the headers of the packets with events that went from one node to another."""
        return [header for header in self.headers(source, dest) if header.subprotocol_id == Subprotocol.EVENTS]

    def messages(self, subprotocol_id: int, source: FakeNode | None = None, dest: FakeNode | None = None) -> int:
        """Count the packets with messages of a subprotocol."""
        return sum(header.subprotocol_id == subprotocol_id for header in self.headers(source, dest))

    def ids(self, source: FakeNode | None = None, dest: FakeNode | None = None) -> set[int]:
        """Return the subprotocol ids of all packets."""
        return {header.subprotocol_id for header in self.headers(source, dest)}

    def headers(self, source: FakeNode | None = None, dest: FakeNode | None = None) -> list[Header]:
        return [
            header
            for sender, receiver, header in self.packets
            if (source is None or sender == source.name)
            and (dest is None or receiver == dest.name)
            and not header.flags & _NOT_DATA
        ]

    def clear(self) -> None:
        self.packets.clear()
        self.datagrams.clear()


def meet(*nodes: FakeNode, profile: Profile = Profile.AUTO) -> None:
    """Establish sessions between all nodes, and wait until those that support the profile have agreed on it."""
    net = nodes[0].net
    pairs = list(combinations(nodes, 2))
    for one, other in pairs:
        one.connect(other, profile=profile)
    net.run_until(lambda: all(one.has_session_with(other) for one, other in pairs))
    meshbus = [(one, other) for one, other in pairs if one.engine.settings.profile and other.engine.settings.profile]
    if profile is not Profile.PLAIN:
        net.run_until(lambda: all(one.speaks_profile_with(other) for one, other in meshbus))
    net.run(for_s=0.1)


def pair(
    seed: int = 0,
    *,
    path: FakePath | None = None,
    left: dict[str, Any] | None = None,
    right: dict[str, Any] | None = None,
) -> tuple[FakeNet, FakeNode, FakeNode]:
    """Return two connected nodes; `left` and `right` are their settings."""
    net = FakeNet(seed, path=path)
    nodes = net.create("left", **(left or {})), net.create("right", **(right or {}))
    meet(*nodes)
    return net, *nodes


def subscribed(subscriber: FakeNode, publisher: FakeNode, channel: str = CHANNEL, **options: Any) -> None:
    """Subscribe, again if a message gets lost, until it is confirmed."""
    for _ in range(20):
        request = subscriber.subscribe(publisher, channel, **options)
        acked = None
        while acked is None:
            subscriber.net.run(for_s=0.01)
            acked = answer(subscriber, request)
        if not acked.timed_out:
            assert acked.accepted, acked
            return
    raise AssertionError("no answer at all")


def answer(subscriber: FakeNode, request: int) -> Acked | None:
    """Return the result of a subscribe or unsubscribe, or None if there is none yet."""
    return next((acked for acked in subscriber.happened(Acked) if acked.request == request), None)


def numbered(count: int, size: int = 8, first: int = 0) -> list[bytes]:
    """Return events that are all different, and in order."""
    return [n.to_bytes(8, "big").ljust(size, b".") for n in range(first, first + count)]
