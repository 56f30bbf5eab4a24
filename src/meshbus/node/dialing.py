"""Connecting, as a user asks for it: at an address, by way of the mesh, or past NATs; waits until a session is up.

What is tried and in which order is the engine's; this file turns spellings into values, and reports into exceptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from meshbus.config.spelling import parse_endpoint
from meshbus.engine.base.notices import HandshakeFailed
from meshbus.engine.base.packets import Output
from meshbus.engine.core import Engine
from meshbus.engine.session.negotiate import Profile
from meshbus.errors import HandshakeError, MeshError
from meshbus.names.identity import derive_node_id, noise_public_key
from meshbus.node.driver import Driver
from meshbus.node.info import PeerInfo, info_of
from meshbus.node.setup import parse_key
from meshbus.node.waiting import Waiting

LOOK_S = 0.02
"""Pause between two looks for a route: pingwaves come every few seconds."""


class Dialer:
    """Connects one node to others."""

    def __init__(self, running: Callable[[], tuple[Engine, Driver]], waiting: Waiting) -> None:
        """Set up; `running` gives the engine and its driver, or raises."""
        self._running = running
        self._waiting = waiting

    async def connect(
        self, address: str | None, public_key: bytes | str, node_id: int | None, *, routed: bool, profile: Profile
    ) -> PeerInfo:
        """Connect at an address, or by the way that the mesh knows."""
        engine, driver = self._running()
        key = parse_key(public_key)
        target = derive_node_id(key) if node_id is None else node_id
        noise_key = noise_public_key(key) if node_id is None else key
        if address is None:
            await _way_known(engine, target)
        where = None if address is None else driver.socket.resolve(*parse_endpoint(address))
        return await self._await(
            "session",
            target,
            lambda now, out: engine.connect(target, where, noise_key, now, out, routed=routed, profile=profile),
        )

    async def connect_direct(self, node_id: int, public_key: bytes | str | None, coordinator: int | None) -> PeerInfo:
        """Connect without a relay, if there is any way."""
        engine, _ = self._running()
        key = None if public_key is None else parse_key(public_key)
        if key is not None and derive_node_id(key) == node_id:
            key = noise_public_key(key)
        return await self._await(
            "reach",
            node_id,
            lambda now, out: engine.traversal.connect(node_id, now, out, public_key=key, coordinator=coordinator),
        )

    async def _await(self, kind: str, node_id: int, begin: Callable[[float, Output], None]) -> PeerInfo:
        """Begin something that ends in a session with a node, and wait for that."""
        engine, driver = self._running()
        waiting = self._waiting.for_(kind, node_id)
        out = Output()
        try:
            begin(Driver.now(), out)
        except MeshError:
            self._waiting.drop(kind, node_id)
            raise
        driver.apply(out)
        match await waiting:
            case HandshakeFailed(fault=fault, problem=problem):
                raise HandshakeError(fault, problem)
        return info_of(engine.peers.require(node_id))


async def _way_known(engine: Engine, node_id: int) -> None:
    """Wait as long as a handshake may take until there is a way to a node; raises PeerError when there is none then."""
    deadline = Driver.now() + engine.settings.handshake.timeout_s
    while Driver.now() < deadline and engine.mesh.table.lookup(node_id, Driver.now()) is None:  # noqa: ASYNC110 - packets tell
        await asyncio.sleep(LOOK_S)
    engine.mesh.way_to(node_id, Driver.now())
