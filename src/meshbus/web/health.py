"""Whether a node is ready: what a load balancer or a supervisor asks before it relies on it."""

from __future__ import annotations

from meshbus.engine.session.peer import Health
from meshbus.node.node import Node


def why_not_ready(node: Node) -> list[str]:
    """Return what keeps a node from its work, one sentence each; nothing if it is ready."""
    problems = []
    wanted = {dial.node_id for dial in node.dialing}
    if wanted and not any(peer.node_id in wanted and peer.health is not Health.FAILED for peer in node.peers):
        problems.append(f"no session with any of {len(wanted)} configured peers")
    problems += [f"{one.channel}: {one.waiting}" for one in node.replicas() if one.waiting is not None]
    return problems
