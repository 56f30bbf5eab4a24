"""Time to full effect of a revocation in a simulated fleet: from the signed record until every node has cut what it names.

100 engines on a simulated network, each with sessions to a few others at random. A node, a publisher and a subscriber are
revoked at one other node, while events flow. All three are hostile: they take no records, go on, and try to come back. 5 % of
the fleet is cut off at that moment and comes back two minutes later.

Times are virtual, those of the network alone: what a node computes takes no time, and the path between any two has the same
latency, jitter and loss. So they say how many round trips and timers are in the way, not how fast a machine is. Real processes
are in tests/cli/test_revoke.py and tests/trust.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import msgspec

from bench.harness import Cell, Table
from meshbus.engine.base.notices import RevocationTaken
from meshbus.errors import MeshError
from meshbus.names.identity import Identity
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.revocation import Revocation, Revoked

CHANNEL = "fleet/poses"
PATH = FakePath(latency_s=0.02, jitter_s=0.01, loss=0.01)
LINKS = 3
"""Sessions that a node begins, at random; with those of others it has about twice as many."""
AWAY_S = 120.0
"""How long a part of the fleet is cut off: longer than sessions last in silence."""
STEP_S = 0.1
"""Between two events of each publisher."""
MAX_EFFECT_S = 60.0
"""After which a run is given up: one interval of the comparison."""

ISSUER = Identity.from_seed(bytes(range(32)))


class Outcome(msgspec.Struct, frozen=True):
    """What one run showed, in virtual seconds."""

    reachable: list[float]
    """From the order until the record was in effect, at every node that could be reached, for each record."""
    healed: list[float]
    """From the end of the partition, at every node that was cut off."""
    last_heard: float
    """From the order until the last event of the revoked publisher, or of the revoked node, was delivered anywhere."""
    last_sent: float
    """From the order until the last event was delivered to the revoked subscriber, or to the revoked node."""


class Fleet:
    """A fleet in which three nodes will be revoked."""

    def __init__(self, seed: int, size: int, away: int) -> None:
        self.chance = Random(f"revoke {seed}")
        self.net = FakeNet(seed, path=PATH)
        trust: dict[str, Any] = {
            "carries": frozenset({Subprotocol.REVOCATION}),
            "policy_issuers": (ISSUER.entity_id,),
        }
        self.honest = [self.net.create(f"node {number}", **trust) for number in range(size - 3)]
        # Without the subprotocol: they obey nothing.
        self.rover, self.publisher, self.subscriber = self.hostile = [
            self.net.create(name) for name in ("rover", "publisher", "subscriber")
        ]
        self.away = self.chance.sample(self.honest[1:], away)
        """Those that a partition cuts off; the order is given at the first node, which stays."""
        self._connect()
        self._subscribe()

    def _connect(self) -> None:
        nodes = [*self.honest, *self.hostile]
        pairs = [
            (node, self.chance.choice(nodes[:place])) for place, node in enumerate(nodes) if place for _ in range(LINKS)
        ]
        for one, other in pairs:
            if not one.has_session_with(other):
                one.connect(other)
                self.net.run_until(lambda one=one, other=other: one.has_session_with(other))  # type: ignore[misc]
        # Those that a partition leaves together have each other to talk to.
        self.net.run_until(lambda: all(one.speaks_profile_with(other) for one, other in pairs))

    def _subscribe(self) -> None:
        """Let everyone subscribe to the revoked publishers that it has a session with, and they to everyone."""
        for source in (self.publisher, self.rover):
            for node in self._peers_of(source):
                node.subscribe(source, CHANNEL)
        for node in (self.subscriber, self.rover):
            for other in self._peers_of(node):
                node.subscribe(other, CHANNEL)
        self.net.run(for_s=2.0)

    def _peers_of(self, node: FakeNode) -> list[FakeNode]:
        return [one for one in self.honest if one.engine.peers.get(node.node_id) is not None]

    def flow(self, seconds: float) -> None:
        """Let events flow."""
        until = self.net.clock.now + seconds
        while self.net.clock.now < until:
            self.step()

    def step(self) -> None:
        """Publish once at every node, and let the revoked ones try to come back."""
        stamp = repr(self.net.clock.now).encode()
        for node in (*self.honest, *self.hostile):
            node.publish(CHANNEL, [stamp])
        for node in self.hostile:
            target = self.chance.choice(self.honest)
            try:
                node.connect(target)
            except MeshError:
                continue  # it is being tried
        self.net.run(for_s=STEP_S)

    def revoke(self) -> list[Revocation]:
        """Revoke a node, a publisher and a subscriber, and return the records."""
        wishes = ((Revoked.NODE, self.rover), (Revoked.PUBLISH, self.publisher), (Revoked.SUBSCRIBE, self.subscriber))
        records = [
            Revocation.sign(ISSUER, what, node.engine.identity.entity_id, at=1_700_000_000, reason="a drill")
            for what, node in wishes
        ]
        with self.honest[0].turn() as (engine, now, out):
            assert engine.revoking is not None
            for record in records:
                engine.revoking.revoke(record, now, out)
        return records

    def in_effect(self, nodes: Iterable[FakeNode], records: list[Revocation]) -> bool:
        """Return whether nodes have cut everything that was revoked."""
        return all(record.id in node.engine.revocations for node in nodes for record in records) and not any(
            node.engine.peers.get(self.rover.node_id) for node in nodes
        )

    def times(self, nodes: Iterable[FakeNode], since: float) -> list[float]:
        """Return when records came into effect at nodes, after a time."""
        return [at - since for node in nodes for at, event in node.control if isinstance(event, RevocationTaken)]

    def last_event(self, nodes: Iterable[FakeNode], publishers: Iterable[FakeNode], since: float) -> float:
        """Return when the last event of some publishers was received by some nodes, after a time."""
        ids = {node.node_id for node in publishers}
        received = [
            batch.received_ns / 1e9 - self.net.clock.unix_s
            for node in nodes
            for batch in node.events
            if batch.publisher in ids
        ]
        return max(max(received, default=since) - since, 0.0)


def simulate(seed: int, size: int, away: int) -> Outcome:
    """Run one fleet through an order, a partition and its end."""
    fleet = Fleet(seed, size, away)
    fleet.flow(2.0)
    here = [node for node in fleet.honest if node not in fleet.away]
    fleet.net.partition([node.name for node in (*here, *fleet.hostile)], [node.name for node in fleet.away])
    ordered = fleet.net.clock.now
    records = fleet.revoke()
    while not fleet.in_effect(here, records):
        assert fleet.net.clock.now < ordered + MAX_EFFECT_S, f"seed {seed}: not in effect after {MAX_EFFECT_S} s"
        fleet.step()
    fleet.flow(2.0)
    heard = fleet.last_event(here, (fleet.publisher, fleet.rover), ordered)
    sent = fleet.last_event((fleet.subscriber, fleet.rover), here, ordered)
    reachable = fleet.times(here, ordered)
    fleet.net.run(for_s=AWAY_S)
    for node in fleet.net.nodes.values():
        node.forget()
    fleet.net.heal()
    healed = fleet.net.clock.now
    while not fleet.in_effect(fleet.away, records):
        assert fleet.net.clock.now < healed + MAX_EFFECT_S, f"seed {seed}: not in effect {MAX_EFFECT_S} s after healing"
        fleet.step()
    return Outcome(reachable, fleet.times(fleet.away, healed), heard, sent)


def run(quick: bool) -> Iterator[Table]:
    """Simulate fleets of 100 nodes."""
    found = [simulate(seed, 100, 5) for seed in range(1 if quick else 5)]
    rows: list[list[Cell]] = [
        _row("in effect at a node that can be reached", [took for one in found for took in one.reachable]),
        _row("in effect at a node that was cut off, after healing", [took for one in found for took in one.healed]),
        _row("last event of a revoked publisher at any node", [one.last_heard for one in found]),
        _row("last event at a revoked subscriber", [one.last_sent for one in found]),
    ]
    yield Table(
        "from the order to its effect, virtual seconds",
        ["what", "samples", "p50 s", "max s"],
        rows,
        [
            f"{len(found)} fleets of 100 nodes, 5 of them cut off for {AWAY_S:.0f} s",
            f"{PATH.latency_s * 1000:.0f} to {(PATH.latency_s + PATH.jitter_s) * 1000:.0f} ms and {PATH.loss:.0%} loss on every path",
            "three records: a node, a publisher and a subscriber, all hostile",
        ],
    )


def _row(what: str, times: list[float]) -> list[Cell]:
    return [what, len(times), round(statistics.median(times), 3), round(max(times), 3)]
