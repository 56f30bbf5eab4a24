"""Base class of publishers and subscribers: addresses, connections, authentication, limits and counters.

An endpoint may listen on several addresses and connect to several others. It belongs to the event loop on which it was
created. Every closed connection is counted by its close reason, and logged if a user can do something about it.
"""

from __future__ import annotations

import asyncio
import logging
import socket  # noqa: TID251 - passed from edge/server.py to edge/connection.py
import time
from collections.abc import Awaitable
from itertools import count
from types import TracebackType
from typing import ClassVar, Self, TypedDict

import msgspec

from meshbus.config.edgeaddress import parse_address
from meshbus.edge.connection import Connection, ConnectionInfo
from meshbus.edge.dialer import Backoff, Dialer
from meshbus.edge.security import Null, Security
from meshbus.edge.server import Listener, listen
from meshbus.edge.zmtp.closereason import CloseReason
from meshbus.edge.zmtp.mechanism import Credentials, Verdict
from meshbus.edge.zmtp.metadata import SocketType
from meshbus.edge.zmtp.protocol import Closed, Heartbeat, Limits, Request, Session
from meshbus.engine.base.counters import Counters
from meshbus.errors import HandshakeError, HandshakeFault, Timeout
from meshbus.node.driving.tasks import TaskOwner
from meshbus.policy.bound import Bound, By

ACCEPTS_PER_TURN = 64
"""Connections accepted per iteration of the event loop, so that a burst of them does not delay messages for long."""
MAX_CONNECTIONS = 4096
"""Connections of an endpoint by default. Our choice: a busy hub, and fewer than the files that a process usually has."""
ACCEPT_PAUSE_S = 0.1
"""Pause of a listener when accepting fails, for example because the process has no file descriptors left."""

LOG_EVERY_S = 10.0
"""At most one warning per close reason in this time, so that a misconfigured client cannot fill a disk with logs. The
counters count every connection."""

_QUIET = {CloseReason.EOF, CloseReason.LOCAL, CloseReason.UNREACHABLE}
"""Close reasons of normal operation: counted, and logged at level DEBUG."""
_FAULTS = {CloseReason.BAD_BOX: HandshakeFault.WRONG_KEY, CloseReason.CLOSED_IN_HANDSHAKE: HandshakeFault.WRONG_KEY}
"""Close reasons that mean a wrong key: libzmq closes the connection without ERROR in that case (pubsub.md §4)."""

_NO_SECURITY = Null()
_BACKOFF = Backoff()
_log = logging.getLogger("meshbus.edge")

BOUNDS = (
    Bound(
        name="zmq_connections",
        what="connections to a ZeroMQ endpoint; `max_connections` changes it",
        by=By.OUTSIDER,
        per_node=MAX_CONNECTIONS,
        full="the oldest whose handshake is not done goes, or else the new one is refused",
        counter="closed.too_many_connections",
    ),
)


class EndpointOptions(TypedDict, total=False):
    """Options of every endpoint."""

    security: Security
    """How it authenticates itself and its peers; default Null()."""
    insecure: bool
    """Allow listening on addresses that other machines reach, without encryption; default False."""
    heartbeat: Heartbeat | None
    """How it detects dead peers; off by default, as in libzmq."""
    backoff: Backoff
    handshake_timeout_s: float
    """Default 30 seconds, as in libzmq."""
    max_connections: int
    """Above this, a new connection replaces the oldest one whose handshake is not done, or is refused."""
    max_message_bytes: int
    """Largest incoming message."""


class Endpoint:
    """A ZeroMQ socket that publishes or subscribes; use it as an async context manager."""

    socket_type: ClassVar[SocketType]
    default_message_bytes: ClassVar[int]
    max_control_bytes: ClassVar[int]
    """Bytes of control data that may wait for one peer."""

    def __init__(
        self,
        *,
        security: Security = _NO_SECURITY,
        insecure: bool = False,
        heartbeat: Heartbeat | None = None,
        backoff: Backoff = _BACKOFF,
        handshake_timeout_s: float = 30.0,
        max_connections: int = MAX_CONNECTIONS,
        max_message_bytes: int | None = None,
    ) -> None:
        self._security = security
        # docs/decisions/0012: PLAIN sends passwords in clear text, so it does not count as encrypted.
        self._exposed = insecure or security.encrypts
        self._heartbeat = heartbeat
        self._backoff = backoff
        self._max_connections = max_connections
        self._limits = Limits(
            max_message_bytes=max_message_bytes or self.default_message_bytes,
            handshake_timeout_s=handshake_timeout_s,
        )
        self._counters = Counters()
        self._numbers = count(1)
        self._listeners: list[Listener] = []
        self._dialers: dict[str, Dialer] = {}
        self._connections: dict[bytes, Connection] = {}
        self._unready: dict[bytes, None] = {}
        """Connections whose handshake is not done, oldest first."""
        self._dialed: dict[bytes, Dialer] = {}
        """Dialers of outgoing connections."""
        self._judging = TaskOwner("an authenticate callback", _log)
        self._quiet_until: dict[CloseReason, float] = {}
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def bind(self, address: str) -> str:
        """Listen on an address, such as `tcp://127.0.0.1:*` or `ipc:///run/app.sock`; return it with the actual port.

        Raises ConfigError if the address is not available, or if other machines would reach an unencrypted endpoint.
        """
        self._refuse_when_closed()
        listener = await listen(parse_address(address, listening=True), exposed=self._exposed)
        self._listeners.append(listener)
        self._accept_from(listener)
        return str(listener.address)

    async def connect(self, address: str, *, timeout_s: float | None = None) -> None:
        """Connect to an address, and reconnect whenever the connection ends.

        Returns at once; the peer may start later. With `timeout_s` it waits for the first connection, and raises
        HandshakeError if the peer refuses it, or Timeout if there is none in time; both end the attempt.
        """
        self._refuse_when_closed()
        target = parse_address(address)
        dialer = self._dialers.get(str(target))
        if dialer is None:
            dialer = self._dialers[str(target)] = Dialer(
                target,
                backoff=self._backoff,
                open_connection=self._open,
                on_failure=self._note_end,
            )
        if timeout_s is None:
            return
        # Only with a timeout: without one, the dialer goes on in the background and failures are logged and counted.
        try:
            refused = await dialer.wait_ready(timeout_s)
        except TimeoutError:
            await self.disconnect(address)
            raise Timeout(f"connecting to {target}", timeout_s) from None
        if refused is not None:
            await self.disconnect(address)
            fault = _FAULTS.get(refused.reason, HandshakeFault.REFUSED)
            detail = f": {refused.detail}" if refused.detail else ""
            raise HandshakeError(fault, f"cannot connect to {target}: {refused.reason}{detail}")

    async def disconnect(self, address: str) -> None:
        """Close the connection to an address and stop reconnecting; an unknown address is ignored."""
        dialer = self._dialers.pop(str(parse_address(address)), None)
        if dialer is not None:
            await dialer.close()

    async def close(self) -> None:
        """Stop listening and close all connections. Calling it again does nothing."""
        self._closed = True
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()
        # Dialers before connections, so that none reconnects what is closed here.
        for dialer in list(self._dialers.values()):
            await dialer.close()
        self._dialers.clear()
        for connection in list(self._connections.values()):
            connection.close()
        self._judging.cancel()

    @property
    def connections(self) -> list[ConnectionInfo]:
        """All connections, including those whose handshake is not done."""
        return [connection.info for connection in self._connections.values()]

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Counts of connections, messages and drops, by kind and reason."""
        return self._counters.snapshot()

    # ── callbacks of connections ────────────────────────────────────────────────────────────

    def on_judge(self, connection: Connection, credentials: Credentials) -> None:
        """Call the application's authenticate callback, which may be asynchronous."""
        authenticate = self._security.authenticate
        # A handshake asks only if the security has a callback.
        assert authenticate is not None
        try:
            verdict = authenticate(msgspec.structs.replace(credentials, address=connection.address))
        except Exception:  # noqa: BLE001 - whatever the callback raises, the peer is refused
            _log.exception("the authenticate callback failed for %s; the connection is refused", connection.address)
            verdict = Verdict.FAILED
        if isinstance(verdict, Verdict):
            connection.decide(verdict)
        else:
            self._judging.start(self._judge_later(connection, verdict))

    def on_ready(self, connection: Connection) -> None:
        """Count the connection, and notify its dialer."""
        self._counters.add("connection", "ready")
        self._unready.pop(connection.routing_id, None)
        dialed = self._dialed.get(connection.routing_id)
        if dialed is not None:
            dialed.note_ready()

    def on_messages(self, connection: Connection, messages: list[tuple[bytes, ...]]) -> None:
        """Handle messages from a publisher; subscribers override it."""
        raise NotImplementedError

    def on_requests(self, connection: Connection, requests: list[Request]) -> None:
        """Handle requests of a subscriber; publishers override it."""
        raise NotImplementedError

    def on_idle(self, connection: Connection) -> None:
        """Send queued messages; publishers override it."""

    def on_closed(self, connection: Connection, closed: Closed) -> None:
        """Remove the connection, count its close reason, and notify its dialer."""
        self._connections.pop(connection.routing_id, None)
        self._unready.pop(connection.routing_id, None)
        self._note_end(connection.address, closed)
        dialed = self._dialed.pop(connection.routing_id, None)
        if dialed is not None:
            dialed.note_closed(closed)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise RuntimeError("the endpoint is closed; create a new one")

    # ── opening connections ─────────────────────────────────────────────────────────────────

    def _accept_from(self, listener: Listener) -> None:
        if not self._closed:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: Listener) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted = listener.accept()
            except OSError as error:
                loop = asyncio.get_running_loop()
                self._counters.add("accept", "failed")
                _log.warning(
                    "cannot accept connections on %s: %s; retrying in %g s",
                    listener.address,
                    error.strerror or error,
                    ACCEPT_PAUSE_S,
                )
                # Without a pause the listener would stay readable, and the loop would spin at full load.
                loop.remove_reader(listener.fileno())
                loop.call_later(ACCEPT_PAUSE_S, self._accept_from, listener)
                return
            if accepted is None:
                return
            sock, peer = accepted
            if self._has_room():
                self._open(sock, peer)
            else:
                sock.close()
                self._note_end(peer, Closed(CloseReason.TOO_MANY_CONNECTIONS))

    def _has_room(self) -> bool:
        """Return whether another connection is allowed; close the oldest unfinished handshake to make room."""
        # Otherwise idle connections without credentials could keep authenticated clients out.
        if len(self._connections) >= self._max_connections and self._unready:
            oldest = self._connections[next(iter(self._unready))]
            problem = f"the handshake was not done when connection {self._max_connections + 1} arrived"
            oldest.close(CloseReason.TOO_MANY_CONNECTIONS, problem)
        return len(self._connections) < self._max_connections

    def _open(self, sock: socket.socket, address: str, dialer: Dialer | None = None) -> Connection:
        session = Session(
            self.socket_type,
            self._security.handshake(self.socket_type),
            now=asyncio.get_running_loop().time(),
            limits=self._limits,
            heartbeat=self._heartbeat,
        )
        connection = Connection(
            next(self._numbers), sock, session, self, address=address, max_control_bytes=self.max_control_bytes
        )
        self._connections[connection.routing_id] = connection
        self._unready[connection.routing_id] = None
        if dialer is not None:
            self._dialed[connection.routing_id] = dialer
        self._counters.add("connection", "opened")
        return connection

    async def _judge_later(self, connection: Connection, verdict: Awaitable[Verdict]) -> None:
        try:
            decided = Verdict(await verdict)  # raises ValueError if the callback returns something else
        except Exception:  # noqa: BLE001 - whatever the callback raises, the peer is refused
            _log.exception("the authenticate callback failed for %s; the connection is refused", connection.address)
            decided = Verdict.FAILED
        connection.decide(decided)

    def _note_end(self, address: str, closed: Closed) -> None:
        self._counters.add("closed", closed.reason)
        now = time.monotonic()
        loud = closed.reason not in _QUIET and now >= self._quiet_until.get(closed.reason, 0.0)
        if loud:
            self._quiet_until[closed.reason] = now + LOG_EVERY_S
        level = logging.WARNING if loud else logging.DEBUG
        detail = f": {closed.detail}" if closed.detail else ""
        _log.log(level, "%s connection with %s closed: %s%s", self.socket_type, address, closed.reason, detail)
