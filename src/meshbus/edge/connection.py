"""One session on one stream: carries bytes between them, keeps the session's timer, and tells an owner what happened.

What the session itself has to say (handshake, subscriptions, PONG) goes before messages, and between them. It waits
here while the stream is busy, up to a bound: a peer that makes us talk and does not read is given up.
"""

from __future__ import annotations

import asyncio
import socket  # noqa: TID251 - handed from edge/server.py to edge/bytestream.py
from collections.abc import Sequence
from typing import Protocol

import msgspec

from meshbus.edge.bytestream import Stream
from meshbus.edge.zmtp.closereason import CloseReason
from meshbus.edge.zmtp.mechanism import Credentials, Verdict
from meshbus.edge.zmtp.protocol import Closed, Interest, Output, Request, Session


class ConnectionInfo(msgspec.Struct, frozen=True):
    """One connection, as shown to people."""

    number: int
    address: str
    """The other end."""
    ready: bool
    peer_type: str
    """What the peer says it is; empty until it is ready, or when it does not say."""


class Owner(Protocol):
    """Who has connections: an endpoint."""

    def on_judge(self, connection: Connection, credentials: Credentials) -> None:
        """Judge credentials, now or later, with `connection.decide`."""
        ...

    def on_ready(self, connection: Connection) -> None:
        """Take note that messages may flow."""
        ...

    def on_messages(self, connection: Connection, messages: list[tuple[bytes, ...]]) -> None:
        """Take messages of a publisher."""
        ...

    def on_requests(self, connection: Connection, requests: list[Request]) -> None:
        """Take what a subscriber asks for."""
        ...

    def on_idle(self, connection: Connection) -> None:
        """Take note that everything that was sent has left."""
        ...

    def on_closed(self, connection: Connection, closed: Closed) -> None:
        """Take note of the end; the last call."""
        ...


class Connection:
    """One peer, from its socket to its end."""

    def __init__(
        self, number: int, sock: socket.socket, session: Session, owner: Owner, *, address: str, max_control_bytes: int
    ) -> None:
        self.number = number
        """Never used again: the peer's name here, and its epoch."""
        self.routing_id = number.to_bytes(8, "big")
        self.address = address
        self._session = session
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._control: list[bytes] = []
        """What the session says while the stream is busy."""
        self._control_bytes = 0
        self._max_control_bytes = max_control_bytes
        self._peer_type = ""
        self._timer: asyncio.TimerHandle | None = None
        self.closed: Closed | None = None
        self._stream = Stream(sock, on_data=self._on_data, on_idle=self._on_idle, on_end=self._on_end)
        self._say(session.greet())
        self._set_timer()

    @property
    def info(self) -> ConnectionInfo:
        """Describe it."""
        return ConnectionInfo(self.number, self.address, self._session.is_ready, self._peer_type)

    @property
    def idle(self) -> bool:
        """Whether messages may be sent now: the handshake is done and everything before has left."""
        return self._stream.idle and self._session.is_ready and self.closed is None

    def send(self, buffers: Sequence[bytes]) -> None:  # hot: bench_edge
        """Send whole messages, as plain frames; only while `idle`."""
        self._stream.write([self._session.seal(b"".join(buffers))] if self._session.is_sealed else buffers)

    def tell(self, interests: Sequence[Interest]) -> None:
        """Tell a publisher what we want."""
        if self._session.is_ready:
            self._say(b"".join(map(self._session.encode_interest, interests)))

    def say(self, frames: bytes) -> None:
        """Send a message upstream, before anything that waits."""
        if self._session.is_ready:
            self._say(self._session.seal(frames))

    def pause(self) -> None:
        """Stop reading."""
        self._stream.pause()

    def resume(self) -> None:
        """Read again."""
        self._stream.resume()

    def decide(self, verdict: Verdict) -> None:
        """Go on with what the application says to the credentials."""
        if self.closed is None:
            self._apply(self._session.decide(verdict, self._loop.time()))

    def close(self, reason: CloseReason = CloseReason.LOCAL, detail: str = "") -> None:
        """Hang up; closing twice is fine."""
        if self.closed is None:
            self._finish(Closed(reason, detail))

    def _on_data(self, data: bytes) -> None:
        self._apply(self._session.receive(data, self._loop.time()))

    def _on_end(self, problem: str) -> None:
        closed = self._session.end().closed
        if closed is not None and self.closed is None:
            self._finish(msgspec.structs.replace(closed, detail=closed.detail or problem))

    def _on_idle(self) -> None:
        if self._control:
            self._stream.write(self._control)
            self._control, self._control_bytes = [], 0
        if self._stream.idle:
            self._owner.on_idle(self)

    def _apply(self, out: Output) -> None:
        if out.send:
            self._say(out.send)
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

    def _say(self, data: bytes) -> None:
        if self._stream.idle:
            self._stream.write([data])
            return
        self._control.append(data)
        self._control_bytes += len(data)
        if self._control_bytes > self._max_control_bytes:
            self._loop.call_soon(self.close, CloseReason.STALLED, f"{self._control_bytes} bytes wait to be read")

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
                return  # it finds out by itself that it came early
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        if not self._stream.reading:
            self._session.receive(b"", now)  # while we do not listen, silence proves nothing
        self._apply(self._session.tick(now))
