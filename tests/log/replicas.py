"""Replicas for tests: one channel, a simulated clock, no background thread; and what a replica must hold after its writes.

The truth is `Content` of tests/engine/replicas/memorydisk.py, which the replication core is tested with.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from meshbus.engine.replicas.records import AppendEvents, PersistBallot, SetAside, SkipTo, Write
from meshbus.log.durability import LogConfig
from meshbus.log.files import Files
from meshbus.log.replicated import ReplicatedLog
from tests.engine.replicas.memorydisk import Content
from tests.log.making import CHANNEL, Clock, kill

LOG_ID = bytes(range(16))


def open_replica(
    root: Path, *, files: Files | None = None, clock: Clock | None = None, **settings: Any
) -> ReplicatedLog:
    """Open the only replica of a test."""
    clock = clock or Clock()
    return ReplicatedLog.open(
        root,
        CHANNEL,
        LOG_ID,
        LogConfig(**settings),
        files=files,
        clock=clock,
        monotonic=clock.monotonic,
        background=False,
    )


def kill_replica(log: ReplicatedLog) -> None:
    """Release a replica as the end of a process does: nothing is synced."""
    kill(log.committed)
    log._writer._marks.close()


def carry_out(log: ReplicatedLog, write: Write) -> None:
    """Let a replica do what the core asks for; a ballot is any bytes here."""
    match write:
        case PersistBallot(ballot=ballot):
            log.persist(ballot)  # type: ignore[arg-type]
        case AppendEvents(epoch=epoch, first_seq=seq, payloads=payloads):
            log.append(epoch, seq, list(payloads))
        case SetAside(first_seq=seq):
            log.set_aside(seq)
        case SkipTo(first_seq=seq, epoch=epoch):
            log.skip_to(seq, epoch)


class Author:
    """Thinks of writes that a core might ask for, and keeps what must be there after each of them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.content = Content()
        self.epoch = 0
        self.committed = 0
        self.number = 0
        self.fixed: dict[int, bytes] = {}
        """The payloads of committed events."""

    def next_write(self) -> Write:
        rng, tail = self.rng, self.content.tail
        self.number += 1
        match rng.choices(("append", "start", "ballot", "aside", "skip"), (60, 8, 15, 15, 2))[0]:
            case "ballot":
                return PersistBallot(self.number, rng.randbytes(rng.choice((0, 9, 300))))  # type: ignore[arg-type]
            case "aside" if tail > self.committed:
                return SetAside(self.number, rng.randint(max(self.committed, self.content.first), tail))
            case "skip" if self.epoch:
                return SkipTo(self.number, tail + rng.randint(1, 50), self.epoch)
            case "start":
                self.epoch += 1
                return AppendEvents(self.number, self.epoch, tail, ())
            case _:
                self.epoch += not self.epoch or rng.random() < 0.2
                count = rng.choice((1, 1, 2, 7, 40))
                events = tuple(b"%d.%d.%d" % (self.number, place, self.epoch) for place in range(count))
                return AppendEvents(self.number, self.epoch, tail, events)

    def apply(self, write: Write) -> None:
        self.content.apply(write)

    def commit(self) -> int:
        """Decide that some more events are committed."""
        content = self.content
        tail = self.rng.randint(max(self.committed, content.first), content.tail)
        for seq in range(max(self.committed, content.first), tail):
            self.fixed[seq] = content.payload_at(seq)
        self.committed = max(self.committed, tail)
        return tail


def epochs_of(tail: int, first: int, runs: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Return the epoch of the event before the first, of each event, and of the end of a log."""

    def at(seq: int) -> int:
        return max((epoch for epoch, start in runs if start <= seq), default=0)

    return (*(at(seq) for seq in range(first - 1, tail)), runs[-1][0] if runs else 0)


def found_in(log: ReplicatedLog, first: int) -> dict[str, Any]:
    """Return what a replica holds from a sequence on, in a form that can be compared with `expected_of`."""
    found = log.recovered
    aside = [
        (event.seq, one.epoch_at(event.seq), event.payload)
        for one in sorted(log.asides(), key=lambda one: int(one.path.stem.partition("+")[2]))
        for event in log.read_aside(one)
    ]
    return {
        "ballot": found.ballot,
        "tail": found.tail,
        "epochs": epochs_of(found.tail, first, found.runs),
        "events": log.read(first, 1 << 20, 1 << 30) if found.tail > first else (),
        "gaps": log.gaps,
        "aside": aside,
    }


def expected_of(content: Content, first: int) -> dict[str, Any]:
    """Return the same of the truth."""
    found = content.recovered()
    return {
        "ballot": found.ballot,
        "tail": found.tail,
        "epochs": epochs_of(found.tail, first, found.runs),
        "events": tuple(payload for _, payload in content.events[first - content.first :]),
        "gaps": tuple(content.gaps),
        "aside": content.aside,
    }
