"""A temporary node: how a command reaches a mesh without a node that runs already.

It is used through the same interface as a running node, Mesh of cli/reach.py, and loads the whole node; a command to a running
one does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from meshbus.cli.output import note
from meshbus.config import NodeConfig, PeerEntry
from meshbus.engine.base.notices import HandshakeUnanswered
from meshbus.errors import ConfigError, MeshError
from meshbus.node.admin import (
    answers_row,
    channel_rows,
    event_row,
    peer_rows,
    ping_row,
    report_row,
    request_row,
    status_row,
)
from meshbus.node.channels.answer import Handler
from meshbus.node.loadtest import measure_load, send_load
from meshbus.node.node import Node
from meshbus.node.peers.noticelog import Notice

_ANNOUNCED_S = 2.0
"""How long a temporary node waits for the announcements of its peers; a peer that sends none has no name."""


@asynccontextmanager
async def temporary_node(config: NodeConfig, *, publishes: str | None = None) -> AsyncIterator[Node]:
    """Run a temporary node on any free port, connected to the configured peers, without logs.

    Raises the first error if no peer can be reached. If some peers can be reached, the errors of the others are printed.
    """
    if not config.peers:
        raise ConfigError(
            "peers",
            "no peer is configured; give --connect and --public-key, add [[peers]] to the file, or run `meshbus up`",
        )
    # Port 0 and no logs: the same configuration may belong to a node that runs now.
    quiet = msgspec.structs.replace(config.without_logs(), peers=(), bind=config.bind._replace(port=0))
    async with Node.open(quiet) as node:
        if publishes is not None:  # before connecting: peers that know the channel subscribe as soon as they connect
            node.publisher(publishes)
        node.watch(_report_wait)
        # All peers are tried: a command is useful as soon as one of them answers.
        failures = [failure for entry in config.peers if (failure := await _connect(node, entry)) is not None]
        if len(failures) == len(config.peers):
            raise failures[0]
        for failure in failures:
            note(str(failure))
        yield node


def _report_wait(notice: Notice) -> None:
    """Print why a connection takes long, so that the first line does not come only when all tries have failed."""
    if isinstance(notice, HandshakeUnanswered):
        note(notice.problem)


async def _connect(node: Node, entry: PeerEntry) -> MeshError | None:
    try:
        await node.connect(
            str(entry.address),
            public_key=entry.public_key,
            node_id=entry.node_id,
            routed=entry.routed,
            profile=entry.profile,
        )
    except MeshError as error:
        return error
    return None


class NodeMesh:
    """A mesh reached with a temporary node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def peers(self) -> list[dict[str, Any]]:
        """Return the peers."""
        return peer_rows(self._node)

    async def counters(self) -> dict[str, dict[str, int]]:
        """Return the counters, by kind and reason."""
        return self._node.counters

    async def status(self) -> dict[str, Any]:
        """Return the identity and address of the node."""
        return status_row(self._node)

    async def channels(self) -> list[dict[str, Any]]:
        """Return the channels that the node knows."""
        await self._heard()
        return channel_rows(self._node)

    async def ping(self, node: str | None, timeout_s: float) -> dict[str, Any]:
        """Return the round trip to a peer."""
        await self._heard()
        return await ping_row(self._node, node, timeout_s)

    async def request(self, channel: str, payload: bytes, *, node: str | None, timeout_s: float) -> dict[str, Any]:
        """Send a request to a peer and return its reply."""
        await self._heard()
        return await request_row(self._node, node, channel, payload, timeout_s)

    async def respond(self, channel: str, handler: Handler, *, ready: Callable[[], None], until: asyncio.Event) -> None:
        """Answer the requests on a channel until the event is set; `ready` is called when they are taken."""
        async with self._node.respond(channel, handler):
            ready()
            await until.wait()

    async def load(self, channel: str, *, events: int, size: int, reliable: bool | None) -> dict[str, Any]:
        """Publish the events of a load test."""
        sent = await send_load(self._node, channel, events=events, size=size, reliable=reliable)
        return msgspec.structs.asdict(sent)

    async def measure(self, channel: str, *, timeout_s: float) -> dict[str, Any] | None:
        """Measure the next load test; None if none came in time."""
        found = await measure_load(self._node, channel, timeout_s=timeout_s)
        return None if found is None else msgspec.structs.asdict(found)

    async def _heard(self) -> None:
        """Wait a moment for the first announcements of the peers: they bring names and channels."""
        heard = asyncio.Event()

        def look(_: object = None) -> None:
            if all(peer.tags for peer in self._node.peers):
                heard.set()

        stop = self._node.watch(look)
        look()
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANNOUNCED_S):
                await heard.wait()
        stop()

    async def subscribers(self, channel: str) -> int:
        """Return the number of subscribers of a channel."""
        return len(self._node.roster.members(channel))

    async def publish(self, channel: str, payload: bytes, *, reliable: bool | None) -> dict[str, Any]:
        """Publish one event and return its report."""
        return report_row(await self._node.publisher(channel, reliable=reliable).publish(payload))

    async def subscribe(
        self,
        channel: str,
        *,
        publisher: int | None,
        queue_group: str,
        when_full: str | None,
        since: int | str | None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield who accepted and refused, `{"publishers": [...], "refused": [...]}`, and then the events."""
        async with self._node.subscribe(
            channel, publisher=publisher, queue_group=queue_group, when_full=when_full or "block", since=since
        ) as subscription:
            yield answers_row(self._node, subscription)
            async for event in subscription:
                yield event_row(event)
