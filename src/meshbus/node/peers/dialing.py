"""Connecting to other nodes: at an address, along a route of the mesh, or through NATs; waits until a session is up.

What is tried and in which order is decided in the engine; this file parses addresses and keys, and turns reports into
exceptions. A call that is cancelled ends its attempt in the engine, unless another call waits for the same node. Dialing
configured peers again and again is node/peers/redial.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import msgspec

from meshbus.config.spelling import parse_endpoint
from meshbus.engine.base.notices import HandshakeFailed
from meshbus.engine.base.packets import Output
from meshbus.engine.core import Engine
from meshbus.engine.session.negotiate import Profile
from meshbus.engine.settings import HandshakeConfig
from meshbus.errors import HandshakeError, MeshError, PeerError, PeerFault
from meshbus.names.identity import derive_node_id, noise_public_key
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.live import Live
from meshbus.node.driving.setup import parse_key
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.driving.waiting import Kind
from meshbus.node.peers.info import PeerInfo, info_of
from meshbus.policy.capability import member_of
from meshbus.wire.messages.address import numeric

LOOK_S = 0.02
"""Pause between two looks for a route. Routes come with pingwaves, every few seconds, so this adds little."""

_logger = logging.getLogger("meshbus.node")


class Target(msgspec.Struct, frozen=True):
    """A node to connect to."""

    node_id: int
    noise_key: bytes
    address: str | None
    """None to reach it through the mesh."""
    routed: bool = True
    profile: Profile = Profile.AUTO
    given_key: bytes | None = None
    """The key that the application gave, if it is not the Noise key."""
    plain: bool = False
    """Whether its node id was given, as for a net-mesh 0.23 node, and does not follow from its key."""

    @classmethod
    def of(
        cls,
        address: str | None,
        public_key: bytes | str,
        node_id: int | None,
        *,
        routed: bool = True,
        profile: Profile | str = Profile.AUTO,
    ) -> Target:
        """Read what the application gave; without a node id the key is that of a meshbus node."""
        key, mode = parse_key(public_key), member_of(Profile, "profile", profile)
        if node_id is None:
            return cls(derive_node_id(key), noise_public_key(key), address, routed, mode, given_key=key)
        return cls(node_id, key, address, routed, mode, plain=True)


class Dialer:
    """Connects one node to others."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._calls: Counter[int] = Counter()
        """How many calls wait for a session with a node, by node id."""
        self.noise_keys: dict[int, bytes] = {}
        """The Noise keys of the nodes that the application named, by node id."""

    async def dial(self, target: Target, handshake: HandshakeConfig | None = None) -> PeerInfo:
        """Connect at an address, or along the route that the mesh knows; `handshake` overrides the settings."""
        node_id, where = target.node_id, None
        self.noise_keys[node_id] = target.noise_key
        if target.address is None:
            await _route_known(self._live.engine, node_id)
        else:
            endpoint = parse_endpoint(target.address)
            resolve = self._live.driver.socket.resolve
            # Looking up a name may block for seconds, an address in digits never does.
            where = resolve(*endpoint) if numeric(endpoint) else await asyncio.to_thread(resolve, *endpoint)

        def begin(engine: Engine, now: float, out: Output) -> int:
            engine.connect(
                node_id,
                where,
                target.noise_key,
                now,
                out,
                routed=target.routed,
                profile=target.profile,
                handshake=handshake,
                given_key=target.given_key,
            )
            return node_id

        return await self._wait(Kind.SESSION, node_id, begin)

    async def connect_direct(self, node_id: int, public_key: bytes | str | None, coordinator: int | None) -> PeerInfo:
        """Connect without a relay if possible."""
        key = None if public_key is None else parse_key(public_key)
        if key is not None and derive_node_id(key) == node_id:
            key = noise_public_key(key)

        def begin(engine: Engine, now: float, out: Output) -> int:
            engine.traversal.connect(node_id, now, out, public_key=key, coordinator=coordinator)
            return node_id

        return await self._wait(Kind.REACH, node_id, begin)

    async def _wait(self, kind: Kind, node_id: int, begin: Callable[[Engine, float, Output], int]) -> PeerInfo:
        """Begin an attempt, or join the one that is in progress, and wait for its end."""
        report = self._live.begin(kind, begin)
        self._calls[node_id] += 1
        try:
            event = await report
        finally:
            self._calls[node_id] -= 1
            if not self._calls[node_id]:
                del self._calls[node_id]
                # A future that was cancelled by this call has no result; any other outcome ended the attempt itself.
                if report.cancelled():
                    self._give_up(node_id)
        if isinstance(event, HandshakeFailed):
            raise HandshakeError(event.fault, event.problem)
        return info_of(self._live.engine.peers.require(node_id))

    def _give_up(self, node_id: int) -> None:
        """End what the engine does to reach a node, so that the next `connect` starts at once."""
        engine = self._live.engine
        engine.traversal.cancel(node_id)
        engine.handshakes.cancel_connect(node_id)


class Connecting:
    """Opens sessions with nodes that are known by their id alone: along a route, with the key that they announced."""

    def __init__(self, live: Live, dialer: Dialer) -> None:
        self._live = live
        self._dialer = dialer
        self._tasks = TaskOwner("connecting", _logger)
        self._trying: set[int] = set()

    def begin(self, node_id: int) -> None:
        """Connect to a node, unless that is under way, and do not report whether it worked."""
        if node_id not in self._trying:
            self._trying.add(node_id)
            self._tasks.start(self._try(node_id))

    def close(self) -> None:
        """Cancel what is under way."""
        self._tasks.cancel()

    async def _try(self, node_id: int) -> None:
        try:
            with suppress(MeshError):
                await self.connect(node_id)
        finally:
            self._trying.discard(node_id)

    async def connect(self, node_id: int) -> None:
        """Connect to a node. Raises PeerError or HandshakeError if that does not work."""
        entity = self._live.engine.directory.pinned(node_id)
        if entity is None:
            problem = "it has not announced itself, so its key is not known; connect to it first"
            raise PeerError(PeerFault.UNKNOWN, node_id, problem)
        await self._dialer.dial(Target.of(None, entity, None))


async def _route_known(engine: Engine, node_id: int) -> None:
    """Wait until there is a route to a node, at most as long as a handshake may take; raise PeerError if there is none."""
    deadline = Driver.now() + engine.settings.handshake.timeout_s
    while Driver.now() < deadline and engine.mesh.table.lookup(node_id, Driver.now()) is None:  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(LOOK_S)
    engine.mesh.way_to(node_id, Driver.now())
