"""How far those who follow logs have read: one small file each, beside the logs, for whoever wants to see lag.

    <root>/_consumers/<name>.json      {"consumer": …, "next": {channel: sequence}, "at_ns": …}

Who follows the `log_dir` of a node puts `published:` or `received:` before a channel, and its file there.

A consumer writes its file when it has made what it read safe, so the number may be behind and is never ahead. A file that
makes no sense is no consumer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

CONSUMERS = "_consumers"


class Consumer(msgspec.Struct, frozen=True):
    """One that follows logs."""

    consumer: str
    next: dict[str, int]
    """The sequence that it reads next, by channel."""
    at_ns: int
    """When it said so."""


def publish_consumer(root: Path, name: str, next_seqs: Mapping[str, int], now_ns: int) -> None:
    """Say how far a consumer has read; where that cannot be written, nobody sees it, and nothing else happens."""
    place = root / CONSUMERS / f"{name}.json"
    aside = place.with_name(f"_{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(exist_ok=True)
        aside.write_bytes(msgspec.json.encode(Consumer(name, dict(next_seqs), now_ns)))
        aside.replace(place)
    except OSError:
        return  # who follows needs no more than the right to read


def list_consumers(root: Path) -> list[Consumer]:
    """Give those who have said how far they are in the logs below a folder, or below the folder above it."""
    root = root.absolute()
    above = [
        msgspec.structs.replace(consumer, next=_below(consumer.next, f"{root.name}:"))
        for consumer in _read(root.parent)
    ]
    return _read(root) + [consumer for consumer in above if consumer.next]


def _below(next_seqs: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): seq for name, seq in next_seqs.items() if name.startswith(prefix)}


def _read(root: Path) -> list[Consumer]:
    found = []
    for path in sorted((root / CONSUMERS).glob("[!_]*.json")):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Consumer))
        except (OSError, msgspec.MsgspecError):
            continue
    return found


def lags(consumers: list[Consumer], channel: str, end: int) -> dict[str, int]:
    """Say how many events of a channel each of its consumers has not read; `end` is the channel's next sequence."""
    return {
        consumer.consumer: max(end - consumer.next[channel], 0) for consumer in consumers if channel in consumer.next
    }
