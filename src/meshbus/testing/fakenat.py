"""Fake network with NATs: nodes with their own addresses, behind boxes that rewrite and drop datagrams.

    net = NatNet(seed=1)
    hub = net.create_at("hub", "198.51.100.1")
    home = net.create_at("home", "203.0.113.7", NatKind.PORT_RESTRICTED)
    net.join(home, hub)

A box has two rules, which define the four usual kinds of NAT: whether a node gets one port for all destinations or one
per destination, and which senders may use that port. It decides when a datagram is sent, not when it arrives, and does
not forward between nodes behind the same box (no hairpinning). Everything else is in fakenet.py.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import count
from typing import Any

from meshbus.engine.base.packets import Address as Place
from meshbus.engine.settings import NatConfig
from meshbus.testing.fakenet import FakeNet, FakeNode
from meshbus.wire.messages.address import Address

PORT = 9000
"""Port on which every node listens, in its own network."""
FIRST_MAPPED = 40_000


class NatKind(StrEnum):
    """Kind of NAT in front of a node."""

    OPEN = "open"
    """No NAT."""
    FULL_CONE = "full cone"
    """One port for all destinations; any sender may use it."""
    RESTRICTED = "restricted cone"
    """One port for all destinations; hosts that the node has sent to may use it."""
    PORT_RESTRICTED = "port-restricted cone"
    """One port for all destinations; addresses that the node has sent to may use it."""
    SYMMETRIC = "symmetric"
    """One port per destination address; only that address may use it."""


class FakeNat:
    """A NAT box with one node behind it."""

    def __init__(self, host: str, kind: NatKind, inside: Address) -> None:
        self.host = host
        self.kind = kind
        self._inside = inside
        self._free = count(FIRST_MAPPED)
        self._ports: dict[Address | None, int] = {}
        self._sent: set[tuple[int, Address]] = set()
        """Pairs of the box's port and the destination that the node has sent to."""

    def leave(self, dest: Address) -> Address:
        """Record an outgoing datagram; return the source address that the receiver sees."""
        if self.kind is NatKind.OPEN:
            return self._inside
        # RFC 4787: a symmetric NAT maps each destination separately; the cones use one mapping for all.
        key = dest if self.kind is NatKind.SYMMETRIC else None
        if key not in self._ports:
            self._ports[key] = next(self._free)
        port = self._ports[key]
        self._sent.add((port, dest))
        return Address(self.host, port)

    def admits(self, port: int, source: Address) -> bool:
        """Return whether the box accepts a datagram to one of its ports."""
        match self.kind:
            case NatKind.OPEN:
                return port == PORT
            case NatKind.FULL_CONE:
                return port in self._ports.values()
            case NatKind.RESTRICTED:
                return any(own == port and dest.host == source.host for own, dest in self._sent)
            case NatKind.PORT_RESTRICTED | NatKind.SYMMETRIC:
                return (port, source) in self._sent


class NatNet(FakeNet):
    """A FakeNet with NAT boxes in front of nodes."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        """Create an empty network; options are those of FakeNet."""
        super().__init__(seed, **options)
        self._boxes: dict[Place, FakeNat] = {}
        """Boxes by the name of their node."""
        self._hosts: dict[str, str] = {}
        """Name of the node at or behind each host."""
        self.filtered = 0
        """Number of datagrams that boxes dropped."""

    def create_at(self, name: str, host: str, kind: NatKind = NatKind.OPEN, **settings: Any) -> FakeNode:
        """Create a node at or behind a public host; settings are those of `create`."""
        inside = Address(host if kind is NatKind.OPEN else f"10.0.0.{len(self._boxes) + 1}", PORT)
        self._boxes[name] = FakeNat(host, kind, inside)
        self._hosts[host] = name
        return self.create(name, nat=NatConfig(bind=inside), **settings)

    def address_of(self, node: FakeNode) -> Address:
        """Return the address on which an open node listens."""
        return Address(self._boxes[node.name].host, PORT)

    def join(self, node: FakeNode, other: FakeNode) -> None:
        """Connect a node to an open one, and run until the session is up."""
        with node.turn() as (engine, now, out):
            engine.connect(other.node_id, self.address_of(other), other.engine.public_key, now, out)
        self.run_until(lambda: node.has_session_with(other))

    def inject(self, source: Place, dest: Place, datagram: bytes) -> None:
        """Send a datagram from a node, given by name, or from any address, as an attacker can."""
        assert isinstance(dest, tuple), "in a network with NATs, dest must be an address"
        to = Address(*dest[:2])
        box = self._boxes.get(source)
        # Boxes are consulted now and not on arrival: one pass over both makes the result independent of latency.
        seen = source if box is None else box.leave(to)
        receiver = self._hosts.get(to.host)
        if receiver is not None and not self._boxes[receiver].admits(to.port, Address(*seen[:2])):  # type: ignore[index]
            self.filtered += 1
            return
        super().inject(seen, receiver, datagram)
