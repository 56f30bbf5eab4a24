"""A fake network with NATs in it: nodes with addresses of their own, behind boxes that change and drop datagrams.

    net = NatNet(seed=1)
    hub = net.create_at("hub", "198.51.100.1")
    home = net.create_at("home", "203.0.113.7", NatKind.PORT_RESTRICTED)
    net.join(home, hub)

A box has two rules, by which the usual four kinds are told apart: whether a node gets one port for all it talks to or one
for each, and from whom a datagram to such a port is let in. It decides when a datagram is sent, not when it arrives, and
it never sends a node back to a neighbor of its own (no hairpin). Everything else is fakenet.py.
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
"""Where every node listens, in its own network."""
FIRST_MAPPED = 40_000


class NatKind(StrEnum):
    """What lies between a node and the others."""

    OPEN = "open"
    """Nothing."""
    FULL_CONE = "full cone"
    """One port for all; everybody may send to it."""
    RESTRICTED = "restricted cone"
    """One port for all; hosts that the node has sent to may send to it."""
    PORT_RESTRICTED = "port-restricted cone"
    """One port for all; addresses that the node has sent to may send to it."""
    SYMMETRIC = "symmetric"
    """A port for each address, which alone may send to it."""


class FakeNat:
    """One box with one node behind it."""

    def __init__(self, host: str, kind: NatKind, inside: Address) -> None:
        self.host = host
        self.kind = kind
        self._inside = inside
        self._free = count(FIRST_MAPPED)
        self._ports: dict[Address | None, int] = {}
        self._sent: set[tuple[int, Address]] = set()
        """From which port of the box the node has sent where."""

    def leave(self, dest: Address) -> Address:
        """Take a datagram out; gives the address that its receiver sees."""
        if self.kind is NatKind.OPEN:
            return self._inside
        key = dest if self.kind is NatKind.SYMMETRIC else None
        if key not in self._ports:
            self._ports[key] = next(self._free)
        port = self._ports[key]
        self._sent.add((port, dest))
        return Address(self.host, port)

    def admits(self, port: int, source: Address) -> bool:
        """Say whether a datagram to a port of the box is let in."""
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
    """Engines behind boxes."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        """Set up an empty network; options as for FakeNet."""
        super().__init__(seed, **options)
        self._boxes: dict[Place, FakeNat] = {}
        """By the name of the node."""
        self._hosts: dict[str, str] = {}
        """The node at, or behind, a host."""
        self.filtered = 0
        """Datagrams that no box let in."""

    def create_at(self, name: str, host: str, kind: NatKind = NatKind.OPEN, **settings: Any) -> FakeNode:
        """Make an engine that others see at a host, from behind a box of some kind; settings as for `create`."""
        inside = Address(host if kind is NatKind.OPEN else f"10.0.0.{len(self._boxes) + 1}", PORT)
        self._boxes[name] = FakeNat(host, kind, inside)
        self._hosts[host] = name
        return self.create(name, nat=NatConfig(bind=inside), **settings)

    def address_of(self, node: FakeNode) -> Address:
        """Give where a node that is open listens."""
        return Address(self._boxes[node.name].host, PORT)

    def join(self, node: FakeNode, other: FakeNode) -> None:
        """Let a node begin a session with an open one, and wait for it."""
        with node.turn() as (engine, now, out):
            engine.connect(other.node_id, self.address_of(other), other.engine.public_key, now, out)
        self.run_until(lambda: node.has_session_with(other))

    def inject(self, source: Place, dest: Place, datagram: bytes) -> None:
        """Send a datagram from a node, by its name, or from any address, as an attacker may."""
        assert isinstance(dest, tuple), "in a network with NATs, datagrams go to addresses"
        to = Address(*dest[:2])
        box = self._boxes.get(source)
        seen = source if box is None else box.leave(to)
        receiver = self._hosts.get(to.host)
        if receiver is not None and not self._boxes[receiver].admits(to.port, Address(*seen[:2])):  # type: ignore[index]
            self.filtered += 1
            return
        super().inject(seen, receiver, datagram)
