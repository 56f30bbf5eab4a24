"""The balance of the demo: for each channel and subscriber, what was attempted = what was delivered + what was dropped.

Four sources must agree, and none of them knows the others: the counts of the publishing and receiving programs, the
counters of the gateway, its record of packets, and the tables that Spark made. A difference is a defect of meshbus or of
the demo, and `check` says which numbers differ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from meshbus.demo.roles import ANOMALIES, CONTROL, GATEWAY, LOSSY, ORDERS, ROLES, STATE, FleetFiles
from meshbus.demo.visitors import LEGACY
from meshbus.errors import MeshError
from meshbus.log.packets.reader import PacketReader
from meshbus.log.reader import LogReader, list_channels
from meshbus.names.channel import ChannelName
from meshbus.policy.fate import Fate
from meshbus.policy.reason import RECORDED

if TYPE_CHECKING:
    from meshbus.demo.fleet import Outcome

_MASK = 0xFFFF_FFFF_FFFF_FFFF
LOST = "lost on the link"
_LIMITED = "rate_limited"
_FOR_THIS_NODE = 32
"""Codes of reasons from here on are of packets for the recorder itself, which it does not record in every case."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One publisher, channel and subscriber."""

    publisher: str
    channel: str
    subscriber: str
    attempted: int
    delivered: int
    dropped: dict[str, int]
    """Events by reason."""
    reliable: bool = False
    """Whether dropped packets are sent again: then everything must be delivered."""

    @property
    def holds(self) -> bool:
        """Whether nothing is unaccounted for."""
        return self.attempted == self.delivered + sum(self.dropped.values())


class Recorded(msgspec.Struct, frozen=True):
    """What the gateway recorded."""

    packets: dict[str, int]
    """Dropped packets by reason."""
    events: dict[tuple[int, int, int], dict[str, int]]
    """Dropped events by reason, by origin hash, node id of the receiver and wire hash of the channel."""


def read_record(files: FleetFiles) -> Recorded:
    """Read the record of the gateway."""
    packets: Counter[str] = Counter()
    events: dict[tuple[int, int, int], Counter[str]] = defaultdict(Counter)
    reader = PacketReader(files.log_dir(GATEWAY), files.identities[GATEWAY].node_id)
    for batch in reader.snapshot().batches():
        for row in batch.to_pylist():
            if row["verdict"] != Fate.DROPPED:
                continue
            word = RECORDED[row["reason"]].word
            packets[word] += row["sampling_rate"]
            if row["event_count"] and row["route_dst"] is not None:
                events[row["origin"] & _MASK, row["route_dst"] & _MASK, row["chash"]][word] += row["event_count"]
    return Recorded(dict(packets), {key: dict(counts) for key, counts in events.items()})


def lines(files: FleetFiles, outcome: Outcome, record: Recorded) -> list[Line]:
    """Return the balance of every subscription that was granted."""
    refused = {(who, refusal.publisher, refusal.channel) for who, refusal in outcome.refused}
    wished = [
        _line(files, outcome, record, role.name, publisher, channel)
        for role in ROLES
        for publisher, channel in role.wishes
        if (role.name, f"{files.identities[publisher].node_id:016x}", channel) not in refused
    ]
    return [*wished, *_visits(outcome)]


def _line(files: FleetFiles, outcome: Outcome, record: Recorded, subscriber: str, publisher: str, channel: str) -> Line:
    limited = outcome.counts[publisher].limited.get(channel, 0)
    dropped = {_LIMITED: limited} if limited else {}
    reliable = is_reliable(publisher, channel)
    if not reliable:
        identity, receiver = files.identities[publisher], files.identities[subscriber].node_id
        dropped |= record.events.get((identity.origin_hash, receiver, ChannelName(channel).wire_hash), {})
        if publisher == LOSSY and (lost := outcome.lost[receiver, ChannelName(channel).wire_hash]):
            dropped[LOST] = lost
    return Line(
        publisher=publisher,
        channel=channel,
        subscriber=subscriber,
        attempted=_published(files, outcome, publisher, channel) + limited,
        delivered=_received(files, outcome, subscriber, publisher, channel),
        dropped=dropped,
        reliable=reliable,
    )


def is_reliable(publisher: str, channel: str) -> bool:
    """Return whether a publisher repeats what is lost of a channel."""
    flows = next(role for role in ROLES if role.name == publisher).flows
    return channel == ANOMALIES or any(flow.reliable for flow in flows if flow.channel == channel)


def _published(files: FleetFiles, outcome: Outcome, publisher: str, channel: str) -> int:
    if channel == ANOMALIES:  # what a daemon publishes is in the log of its node
        root = files.log_dir(publisher) / "published"
        return sum(len(_events(root, channel)) for entry in list_channels(root) if entry.channel == channel)
    if (publisher, channel) == (CONTROL, ORDERS):  # what applications publish through the bridge
        return sum(outcome.counts[CONTROL].edge.get("publish", {}).values())
    return outcome.counts[publisher].published.get(channel, 0)


def _received(files: FleetFiles, outcome: Outcome, subscriber: str, publisher: str, channel: str) -> int:
    whose = f"{files.identities[publisher].node_id:016x}"
    return outcome.counts[subscriber].received.get(whose, {}).get(channel, 0)


def _visits(outcome: Outcome) -> Iterator[Line]:
    """Yield the balance of the programs that are not meshbus."""
    visit, host = outcome.visit, outcome.counts[CONTROL]
    if visit.legacy_id is not None and visit.states is not None:
        state = host.received.get(f"{visit.legacy_id:016x}", {}).get(STATE, 0)
        yield Line(
            publisher=LEGACY, channel=STATE, subscriber=CONTROL, attempted=visit.states, delivered=state, dropped={}
        )
    published = sum(host.edge.get("publish", {}).values())
    if visit.orders is not None and visit.forbidden is not None:
        yield Line(
            publisher="dispatcher (ZeroMQ)", channel=ORDERS, subscriber=f"bridge of {CONTROL}",
            attempted=visit.orders + visit.forbidden, delivered=published, dropped=host.edge.get("refuse_publish", {}),
        )  # fmt: skip
    if visit.orders_at_legacy is not None:
        yield Line(
            publisher=CONTROL, channel=ORDERS, subscriber=LEGACY, attempted=published, delivered=visit.orders_at_legacy,
            dropped={},
        )  # fmt: skip
    if visit.shown is not None:
        yield Line(
            publisher=f"bridge of {CONTROL}", channel="telemetry/", subscriber="dashboard (ZeroMQ)",
            attempted=host.edge.get("deliver", {}).get("taken_from_mesh", 0), delivered=visit.shown,
            dropped=host.edge.get("xpub_dropped", {}),
        )  # fmt: skip


# ── what must agree ─────────────────────────────────────────────────────────────────────────


def differences(files: FleetFiles, outcome: Outcome, record: Recorded, found: Iterable[Line]) -> list[str]:
    """Return a sentence for each number that does not agree with another, without the tables."""
    said = [_unbalanced(line) for line in found if not line.holds]
    counters = outcome.counts[GATEWAY].counters
    for reason in (reason for code, reason in RECORDED.items() if code < _FOR_THIS_NODE):
        counted = counters.get(reason.what, {}).get(reason.why, 0)
        if counted != record.packets.get(reason.word, 0):
            said.append(
                f"{GATEWAY} counted {counted} packets as {reason.word}, and recorded {record.packets.get(reason.word, 0)}"
            )
    for role in ROLES:
        root = files.log_dir(role.name) / "received"
        if role.wishes and root.is_dir():
            said += _compare(f"the logs of {role.name}", _in_logs(root), _counted(outcome.counts[role.name].received))
    return said


def table_differences(
    files: FleetFiles, outcome: Outcome, record: Recorded, gold: Mapping[str, Iterable[Mapping[str, Any]]]
) -> list[str]:
    """Return a sentence for each number in the gold tables that does not agree with what was counted or recorded."""
    denied: Counter[str] = Counter()
    for row in gold["gold.denials"]:
        denied[row["reason"]] += row["packets"]
    said = _compare("gold.denials", denied, Counter(record.packets))
    for role in ROLES:
        if not (files.log_dir(role.name) / "received").is_dir():
            continue
        rows = [row for row in gold["gold.latency"] if row["recorder"] & _MASK == files.identities[role.name].node_id]
        arrived: Counter[str] = Counter()
        for row in rows:
            arrived[row["channel"]] += row["events"]
        said += _compare(f"gold.latency of {role.name}", arrived, _counted(outcome.counts[role.name].received))
    return said


def check(said: list[str]) -> None:
    """Raise MeshError if something does not agree."""
    if said:
        raise MeshError(f"the balance does not hold: {'; '.join(said)}; this is a bug")


def _unbalanced(line: Line) -> str:
    dropped = ", ".join(f"{count} {reason}" for reason, count in line.dropped.items()) or "0 dropped"
    return (
        f"{line.channel} from {line.publisher} to {line.subscriber}: {line.attempted} attempted, but {line.delivered}"
        f" delivered and {dropped}"
    )


def _compare(where: str, found: Counter[str], expected: Counter[str]) -> list[str]:
    return [
        f"{where}: {found[name]} of {name}, but {expected[name]} were counted"
        for name in sorted(set(found) | set(expected))
        if found[name] != expected[name]
    ]


def _counted(received: Mapping[str, Mapping[str, int]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for channels in received.values():
        sums.update(channels)
    return sums


def _in_logs(root: Path) -> Counter[str]:
    return Counter({entry.channel: len(_events(root, entry.channel)) for entry in list_channels(root)})


def _events(root: Path, channel: str) -> list[Any]:
    return list(LogReader(root, channel).snapshot().events())
