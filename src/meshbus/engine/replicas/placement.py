"""Placement: which nodes replicate a channel, as pure functions of what is known about them.

The members are pinned by the configuration, or chosen among the nodes that announced themselves. A chosen node replicates
(it announces 0x4D05), and has the capabilities that the channel requires of its replicas. Among those, a hash of channel
and node decides. So nodes that know the same announcements choose the same members, channels spread over a fleet, and a
node that comes or goes changes one member at most.

    rank()         who is eligible, in the order of preference, and why the others are not
    aim()          the set to have: present members stay, as long as they are eligible and not lost
    next_change()  the next step towards it: one member is added or removed at a time

A replaced member is removed before another is added: it confirms nothing, so the smaller set needs fewer confirmations,
while a newcomer in a larger set would hold up every append until it has caught up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import TypeAlias

import msgspec

from meshbus.errors import ConfigError
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.leadership import MAX_MEMBERS
from meshbus.wire.subprotocol import capability_tag

_REPLICATES = capability_tag(Subprotocol.LEADERSHIP)


class Ineligible(StrEnum):
    """Why a node cannot be chosen."""

    NOT_REPLICATING = "does not replicate"
    """It does not announce 0x4D05: its profile is off, or it is a net-mesh node."""
    CAPABILITIES = "lacks required capabilities"


class Ranking(msgspec.Struct, frozen=True):
    """The nodes that can replicate a channel, best first, and why the others cannot."""

    eligible: tuple[int, ...]
    ineligible: Mapping[int, Ineligible]

    def shortage(self, replicas: int) -> str | None:
        """Return what is missing for so many replicas, as a sentence; None if nothing is."""
        if len(self.eligible) >= replicas:
            return None
        told = f"replicas = {replicas} needs {replicas} eligible nodes, and {len(self.eligible)} of the known ones are"
        for why in Ineligible:
            nodes = sorted(node for node, found in self.ineligible.items() if found is why)
            if nodes:
                told += f"; {_spell(nodes)} {why}"
        return told


class Add(msgspec.Struct, frozen=True):
    """Make a node a member."""

    node: int


class Remove(msgspec.Struct, frozen=True):
    """Remove a member."""

    node: int


Change: TypeAlias = Add | Remove


def pinned(nodes: Iterable[int]) -> tuple[int, ...]:
    """Return configured members; raise ConfigError unless they are 1 to 16 different nodes."""
    members = tuple(nodes)
    if len(set(members)) != len(members) or not 1 <= len(members) <= MAX_MEMBERS:
        raise ConfigError("replicas", f"name 1 to {MAX_MEMBERS} different nodes, got {_spell(members) or 'none'}")
    return members


def rank(channel_id: bytes, known: Mapping[int, CapabilitySet], require: CapabilityFilter | None = None) -> Ranking:
    """Rank the known nodes, this one included, for a channel."""
    ineligible = {}
    for node, capabilities in known.items():
        if not capabilities.has_tag(_REPLICATES):
            ineligible[node] = Ineligible.NOT_REPLICATING
        elif require is not None and not require.matches(capabilities):
            ineligible[node] = Ineligible.CAPABILITIES
    eligible = sorted(known.keys() - ineligible.keys(), key=lambda node: (_weight(channel_id, node), node))
    return Ranking(tuple(eligible), ineligible)


def aim(ranking: Ranking, replicas: int, members: Sequence[int] = (), lost: Collection[int] = ()) -> tuple[int, ...]:
    """Return the members to have.

    Present members stay, unless they are lost or no longer eligible and another node can take their place.
    """
    good = [node for node in members if node in ranking.eligible and node not in lost]
    spare = [node for node in ranking.eligible if node not in members and node not in lost]
    rest = [node for node in members if node not in good]
    return tuple([*good, *spare, *rest][:replicas])


def next_change(members: Sequence[int], wanted: Sequence[int], lost: Collection[int] = ()) -> Change | None:
    """Return the next change on the way from these members to the wanted ones; None if there is nothing to do.

    The caller waits until a change is stored before it asks for the next. The last member is never removed.
    """
    missing = [node for node in wanted if node not in members]
    extra = [node for node in members if node not in wanted]
    dead = [node for node in extra if node in lost]
    if dead and len(members) > 1:
        return Remove(dead[0])
    if missing and len(members) < MAX_MEMBERS:
        return Add(missing[0])
    # From the end: the first member is the one that has been there longest.
    return Remove(extra[-1]) if extra and len(members) > 1 else None


def _weight(channel_id: bytes, node: int) -> bytes:
    # Rendezvous hashing: without a node, the order of the others is the same.
    return blake2b(node.to_bytes(8, "little"), digest_size=8, key=channel_id).digest()


def _spell(nodes: Iterable[int]) -> str:
    return ", ".join(f"{node:016x}" for node in nodes)
