"""Subscribers: the messages whose topic starts with a prefix that was asked for, from any number of publishers.

After every (re)connection each distinct prefix is asked for once, in byte order, as libzmq does; nothing is replayed.
Messages wait in one bounded queue for the application: when it is full, reading stops and TCP makes the publishers
wait, which then drop for us by their own rules. Nothing is lost here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Unpack

from meshbus.edge.connection import Connection
from meshbus.edge.endpoint import Endpoint, EndpointOptions
from meshbus.edge.mailbox import Mailbox
from meshbus.edge.pub import Part, as_bytes
from meshbus.edge.queue import HIGH_WATER
from meshbus.edge.wanted import Interests
from meshbus.edge.zmtp.framing import encode_message
from meshbus.edge.zmtp.metadata import SocketType
from meshbus.edge.zmtp.protocol import Interest
from meshbus.policy.reason import Reason


class Sub(Endpoint):
    """A ZeroMQ SUB socket."""

    socket_type = SocketType.SUB
    default_message_bytes = 64 << 20
    max_control_bytes = 64 << 20

    def __init__(self, *, high_water: int = HIGH_WATER, **options: Unpack[EndpointOptions]) -> None:
        """Prepare a subscriber; reading stops while `high_water` messages wait, 0 for never."""
        super().__init__(**options)
        self._high_water = high_water
        self._paused = False
        self._interests = Interests()
        self._mailbox: Mailbox[tuple[bytes, ...]] = Mailbox()

    def subscribe(self, prefix: Part = b"") -> None:
        """Ask for messages whose topic starts with these bytes; the empty prefix brings everything.

        Asking twice takes two `unsubscribe` to end.
        """
        (wanted,) = as_bytes([prefix])
        self._interests.add(wanted)
        self._tell(Interest(wanted, subscribe=True))

    def unsubscribe(self, prefix: Part = b"") -> None:
        """Ask no longer for a prefix; one that was never asked for changes nothing."""
        (unwanted,) = as_bytes([prefix])
        if self._interests.remove(unwanted):
            self._tell(Interest(unwanted, subscribe=False))

    async def receive(self) -> tuple[bytes, ...]:
        """Wait for a message, and give its parts, the topic first. Raises RuntimeError after `close`."""
        message = await self._mailbox.take()
        self._make_room()
        return message

    async def receive_batch(self) -> list[tuple[bytes, ...]]:
        """Wait for a message, and give all that have arrived; an empty list after `close`."""
        messages = await self._mailbox.take_all()
        self._make_room()
        return messages

    async def __aiter__(self) -> AsyncIterator[tuple[bytes, ...]]:
        """Give messages as they come; ends when the endpoint is closed."""
        while messages := await self.receive_batch():
            for message in messages:
                yield message

    async def close(self) -> None:
        """Hang up; what has arrived can still be taken. Closing twice is fine."""
        await super().close()
        self._mailbox.close()

    @property
    def pending(self) -> int:
        """Messages that wait for the application."""
        return len(self._mailbox)

    # ── what connections tell ───────────────────────────────────────────────────────────────

    def on_ready(self, connection: Connection) -> None:
        """Tell a new publisher everything that is wanted."""
        super().on_ready(connection)
        connection.tell([Interest(prefix, subscribe=True) for prefix in self._interests.prefixes()])
        if self._paused:
            connection.pause()

    def on_messages(self, _: Connection, messages: list[tuple[bytes, ...]]) -> None:  # hot: bench_edge
        """Keep what is wanted; the rest was on the way when it was cancelled."""
        wanted = self._interests.select(messages)
        self._counters.add("message", "received", len(wanted))
        if len(wanted) < len(messages):
            self._counters.count(Reason.NOT_SUBSCRIBED, len(messages) - len(wanted))
        self._mailbox.put(wanted)
        if self._high_water and len(self._mailbox) >= self._high_water and not self._paused:
            self._paused = True
            for each in self._connections.values():
                each.pause()

    def _make_room(self) -> None:
        if self._paused and len(self._mailbox) <= self._high_water // 2:
            self._paused = False
            for connection in self._connections.values():
                connection.resume()

    def _tell(self, interest: Interest) -> None:
        for connection in self._connections.values():
            connection.tell([interest])


class XSub(Sub):
    """A ZeroMQ XSUB socket: a subscriber that can also send messages to the application behind an XPUB."""

    socket_type = SocketType.XSUB

    def send(self, *parts: Part) -> int:
        """Send one message upstream; gives to how many publishers.

        A first byte of 0 or 1 makes it a subscription, as in ZeroMQ: choose another one.
        """
        frames = encode_message(as_bytes(parts))
        ready = [connection for connection in self._connections.values() if connection.info.ready]
        for connection in ready:
            connection.say(frames)
        return len(ready)
