"""What the live page shows, as one document: plain values that become one JSON object.

A field that the node does not know is None, and the page shows it as unknown. Ids are 16 hex digits, because JSON numbers
in a browser have 53 bits. web/snapshot.py makes a document from a node, web/rates.py adds the rates.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class NodeState(StrEnum):
    """How a node is, as this node sees it."""

    HERE = "here"
    """It is this node."""
    ALIVE = "alive"
    SUSPECTED = "suspected"
    FAILED = "failed"
    """There is a session, and the failure detector has given it up."""
    AWAY = "away"
    """It is configured as a peer, and there is no session with it."""
    HEARD = "heard"
    """There is no session with it, and others have announced it lately."""
    SILENT = "silent"
    """There is no session with it, and nothing was heard of it for the session timeout."""


class Who(msgspec.Struct, frozen=True):
    """A node."""

    node_id: str
    name: str | None


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The node that serves the page."""

    node_id: str
    name: str | None
    address: str
    subnet: str
    gateway: bool
    nat: str


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node that this node knows of, itself included: the topology."""

    node_id: str
    name: str | None
    state: NodeState
    subnet: str | None
    gateway: bool | None
    """Whether it announced that it is a gateway; None if it said nothing."""
    path: str | None
    """`direct` or `relayed`; None without a session."""
    hops: int | None
    latency_ms: float | None
    """One way, by the clocks of both nodes."""
    via: Who | None
    """The neighbor through which it is reached; None if it is one, or if there is no route."""


class PeerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node with a session, or one that is configured and dialed."""

    node_id: str
    name: str | None
    state: NodeState
    address: str | None
    path: str | None
    profile: bool | None
    """Whether both use the meshbus profile; None without a session."""
    dialect: str | None
    tries: int | None
    """Failed tries to dial it since the session was lost; None if it is not dialed."""
    next_try_s: float | None
    problem: str | None
    """Why the last try failed."""


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """Events and bytes since the node was opened, one way."""

    events: int | None
    bytes: int | None
    events_per_s: float | None = None
    """Since the document before; None in the first one."""
    bytes_per_s: float | None = None


class ChannelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A channel that the node publishes, receives or heard of."""

    channel: str
    publishes: bool
    subscribed: bool
    subscribers: int
    publishers: int
    """Other nodes that announce that they publish on it."""
    publisher_names: tuple[Who, ...]
    """Some of them."""
    published: Flow
    received: Flow


class LossRow(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was dropped, refused, left out or ignored, and why."""

    kind: str
    why: str
    count: int
    per_s: float | None = None
    sentence: str


class LogRow(msgspec.Struct, frozen=True, kw_only=True):
    """A log of the node."""

    log: str
    """`published` or `received`."""
    channel: str
    first_seq: int
    next_seq: int
    unsynced: int
    """Events that are not known to be on disk."""
    appended: int
    appended_bytes: int
    per_s: float | None = None
    refused: int
    """Appends that the disk refused."""
    failures: int
    """Failed attempts to seal, compact, expire or copy."""
    waits: str | None
    """Why it waits for object storage; None if it does not."""


class MemberRow(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a replicated channel."""

    node_id: str
    name: str | None
    connected: bool
    lag: int | None
    """Events of the leader's log that it has not confirmed."""


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    """A replicated channel."""

    channel: str
    role: str
    leader: Who | None
    epoch: int
    tail: int
    committed: int
    silence_s: float | None
    """For how long the slowest member, or the leader, was not heard."""
    waits: str | None
    """Why it takes no appends for a majority; None if it does."""
    members: tuple[MemberRow, ...]


class ConsumerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer of a log, such as a Spark query."""

    consumer: str
    log: str
    channel: str
    lag: int
    """Events that it has not read."""
    age_s: float
    """How long ago it said how far it is."""


class DaemonRow(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon that the node runs, offers or handed over."""

    origin: str
    name: str | None
    state: str
    node: Who | None
    """Where it runs."""
    inputs: tuple[str, ...]
    output: str | None
    processed: int | None
    per_s: float | None = None
    moves: int | None
    errors: int
    problem: str | None


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the page shows at one moment."""

    at_ms: int
    """Unix milliseconds."""
    uptime_s: float
    about: About
    problems: tuple[str, ...]
    """What keeps the node from its work, as sentences; nothing if it is ready."""
    states: dict[str, int]
    """All nodes that are known, by state."""
    sent: Flow
    received: Flow
    forwarded: int
    """Packets that the node passed on for others since it was opened."""
    nodes: tuple[NodeRow, ...]
    peers: tuple[PeerRow, ...]
    channels: tuple[ChannelRow, ...]
    losses: tuple[LossRow, ...]
    logs: tuple[LogRow, ...] | None
    """None if the node keeps no logs."""
    replicas: tuple[ReplicaRow, ...]
    consumers: tuple[ConsumerRow, ...] | None
    daemons: tuple[DaemonRow, ...] | None
    """None if the node runs no daemons."""
    left_out: dict[str, int]
    """Rows that did not fit, by table."""
    forwarded_per_s: float | None = None
    """Packets since the document before; None in the first one."""


def encode(document: Document) -> bytes:
    """Return a document as one line of JSON."""
    return msgspec.json.encode(document, enc_hook=str)  # names of channels are texts of a type of their own
