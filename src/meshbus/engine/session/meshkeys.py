"""The mesh keys of a node: the current one, and for a while the one before it.

    current      every handshake that this node begins tries it first
    previous     within its window: accepted, and tried second; later: recognized, and refused with a reason of its own

A mesh changes its key node by node. A node that has both can talk to nodes that have only one of them, in either direction,
so the order does not matter as long as every node has the new key before the window ends. What becomes of sessions that
began with the previous key is decided in engine/session/keywindow.py.
"""

from __future__ import annotations

from collections.abc import Callable

from meshbus.engine.settings import PreviousKey


class MeshKeys:
    """The mesh keys of one node, shared by its services."""

    def __init__(self, current: bytes, previous: PreviousKey | None, wall: Callable[[float], int]) -> None:
        self.current = current
        self.previous = previous
        self._wall = wall

    @property
    def known(self) -> tuple[bytes, ...]:
        """All keys, also a previous one whose window is over."""
        return (self.current,) if self.previous is None else (self.current, self.previous.key)

    def accepted(self, now: float) -> tuple[bytes, ...]:
        """Return the keys that may be used now, the current one first."""
        return self.known if self.left_s(now) > 0 else (self.current,)

    def accepts(self, key: bytes, now: float) -> bool:
        """Return whether a key may be used now."""
        return key in self.accepted(now)

    def change(self, current: bytes, previous: PreviousKey | None) -> None:
        """Use other keys. Without a previous one, the window ends now: the key of before is recognized all the same."""
        if previous is None and current == self.current:
            self.retire()
        else:
            self.current, self.previous = current, previous

    def retire(self) -> None:
        """End the window of the previous key for good, whatever the wall clock says from now on."""
        if self.previous is not None:
            self.previous = PreviousKey(self.previous.key, 0)

    def left_s(self, now: float) -> float:
        """Return how much of the window of the previous key is left; nothing if there is none."""
        return 0.0 if self.previous is None else max(self.previous.until_ns - self._wall(now), 0) / 1e9
