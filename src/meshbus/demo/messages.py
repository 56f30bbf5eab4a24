"""What a fleet and its member processes say to each other: one JSON object a line, over the member's own pipes.

A member says `Up` once it listens. Every command is answered with `Done`, in its own time; `Counts` come unasked, a few
times a second. There is no word for the end: a member whose standard input ends says `Left`, closes its node and ends,
so none outlives whoever started it, however that one ended.
"""

from __future__ import annotations

import msgspec


class Line(msgspec.Struct, frozen=True, tag=str.lower, tag_field="say"):
    """Something that is said."""


class Link(msgspec.Struct, frozen=True):
    """A node to have a session with."""

    public_key: str
    address: str | None = None
    """None leaves the way to the mesh."""


class Wish(msgspec.Struct, frozen=True):
    """A channel of one publisher."""

    publisher: str
    """Its node id in hex."""
    channel: str


class Flow(msgspec.Struct, frozen=True):
    """Events that are published at a steady rate."""

    channel: str
    per_s: int
    reliable: bool = False


class Join(Line, frozen=True):
    """Connect to these, one after the other."""

    links: tuple[Link, ...]


class Listen(Line, frozen=True):
    """Subscribe to these, and count what comes; a refusal is part of the answer."""

    wishes: tuple[Wish, ...]


class Publish(Line, frozen=True):
    """Publish these side by side for so long; done when the last event is out."""

    flows: tuple[Flow, ...]
    seconds: float


class Up(Line, frozen=True):
    """The node listens."""

    address: str


class Refused(msgspec.Struct, frozen=True):
    """A subscription that its publisher did not accept."""

    publisher: str
    channel: str
    reason: str


class Done(Line, frozen=True):
    """A command has been carried out."""

    refused: tuple[Refused, ...] = ()


class Counts(Line, frozen=True):
    """What a member has done so far, by channel."""

    published: dict[str, int] = {}
    limited: dict[str, int] = {}
    """Events that were over the channel's rate and went to nobody."""
    received: dict[str, int] = {}


class Left(Line, frozen=True):
    """The last line."""

    counts: Counts


COMMAND = msgspec.json.Decoder(Join | Listen | Publish)
ANSWER = msgspec.json.Decoder(Up | Done | Counts | Left)


def pack(line: Line) -> bytes:
    """Write a line."""
    return msgspec.json.encode(line) + b"\n"
