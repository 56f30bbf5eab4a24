"""The engine and the driver of an open node, as one object to call.

Each part of a node that acts on the engine holds the same Live. A call gets the current time and an empty Output; what
the engine put into the Output is then carried out by the driver. The engine answers requests later, in the Output of
some other call: `begin` returns a future for that answer. Which calls are allowed on a node that is not open is decided
in node/node.py alone: a Live exists only while its node is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from meshbus.engine.base.notices import Control
from meshbus.engine.base.packets import Output
from meshbus.engine.base.tally import Tally
from meshbus.engine.core import Engine
from meshbus.engine.session.peer import Peer
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.timings import Timings
from meshbus.node.driving.waiting import Kind, Waiting

T = TypeVar("T")

_PROOF_S = 1.0
"""How long a call waits for the proof of a session: several round trips."""


class Live:
    """One running engine on one driver."""

    __slots__ = ("driver", "engine", "received", "timings", "waiting")

    def __init__(self, engine: Engine, driver: Driver) -> None:
        self.engine = engine
        self.driver = driver
        self.waiting = Waiting()
        """Futures for what the engine will report."""
        self.received = Tally()
        """What was received, by channel."""
        self.timings: Timings | None = None
        """How long things take, if somebody looks."""

    def measure(self) -> None:
        """Measure from now on how long things take."""
        self.timings = Timings()
        self.driver.took = self.timings.turn.observe

    def act(self, call: Callable[[Engine, float, Output], T]) -> T:
        """Call the engine with the current time, carry out what it asks for, and return the result."""
        out = Output()
        result = call(self.engine, Driver.now(), out)
        if not self.driver.closed:  # a responder may end after its node was closed; its reply is dropped
            self.driver.apply(out)
        return result

    def begin(self, kind: Kind, call: Callable[[Engine, float, Output], int]) -> asyncio.Future[Control]:
        """Call the engine as `act` does, and return a future for its report on the number that the call returned.

        The future exists before the Output is carried out, so a report that is already in there is not missed.
        """
        out = Output()
        number = call(self.engine, Driver.now(), out)
        report = self.waiting.for_(kind, number)
        self.driver.apply(out)
        return report

    async def peer(self, node_id: int) -> Peer:
        """Return a peer; one that has just begun a session is waited for. Raises PeerError."""
        if self.engine.peers.get(node_id) is None:
            await self.proved()
        return self.engine.peers.require(node_id)

    async def proved(self) -> None:
        """Wait for nodes that have begun a session in the last moment, until they have proved that it is theirs.

        A net-mesh 0.23 node that has connected to this node may be known to the caller before its first packet arrives.
        """
        handshakes = self.engine.handshakes
        with suppress(TimeoutError):
            async with asyncio.timeout(_PROOF_S):
                while expected := handshakes.expected_up(Driver.now() - _PROOF_S):
                    await self.waiting.for_(Kind.SESSION, expected[0])

    async def agreed(self, node_id: int, subprotocol_id: int, timeout_s: float) -> bool:
        """Wait until a peer that may speak the profile has agreed on a subprotocol, and return whether it has.

        This takes a moment after connecting. A plain 0.23 peer is not waited for. Raises PeerError if the node is no
        peer.
        """
        engine, deadline = self.engine, asyncio.timeout(timeout_s)
        await self.peer(node_id)
        try:
            async with deadline:
                while not (peer := engine.peers.require(node_id)).uses(subprotocol_id):
                    if engine.negotiator.is_plain(peer):
                        break
                    await self.waiting.for_(Kind.AGREEMENT, node_id)
        except TimeoutError:
            if not deadline.expired():
                raise
        return engine.peers.require(node_id).uses(subprotocol_id)

    async def settled(self, timeout_s: float) -> None:
        """Wait until the negotiations that began with new sessions have ended."""
        peers = self.engine.peers
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for peer in list(peers):
                    while peers.get(peer.node_id) is peer and peer.settles_at > Driver.now():
                        await self.waiting.for_(Kind.AGREEMENT, peer.node_id)

    def tick(self) -> None:
        """Run the engine's due timers now, instead of at its next timer."""
        self.driver.apply(self.engine.tick(Driver.now()))

    def close(self) -> None:
        """Stop the driver, and raise an error to those who wait for a report."""
        self.driver.close()
        self.waiting.close()
