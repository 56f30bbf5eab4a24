"""Count and report what a bridge refused to do for an application.

ZeroMQ has no way to answer a PUB or SUB socket. A refusal is therefore written to the log, passed to the `on_refusal`
callback of the bridge, and published at its `notices` address. These reports are rate limited per topic and reason; the
counters count every refusal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import StrEnum

import msgspec

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.counters import Counters
from meshbus.errors import AuthError, ChannelError, MeshError
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.reason import Reason

TELL_EVERY_S = 10.0
"""At most one report per topic and reason in this time, so that a client cannot fill a disk with logs."""
MAX_REMEMBERED = 4096
"""Topics and reasons whose last report is remembered; above this the oldest is removed."""
MAX_TOLD_PER_S = 100
"""At most this many reports for all topics together: a client can invent new topics without limit."""

_REFUSE = "refuse_"
"""Counters are refuse_publish and refuse_subscribe."""

_log = logging.getLogger("meshbus.edge.refusals")


BOUNDS = (
    Bound(
        name="told_refusals",
        what="refusals that an application was told of",
        by=By.OUTSIDER,
        per_node=MAX_REMEMBERED,
        full="the oldest is told again",
        counter=forgotten("told_refusals"),
    ),
)


class Direction(StrEnum):
    """What an application tried to do."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


class Refusal(msgspec.Struct, frozen=True):
    """A message or subscription of an application that was refused."""

    direction: Direction
    topic: str
    reason: str
    """The counted reason: one of docs/reasons.md, or one of the mesh: `denied`, `rate_limited`, `unauthorized`, …"""
    problem: str
    """Explanation for people."""
    count: int
    """Refusals for this reason so far, for all topics."""


class Refusals:
    """Counts refusals and reports them."""

    def __init__(self, counters: Counters, tell: Callable[[Refusal], None]) -> None:
        self._counters = counters
        self._tell = tell
        self._told: BoundedMap[tuple[Direction, bytes, str], float] = BoundedMap(
            MAX_REMEMBERED, counters.forgetting("told_refusals")
        )
        self._second = 0.0
        self._told_in_second = 0

    def add(self, topic: bytes, reason: Reason, problem: str, count: int = 1) -> None:
        """Count and report what the bridge itself refused: one of the REFUSE_PUBLISH or REFUSE_SUBSCRIBE reasons."""
        self._counters.count(reason, count)
        self._report(Direction(reason.what.removeprefix(_REFUSE)), topic, reason.why, problem)

    def pass_on(self, direction: Direction, topic: bytes, word: str, problem: str, count: int = 1) -> None:
        """Count and report what the mesh refused, under the reason that the mesh gave."""
        self._counters.add(_REFUSE + direction, word, count)
        self._report(direction, topic, word, problem)

    def add_error(self, direction: Direction, topic: bytes, error: MeshError, count: int = 1) -> None:
        """Count and report that the node refused something."""
        self.pass_on(direction, topic, reason_of(error), str(error), count)

    def _report(self, direction: Direction, topic: bytes, word: str, problem: str) -> None:
        if not self._is_due((direction, topic, word)):
            return
        total = self._counters.get(_REFUSE + direction, word)
        refusal = Refusal(direction, topic.decode("utf-8", "backslashreplace"), word, problem, total)
        _log.warning("refused to %s %r: %s: %s (%d so far)", direction, refusal.topic, word, problem, total)
        self._tell(refusal)

    def _is_due(self, what: tuple[Direction, bytes, str]) -> bool:
        now, last = time.monotonic(), self._told.get(what)
        if last is not None and now < last + TELL_EVERY_S:
            return False
        if now >= self._second + 1.0:
            self._second, self._told_in_second = now, 0
        # The limit for all topics is checked after the one per topic, so that repeated refusals do not use it up.
        self._told_in_second += 1
        if self._told_in_second > MAX_TOLD_PER_S:
            self._counters.count(Reason.TELLING)
            return False
        self._told.put(what, now)
        return True


def reason_of(error: MeshError) -> str:
    """Return the short reason of an error: the peer's reason, the fault, or the error's code."""
    match error:
        case ChannelError():
            return error.reason or str(error.fault)
        case AuthError():
            return str(error.fault)
        case _:
            return error.code
