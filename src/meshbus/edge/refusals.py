"""What a bridge did not do for an application, and why: counted always, told as often as somebody can read it.

ZeroMQ has no way to answer a PUB or a SUB, so a refusal is told beside it: to the log, to whoever watches the bridge,
and to the applications that listen at its `notices` address. All three hear of the same topic and reason once in a
while; the counters know every single one.
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
from meshbus.policy.reason import Reason

TELL_EVERY_S = 10.0
"""One telling per topic and reason in this time: who publishes all day what is not allowed must not fill a disk."""
MAX_REMEMBERED = 4096
"""Topics and reasons whose last telling is remembered."""
MAX_TOLD_PER_S = 100
"""Tellings of all topics together: new topics cost nothing to make up."""

_REFUSE = "refuse_"
"""Counters are refuse_publish and refuse_subscribe."""

_log = logging.getLogger("meshbus.edge.refusals")


class Direction(StrEnum):
    """What an application wanted."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


class Refusal(msgspec.Struct, frozen=True):
    """Something that an application wanted and did not get."""

    direction: Direction
    topic: str
    reason: str
    """As counted: a word of docs/reasons.md, or how the mesh names it: `denied`, `rate_limited`, `unauthorized`, …"""
    problem: str
    """What is wrong, in a sentence."""
    count: int
    """How often something was refused for this reason, whatever the topic."""


class Refusals:
    """Counts what is refused, and tells of it."""

    def __init__(self, counters: Counters, tell: Callable[[Refusal], None]) -> None:
        self._counters = counters
        self._tell = tell
        self._told: BoundedMap[tuple[Direction, bytes, str], float] = BoundedMap(MAX_REMEMBERED)
        self._second = 0.0
        self._told_in_second = 0

    def add(self, topic: bytes, reason: Reason, problem: str, count: int = 1) -> None:
        """Count and report what the bridge itself refused: one of the REFUSE_PUBLISH or REFUSE_SUBSCRIBE reasons."""
        self._counters.count(reason, count)
        self._report(Direction(reason.what.removeprefix(_REFUSE)), topic, reason.why, problem)

    def pass_on(self, direction: Direction, topic: bytes, word: str, problem: str, count: int = 1) -> None:
        """Count and report what the mesh refused, under the word that the mesh has for it."""
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
        self._told_in_second += 1
        if self._told_in_second > MAX_TOLD_PER_S:
            self._counters.count(Reason.TELLING)
            return False
        self._told.put(what, now)
        return True


def reason_of(error: MeshError) -> str:
    """Give the shortest word for why something was refused."""
    match error:
        case ChannelError():
            return error.reason or str(error.fault)
        case AuthError():
            return str(error.fault)
        case _:
            return error.code
