"""Reach a mesh from a command: through the admin socket of a running node, or with a temporary node.

Both implement the same interface, so commands need not know which one they use. The admin socket is used if --admin
names it, or if neither --config nor --connect is given and the default socket exists.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from meshbus.cli.contexts import applied
from meshbus.cli.exit import Refusal
from meshbus.cli.options import MeshOptions, build_config, gather_settings, load_config
from meshbus.config import NodeConfig
from meshbus.config.loader import Setting
from meshbus.errors import ConfigError, MeshError
from meshbus.node.payload import payload_of, payload_row
from meshbus.node.unix import MAX_LINE, LineClient

if TYPE_CHECKING:
    from meshbus.node.channels.answer import Handler


ARRIVAL_S = 30.0
"""How long a temporary node waits at its end until what it published reliably has arrived. Our choice."""
_LONGEST_LINE = MAX_LINE // 2
"""Bytes of an event that goes to the node in a line; base64 adds a third, and the rest needs room, too."""


class Mesh(Protocol):
    """What a command can do with a mesh; results are rows, as they are printed."""

    async def peers(self) -> list[dict[str, Any]]:
        """Return the peers."""

    async def counters(self) -> dict[str, dict[str, int]]:
        """Return the counters, by kind and reason."""

    async def status(self) -> dict[str, Any]:
        """Return the identity and address of the node."""

    async def channels(self) -> list[dict[str, Any]]:
        """Return the channels that the node knows."""

    async def ping(self, node: str | None, timeout_s: float) -> dict[str, Any]:
        """Return the round trip to a peer."""

    async def request(self, channel: str, payload: bytes, *, node: str | None, timeout_s: float) -> dict[str, Any]:
        """Send a request to a peer and return its reply."""

    async def respond(self, channel: str, handler: Handler, *, ready: Callable[[], None], until: asyncio.Event) -> None:
        """Answer the requests on a channel until the event is set; `ready` is called when they are taken."""

    async def load(self, channel: str, *, events: int, size: int, reliable: bool | None) -> dict[str, Any]:
        """Publish the events of a load test."""

    async def measure(self, channel: str, *, timeout_s: float) -> dict[str, Any] | None:
        """Measure the next load test; None if none came in time."""

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
    options = applied(options or MeshOptions(), os.environ)
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
            yield AdminMesh(client, socket)
    else:
        from meshbus.cli.temporary import NodeMesh, temporary_node

        async with temporary_node(config, publishes=publishes) as node:
            yield NodeMesh(node)
            # What was sent reliably may still have to be sent again: the node must not go before it has arrived.
            if publishes is not None:
                await node.publisher(publishes).flush(ARRIVAL_S)


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
    async with _client(admin, config) as mesh:
        return await mesh.ask(do, **fields)


async def follow_node(admin: Path | None, config: Path | None, do: str, **fields: object) -> AsyncIterator[Any]:
    """Send a request that is answered with a stream of lines, and yield them until the node ends it."""
    async with _client(admin, config) as mesh:
        await mesh.ask(do, **fields)
        while "line" in (told := await mesh.told()):
            yield told["line"]
        if not told["ok"]:
            raise _refusal(told)


@asynccontextmanager
async def _client(admin: Path | None, config: Path | None) -> AsyncIterator[AdminMesh]:
    chosen = applied(MeshOptions(admin=admin, config=config), os.environ)
    if chosen.connect is not None:
        raise ConfigError(
            "--admin", "required, because the context reaches another node and this command asks a local one"
        )
    socket = chosen.admin or load_config(chosen.config).admin_path()
    if socket is None:
        raise ConfigError("--admin", "required because the configuration disables the admin socket")
    async with await LineClient.connect(socket) as client:
        yield AdminMesh(client, socket)


class AdminMesh:
    """A mesh reached through the admin socket of a running node."""

    def __init__(self, client: LineClient, socket: Path) -> None:
        self._client = client
        self._socket = socket

    async def ask(self, do: str, **fields: object) -> Any:
        """Send a request and return its result. Raises Refusal if the node answers with an error."""
        request = {"do": do} | {name: value for name, value in fields.items() if value is not None}
        await self._client.send(msgspec.json.encode(request, enc_hook=str) + b"\n")
        try:
            return _result(await self._client.receive())
        except Refusal as error:
            if not _is_unknown(str(error)):
                raise
            raise Refusal(
                error.answered,
                error.fault,
                f"{self._socket}: the node does not know the request {do!r} of this meshbus, so it runs another version;"
                " restart it with the one that is installed",
            ) from None

    async def told(self) -> dict[str, Any]:
        """Wait for the next line of a stream and return it."""
        line: dict[str, Any] = msgspec.json.decode(await self._client.receive())
        return line

    async def peers(self) -> list[dict[str, Any]]:
        """Return the peers."""
        rows: list[dict[str, Any]] = await self.ask("peers")
        return rows

    async def counters(self) -> dict[str, dict[str, int]]:
        """Return the counters, by kind and reason."""
        found: dict[str, dict[str, int]] = await self.ask("counters")
        return found

    async def status(self) -> dict[str, Any]:
        """Return the identity and address of the node."""
        row: dict[str, Any] = await self.ask("status")
        return row

    async def channels(self) -> list[dict[str, Any]]:
        """Return the channels that the node knows."""
        rows: list[dict[str, Any]] = await self.ask("channels")
        return rows

    async def ping(self, node: str | None, timeout_s: float) -> dict[str, Any]:
        """Return the round trip to a peer."""
        row: dict[str, Any] = await self.ask("ping", node=node, timeout_s=timeout_s)
        return row

    async def request(self, channel: str, payload: bytes, *, node: str | None, timeout_s: float) -> dict[str, Any]:
        """Send a request to a peer and return its reply."""
        row: dict[str, Any] = await self.ask(
            "request", channel=channel, node=node, timeout_s=timeout_s, **payload_row(payload)
        )
        return row

    async def respond(self, channel: str, handler: Handler, *, ready: Callable[[], None], until: asyncio.Event) -> None:
        """Answer the requests on a channel until the event is set; `ready` is called when they are taken."""
        await self.ask("respond", channel=channel)
        ready()
        failures: list[BaseException] = []
        # Answers go over a connection of their own: another line on this one would end the stream.
        async with await LineClient.connect(self._socket) as client:
            try:
                async with asyncio.TaskGroup() as tasks:
                    await self._answer(_Answering(AdminMesh(client, self._socket), handler), tasks, until)
            except* (MeshError, OSError) as group:
                failures += group.exceptions
        for failure in failures:
            raise failure

    async def _answer(self, answering: _Answering, tasks: asyncio.TaskGroup, until: asyncio.Event) -> None:
        ended = tasks.create_task(until.wait())
        while True:
            line = tasks.create_task(self.told())
            await asyncio.wait({line, ended}, return_when=asyncio.FIRST_COMPLETED)
            if until.is_set():
                line.cancel()
                return
            told = await line
            if "request" not in told:
                raise _refusal(told)
            tasks.create_task(answering.reply(told["request"]["request"], payload_of(told["request"])))

    async def load(self, channel: str, *, events: int, size: int, reliable: bool | None) -> dict[str, Any]:
        """Publish the events of a load test."""
        row: dict[str, Any] = await self.ask("load", channel=channel, events=events, size=size, reliable=reliable)
        return row

    async def measure(self, channel: str, *, timeout_s: float) -> dict[str, Any] | None:
        """Measure the next load test; None if none came in time."""
        row: dict[str, Any] | None = await self.ask("measure", channel=channel, timeout_s=timeout_s)
        return row

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
            line = await self.told()
            if "event" not in line:
                raise _refusal(line)
            yield line["event"]


class _Answering:
    """Answers the requests that come over one connection by way of another."""

    def __init__(self, answers: AdminMesh, handler: Handler) -> None:
        self._answers = answers
        self._handler = handler
        self._turn = asyncio.Lock()

    async def reply(self, number: int, question: bytes) -> None:
        """Answer one request, or report that it failed."""
        try:
            answer: dict[str, str] = payload_row(await self._handler(question))
        except MeshError as error:
            answer = {"problem": str(error)}
        async with self._turn:
            with suppress(Refusal):  # the requester no longer waits
                await self._answers.ask("reply", request=number, **answer)


def _result(line: bytes) -> Any:
    answer = msgspec.json.decode(line)
    if not answer["ok"]:
        raise _refusal(answer)
    return answer["result"]


def _is_unknown(problem: str) -> bool:
    """Return whether a node has refused a request because its version does not have it, or not in this form."""
    # As nodes of every version answer (node/admin.py): the words for what is missing are those of msgspec.
    invalid = problem.startswith("request: is not a valid command")
    return invalid and ("at `$.do`" in problem or "unknown field" in problem)


def _refusal(answer: dict[str, Any]) -> Refusal:
    return Refusal(answer["code"], answer["fault"], answer["problem"])
