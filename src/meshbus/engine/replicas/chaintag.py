"""The tag of a replicated channel's chain follows the role of the replica (redex.md §5).

The tags themselves are in engine/directory/chains.py, which the service of replicated channels passes in.
"""

from __future__ import annotations

from typing import Protocol

from meshbus.engine.replicas.records import RoleChanged
from meshbus.engine.replicas.roles import TagEffect
from meshbus.wire.messages.redex import chain_of


class ChainTags(Protocol):
    """Announces and withdraws the tags of chains."""

    def announce_chain(self, origin_hash: int, tip: int | None, now: float) -> None:
        """Announce that this node holds a chain up to a sequence number."""

    def withdraw_chain(self, origin_hash: int, now: float) -> None:
        """Announce that this node no longer holds a chain."""


def follow_role(change: RoleChanged, channel_id: bytes, tail: int, tags: ChainTags, now: float) -> None:
    """Announce or withdraw the chain of a channel, as the change of role demands; `tail` is the replica's."""
    match change.tag:
        case TagEffect.ANNOUNCE:
            tags.announce_chain(chain_of(channel_id), tail, now)
        case TagEffect.WITHDRAW:
            tags.withdraw_chain(chain_of(channel_id), now)
        case TagEffect.NONE:
            pass
