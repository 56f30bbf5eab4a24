"""Reaching nodes past NATs: every pair of kinds, who may be asked, and what is tried after what fails."""

from __future__ import annotations

import pytest

from meshbus.engine.control import HandshakeFailed, Path, Reached
from meshbus.engine.nat import Nat
from meshbus.testing.fakenat import NatKind, NatNet
from meshbus.testing.fakenet import FakeNode

OPEN, FULL, HOST, PORT, SYM = NatKind
KINDS = {OPEN: Nat.OPEN, FULL: Nat.CONE, HOST: Nat.CONE, PORT: Nat.CONE, SYM: Nat.SYMMETRIC}
D, P, R = Path.DIRECT, Path.PUNCHED, Path.RELAYED

ENDS = {
    OPEN: {OPEN: D, FULL: D, HOST: P, PORT: P, SYM: P},
    FULL: {OPEN: D, FULL: P, HOST: P, PORT: P, SYM: P},
    HOST: {OPEN: D, FULL: P, HOST: P, PORT: P, SYM: P},
    PORT: {OPEN: D, FULL: P, HOST: P, PORT: P, SYM: R},
    SYM: {OPEN: P, FULL: P, HOST: P, PORT: R, SYM: R},
}
"""How a node of one kind (row) reaches one of another (column)."""


class Town:
    """Two nodes behind boxes, and two open ones that both know."""

    def __init__(self, here: NatKind, there: NatKind, *, seed: int = 1, settle_s: float = 15.0) -> None:
        self.net = NatNet(seed, record=True)
        self.hubs = [self.net.create_at(f"hub {n}", f"198.51.100.{n}") for n in (1, 2)]
        self.net.join(self.hubs[0], self.hubs[1])
        self.here = self.net.create_at("here", "203.0.113.1", here)
        self.there = self.net.create_at("there", "203.0.113.2", there)
        for node in (self.here, self.there):
            for hub in self.hubs:
                self.net.join(node, hub)
        self.net.run(for_s=settle_s)

    def reach(self, **options: object) -> Path | None:
        """Let one reach the other; None when that fails."""
        with self.here.turn() as (engine, now, out):
            engine.traversal.connect(self.there.node_id, now, out, **options)  # type: ignore[arg-type]
        self.net.run_until(lambda: bool(self.here.happened(Reached) or self.here.happened(HandshakeFailed)))
        reached = self.here.happened(Reached)
        return reached[0].path if reached else None

    def counts(self, node: FakeNode) -> dict[str, int]:
        return node.engine.counters.snapshot().get("traversal", {})


@pytest.mark.parametrize("there", NatKind)
@pytest.mark.parametrize("here", NatKind)
def test_every_pair_of_kinds_ends_in_a_session_that_carries_events(here: NatKind, there: NatKind) -> None:
    town = Town(here, there)
    assert town.here.engine.traversal.nat.status.nat is KINDS[here]
    assert town.there.engine.traversal.nat.status.nat is KINDS[there]
    begun = town.net.clock.now
    assert town.reach() is ENDS[here][there]
    assert town.net.clock.now - begun < 15
    town.net.run(for_s=5)
    relayed = ENDS[here][there] is R
    for one, other in ((town.here, town.there), (town.there, town.here)):
        peer = one.engine.peers.require(other.node_id)
        assert (peer.link.home is None) is relayed
        one.forget()
        one.subscribe(other, "town/news")
        town.net.run(for_s=1)
        other.publish("town/news", [b"hello"])
        town.net.run(for_s=1)
        assert one.payloads() == [b"hello"]
    counts = town.counts(town.here)
    assert counts.get("relay_fallback", 0) == relayed
    assert counts.get("punch_succeeded", 0) == (ENDS[here][there] is P)
    if (here, there) == (SYM, SYM):
        assert "punch_attempted" not in counts
