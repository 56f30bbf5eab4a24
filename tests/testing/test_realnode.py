"""The program of a real peer's process, with a stand-in for the binding; the binding itself is in test_realpeer."""

from __future__ import annotations

import asyncio
import io
import os
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from meshbus.testing.realnode import RealNode, Reply, Request, read_frame, serve, write_frame
from tests.patience import PATIENCE_S


class Full(Exception):
    pass


class Mesh:
    """A node without a network: it remembers what it was told."""

    node_id, public_key, entity_id = 7, "00" * 32, b"e" * 32

    def __init__(self, bind: str, psk: str, **options: Any) -> None:
        self.told: list[Any] = [(bind, psk, options)]

    def __repr__(self) -> str:
        return "NetMesh(addr=[::1]:4000, peers=0, nodes=0)"

    def register_channel(self, name: str, **config: Any) -> None:
        self.told.append((name, config))

    def stream_stats(self, _: int, stream: int) -> Any:
        return SimpleNamespace(tx_seq=3, _secret=1) if stream == 1 else None

    def heard(self) -> list[Any]:
        return self.told

    def strange(self) -> object:
        return object()


class AsyncMesh:
    """Its twin: the first two attempts to send find a full window."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.refusals = 2

    async def accept(self, _: int) -> None:
        await asyncio.Event().wait()

    async def connect(self, *_: Any) -> tuple[()]:
        return ()

    async def poll(self, limit: int) -> list[Any]:
        return [SimpleNamespace(raw="event", id=f"{n}:0") for n in range(min(limit, 2))]

    async def publish(self, *_: Any) -> dict[str, int]:
        self.refuse()
        return {"delivered": 1}

    async def send(self, events: list[bytes]) -> None:
        self.refuse()
        self.mesh.told.append(events)

    def open_stream(self, *_: Any, **__: Any) -> AsyncMesh:
        return self

    def refuse(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Full("no credit")


BINDING = SimpleNamespace(
    NetMesh=Mesh,
    AsyncNetMesh=AsyncMesh,
    ChannelError=Full,
    BackpressureError=Full,
    Identity=SimpleNamespace(from_seed=lambda _: SimpleNamespace(origin_hash=9)),
)
OPEN = Request(0, "open", ["[::1]:0", "ab", b"s" * 32, [{"name": "x", "reliable": True}]], {"num_shards": 1})


async def ask(node: RealNode, command: str, *arguments: Any, **options: Any) -> Any:
    reply = await node.answer(Request(1, command, list(arguments), options))
    return reply.result if not reply.error else (reply.error, reply.message)


@pytest.fixture
async def node() -> RealNode:
    node = RealNode(BINDING)
    await node.answer(OPEN)
    return node


async def test_opening_makes_the_node_and_its_channels_and_tells_its_address() -> None:
    node = RealNode(BINDING)
    reply = await node.answer(OPEN)
    told = {"node_id": 7, "public_key": "00" * 32, "entity_id": b"e" * 32, "origin_hash": 9, "address": "[::1]:4000"}
    assert reply == Reply(0, told)
    made = ("[::1]:0", "ab", {"identity_seed": b"s" * 32, "num_shards": 1})
    assert await ask(node, "heard") == [made, ("x", {"reliable": True})]


async def test_before_opening_there_is_nothing_to_ask() -> None:
    assert await ask(RealNode(BINDING), "connect") == ("LookupError", "net-mesh has no method 'connect'")


async def test_nothing_and_the_empty_tuple_are_the_same_answer(node: RealNode) -> None:
    assert await ask(node, "connect", "127.0.0.1:1") is None


async def test_what_is_raised_is_told_by_its_class(node: RealNode) -> None:
    await ask(node, "open_stream", 1, 2, window_bytes=10)
    assert await ask(node, "send", 1, 2, [b"x"]) == ("Full", "no credit")
    assert (await ask(node, "send", 9, 9, [b"x"]))[0] == "KeyError"


async def test_insisting_commands_try_again_until_there_is_room(node: RealNode) -> None:
    assert await ask(node, "publish_all", "x", [b"a", b"b"]) == 2
    await ask(node, "open_stream", 1, 2)
    await ask(node, "send_all", 1, 2, [b"c", b"d"])
    assert (await ask(node, "heard"))[-2:] == [[b"c"], [b"d"]]


async def test_collecting_ends_with_the_count_or_with_the_time(node: RealNode) -> None:
    assert await ask(node, "collect", 3, 5.0) == [("event", "0:0"), ("event", "1:0"), ("event", "0:0")]
    assert await ask(node, "collect", 1, 0.0) == []


async def test_stream_figures_are_plain_values(node: RealNode) -> None:
    assert await ask(node, "stream_stats", 1, 1) == {"tx_seq": 3}
    assert await ask(node, "stream_stats", 1, 2) is None


def test_frames_come_back_and_a_torn_one_is_the_end() -> None:
    stream = io.BytesIO()
    write_frame(stream, b"one")
    write_frame(stream, b"")
    write_frame(stream, b"torn")
    whole = stream.getvalue()
    assert [read_frame(copy := io.BytesIO(whole)), read_frame(copy), read_frame(copy), read_frame(copy)] == [
        b"one", b"", b"torn", None,
    ]  # fmt: skip
    for cut in (len(whole) - 1, len(whole) - 6):
        torn = io.BytesIO(whole[:cut])
        assert [read_frame(torn), read_frame(torn), read_frame(torn)] == [b"one", b"", None]


async def test_serving_overlaps_requests_and_ends_with_its_input() -> None:
    ends = os.pipe(), os.pipe()
    requests, ask_at, answer_at, replies = (
        os.fdopen(fd, mode)
        for fd, mode in zip([*ends[0], ends[1][1], ends[1][0]], ["rb", "wb", "wb", "rb"], strict=True)
    )
    serving = asyncio.ensure_future(serve(RealNode(BINDING), requests, answer_at))
    try:
        for request in (
            OPEN,
            Request(1, "accept", [5], {}),
            Request(2, "strange", [], {}),
            Request(3, "poll", [1], {}),
        ):
            write_frame(ask_at, msgspec.msgpack.encode(request))
        answers = {}
        for _ in range(3):
            body = await asyncio.to_thread(read_frame, replies)
            assert body is not None
            reply = msgspec.msgpack.decode(body, type=Reply)
            answers[reply.number] = reply
        assert answers[0].result["node_id"] == 7
        assert answers[2].error == "TypeError"
        assert answers[3].result == [["event", "0:0"]]
        ask_at.close()
        await asyncio.wait_for(serving, PATIENCE_S)
    finally:
        for stream in (requests, ask_at, answer_at, replies):
            stream.close()
