"""Changes of a replica set that an operator asks for: add a member, remove one, let another one lead.

Only the leader can do it, one change at a time. A node that is to be added must be configured for the channel, with the
present members among its replicas, and be running: it shows itself, and the leader makes it a member.
"""

from __future__ import annotations

import asyncio

from meshbus.engine.replicas.records import Refusal
from meshbus.errors import ReplicationError, ReplicationFault
from meshbus.node.replicas.replicamember import ReplicaMember

PAUSE_S = 0.1
"""Between two looks at what is waited for."""

_PROBLEMS = {
    Refusal.NOT_LEADER: "this node does not lead the channel; ask its leader, which `meshbus replica status` shows",
    Refusal.CHANGING: "another change is not finished, or the leader has just begun; try again",
}


async def add(member: ReplicaMember, node: int, timeout_s: float) -> None:
    """Make a node a member; raise ReplicationError if that is refused, or it does not show itself in time."""
    if node in member.nodes():
        raise _refused(member, f"{node:016x} is a member already")
    member.dismissed.discard(node)
    member.welcome(node)
    # Refused with NO_CHANGE until the node has shown itself.
    await _change(
        member, "add", node, timeout_s, f"{node:016x} does not take part in the channel; start it, with replicas set"
    )


async def remove(member: ReplicaMember, node: int, timeout_s: float) -> None:
    """Remove a member; raise ReplicationError if that is refused."""
    if node not in member.nodes():
        raise _refused(member, f"{node:016x} is not a member")
    rest = [one for one in member.nodes() if one != node]
    if rest and 2 * sum(map(member.reaches, rest)) <= len(rest):
        raise _refused(
            member, f"without {node:016x} no majority of the members is up; remove one that is down, or start it"
        )
    member.dismissed.add(node)
    await _change(member, "remove", node, timeout_s, "the last member cannot be removed")


async def transfer(member: ReplicaMember, node: int, timeout_s: float) -> None:
    """Ask another member to lead; raise ReplicationError if it is none, or does not lead in time."""
    _check_leads(member)
    if node not in member.nodes():
        raise _refused(member, f"{node:016x} is not a member")
    member.hand_over(node)
    try:
        async with asyncio.timeout(timeout_s):
            while member.core.leader != node:  # noqa: ASYNC110 - heard with some heartbeat; nothing reports it
                await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        raise _refused(member, f"{node:016x} does not lead after {timeout_s:g} s; see whether it is up") from None


async def _change(member: ReplicaMember, what: str, node: int, timeout_s: float, problem: str) -> None:
    refusal: Refusal | None = Refusal.CHANGING
    try:
        async with asyncio.timeout(timeout_s):
            while refusal in {Refusal.NO_CHANGE, Refusal.CHANGING}:
                _check_leads(member)
                refusal = await member.change(what, node)
                # The leader takes a node that lost its memory back by itself, and may have been faster.
                if member.has_settled(node, is_member=what == "add"):
                    return
                if refusal is not None:
                    await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        raise _refused(member, _PROBLEMS.get(refusal or Refusal.CHANGING, problem)) from None
    if refusal is not None:
        raise _refused(member, _PROBLEMS[refusal])


def _check_leads(member: ReplicaMember) -> None:
    if member.core.lead is None:
        raise _refused(member, _PROBLEMS[Refusal.NOT_LEADER])


def _refused(member: ReplicaMember, problem: str) -> ReplicationError:
    return ReplicationError(ReplicationFault.REFUSED, member.channel, problem)
