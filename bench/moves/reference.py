"""net-mesh: two nodes of the binding, each in a process of its own, on loopback."""

from __future__ import annotations

import os
from typing import Self

from meshbus.testing.realpeer import RealPeer, RealPeerError

PATIENCE_S = 3.0
"""A move that takes longer has lost a part of its snapshot: nothing is ever sent again (compute.md §7)."""


class Reference:
    """A source and a target."""

    def __init__(self, source: RealPeer, target: RealPeer) -> None:
        self._source, self._target = source, target

    @classmethod
    def start(cls) -> Self:
        """Start the nodes, and connect them."""
        source, target = (RealPeer(psk=bytes(32)) for _ in range(2))
        accepting = target.begin("accept", source.node_id)
        source.connect(target.address, target.public_key, target.node_id)
        accepting.result(target.timeout_s)
        for peer in (source, target):
            peer.start()
            peer.call("open_daemons")
            peer.call("start_daemons")
        return cls(source, target)

    def move(self, size: int) -> float | None:
        """Move a daemon, and return the seconds that it took; None if it did not arrive."""
        seed = os.urandom(32)
        origin = self._source.call("spawn", "counter", seed, size)
        self._target.call("expect", "counter", origin)
        ends = self._source.node_id, self._target.node_id
        try:
            moved = self._source.call("move", origin, *ends, envelope=True, seconds=PATIENCE_S)
        except RealPeerError:
            self._source.call("remove", origin)
            return None
        self._target.call("remove", origin)
        return float(moved["seconds"])

    def close(self) -> None:
        """Stop both processes."""
        for peer in (self._source, self._target):
            peer.close()
