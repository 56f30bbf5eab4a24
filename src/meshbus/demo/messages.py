"""Messages between the fleet and its member processes: one JSON object per line, over the member's standard streams.

A member sends `Up` when it listens. It answers every command with `Done` when the command is done, and sends `Counts` a
few times per second. There is no command to stop: a member whose standard input ends sends `Left`, closes its node and
exits, so no member outlives its parent process, however the parent ended.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Line(msgspec.Struct, frozen=True, tag=str.lower, tag_field="say"):
    """Base class of messages."""


class Link(msgspec.Struct, frozen=True):
    """A node to connect to."""

    public_key: str
    address: str | None = None
    """None means: reach it through the mesh."""
    plain_id: str | None = None
    """Node id in hex of a net-mesh node, whose key does not tell it; such a node has not started yet."""


class Wish(msgspec.Struct, frozen=True):
    """A channel of one publisher."""

    publisher: str
    """Node id in hex."""
    channel: str


class Flow(msgspec.Struct, frozen=True):
    """Events to publish at a constant rate."""

    channel: str
    per_s: int
    reliable: bool = False
    bytes: int | None = None
    """Size of each event; None for the report of a robot."""


class Join(Line, frozen=True):
    """Command: connect to these nodes, one after the other."""

    links: tuple[Link, ...]


class Listen(Line, frozen=True):
    """Command: subscribe to these channels and count events; the answer lists refusals."""

    wishes: tuple[Wish, ...]


class Publish(Line, frozen=True):
    """Command: publish these flows at the same time; answered when the last event is sent."""

    flows: tuple[Flow, ...]
    seconds: float


class Fetch(Line, frozen=True):
    """Command: move a daemon to this member from another; answered when it runs here."""

    daemon: str
    source: str
    """Node id in hex."""


class Await(Line, frozen=True):
    """Command: wait until a daemon on this member has processed so many events of its only input."""

    daemon: str
    events: int


class Up(Line, frozen=True):
    """The node is listening."""

    address: str
    edge: dict[str, str] = {}
    """Addresses for ZeroMQ applications, by the side that they are."""
    web: str | None = None
    """Address of its web server."""


class Refused(msgspec.Struct, frozen=True):
    """A subscription that the publisher refused."""

    publisher: str
    channel: str
    reason: str


class Done(Line, frozen=True):
    """A command is done."""

    refused: tuple[Refused, ...] = ()
    took_s: float | None = None
    """How long a move took."""


class Counts(Line, frozen=True):
    """Event counts of a member so far, by channel."""

    published: dict[str, int] = {}
    limited: dict[str, int] = {}
    """Events that were refused because the channel's rate limit was exceeded."""
    received: dict[str, dict[str, int]] = {}
    """By publisher, as node id in hex, and channel."""
    counters: dict[str, dict[str, int]] = {}
    """The counters of the node; only in the last message."""
    edge: dict[str, dict[str, int]] = {}
    """The counters of its bridge."""

    @property
    def arrived(self) -> int:
        """Events that were received, of all publishers."""
        return sum(sum(channels.values()) for channels in self.received.values())


class Left(Line, frozen=True):
    """Final counts; the last message of a member."""

    counts: Counts


Command: TypeAlias = Join | Listen | Publish | Fetch | Await
COMMAND: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
ANSWER = msgspec.json.Decoder(Up | Done | Counts | Left)


def pack(line: Line) -> bytes:
    """Encode a message as one line."""
    return msgspec.json.encode(line) + b"\n"
