"""Program of a real peer's process: a published net-mesh node that executes requests from a pipe.

`python -m meshbus.testing.realnode` reads requests from standard input and writes replies to standard output, each a
msgpack value after its length; several requests may be in progress at once. It exits when its input ends, so it never
outlives the test that started it. Tests use its counterpart, realpeer.py.

A request names a method of the binding's node, or one of the `do_…` methods here and in realdaemons.py, which wrap
methods that return the binding's own objects.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import re
import struct
import sys
import threading
from collections.abc import Sequence
from typing import IO, Any

import msgspec

from meshbus.testing.realdaemons import RealDaemons

MODULE = "net"
"""Import name of the package `net-mesh`."""
POLL_LIMIT = 4096
PAUSE_S = 0.001
"""Pause between two polls."""

_LENGTH = struct.Struct("<I")


class Request(msgspec.Struct, frozen=True):
    """One request."""

    number: int
    command: str
    arguments: list[Any]
    options: dict[str, Any]


class Reply(msgspec.Struct, frozen=True):
    """Reply to the request with the same number."""

    number: int
    result: Any = None
    error: str = ""
    """Class name of the exception that was raised, or empty."""
    message: str = ""


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Read one frame; return None if the stream ends, also in the middle of a frame."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None


def write_frame(stream: IO[bytes], body: bytes) -> None:
    """Write one frame, and flush."""
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


class RealNode:
    """A net-mesh node and its open handles."""

    def __init__(self, net: Any) -> None:
        self._net = net
        self._mesh: Any = None
        self._async: Any = None
        self._identity: Any = None
        self._streams: dict[tuple[int, int], Any] = {}
        self._rpc: Any = None
        self._serving: Any = None
        self._replica: Any = None
        self._daemons: RealDaemons | None = None

    async def answer(self, request: Request) -> Reply:
        """Execute a request; an exception of the binding becomes part of the reply."""
        try:
            result = self._find(request.command)(*request.arguments, **request.options)
            if inspect.isawaitable(result):
                result = await result
        except Exception as error:  # noqa: BLE001 - reported to the test, not handled here
            return Reply(request.number, error=type(error).__name__, message=str(error))
        return Reply(request.number, None if result == () else result)

    def _find(self, command: str) -> Any:
        """Return the method of a command: a `do_` method, else that of the async binding, else that of the binding."""
        own = f"do_{command}"
        # The async binding comes before the plain one, whose calls hold the interpreter lock while they wait.
        for owner, name in ((self, own), (self._daemons, own), (self._async, command), (self._mesh, command)):
            if owner is not None and not command.startswith("_") and hasattr(owner, name):
                return getattr(owner, name)
        raise LookupError(f"net-mesh has no method {command!r}")

    def do_open(
        self, bind: str, psk: str, seed: bytes, channels: Sequence[dict[str, Any]], **options: Any
    ) -> dict[str, Any]:
        """Create the node; it receives nothing before `start`."""
        self._identity = self._net.Identity.from_seed(seed)
        self._mesh = self._net.NetMesh(bind, psk, identity_seed=seed, **options)
        self._async = self._net.AsyncNetMesh(self._mesh)
        for channel in channels:
            self._mesh.register_channel(**channel)
        return {
            "node_id": self._mesh.node_id,
            "public_key": self._mesh.public_key,
            "entity_id": self._mesh.entity_id,
            "origin_hash": self._identity.origin_hash,
            "address": bound_address(repr(self._mesh)),
        }

    def do_open_daemons(self) -> None:
        """Create the compute runtime; it takes part in moves after `start_daemons`. realdaemons.py has its commands."""
        self._daemons = RealDaemons(self._net, self._mesh)

    async def do_poll(self, limit: int = POLL_LIMIT) -> list[tuple[str, str]]:
        """Return text and id of each received event."""
        return [(event.raw, event.id) for event in await self._async.poll(limit)]

    async def do_collect(self, count: int, seconds: float) -> list[tuple[str, str]]:
        """Poll until `count` events were received, or the time is up."""
        events: list[tuple[str, str]] = []
        deadline = _now() + seconds
        while len(events) < count and _now() < deadline:
            arrived = await self.do_poll(min(count - len(events), POLL_LIMIT))
            events += arrived
            if not arrived:
                await asyncio.sleep(PAUSE_S)
        return events

    async def do_publish_all(self, channel: str, payloads: Sequence[bytes], **options: Any) -> int:
        """Publish payloads one by one, retrying while a window is full; return the number of deliveries."""
        delivered = 0
        for payload in payloads:
            report = await self._insist(self._net.ChannelError, self._async.publish, channel, payload, **options)
            delivered += report["delivered"]
        return delivered

    def do_open_stream(self, peer: int, stream: int, **options: Any) -> None:
        """Open a stream and keep its handle."""
        self._streams[peer, stream] = self._async.open_stream(peer, stream, **options)

    async def do_send(self, peer: int, stream: int, events: Sequence[bytes]) -> None:
        """Send events in one call; raises the binding's BackpressureError if there is no credit."""
        await self._streams[peer, stream].send(list(events))

    async def do_send_all(self, peer: int, stream: int, events: Sequence[bytes]) -> None:
        """Send events one by one, retrying each until there is credit."""
        send = self._streams[peer, stream].send
        for event in events:
            await self._insist(self._net.BackpressureError, send, [event])

    def do_stream_stats(self, peer: int, stream: int) -> dict[str, Any] | None:
        """Return the binding's statistics of a stream, or None."""
        stats = self._mesh.stream_stats(peer, stream)
        if stats is None:
            return None
        return {name: getattr(stats, name) for name in dir(stats) if not name.startswith("_")}

    def do_offer_replica(self, channel: str, members: Sequence[int]) -> None:
        """Open a replicated log with these members as soon as another real node asks for it (`open_replica`).

        The binding can open one only on its own threads, which run the handlers of its requests (redex.md §9).
        """
        redex = self._net.Redex()
        redex.enable_replication(self._mesh)

        def open_file(_request: bytes) -> bytes:
            self._replica = redex.open_file(
                channel,
                replication=True,
                replication_placement="pinned",
                replication_pinned_nodes=list(members),
                replication_heartbeat_ms=100,
            )
            return str(redex.replication_runtime_count()).encode()

        self._rpc = self._net.MeshRpc(self._mesh)
        self._serving = self._rpc.serve("open-replica", open_file)

    def do_open_replica(self, node_id: int) -> int:
        """Ask another real node to open the replicated log that it offers, and return how many it has then."""
        return int(self._net.MeshRpc(self._mesh).call(node_id, "open-replica", b""))

    def do_issue_token(self, *arguments: Any, **options: Any) -> bytes:
        """Issue a token as this node."""
        return bytes(self._identity.issue_token(*arguments, **options))

    def do_install_token(self, token: bytes) -> None:
        """Check format and signature of a token with the binding's identity."""
        self._identity.install_token(token)

    def do_delegate_token(self, token: bytes, subject: bytes, scope: list[str]) -> bytes:
        """Delegate a token of this node."""
        return bytes(self._net.delegate_token(self._identity, token, subject, scope))

    def do_parse_token(self, token: bytes) -> dict[str, Any]:
        """Decode a token without checking it."""
        return dict(self._net.parse_token(token))

    def do_verify_token(self, token: bytes) -> bool:
        """Return whether the signature of a token is valid."""
        return bool(self._net.verify_token(token))

    async def _insist(self, full: type[Exception], call: Any, *arguments: Any, **options: Any) -> Any:
        """Call again while it raises `full`; the timeout of the request is the limit."""
        while True:
            try:
                return await call(*arguments, **options)
            except full:
                await asyncio.sleep(PAUSE_S)


async def serve(node: RealNode, requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer requests concurrently until the input ends, then cancel those in progress."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[bytes | None] = asyncio.Queue()

    # A thread reads, because the loop cannot wait for standard input on every platform.
    def read() -> None:
        body: bytes | None = b""
        while body is not None:
            body = read_frame(requests)
            loop.call_soon_threadsafe(waiting.put_nowait, body)

    async def answer(body: bytes) -> None:
        reply = await node.answer(msgspec.msgpack.decode(body, type=Request))
        write_frame(replies, _encode(reply))

    threading.Thread(target=read, daemon=True).start()
    async with asyncio.TaskGroup() as group:
        tasks: set[asyncio.Task[None]] = set()
        while (body := await waiting.get()) is not None:
            task = group.create_task(answer(body))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        for task in list(tasks):
            task.cancel()


def main() -> None:
    """Serve on the standard streams."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries goes to stderr, so that it cannot corrupt the replies
    asyncio.run(serve(RealNode(importlib.import_module(MODULE)), sys.stdin.buffer, replies))
    os._exit(0)  # do not wait for threads of the binding


def _encode(reply: Reply) -> bytes:
    try:
        return msgspec.msgpack.encode(reply)
    except (TypeError, ValueError, OverflowError) as error:
        return msgspec.msgpack.encode(Reply(reply.number, error=type(error).__name__, message=str(error)))


def _now() -> float:
    return asyncio.get_running_loop().time()


def bound_address(description: str) -> str:
    """Return the address in the repr of the binding's node, the only place that shows a port chosen by the system."""
    found = re.search(r"addr=([^,)]+)", description)
    return found[1] if found else ""


if __name__ == "__main__":
    main()
