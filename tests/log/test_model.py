"""The log compared with a list, in random sequences of operations."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from meshbus.errors import LogError, LogFault
from meshbus.log.durability import NEVER, Retention, every_n
from meshbus.log.reader import LogReader, read_split
from meshbus.log.tail import Tail
from tests.log.crash import Unsynced
from tests.log.making import CHANNEL, Clock, kill, open_log

PAYLOADS = st.lists(st.binary(max_size=12), max_size=6)


class LogModel(RuleBasedStateMachine):
    """All operations of a user, in any order."""

    @initialize(
        fsync=st.sampled_from([NEVER, every_n(1), every_n(3)]),
        seal_bytes=st.sampled_from([300, 12_000, 1 << 20]),
        limit=st.none() | st.integers(1, 20),
    )
    def begin(self, fsync: Any, seal_bytes: int, limit: int | None) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.limit = limit
        self.settings = {
            "fsync": fsync,
            "seal_bytes": seal_bytes,
            "grace_s": 1.0,
            "retention": Retention(max_events=limit),
        }
        self.events: list[tuple[bytes, int, int | None]] = []
        """Payload, time and publish number of everything that was ever appended."""
        self.first = 0
        self.tails: list[Tail] = []
        self.open()

    def open(self) -> None:
        self.log = open_log(self.root, files=Unsynced(), clock=self.clock, **self.settings)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.root)

    @rule(payload=st.binary(max_size=12), pub_seq=st.none() | st.integers(0, 9))
    def append(self, payload: bytes, pub_seq: int | None) -> None:
        assert self.log.append(payload, pub_seq=pub_seq) == len(self.events)
        self.events.append((payload, self.clock.now, pub_seq))

    @rule(payloads=PAYLOADS, form=st.sampled_from(["list", "arrays", "arrow"]), each=st.booleans())
    def append_batch(self, payloads: list[bytes], form: str, each: bool) -> None:
        edges = np.cumsum([0, *map(len, payloads)])
        given: Any = {
            "list": payloads,
            "arrays": (edges, np.frombuffer(b"".join(payloads), np.uint8)),
            "arrow": pa.array(payloads, pa.binary()),
        }[form]
        times = np.arange(len(payloads)) if each else np.full(len(payloads), self.clock.now)
        seqs = self.log.append_batch(given, ts_ns=times) if each else self.log.append_batch(given)
        assert seqs == range(len(self.events), len(self.events) + len(payloads))
        self.events += [(payload, int(time), seq) for payload, time, seq in zip(payloads, times, seqs, strict=True)]

    @rule(seconds=st.sampled_from([0.5, 2.0, 4_000.0]))
    def wait_and_keep(self, seconds: float) -> None:
        self.clock.forward(seconds)
        self.log.keep()
        assert self.log.stats.upkeep_failures == 0
        self.move_first()

    @rule()
    def seal(self) -> None:
        self.log.seal()

    @rule()
    def compact(self) -> None:
        self.log.compact()

    @rule()
    def expire(self) -> None:
        self.log.expire()
        self.move_first()

    def move_first(self) -> None:
        """Retention removes whole units: never more than the limits require, and nothing returns."""
        assert self.first <= self.log.first_seq <= max(self.first, len(self.events) - (self.limit or 0))
        assert self.limit is not None or self.log.first_seq == 0
        self.first = self.log.first_seq

    @rule(close=st.booleans())
    def reopen(self, close: bool) -> None:
        log_id = self.log.log_id
        if close:
            self.log.close()
        else:
            kill(self.log)
        self.tails.clear()
        self.open()
        assert self.log.report.clean
        assert self.log.log_id == log_id

    @rule()
    def sync(self) -> None:
        self.log.sync()
        assert self.log.durable_seq == len(self.events)

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(self.events) + 2), "start")
        stop = data.draw(st.integers(0, len(self.events) + 2), "stop")
        if start < self.first and stop > start:
            with pytest.raises(LogError) as caught:
                list(self.log.read_range(start, stop))
            assert (caught.value.fault, caught.value.first_available) == (LogFault.RANGE_GONE, self.first)
            return
        expected = self.expected(start, stop)
        assert [(e.seq, e.payload, e.ts_ns, e.pub_seq) for e in self.log.read_range(start, stop)] == expected
        assert self.rows(self.log.read_batches(start, stop)) == expected

    @rule(rows=st.integers(1, 7))
    def read_as_others_do(self, rows: int) -> None:
        snapshot = LogReader(self.root, CHANNEL).snapshot()
        splits = snapshot.splits(rows=rows)
        read = [row for split in splits for row in self.rows(read_split(split))]
        assert read == self.expected(self.first, len(self.events))

    @rule(data=st.data())
    def begin_tail(self, data: st.DataObject) -> None:
        self.tails.append(self.log.tail(data.draw(st.integers(self.first, len(self.events)), "since")))

    @rule(most=st.integers(1, 9))
    def follow(self, most: int) -> None:
        for tail in self.tails:
            at = tail.next_seq
            try:
                events = tail.take(most)
            except LogError as error:
                assert at < self.first, "only what has expired may be refused; what is begun may still be given"
                assert error.first_available == self.first  # noqa: PT017 - it need not be raised
                tail.next_seq = at = self.first
                events = tail.take(most)
            taken = [(e.seq, e.payload, e.ts_ns, e.pub_seq) for e in events]
            assert taken == self.expected(at, at + most)

    @rule()
    def verify(self) -> None:
        assert self.log.verify() == []

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "log"):
            assert (self.log.first_seq, self.log.next_seq) == (self.first, len(self.events))

    def expected(self, start: int, stop: int) -> list[tuple[int, bytes, int, int | None]]:
        return [(seq, *self.events[seq]) for seq in range(start, min(stop, len(self.events)))]

    @staticmethod
    def rows(batches: Any) -> list[tuple[int, bytes, int, int | None]]:
        return [
            (row["seq"], row["payload"], row["ts_ns"], row["pub_seq"]) for batch in batches for row in batch.to_pylist()
        ]


LogModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLogModel = LogModel.TestCase


class LongLives(LogModel):
    """The same, with longer sequences."""


LongLives.TestCase.settings = settings(max_examples=1_000, stateful_step_count=60, deadline=None)
TestLongLives = pytest.mark.soak(LongLives.TestCase)
