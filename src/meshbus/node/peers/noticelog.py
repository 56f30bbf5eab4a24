"""The latest notices of a node: bounded, the oldest are dropped first.

A notice is a Control of the engine (engine/base/notices.py), a SlowConsumer of a local subscription, a PeerUnreachable
(node/peers/redial.py), what became of a change of the policy or of a secret (node/policies/), or of an invite
(node/invites/inviting.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import msgspec

from meshbus.engine.base.notices import Control
from meshbus.errors import SlowConsumer
from meshbus.node.peers.redial import PeerUnreachable
from meshbus.policy.bound import Bound, By

MAX_NOTICES = 1024
"""Notices kept for a reader that has not come yet: minutes of a busy node, and less than a megabyte."""


class PolicyChanged(msgspec.Struct, frozen=True):
    """The policy of this node changed."""

    by: str
    """Who changed it."""
    via: str
    """How: `apply`, `sighup` or `fleet`."""
    changes: tuple[str, ...]
    """What changed, in words; empty if the new policy means the same."""


class PolicyRefused(msgspec.Struct, frozen=True):
    """A change of the policy was refused, and the old one stays."""

    by: str
    via: str
    problem: str


class SecretRotated(msgspec.Struct, frozen=True):
    """A secret of this node was replaced."""

    secret: str
    """Which one, in words."""
    by: str
    """Who replaced it."""
    via: str
    """How: `apply` or `sighup`."""
    changes: tuple[str, ...]
    """What changed, in words."""


class RotationRefused(msgspec.Struct, frozen=True):
    """A new secret was refused, and the old one stays."""

    secret: str
    by: str
    via: str
    problem: str


RotationNotice: TypeAlias = SecretRotated | RotationRefused


class NodeJoined(msgspec.Struct, frozen=True):
    """A newcomer was admitted by an invite of this node, and was sent what it needs."""

    name: str
    public_key: bytes
    invite: str
    """Id of the invite in hex."""


class JoinWaiting(msgspec.Struct, frozen=True):
    """A newcomer waits until an operator approves it (`meshbus invite approve`)."""

    name: str
    public_key: bytes
    invite: str


class JoinRefused(msgspec.Struct, frozen=True):
    """A node with the token of an invite was not admitted."""

    name: str
    """The name that the invite is for."""
    public_key: bytes
    invite: str
    reason: str
    problem: str


JoinNotice: TypeAlias = NodeJoined | JoinWaiting | JoinRefused
Notice: TypeAlias = (
    "Control | SlowConsumer | PeerUnreachable | PolicyChanged | PolicyRefused | RotationNotice | JoinNotice"
)


BOUNDS = (
    Bound(
        name="notices",
        what="notices that the application has not read",
        by=By.PEER,
        per_node=MAX_NOTICES,
        full="the oldest goes",
        counter="none: the numbers of notices show the gap",
    ),
)


class NoticeLog:
    """The latest notices of one node."""

    def __init__(self) -> None:
        self._notices: deque[Notice] = deque(maxlen=MAX_NOTICES)
        self._added = asyncio.Event()
        self._listeners: list[Callable[[Notice], None]] = []
        self._closed = False

    def watch(self, listener: Callable[[Notice], None]) -> Callable[[], None]:
        """Call a listener with every notice, in addition to `follow`; return a function that stops it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def add(self, notice: Notice) -> None:
        """Add a notice."""
        for listener in tuple(self._listeners):
            listener(notice)
        self._notices.append(notice)
        self._added.set()

    def close(self) -> None:
        """End the iterators of `follow` once they have returned the remaining notices."""
        self._closed = True
        self._added.set()

    async def follow(self) -> AsyncIterator[Notice]:
        """Iterate over the notices as they are added; concurrent iterators share them, each gets a part."""
        while True:
            while self._notices:
                yield self._notices.popleft()
            if self._closed:
                return
            self._added.clear()
            await self._added.wait()
