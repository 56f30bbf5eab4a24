"""Engines on a fake network that hold chains and run groups of daemons together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshbus.compute.causal import ChainHead, EntityLog
from meshbus.compute.coordination import IDS, Coordination, Report
from meshbus.compute.heldchain import HeldChain
from meshbus.compute.reconciling import Outbound
from meshbus.node.daemons.coordinationport import CoordinationPort
from meshbus.testing.fakenet import FakeNet, FakeNode

ORIGIN = 0xABCDEF0123456789
CARRIES = frozenset(IDS)


class Fellow:
    """One node with its state machines."""

    def __init__(self, net: FakeNet, name: str, **settings: Any) -> None:
        self.node: FakeNode = net.create(name, **{"carries": CARRIES, **settings})
        self.counters = self.node.engine.counters
        self.coordination = Coordination(self.node.node_id, self.counters, net.clock.wall)
        self.port = CoordinationPort(self.coordination)
        self.reports: list[Report] = []
        self._seen = 0
        net.after_step.append(self.pump)

    @property
    def id(self) -> int:
        return self.node.node_id

    @property
    def chain(self) -> HeldChain:
        chain = self.coordination.keeper.chain(ORIGIN)
        assert chain is not None
        return chain

    @property
    def payloads(self) -> list[bytes]:
        return [event.payload for event in self.chain.log.events]

    def hold(self, *others: Fellow) -> None:
        self.do(lambda: self.coordination.keeper.hold(EntityLog(ORIGIN), [other.id for other in others]))

    def write(self, *payloads: bytes) -> None:
        head = ChainHead(self.chain.log.head.link, self.chain.log.head_hash)
        events = [head.emit(payload, 0) for payload in payloads]
        self.do(lambda: self.coordination.keeper.append(ORIGIN, events))

    def do(self, work: Callable[[], list[Outbound]]) -> None:
        with self.node.turn() as (engine, now, out):
            self.port.send(engine, work(), now, out)

    def pump(self) -> None:
        """Handle what the engine has reported, and what is due."""
        while self._seen < len(self.node.control):
            _, notice = self.node.control[self._seen]
            self._seen += 1
            with self.node.turn() as (engine, now, out):
                self.port.take(engine, notice, now, out)
        timer = self.coordination.next_timer()
        if timer is not None and timer <= self.node.net.clock.now:
            with self.node.turn() as (engine, now, out):
                self.port.tick(engine, now, out)
        self.reports += self.coordination.take_reports()

    def reported(self, kind: type) -> list[Report]:
        return [report for report in self.reports if type(report) is kind]
