"""Engine: the protocol of one node as a state machine, driven by datagrams and a clock.

    receive(PacketBatch, now) -> Output        tick(now) -> Output        next_timer() -> float | None

This file contains no protocol: the services are rows of engine/services.py, and the requests of an application are in
engine/facade.py. It opens no sockets and reads no clock. Time and randomness are arguments, so the same inputs give the
same bytes. The driver is node/driving/driver.py; meshbus.testing runs whole fleets of engines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.notices import Negotiated, StreamFailed
from meshbus.engine.base.packets import Address, Output, PacketBatch
from meshbus.engine.facade import Facade
from meshbus.engine.receive.intake import Intake
from meshbus.engine.receive.reception import Reception
from meshbus.engine.services import SERVICES
from meshbus.engine.session.service import Context, Row
from meshbus.engine.settings import EngineSettings
from meshbus.names.identity import Entropy, Identity


class Engine(Facade):
    """The protocol side of one node."""

    def __init__(
        self,
        identity: Identity,
        settings: EngineSettings,
        *,
        now: float,
        wall: Callable[[float], int],
        entropy: Entropy,
        static_private_key: bytes | None = None,
        counters: Counters | None = None,
        table: Sequence[Row] = SERVICES,
    ) -> None:
        """Create a node without peers.

        `wall` converts a `now` to Unix nanoseconds. The Noise static key is the identity's own unless another is given.
        """
        context = Context(
            identity,
            settings,
            now=now,
            wall=wall,
            entropy=entropy,
            static_private_key=static_private_key,
            counters=counters,
        )
        context.build(table)
        super().__init__(context)
        self.reception = Reception(context)
        intake = Intake(self.identity, self.peers, self.counters, self.reception, self.mesh.tap)
        self._intake = intake
        self.services.receive_again = intake.receive_one

    def receive(self, batch: PacketBatch, now: float) -> Output:
        """Handle a batch of datagrams.

        The output may refer to the batch's buffer, because forwarded packets are not copied: send before reusing it.
        """
        out = Output()
        self._intake.receive(batch, now, out)
        self._finish(now, out)
        # Last, so that one acknowledgement or grant covers the whole batch.
        self.services.received(now, out)
        return out

    def receive_one(self, source: Address, datagram: memoryview, now: float) -> Output:  # hot: bench_publish
        """Handle a single datagram; the same as a batch of one, without its columns."""
        out, services = Output(), self.services
        self._intake.receive_one(source, datagram, now, out)
        if out.control or any(services.unfinished):  # seldom
            self._finish(now, out)
        services.received(now, out)
        return out

    def tick(self, now: float) -> Output:
        """Do what is due at this time."""
        out = Output()
        self.services.tick(now, out)
        self._finish(now, out)
        return out

    def next_timer(self) -> float | None:
        """Return when `tick` is due, or None."""
        return self.services.next_timer()

    def _finish(self, now: float, out: Output) -> None:
        """Apply agreements and stream failures that the call caused, then let services complete it."""
        # The list may grow while it is iterated: hooks append notices, which are handled as well.
        for event in out.control:
            if isinstance(event, Negotiated) and (peer := self.peers.get(event.node_id)) is not None:
                self.services.agreed(peer, now, out)
            elif isinstance(event, StreamFailed):
                self.services.stream_failed(event.node_id, event.stream_id, now, out)
        self.services.finish(now, out)
