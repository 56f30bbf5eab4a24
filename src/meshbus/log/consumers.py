"""How far consumers have read the logs: one small file each, beside the logs, so that others can see their lag.

    <root>/_consumers/<file>.json      {"version": 1, "consumer": …, "next": {channel: sequence}, "at_ns": …}

The file is named after the consumer, or after a hash of its name if that is not fit for a file.

A consumer of a node's whole `log_dir` keeps its file there and prefixes channels with `published:` or `received:`.

A consumer writes its file after it has stored what it read, so the position may be behind and is never ahead. A file
that cannot be parsed, or that a newer meshbus wrote, is left out: the lag of its consumer is not known. The place from which a
consumer goes on is in its own checkpoint, not here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from hashlib import blake2s
from pathlib import Path

import msgspec

from meshbus.errors import UNDECODABLE
from meshbus.formats import Format

CONSUMERS = "_consumers"
_FILE_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,100}", re.ASCII)

ON_DISK = (
    Format(
        name="position of a consumer",
        where="`log_dir/_consumers/*.json`",
        what="how far consumers such as pipelines have read, for `meshbus log ls` and metrics",
        version=1,
        mark='`"version"`; 1 if it is missing',
        refused="nothing: the lag of that consumer is not shown",
    ),
)


class Consumer(msgspec.Struct, frozen=True):
    """A consumer of logs and its position."""

    consumer: str
    next: dict[str, int]
    """The next sequence that it reads, by channel."""
    at_ns: int
    """When it wrote this."""
    version: int = 1
    """Of the file."""


def publish_consumer(root: Path, name: str, next_seqs: Mapping[str, int], now_ns: int) -> None:
    """Write how far a consumer has read; a failure to write is ignored."""
    place = root / CONSUMERS / f"{_stem(name)}.json"
    # Unique for each process: two runs of one consumer must not write the same temporary file.
    aside = place.with_name(f"_{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(exist_ok=True)
        aside.write_bytes(msgspec.json.encode(Consumer(name, dict(next_seqs), now_ns, ON_DISK[0].version)))
        aside.replace(place)
    except OSError:
        return  # a consumer may have read access only, and its lag is then not shown


def _stem(name: str) -> str:
    return name if _FILE_NAME.fullmatch(name) else blake2s(name.encode(), digest_size=8).hexdigest()


def list_consumers(root: Path) -> list[Consumer]:
    """Return the consumers of the logs below a folder; their files are in it or, for a node's `log_dir`, in its parent."""
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
    # Temporary files start with `_` and are left out.
    for path in sorted((root / CONSUMERS).glob("[!_]*.json")):
        try:
            consumer = msgspec.json.decode(path.read_bytes(), type=Consumer)
        except (OSError, *UNDECODABLE):
            continue
        if ON_DISK[0].problem(consumer.version) is None:
            found.append(consumer)
    return found


def lags(consumers: list[Consumer], channel: str, end: int) -> dict[str, int]:
    """Return for each consumer of a channel how many events it has not read; `end` is the channel's next sequence."""
    return {
        consumer.consumer: max(end - consumer.next[channel], 0) for consumer in consumers if channel in consumer.next
    }
