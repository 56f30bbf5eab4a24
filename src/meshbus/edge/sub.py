"""SUB and XSUB sockets: receive messages with subscribed topic prefixes from any number of publishers.

After every (re)connection each distinct prefix is sent once, in byte order, as libzmq does; nothing is replayed.
Messages wait for the application in one bounded queue. When it is full, reading stops, so that TCP slows the publishers
down; they then drop messages by their own rules. Nothing is dropped here.
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
    _filters = True

    def __init__(self, *, high_water: int = HIGH_WATER, **options: Unpack[EndpointOptions]) -> None:
        """Create a subscriber; reading stops while `high_water` messages wait, 0 means no limit."""
        super().__init__(**options)
        self._high_water = high_water
        self._paused = False
        self._interests = Interests()
        self._mailbox: Mailbox[tuple[bytes, ...]] = Mailbox()

    def subscribe(self, prefix: Part = b"") -> None:
        """Subscribe to all topics that start with a prefix; the empty prefix matches every topic.

        A prefix that was subscribed twice must be unsubscribed twice.
        """
        (wanted,) = as_bytes([prefix])
        self._interests.add(wanted)
        self._send_interest(Interest(wanted, subscribe=True))

    def unsubscribe(self, prefix: Part = b"") -> None:
        """Unsubscribe from a prefix; a prefix that is not subscribed is ignored."""
        (unwanted,) = as_bytes([prefix])
        if self._interests.remove(unwanted):
            self._send_interest(Interest(unwanted, subscribe=False))

    async def receive(self) -> tuple[bytes, ...]:
        """Wait for a message and return its parts, the topic first. Raises RuntimeError after `close`."""
        message = await self._mailbox.take()
        self._make_room()
        return message

    async def receive_batch(self) -> list[tuple[bytes, ...]]:
        """Wait for a message and return all that have arrived; an empty list after `close`."""
        messages = await self._mailbox.take_all()
        self._make_room()
        return messages

    async def __aiter__(self) -> AsyncIterator[tuple[bytes, ...]]:
        """Yield messages until the endpoint is closed."""
        while messages := await self.receive_batch():
            for message in messages:
                yield message

    async def close(self) -> None:
        """Close all connections; received messages can still be taken. Calling it again does nothing."""
        await super().close()
        self._mailbox.close()

    @property
    def pending(self) -> int:
        """Messages that wait for the application."""
        return len(self._mailbox)

    # ── callbacks of connections ────────────────────────────────────────────────────────────

    def on_ready(self, connection: Connection) -> None:
        """Send every subscribed prefix to a new publisher."""
        super().on_ready(connection)
        # pubsub.md §2.2: each distinct prefix once, in byte order. Subscriptions end with their connection.
        connection.send_interests([Interest(prefix, subscribe=True) for prefix in self._interests.prefixes()])
        if self._paused:  # a publisher that connects while the queue is full must wait like the others
            connection.pause()

    def on_messages(self, _: Connection, messages: list[tuple[bytes, ...]]) -> None:  # hot: bench_edge
        """Queue messages that match a subscription; an XSub queues all."""
        # pubsub.md §3.6: messages may still be in flight after CANCEL, so a subscriber filters again.
        wanted = self._interests.select(messages) if self._filters else messages
        self._counters.add("message", "received", len(wanted))
        if len(wanted) < len(messages):
            self._counters.count(Reason.NOT_SUBSCRIBED, len(messages) - len(wanted))
        self._mailbox.put(wanted)
        if self._high_water and len(self._mailbox) >= self._high_water and not self._paused:
            self._paused = True
            for each in self._connections.values():
                each.pause()

    def _make_room(self) -> None:
        # Resume at half: resuming after every message would add and remove the reader each time.
        if self._paused and len(self._mailbox) <= self._high_water // 2:
            self._paused = False
            for connection in self._connections.values():
                connection.resume()

    def _send_interest(self, interest: Interest) -> None:
        for connection in self._connections.values():
            connection.send_interests([interest])


class XSub(Sub):
    """A ZeroMQ XSUB socket: a subscriber that can also send messages to XPUB sockets.

    Like libzmq's it delivers every message that arrives: an XPUB may send other topics than were subscribed to.
    """

    socket_type = SocketType.XSUB
    _filters = False

    def send(self, *parts: Part) -> int:
        """Send one message to all connected publishers; return their number.

        A part whose first byte is 0 or 1 is taken for a subscription, as in ZeroMQ; begin it with another byte.
        """
        # pubsub.md §3.6: sent as data frames, as libzmq's XSUB does, also to 3.1 peers.
        frames = encode_message(as_bytes(parts))
        ready = [connection for connection in self._connections.values() if connection.info.ready]
        for connection in ready:
            connection.send_upstream(frames)
        return len(ready)
