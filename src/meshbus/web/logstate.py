"""The state of a node's logs and of their consumers, read when somebody asks; the consumers are files beside the logs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from meshbus.log.consumers import lags, list_consumers
from meshbus.log.status import LogStats
from meshbus.node.node import Node


class LogState(msgspec.Struct, frozen=True):
    """One open log of a node."""

    kind: str
    """`published` or `received`."""
    channel: str
    first_seq: int
    next_seq: int
    durable_seq: int
    stats: LogStats


class ConsumerLag(msgspec.Struct, frozen=True):
    """How far one consumer is behind one log."""

    consumer: str
    kind: str
    channel: str
    events: int
    at_ns: int
    """When the consumer wrote how far it is (Unix nanoseconds)."""


def open_logs(node: Node) -> list[LogState]:
    """Return the open logs of a node; on its loop, without reading a file."""
    if node.config.log_dir is None:
        return []
    return [
        LogState(kind, str(channel), file.first_seq, file.next_seq, file.durable_seq, file.stats)
        for kind, channel, file in node.logs.open_files()
    ]


def consumer_lags(root: Path, logs: Iterable[LogState]) -> Iterator[ConsumerLag]:
    """Yield the lag of every consumer of these logs; blocks."""
    states = list(logs)
    for kind in sorted({log.kind for log in states}):
        consumers = list_consumers(root / kind)
        written = {consumer.consumer: consumer.at_ns for consumer in consumers}
        for log in states:
            if log.kind == kind:
                for consumer, events in lags(consumers, log.channel, log.next_seq).items():
                    yield ConsumerLag(consumer, kind, log.channel, events, written[consumer])


async def read_logs(node: Node) -> tuple[list[LogState], list[ConsumerLag]]:
    """Return the logs of a node and the lag of their consumers; the files of consumers are read in a thread."""
    logs, root = open_logs(node), node.config.log_dir
    return logs, [] if root is None else await asyncio.to_thread(lambda: list(consumer_lags(root, logs)))
