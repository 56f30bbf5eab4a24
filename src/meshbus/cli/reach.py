"""Reach a mesh from a command: through the admin socket of a running node, or with a temporary node.

Both implement the same interface, so commands need not know which one they use. The admin socket is used if --admin
names it, or if neither --config nor --connect is given and the default socket exists.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from meshbus.cli.exit import Refusal
from meshbus.cli.options import MeshOptions, build_config, gather_settings, load_config
from meshbus.cli.output import note
from meshbus.config import NodeConfig, PeerEntry
from meshbus.config.loader import Setting
from meshbus.engine.base.notices import HandshakeUnanswered
from meshbus.errors import ConfigError, MeshError
from meshbus.node.admin import answers_row, event_row, peer_rows, report_row
from meshbus.node.node import Node
from meshbus.node.peers.noticelog import Notice
from meshbus.node.unix import MAX_LINE, LineClient

_LONGEST_LINE = MAX_LINE // 2
"""Bytes of an event that goes to the node in a line; base64 adds a third, and the rest needs room, too."""


class Mesh(Protocol):
    """What a command can do with a mesh; results are rows, as they are printed."""

    async def peers(self) -> list[dict[str, Any]]:
        """Return the peers."""

    async def counters(self) -> dict[str, dict[str, int]]:
        """Return the counters, by kind and reason."""

    async def subscribers(self, channel: str) -> int:
        """Return the number of subscribers of a channel."""

    async def publish(self, channel: str, payload: bytes, *, reliable: bool | None) -> dict[str, Any]:
        """Publish one event and return its report."""

    def subscribe(
        self,
        channel: str,
        *,
        publisher: int | None,
        queue_group: str,
        when_full: str | None,
        since: int | str | None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield who accepted and refused, `{"publishers": [...], "refused": [...]}`, and then the events."""


@asynccontextmanager
async def open_mesh(options: MeshOptions | None, *, publishes: str | None = None) -> AsyncIterator[Mesh]:
    """Open the mesh that the options select.

    `publishes` names a channel to announce before connecting, so that peers can subscribe at once.
    """
    options = options or MeshOptions()
    if options.admin is not None and (options.config is not None or options.connect is not None):
        raise ConfigError("--admin", "not allowed with --config or --connect; a running node has its own configuration")
    settings = gather_settings(options.config, options.overrides)
    if options.connect is not None:
        settings["peers"] = _typed_peer(options)
    elif options.public_key is not None or options.node_id is not None or options.direct:
        raise ConfigError(
            "--connect", "required with --public-key, --node-id and --direct; give the host:port of that node"
        )
    config = build_config(settings)
    socket = options.admin or (None if options.config or options.connect else _usual_socket(config))
    if socket is not None:
        async with await LineClient.connect(socket) as client:
            yield AdminMesh(client)
    else:
        async with temporary_node(config, publishes=publishes) as node:
            yield NodeMesh(node)


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


def _typed_peer(options: MeshOptions) -> Setting:
    if options.public_key is None:
        raise ConfigError("--public-key", "required with --connect; run `meshbus key show` on the other node")
    peer: dict[str, object] = {
        "address": options.connect,
        "public_key": options.public_key,
        "routed": not options.direct,
    }
    if options.node_id is not None:
        peer["node_id"] = options.node_id
    return Setting([peer], "--connect", "an argument", Path.cwd())


def _usual_socket(config: NodeConfig) -> Path | None:
    path = config.admin_path()
    return path if path is not None and path.exists() else None


async def ask_node(admin: Path | None, config: Path | None, do: str, **fields: object) -> Any:
    """Send one request to a running node: that of the admin socket, or the configured one."""
    async with _client(admin, config) as client:
        return await AdminMesh(client).ask(do, **fields)


async def follow_node(admin: Path | None, config: Path | None, do: str, **fields: object) -> AsyncIterator[Any]:
    """Send a request that is answered with a stream of lines, and yield them until the node ends it."""
    async with _client(admin, config) as client:
        await AdminMesh(client).ask(do, **fields)
        while "line" in (told := msgspec.json.decode(await client.receive())):
            yield told["line"]
        if not told["ok"]:
            raise _refusal(told)


@asynccontextmanager
async def _client(admin: Path | None, config: Path | None) -> AsyncIterator[LineClient]:
    socket = admin or load_config(config).admin_path()
    if socket is None:
        raise ConfigError("--admin", "required because the configuration disables the admin socket")
    async with await LineClient.connect(socket) as client:
        yield client


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


class AdminMesh:
    """A mesh reached through the admin socket of a running node."""

    def __init__(self, client: LineClient) -> None:
        self._client = client

    async def ask(self, do: str, **fields: object) -> Any:
        """Send a request and return its result. Raises Refusal if the node answers with an error."""
        request = {"do": do} | {name: value for name, value in fields.items() if value is not None}
        await self._client.send(msgspec.json.encode(request, enc_hook=str) + b"\n")
        return _result(await self._client.receive())

    async def peers(self) -> list[dict[str, Any]]:
        """Return the peers."""
        rows: list[dict[str, Any]] = await self.ask("peers")
        return rows

    async def counters(self) -> dict[str, dict[str, int]]:
        """Return the counters, by kind and reason."""
        found: dict[str, dict[str, int]] = await self.ask("counters")
        return found

    async def subscribers(self, channel: str) -> int:
        """Return the number of subscribers of a channel."""
        return sum(row["channel"] == channel for row in await self.ask("roster"))

    async def publish(self, channel: str, payload: bytes, *, reliable: bool | None) -> dict[str, Any]:
        """Publish one event and return its report."""
        import base64

        if len(payload) > _LONGEST_LINE:
            return await self._publish_file(channel, payload, reliable=reliable)
        # Base64, because JSON cannot carry arbitrary bytes.
        encoded = base64.b64encode(payload).decode()
        report: dict[str, Any] = await self.ask("publish", channel=channel, payload_base64=encoded, reliable=reliable)
        return report

    async def _publish_file(self, channel: str, payload: bytes, *, reliable: bool | None) -> dict[str, Any]:
        """Hand an event over as a file, because a line of the socket is shorter."""
        import tempfile

        with tempfile.NamedTemporaryFile(prefix="meshbus-event-") as file:
            file.write(payload)
            file.flush()
            report: dict[str, Any] = await self.ask("publish", channel=channel, path=file.name, reliable=reliable)
        return report

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
        yield await self.ask(
            "subscribe",
            channel=channel,
            publisher=None if publisher is None else f"{publisher:016x}",
            queue_group=queue_group,
            when_full=when_full,
            since=since,
        )
        while True:
            line = msgspec.json.decode(await self._client.receive())
            if "event" not in line:
                raise _refusal(line)
            yield line["event"]


def _result(line: bytes) -> Any:
    answer = msgspec.json.decode(line)
    if not answer["ok"]:
        raise _refusal(answer)
    return answer["result"]


def _refusal(answer: dict[str, Any]) -> Refusal:
    return Refusal(answer["code"], answer["fault"], answer["problem"])
