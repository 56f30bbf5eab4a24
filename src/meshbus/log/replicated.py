"""TEMPORARY in-memory stand-in."""
from __future__ import annotations
from collections.abc import Sequence
from typing import Any, NamedTuple
import time

class RecoveredLog(NamedTuple):
    ballot: bytes | None
    tail: int
    first_retained: int
    runs: tuple[tuple[int, int], ...]
    damaged: bool

_DISKS: dict[str, Any] = {}

class ReplicatedLog:
    @classmethod
    def open(cls, root: Any, channel: str, config: Any = None, *, recorder: int = 0) -> "ReplicatedLog":
        return _DISKS.setdefault(f"{root}/{channel}", cls())
    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.ballot: bytes | None = None
        self.runs: list[tuple[int, int]] = []
        self.committed = 0
        self.first_retained = 0
        self.syncs = 0
    @property
    def tail(self) -> int:
        return len(self.events)
    @property
    def recovered(self) -> RecoveredLog:
        return RecoveredLog(self.ballot, self.tail, 0, tuple(self.runs), False)
    def append(self, epoch: int, first_seq: int, payloads: Sequence[bytes]) -> None:
        assert first_seq == len(self.events)
        if not self.runs or self.runs[-1][0] != epoch:
            self.runs.append((epoch, first_seq))
        self.events += payloads
    def set_aside(self, first_seq: int) -> None:
        del self.events[first_seq:]
        self.runs = [r for r in self.runs if r[1] <= first_seq]
    def skip_to(self, first_seq: int, epoch: int) -> None:
        raise NotImplementedError
    def persist(self, ballot: bytes) -> None:
        self.ballot = ballot
    def sync(self) -> None:
        self.syncs += 1
        time.sleep(0.002)
    def commit_to(self, tail: int) -> None:
        self.committed = tail
    def read(self, first_seq: int, max_events: int, max_bytes: int) -> list[bytes]:
        out = []
        for e in self.events[first_seq:first_seq + max_events]:
            max_bytes -= len(e)
            if max_bytes < 0 and out:
                break
            out.append(e)
        return out
    def close(self) -> None: ...
