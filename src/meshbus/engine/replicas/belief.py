"""Belief: whom a member of a 0.23 replica set takes for its leader, by heartbeats alone (redex.md §6).

The first leader that is heard is believed. Another one replaces it only with a longer log, or with an equal one and a
lower node id. Two leaders settle it by the same order. This is how 0.23 members agree in the end; it protects no
acknowledged event, which needs the epochs of leadership.py.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from meshbus.wire.messages.redex import Role

MISSED_BEATS = 3
"""After as many heartbeat periods without a heartbeat, a member counts as silent."""


class _Heard(msgspec.Struct):
    tail: int
    at: float


def keeps_leading(own_tail: int, own_id: int, peer_tail: int, peer_id: int) -> bool:
    """Return whether a leader that hears another leader stays one."""
    return (-own_tail, own_id) < (-peer_tail, peer_id)


def silence_s(heard: Collection[float | None], now: float) -> float | None:
    """Return for how long the member that is silent the longest was not heard, from when each was; None if one never was."""
    times = [at for at in heard if at is not None]
    return max(0.0, now - min(times)) if times and len(times) == len(heard) else None


class Belief:
    """The heartbeats of the other members, and the leader that follows from them. Holds one entry per member."""

    def __init__(self, heartbeat_ms: int) -> None:
        self._patience_s = MISSED_BEATS * heartbeat_ms / 1000
        self._heard: dict[int, _Heard] = {}
        self.leader: int | None = None

    def hear(self, node: int, role: Role, tail: int, now: float) -> None:
        """Record a heartbeat of a member."""
        # Compared with what the incumbent said last, before this heartbeat replaces it.
        if role == Role.LEADER and (self.leader is None or self._displaces(node, tail, self.leader)):
            self.leader = node
        self._heard[node] = _Heard(tail, now)

    def clear(self) -> None:
        """Believe in no leader; the next one that is heard is believed."""
        self.leader = None

    def drop(self, node: int) -> None:
        """Remove a member."""
        self._heard.pop(node, None)
        if node == self.leader:
            self.leader = None

    def healthy(self, now: float) -> list[int]:
        """Return the members that were heard recently, in the order of their ids."""
        return sorted(node for node, heard in self._heard.items() if now - heard.at < self._patience_s)

    def silent(self, now: float) -> bool:
        """Return whether the leader stopped sending heartbeats; without a leader, nobody can be silent."""
        return self.leader is not None and self.leader not in self.healthy(now)

    def tail_of(self, node: int) -> int | None:
        """Return the end of a member's log as it said last, or None."""
        heard = self._heard.get(node)
        return None if heard is None else heard.tail

    def heard_at(self, node: int) -> float | None:
        """Return when a member was heard last, or None."""
        heard = self._heard.get(node)
        return None if heard is None else heard.at

    def _displaces(self, node: int, tail: int, incumbent: int) -> bool:
        return node != incumbent and not keeps_leading(self._heard[incumbent].tail, incumbent, tail, node)
