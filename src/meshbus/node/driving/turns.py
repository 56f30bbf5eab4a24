"""Turns: when a receive buffer may be drained, and how far, so that no sender takes the time of the others.

A flood takes as much time as its sender has: refusing a packet costs about as much as sending it, and a peer's messages
within its limits cost more. While some neighbor brings events (for this node, or to forward), a buffer whose last drain
brought none is a *guest*: its drains are short, and it gets a share of the time. It may be ahead of its share by a
millisecond, so that a few acknowledgements or messages, which every peer sends, never wait; beyond that it waits until the
share has paid for all that it took. What the buffer cannot hold meanwhile is dropped by the kernel, which costs this
node nothing. While no events come in, nobody waits.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import NamedTuple

GUEST_SHARE, REFUSED_SHARE = 1 / 3, 1 / 5
"""The most of the time that a guest gets: any, and one whose packets are mostly refused. Our choice: a peer and a stranger
who flood leave an honest stream about half of the time, and what they are refused they pay for themselves."""
ACTIVE_S = 0.2
"""For how long a drain with events counts as a stream that goes on: longer than a round trip and a busy moment."""
MAX_WAIT_S = 0.25
"""The longest wait, whatever a drain took: far below the shortest timer of the protocol."""
GUEST_S = 0.001
"""How long the drain of a guest should take: less than a stream waits before it takes a pause for a loss."""
AHEAD_S = 0.001
"""How far a guest may be ahead of its share before it waits. Our choice: asyncio cannot wait for less, and the drain of an
acknowledgement takes a tenth of it."""
FIRST_DATAGRAMS, GUEST_DATAGRAMS = 2, 64
"""Datagrams of a drain of a guest: half of what it begins with, and the most."""


class _Guest(NamedTuple):
    paid_at: float
    """When its share has paid for what it took."""
    room: int
    """How many datagrams may be drained then."""


class Turns:
    """When each buffer may be drained again, and how far."""

    __slots__ = ("_events_at", "_guests")

    def __init__(self) -> None:
        self._events_at = -inf
        self._guests: dict[Hashable, _Guest] = {}

    def wait_s(self, queue: Hashable, now: float) -> float:
        """Return how long a buffer has to wait; 0 if it may be drained now."""
        if queue not in self._guests:
            return 0.0
        guest = self._guest(queue, now)
        ahead_s = 0.0 if guest is None else guest.paid_at - now
        return ahead_s if ahead_s > AHEAD_S else 0.0

    def room(self, queue: Hashable, now: float) -> int | None:
        """Return how many datagrams may be drained; None if there is no limit."""
        guest = self._guest(queue, now)
        return None if guest is None else guest.room

    def note(self, queue: Hashable, began: float, ended: float, datagrams: int, *, events: bool, refused: bool) -> None:
        """Note a drain: when it began and ended, of how many datagrams, and what became of them."""
        if events and not refused:
            self._events_at = ended
            self._guests.pop(queue, None)
            return
        took = ended - began
        share = REFUSED_SHARE if refused else GUEST_SHARE
        last = self._guests.get(queue)
        # At most twice as many as before: the next ones may be of a kind that costs far more.
        most = min(2 * (FIRST_DATAGRAMS if last is None else last.room), GUEST_DATAGRAMS)
        room = most if took <= 0 else int(min(max(GUEST_S * datagrams / took, 1), most))
        # What it took while nobody brought events is forgiven: nobody waited for it.
        due = self._guest(queue, began)
        paid_at = (began if due is None else max(due.paid_at, began)) + took / share
        self._guests[queue] = _Guest(min(paid_at, ended + MAX_WAIT_S), room)

    def forget(self, queue: Hashable) -> None:
        """Remove a buffer that was closed."""
        self._guests.pop(queue, None)

    def _guest(self, queue: Hashable, now: float) -> _Guest | None:
        return self._guests.get(queue) if now - self._events_at <= ACTIVE_S else None
