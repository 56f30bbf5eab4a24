"""Two doors to a mesh: the admin socket of a node that runs, or a node of one's own for a moment.

A verb asks for a door and does not care which it got. The socket is taken when it is named, or when nothing else is and
the usual one is there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from meshbus.cli.exit import Refusal
from meshbus.cli.options import Way, build_config, gather_settings
from meshbus.cli.output import note
from meshbus.config import NodeConfig, PeerEntry
from meshbus.config.loader import Setting
from meshbus.errors import ConfigError, MeshError
from meshbus.node.admin import event_row, peer_row, report_row
from meshbus.node.node import Node
from meshbus.node.unix import LineClient


class Door(Protocol):
    """What a verb can do with a mesh; rows are what it prints."""

    async def peers(self) -> list[dict[str, Any]]:
        """Give the peers."""

    async def subscribers(self, channel: str) -> int:
        """Count the subscribers of a channel."""

    async def publish(self, channel: str, payload: bytes, *, reliable: bool | None) -> dict[str, Any]:
        """Publish one event, and give the report."""

    def subscribe(
        self, channel: str, *, queue_group: str, when_full: str | None, since: int | str | None
    ) -> AsyncIterator[dict[str, Any] | None]:
        """Give None once the subscription is live, and then its events."""


@asynccontextmanager
async def open_door(way: Way | None, *, publishes: str | None = None) -> AsyncIterator[Door]:
    """Open the door that the options lead to; `publishes` is a channel that peers may ask for at once."""
    way = way or Way()
    if way.admin is not None and (way.config is not None or way.connect is not None):
        raise ConfigError("--admin", "a running node has its own configuration: leave --config and --connect out")
    settings = gather_settings(way.config, way.overrides)
    if way.connect is not None:
        settings["peers"] = _typed_peer(way)
    elif way.public_key is not None or way.node_id is not None:
        raise ConfigError("--connect", "is missing: say which host:port the key and the id belong to")
    config = build_config(settings)
    socket = way.admin or (None if way.config or way.connect else _usual_socket(config))
    if socket is not None:
        async with await LineClient.connect(socket) as client:
            yield RemoteDoor(client)
    else:
        async with own_node(config, publishes=publishes) as node:
            yield OwnDoor(node)


@asynccontextmanager
async def own_node(config: NodeConfig, *, publishes: str | None = None) -> AsyncIterator[Node]:
    """Be a node for a moment: on any free port, connected to the configured peers, without logs.

    Raises the first error when no peer can be reached; those that cannot are noted otherwise.
    """
    if not config.peers:
        raise ConfigError(
            "peers",
            "there is nobody to connect to: give --connect and --public-key, add [[peers]], or run `meshbus up`",
        )
    quiet = msgspec.structs.replace(config.without_logs(), peers=(), bind=config.bind._replace(port=0))
    async with Node.open(quiet) as node:
        if publishes is not None:
            node.publisher(publishes)
        failures = [failure for entry in config.peers if (failure := await _connect(node, entry)) is not None]
        if len(failures) == len(config.peers):
            raise failures[0]
        for failure in failures:
            note(str(failure))
        yield node


async def _connect(node: Node, entry: PeerEntry) -> MeshError | None:
    try:
        await node.connect(
            str(entry.address), public_key=entry.public_key, node_id=entry.node_id, profile=entry.profile
        )
    except MeshError as error:
        return error
    return None


def _typed_peer(way: Way) -> Setting:
    if way.public_key is None:
        raise ConfigError("--public-key", "is missing: `meshbus key show` prints it on the other side")
    peer = {"address": way.connect, "public_key": way.public_key}
    if way.node_id is not None:
        peer["node_id"] = way.node_id
    return Setting([peer], "--connect", "an argument", Path.cwd())


def _usual_socket(config: NodeConfig) -> Path | None:
    path = config.admin_path()
    return path if path is not None and path.exists() else None


class OwnDoor:
    """A node of one's own."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def peers(self) -> list[dict[str, Any]]:
        """Give the peers."""
        return [peer_row(peer) for peer in self._node.peers]

    async def subscribers(self, channel: str) -> int:
        """Count the subscribers of a channel."""
        return len(self._node.roster.members(channel))

    async def publish(self, channel: str, payload: bytes, *, reliable: bool | None) -> dict[str, Any]:
        """Publish one event, and give the report."""
        return report_row(await self._node.publisher(channel, reliable=reliable).publish(payload))

    async def subscribe(
        self, channel: str, *, queue_group: str, when_full: str | None, since: int | str | None
    ) -> AsyncIterator[dict[str, Any] | None]:
        """Give None once the subscription is live, and then its events."""
        async with self._node.subscribe(
            channel, queue_group=queue_group, when_full=when_full or "block", since=since
        ) as subscription:
            yield None
            async for event in subscription:
                yield event_row(event)


class RemoteDoor:
    """The admin socket of a running node."""

    def __init__(self, client: LineClient) -> None:
        self._client = client

    async def ask(self, do: str, **fields: object) -> Any:
        """Ask for something, and give the result; raises Refusal when the node says no."""
        request = {"do": do} | {name: value for name, value in fields.items() if value is not None}
        await self._client.send(msgspec.json.encode(request, enc_hook=str) + b"\n")
        return _result(await self._client.receive())

    async def peers(self) -> list[dict[str, Any]]:
        """Give the peers."""
        rows: list[dict[str, Any]] = await self.ask("peers")
        return rows

    async def subscribers(self, channel: str) -> int:
        """Count the subscribers of a channel."""
        return sum(row["channel"] == channel for row in await self.ask("roster"))

    async def publish(self, channel: str, payload: bytes, *, reliable: bool | None) -> dict[str, Any]:
        """Publish one event, and give the report."""
        import base64

        encoded = base64.b64encode(payload).decode()
        report: dict[str, Any] = await self.ask("publish", channel=channel, payload_base64=encoded, reliable=reliable)
        return report

    async def subscribe(
        self, channel: str, *, queue_group: str, when_full: str | None, since: int | str | None
    ) -> AsyncIterator[dict[str, Any] | None]:
        """Give None once the subscription is live, and then its events."""
        await self.ask("subscribe", channel=channel, queue_group=queue_group, when_full=when_full, since=since)
        yield None
        while True:
            line = msgspec.json.decode(await self._client.receive())
            if "event" not in line:
                raise Refusal(line["code"], line["fault"], line["problem"])
            yield line["event"]


def _result(line: bytes) -> Any:
    answer = msgspec.json.decode(line)
    if not answer["ok"]:
        raise Refusal(answer["code"], answer["fault"], answer["problem"])
    return answer["result"]
