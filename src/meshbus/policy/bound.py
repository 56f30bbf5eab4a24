"""Bounds: what a peer, an outsider or a user can make a node remember, and how much of it.

A module that keeps such state names it in `BOUNDS`, beside the constants that it enforces. docs/limits.md is written from
these tuples (`python -m tools.limits`). Tests hold three things: every bounded structure in the source is in a tuple, every
bound is attacked, and the attack fills it no further and moves its counter.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from meshbus.policy.reason import Reason


class By(StrEnum):
    """Who can make the state grow, from the least to the most trusted."""

    OUTSIDER = "an outsider"
    """Anybody who can send a datagram, or connect to an open socket."""
    MEMBER = "a member"
    """A node with the mesh key; it can begin sessions under any node id."""
    PEER = "a peer"
    """A node with a proved session, by what it sends in it."""
    PUBLISHER = "a publisher"
    """A peer whose events this node has subscribed to."""
    USER = "a user"
    """The application, or a local user with access to a socket of the node."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """One row of docs/limits.md."""

    name: str
    """A short word for it, unique among all bounds."""
    what: str
    """What is kept."""
    by: By
    per_node: int | None
    """The most of it in one node; None if it is the bound of each peer times the number of peers."""
    per: Mapping[str, int] = {}
    """The most of it for each peer, host, channel or connection, by what it counts for."""
    unit: str = ""
    """`bytes`, where entries are not what is counted."""
    full: str
    """What happens beyond it: who is evicted, or what is refused."""
    cost: str = "constant"
    """What one more costs, in terms of the state that is there."""
    counter: Reason | str
    """What moves beyond the bound: a reason, the name of another counter, or the error that the caller gets."""

    @property
    def told(self) -> str:
        """How people see that the bound was reached."""
        return ".".join(self.counter.counter) if isinstance(self.counter, Reason) else self.counter


def forgotten(name: str) -> str:
    """Return the counter of entries that made room for newer ones."""
    return f"forget.{name}"
