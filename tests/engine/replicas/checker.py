"""Checker of a replicated log: compares what was promised to clients with what is on disks. Knows nothing of epochs'
protocol; it is given events of the history in the order of real time, and raises `Violation`.

The committed prefix is linearizable if it is one list to which appends only add, and every answer fits a moment between
its question and itself. The numbers of events are the order, so nothing has to be searched for: an append that was asked
for after an answer comes behind everything in that answer, and a read returns at least that much. An append takes effect
once, or, if it was refused, never; one without an outcome takes effect once or never.
"""

from __future__ import annotations

from dataclasses import dataclass, field


class Violation(AssertionError):
    """A promise to a client, or to another member, was broken."""


@dataclass
class Checker:
    """The history of one replicated channel."""

    committed: dict[int, bytes] = field(default_factory=dict)
    """What some member called committed, by sequence."""
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    """What clients were told is on the disks of a majority."""
    local: dict[int, list[bytes]] = field(default_factory=dict)
    """What clients were told is on the leader's disk."""
    leaders: dict[int, int] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    """What clients were told is not stored."""
    longest_ack: int = 0
    longest_read: int = 0
    reads: int = 0

    def commit(self, seq: int, payload: bytes) -> None:
        """A member says that an event is committed, and this is what its log has there."""
        known = self.committed.setdefault(seq, payload)
        if known != payload:
            raise Violation(f"two committed events have number {seq}: {known!r} and {payload!r}")

    def begin(self) -> int:
        """A client asks for something: whatever was answered before comes before it."""
        return max(self.longest_ack, self.longest_read)

    def acknowledge(self, first: int, payloads: tuple[bytes, ...], begun: int = 0) -> None:
        """A client was told that its events are on the disks of a majority."""
        if first < begun:
            raise Violation(f"an append got number {first}, although {begun} was answered before it began")
        for seq, payload in enumerate(payloads, first):
            self.commit(seq, payload)
            if self.acknowledged.setdefault(seq, payload) != payload:
                raise Violation(f"number {seq} was acknowledged for two events")
        self.longest_ack = max(self.longest_ack, first + len(payloads))

    def acknowledge_local(self, first: int, payloads: tuple[bytes, ...]) -> None:
        """A client was told that its events are on the leader's disk."""
        for seq, payload in enumerate(payloads, first):
            self.local.setdefault(seq, []).append(payload)

    def refuse(self, payloads: tuple[bytes, ...]) -> None:
        """A client was told that its events are not stored."""
        self.refused |= set(payloads)

    def lead(self, epoch: int, node: int) -> None:
        """A node leads an epoch."""
        if self.leaders.setdefault(epoch, node) != node:
            raise Violation(f"nodes {self.leaders[epoch]} and {node} both lead epoch {epoch}")

    def end_read(self, begun: int, tail: int) -> None:
        """A client that asked how far it may read has its answer."""
        if tail < begun:
            raise Violation(f"a read ends at {tail}, although {begun} was answered before it began")
        self.longest_read = max(self.longest_read, tail)
        self.reads += 1

    def final(self, logs: dict[int, dict[int, bytes]], aside: set[bytes], wiped: bool) -> None:
        """All members are connected and idle: their logs are the same, and have all that was acknowledged."""
        logs = dict(logs)
        whole: dict[int, bytes] = {}
        for log in logs.values():
            whole |= log
        for node, log in logs.items():
            wrong = [seq for seq, payload in log.items() if whole[seq] != payload]
            if wrong:
                raise Violation(f"the log of node {node} differs at {wrong[0]}")
            missing = [seq for seq in whole if seq >= min(log, default=0) and seq not in log]
            if missing:
                raise Violation(f"the log of node {node} lacks {missing[0]} and {len(missing) - 1} more")
        self._check_once(whole)
        first, end = min(whole, default=0), max(whole, default=-1) + 1
        if self.longest_read > end:
            raise Violation(f"a read ended at {self.longest_read}, and the log ends at {end}")
        for seq, payload in self.committed.items():
            if seq >= first and whole.get(seq) != payload:
                raise Violation(f"committed event {seq} is lost: {payload!r} became {whole.get(seq)!r}")
        for seq, payloads in self.local.items():
            kept = {whole.get(seq)} | aside
            lost = [payload for payload in payloads if payload not in kept]
            if lost and seq >= first and not wiped:
                raise Violation(f"event {seq} was on a leader's disk and is neither in the log nor set aside: {lost}")

    def _check_once(self, whole: dict[int, bytes]) -> None:
        """Every event is there once, and none that was refused."""
        places: dict[bytes, int] = {}
        for seq, payload in whole.items():
            if places.setdefault(payload, seq) != seq:
                raise Violation(f"an event is there twice, as {places[payload]} and {seq}: {payload!r}")
        stored = sorted(places[payload] for payload in self.refused & places.keys())
        if stored:
            raise Violation(f"event {stored[0]} was refused and is in the log")
