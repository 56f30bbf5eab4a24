"""One ZMTP connection: moves bytes between a session and a stream, runs the session's timer, and calls the owner.

Control data of the session (handshake, subscriptions, PONG) is sent before queued messages. While the stream is busy it
waits here, up to a limit: a peer that causes answers and does not read them is disconnected.
"""

from __future__ import annotations

import asyncio
import socket  # noqa: TID251 - passed from edge/server.py to edge/bytestream.py
from collections.abc import Sequence
from typing import Protocol

import msgspec

from meshbus.edge.bytestream import Stream
from meshbus.edge.zmtp.closereason import CloseReason
from meshbus.edge.zmtp.mechanism import Credentials, Verdict
from meshbus.edge.zmtp.protocol import Closed, Interest, Output, Request, Session


class ConnectionInfo(msgspec.Struct, frozen=True):
    """Description of one connection, for display."""

    number: int
    address: str
    """Address of the peer."""
    ready: bool
    peer_type: str
    """Socket type that the peer sent; empty before the handshake is done, or if the peer sent none."""


class Owner(Protocol):
    """Callbacks of a connection; an endpoint implements them."""

    def on_judge(self, connection: Connection, credentials: Credentials) -> None:
        """Check credentials and call `connection.decide`, at once or later."""
        ...

    def on_ready(self, connection: Connection) -> None:
        """Handle the end of the handshake: messages may be sent from now on."""
        ...

    def on_messages(self, connection: Connection, messages: list[tuple[bytes, ...]]) -> None:
        """Handle messages from a publisher."""
        ...

    def on_requests(self, connection: Connection, requests: list[Request]) -> None:
        """Handle subscriptions and messages from a subscriber."""
        ...

    def on_idle(self, connection: Connection) -> None:
        """Handle that all data written so far was passed to the kernel."""
        ...

    def on_closed(self, connection: Connection, closed: Closed) -> None:
        """Handle the end of the connection; this is the last callback."""
        ...


class Connection:
    """One connection to one peer."""

    def __init__(
        self, number: int, sock: socket.socket, session: Session, owner: Owner, *, address: str, max_control_bytes: int
    ) -> None:
        self.number = number
        """Unique and never reused: the peer's routing id and epoch in the hub."""
        self.routing_id = number.to_bytes(8, "big")
        self.address = address
        self._session = session
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._control: list[bytes] = []
        """Control data that waits because the stream is busy."""
        self._control_bytes = 0
        self._max_control_bytes = max_control_bytes
        self._peer_type = ""
        self._timer: asyncio.TimerHandle | None = None
        self.closed: Closed | None = None
        self._stream = Stream(sock, on_data=self._on_data, on_idle=self._on_idle, on_end=self._on_end)
        self._send_control(session.greet())
        self._set_timer()

    @property
    def info(self) -> ConnectionInfo:
        """Description of the connection."""
        return ConnectionInfo(self.number, self.address, self._session.is_ready, self._peer_type)

    @property
    def idle(self) -> bool:
        """Whether messages may be sent now: the handshake is done and nothing waits to be written."""
        return self._stream.idle and self._session.is_ready and self.closed is None

    def send(self, buffers: Sequence[bytes]) -> None:  # hot: bench_edge
        """Send whole messages, given as plain frames; call it only while `idle`."""
        # CURVE encrypts per peer, because each connection has its own key; other peers share the encoded buffers.
        self._stream.write([self._session.seal(b"".join(buffers))] if self._session.is_sealed else buffers)

    def send_interests(self, interests: Sequence[Interest]) -> None:
        """Send subscriptions and cancellations to a publisher."""
        if self._session.is_ready:
            self._send_control(b"".join(map(self._session.encode_interest, interests)))

    def send_upstream(self, frames: bytes) -> None:
        """Send a message to a publisher, as XSUB does, before any queued message."""
        if self._session.is_ready:
            self._send_control(self._session.seal(frames))

    def pause(self) -> None:
        """Stop reading."""
        self._stream.pause()

    def resume(self) -> None:
        """Resume reading."""
        self._stream.resume()

    def decide(self, verdict: Verdict) -> None:
        """Continue the handshake with the application's verdict on the credentials."""
        if self.closed is None:
            self._apply(self._session.decide(verdict, self._loop.time()))

    def close(self, reason: CloseReason = CloseReason.LOCAL, detail: str = "") -> None:
        """Close the connection. Calling it again does nothing."""
        if self.closed is None:
            self._finish(Closed(reason, detail))

    def _on_data(self, data: bytes) -> None:
        self._apply(self._session.receive(data, self._loop.time()))

    def _on_end(self, problem: str) -> None:
        # The session knows in which state the connection was, and so what its end means.
        closed = self._session.end().closed
        if closed is not None and self.closed is None:
            self._finish(msgspec.structs.replace(closed, detail=closed.detail or problem))

    def _on_idle(self) -> None:
        # Control data first: it must not wait behind the messages that the owner sends from on_idle.
        if self._control:
            self._stream.write(self._control)
            self._control, self._control_bytes = [], 0
        if self._stream.idle:
            self._owner.on_idle(self)

    def _apply(self, out: Output) -> None:
        # In this order: an ERROR is sent before the connection closes, and on_ready precedes the first message.
        if out.send:
            self._send_control(out.send)
        if out.ask is not None:
            self._owner.on_judge(self, out.ask)
        if out.ready is not None:
            self._peer_type = out.ready.properties.get("socket-type", b"").decode("ascii", "replace")
            self._owner.on_ready(self)
        if out.messages:
            self._owner.on_messages(self, out.messages)
        if out.requests:
            self._owner.on_requests(self, out.requests)
        if out.closed is not None and self.closed is None:
            self._finish(out.closed)
        elif self.closed is None:
            self._set_timer()

    def _send_control(self, data: bytes) -> None:
        if self._stream.idle:
            self._stream.write([data])
            return
        self._control.append(data)
        self._control_bytes += len(data)
        if self._control_bytes > self._max_control_bytes:
            # Not now: the caller may be iterating over the endpoint's connections.
            problem = f"the peer does not read: {self._control_bytes} bytes of control data wait"
            self._loop.call_soon(self.close, CloseReason.STALLED, problem)

    def _finish(self, closed: Closed) -> None:
        self.closed = closed
        if self._timer is not None:
            self._timer.cancel()
        self._stream.close()
        self._owner.on_closed(self, closed)

    def _set_timer(self) -> None:
        at = self._session.next_timer()
        if self._timer is not None:
            if at is not None and self._timer.when() <= at and not self._timer.cancelled():
                return  # the running timer fires early and is set again then: cheaper than resetting it per packet
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        if not self._stream.reading:
            self._session.receive(b"", now)  # reading is paused, so a silent peer may well be alive
        self._apply(self._session.tick(now))
