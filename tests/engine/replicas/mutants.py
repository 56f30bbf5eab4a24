"""Deliberate bugs in the core of replication, one at a time. The checker has to find each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from meshbus.engine.replicas import campaign, leading
from meshbus.engine.replicas.campaign import Campaign
from meshbus.engine.replicas.following import Following
from meshbus.engine.replicas.journal import Journal
from meshbus.engine.replicas.leadership import Leadership
from meshbus.engine.replicas.leading import Leading
from meshbus.engine.replicas.records import ReadReady
from meshbus.wire.messages.leadership import Data, Propose
from tests.engine.replicas.world import World


def _sync_at_once(self: Journal, number: int) -> int:
    """Everything counts as durable as soon as it is written."""
    written = _WRITTEN(self, number)
    self.durable(number)
    return written


_WRITTEN = Journal._written


def _follow_anyone(self: Leadership, sender: int, epoch: int, now: float, out: Any) -> bool:
    """Messages of old epochs count."""
    if epoch > self.epoch:
        self._enter(epoch, sender, now, out)
    if self.lead is not None:
        return False
    self.leader, self._heard_at = sender, now
    self._postpone(now)
    return True


def _answer_at_once(self: Leading, token: int, now: float, out: Any) -> None:
    """Reads are answered without asking anyone."""
    out.notices.append(ReadReady(token, self.committed))


def _alone(config: Any, value_of: Callable[[Any], float]) -> float:
    """One member is enough."""
    return max(value_of(member) for member in config.members)


def _own_log(self: Campaign, config: Any, own: int) -> tuple[int, tuple[int, int]]:
    """A new leader does not copy what others have more."""
    return own, (0, 0)


def _take_anything(self: Following, data: Data, out: Any) -> int | None:
    """The event before a message is not compared."""
    same = data.__class__(**{
        name: getattr(data, name) for name in data.__struct_fields__ if name != "prev_epoch"
    }, prev_epoch=self._journal.runs.epoch_at(data.first_seq - 1))  # fmt: skip
    return _ACCEPT(self, same, out)


_ACCEPT = Following.accept


def _promise_early(self: Leadership, propose_epoch: int, sender: int, now: float, out: Any) -> None:
    """A promise is sent before it is on disk."""
    _ENTER(self, propose_epoch, sender, now, out)
    self.seat.send(sender, self._own_promise(propose_epoch, trial=False), out)


_ENTER = Leadership._enter


def _promise_twice(self: Leadership, sender: int, propose: Propose, now: float, out: Any) -> None:
    """An epoch is promised to whoever asks."""
    if propose.trial or propose.epoch != self.epoch or self.lead is not None or self._campaign is not None:
        _ON_PROPOSE(self, sender, propose, now, out)
    else:
        self.seat.send(sender, self._own_promise(propose.epoch, trial=False), out)


_ON_PROPOSE = Leadership._on_propose


def _lead_on(self: Leadership, epoch: int, leader: int, now: float, out: Any) -> None:
    """A leader that promised a later epoch goes on to lead its own."""
    if self.lead is None:
        _ENTER(self, epoch, leader, now, out)
    else:
        self.seat.persist(out, promised=epoch, leader=leader)


def _promise_on(self: Leadership, number: int, now: float) -> Any:
    out = _DURABLE(self, number, now)
    if self.lead is not None and self.epoch > self.lead.epoch:
        self._promise(out)
    return out


_DURABLE = Leadership.durable


def _any_memory(self: Leading, member: Any) -> Any:
    """A member that lost its disk still counts."""
    return self._progress.get(member.node)


def _any_memory_promises(config: Any, present: Any) -> bool:
    """The promises of a member that lost its disk still count."""
    nodes = {member.node for member in present}
    return 2 * sum(member.node in nodes for member in config.members) > len(config.members)


def _count_uncompared(self: Leading, member: Any) -> int:
    """The start of the epoch on a member's disk is enough, whether or not its log was compared up to there."""
    start, self._start = self._start, 0
    try:
        return _STORED_BY(self, member)
    finally:
        self._start = start


_STORED_BY = Leading._stored_by


def _count_old(self: Leading, member: Any) -> int:
    """Events of old epochs are committed by counting copies of them."""
    journal = self._seat.journal
    if member == self._seat.member:
        return journal.synced.tail
    progress = self._progress_of(member)
    return progress.match if progress is not None else -1


PATCHES: dict[str, tuple[tuple[object, str, object], ...]] = {
    "acknowledges before the disk has it": ((Journal, "_written", _sync_at_once),),
    "follows leaders of old epochs": ((Leadership, "_follows", _follow_anyone),),
    "promises before the disk has it": ((Leadership, "_enter", _promise_early),),
    "promises an epoch to two candidates": ((Leadership, "_on_propose", _promise_twice),),
    "leads on after it promised a later epoch": (
        (Leadership, "_enter", _lead_on),
        (Leadership, "durable", _promise_on),
    ),
    "commits with one copy": ((leading, "majority_value", _alone),),
    "leads without copying the best log": ((Campaign, "best", _own_log),),
    "does not compare the event before": ((Following, "accept", _take_anything),),
    "answers reads without a majority": ((Leading, "read", _answer_at_once),),
    "counts a member that lost its disk": (
        (Leading, "_progress_of", _any_memory),
        (campaign, "is_majority", _any_memory_promises),
    ),
    "counts a member with damaged events": ((World, "heeds_damage", False),),
    "commits old events by counting copies": ((Leading, "_stored_by", _count_old),),
    "counts a member whose log it has not compared": ((Leading, "_stored_by", _count_uncompared),),
}


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Run with one deliberate bug."""
    patches = [mock.patch.object(owner, attribute, value) for owner, attribute, value in PATCHES[name]]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
