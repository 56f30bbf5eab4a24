"""What really happened, read from the fleet's own files by plain Python, without anything of the pipeline."""

from collections import Counter
from typing import Any, NamedTuple

from meshbus.demo.roles import FRAMES, GATEWAY, FleetFiles
from meshbus.log.packets.reader import PacketReader
from meshbus.log.reader import LogReader, list_channels
from meshbus.names.subnet import SubnetId
from meshbus.policy.fate import Fate
from meshbus.policy.reason import RECORDED

Judged = Counter[tuple[str | None, str, str, str]]
"""Publications by channel, source and destination subnet, and `forward` or why not."""


class Row(NamedTuple):
    """One logged event."""

    publisher: str
    payload: bytes
    number: int | None
    """The publisher's, where it is known."""


def logged(files: FleetFiles, name: str, kind: str) -> dict[str, list[Row]]:
    """Return what a member logged: by channel, in the order of the log."""
    root = files.log_dir(name) / kind
    origins = {identity.origin_hash: member for member, identity in files.identities.items()}
    return {
        entry.channel: [
            Row(origins.get(event.origin, "a visitor"), bytes(event.payload), event.pub_seq)
            for event in LogReader(root, entry.channel).snapshot().events()
        ]
        for entry in list_channels(root)
    }


def judged(files: FleetFiles) -> Judged:
    """Return what the gateway decided about publications."""
    rows = _recorded(files)
    return Counter(
        (
            row["channel"],
            _subnet(row["src"]),
            _subnet(row["dst"]),
            RECORDED[row["reason"]].word if row["reason"] else "forward",
        )
        for row in rows
        # A part of a large event counts no event.
        if row["verdict"] != Fate.DELIVERED
        and row["src"] is not None
        and (row["event_count"] or row["channel"] == FRAMES)
    )


def dropped(files: FleetFiles) -> Counter[tuple[str, str | None, str]]:
    """Return the packets that the gateway dropped, by publisher, channel and reason."""
    origins = {identity.origin_hash: member for member, identity in files.identities.items()}
    return Counter(
        # Control packets have no origin; those of a member that has left may be dropped.
        (origins.get(row["origin"] & 0xFFFF_FFFF_FFFF_FFFF, "unknown"), row["channel"], RECORDED[row["reason"]].word)
        for row in _recorded(files)
        if row["verdict"] == Fate.DROPPED
    )


def _recorded(files: FleetFiles) -> list[dict[str, Any]]:
    snapshot = PacketReader(files.log_dir(GATEWAY), files.identities[GATEWAY].node_id).snapshot()
    return [row for batch in snapshot.batches() for row in batch.to_pylist()]


def _subnet(stored: int) -> str:
    return str(SubnetId(stored & 0xFFFFFFFF))
