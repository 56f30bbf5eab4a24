"""What publishers and subscribers have in common: addresses, connections, credentials, limits and their counters.

An endpoint may listen at several addresses and connect to several others. It belongs to the loop it was entered on.
Every connection that ends is counted by its reason, and what a user can do something about is logged.
"""

from __future__ import annotations

import asyncio
import logging
import socket  # noqa: TID251 - passed on between edge/server.py and edge/connection.py
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
from meshbus.node.tasks import TaskOwner

ACCEPTS_PER_TURN = 64
ACCEPT_PAUSE_S = 0.1
"""How long a listener rests when the system has no descriptors left."""

LOG_EVERY_S = 10.0
"""One warning per reason in this time: whoever knocks all day must not fill a disk. The counters count them all."""

_QUIET = {CloseReason.EOF, CloseReason.LOCAL, CloseReason.UNREACHABLE}
"""Ends that are everyday life: counted, and logged for those who look closely."""
_FAULTS = {CloseReason.BAD_BOX: HandshakeFault.WRONG_KEY, CloseReason.CLOSED_IN_HANDSHAKE: HandshakeFault.WRONG_KEY}
"""libzmq hangs up without a word where the keys do not fit."""

_NO_SECURITY = Null()
_BACKOFF = Backoff()
_log = logging.getLogger("meshbus.edge")


class EndpointOptions(TypedDict, total=False):
    """What every endpoint can be told."""

    security: Security
    """How it proves itself and judges others; Null() when left out."""
    insecure: bool
    """Listen beyond this machine without encryption; no when left out."""
    heartbeat: Heartbeat | None
    """How it finds out that a peer is gone; off when left out, as in libzmq."""
    backoff: Backoff
    handshake_timeout_s: float
    """30 seconds when left out, as in libzmq."""
    max_connections: int
    """Beyond, a newcomer takes the place of the oldest connection that is still shaking hands, or is turned away."""
    max_message_bytes: int
    """Of one incoming message."""


class Endpoint:
    """A socket of the publish-subscribe family; use it as an async context manager."""

    socket_type: ClassVar[SocketType]
    default_message_bytes: ClassVar[int]
    max_control_bytes: ClassVar[int]
    """What may wait for a peer beside messages."""

    def __init__(
        self,
        *,
        security: Security = _NO_SECURITY,
        insecure: bool = False,
        heartbeat: Heartbeat | None = None,
        backoff: Backoff = _BACKOFF,
        handshake_timeout_s: float = 30.0,
        max_connections: int = 4096,
        max_message_bytes: int | None = None,
    ) -> None:
        self._security = security
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
        """Those that are still shaking hands, the oldest first."""
        self._dialed: dict[bytes, Dialer] = {}
        """Connections that we opened."""
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
        """Listen at an address, such as `tcp://127.0.0.1:*` or `ipc:///run/app.sock`; gives it with the port it got.

        Raises ConfigError when the address cannot be had, or when it would expose an endpoint that does not encrypt.
        """
        self._refuse_when_closed()
        listener = await listen(parse_address(address, listening=True), exposed=self._exposed)
        self._listeners.append(listener)
        self._accept_from(listener)
        return str(listener.address)

    async def connect(self, address: str, *, timeout_s: float | None = None) -> None:
        """Connect to an address, and again whenever the connection ends.

        Returns at once: the other side may come later. With `timeout_s` it waits for the first connection, and raises
        HandshakeError when the other side does not want us, Timeout when nobody was there in time; both end the
        attempt.
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
        try:
            refused = await dialer.wait_ready(timeout_s)
        except TimeoutError:
            await self.disconnect(address)
            raise Timeout(f"connecting to {target}", timeout_s) from None
        if refused is not None:
            await self.disconnect(address)
            fault = _FAULTS.get(refused.reason, HandshakeFault.REFUSED)
            raise HandshakeError(fault, f"{target}: {refused.reason}: {refused.detail}")

    async def disconnect(self, address: str) -> None:
        """End the connection to an address; nothing happens when there is none."""
        dialer = self._dialers.pop(str(parse_address(address)), None)
        if dialer is not None:
            await dialer.close()

    async def close(self) -> None:
        """Hang up everywhere; closing twice is fine."""
        self._closed = True
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()
        for dialer in list(self._dialers.values()):
            await dialer.close()
        self._dialers.clear()
        for connection in list(self._connections.values()):
            connection.close()
        self._judging.cancel()

    @property
    def connections(self) -> list[ConnectionInfo]:
        """Who is connected, or about to be."""
        return [connection.info for connection in self._connections.values()]

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """What was opened, closed, refused and ignored, by what and why."""
        return self._counters.snapshot()

    # ── what connections tell ───────────────────────────────────────────────────────────────

    def on_judge(self, connection: Connection, credentials: Credentials) -> None:
        """Ask the application's callback, which may take its time."""
        authenticate = self._security.authenticate
        assert authenticate is not None
        try:
            verdict = authenticate(msgspec.structs.replace(credentials, address=connection.address))
        except Exception:  # noqa: BLE001 - whatever the application did wrong, the peer stays out
            _log.exception("the authenticate callback failed for %s", connection.address)
            verdict = Verdict.FAILED
        if isinstance(verdict, Verdict):
            connection.decide(verdict)
        else:
            self._judging.start(self._judge_later(connection, verdict))

    def on_ready(self, connection: Connection) -> None:
        """Count it."""
        self._counters.add("connection", "ready")
        self._unready.pop(connection.routing_id, None)
        dialed = self._dialed.get(connection.routing_id)
        if dialed is not None:
            dialed.note_ready()

    def on_messages(self, connection: Connection, messages: list[tuple[bytes, ...]]) -> None:
        """Take messages of a publisher; only subscribers get any."""
        raise NotImplementedError

    def on_requests(self, connection: Connection, requests: list[Request]) -> None:
        """Take what a subscriber asks for; only publishers get any."""
        raise NotImplementedError

    def on_idle(self, connection: Connection) -> None:
        """Send more, where there is more."""

    def on_closed(self, connection: Connection, closed: Closed) -> None:
        """Forget it, and count why it ended."""
        self._connections.pop(connection.routing_id, None)
        self._unready.pop(connection.routing_id, None)
        self._note_end(connection.address, closed)
        dialed = self._dialed.pop(connection.routing_id, None)
        if dialed is not None:
            dialed.note_closed(closed)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise RuntimeError("the endpoint was closed")

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
                _log.warning("cannot accept at %s: %s; trying again soon", listener.address, error.strerror or error)
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
        """Make room where it can be made: who does not get through its handshake must not keep others out."""
        if len(self._connections) >= self._max_connections and self._unready:
            oldest = self._connections[next(iter(self._unready))]
            oldest.close(CloseReason.TOO_MANY_CONNECTIONS, "still shaking hands when another wanted its place")
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
            decided = Verdict(await verdict)
        except Exception:  # noqa: BLE001 - whatever the application did wrong, the peer stays out
            _log.exception("the authenticate callback failed for %s", connection.address)
            decided = Verdict.FAILED
        connection.decide(decided)

    def _note_end(self, address: str, closed: Closed) -> None:
        self._counters.add("closed", closed.reason)
        now = time.monotonic()
        loud = closed.reason not in _QUIET and now >= self._quiet_until.get(closed.reason, 0.0)
        if loud:
            self._quiet_until[closed.reason] = now + LOG_EVERY_S
        level = logging.WARNING if loud else logging.DEBUG
        _log.log(level, "%s %s: %s %s", self.socket_type, address, closed.reason, closed.detail)
