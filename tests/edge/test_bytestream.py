import asyncio
import socket  # noqa: TID251 - the other end
from typing import Any, Self

import pytest

from meshbus.edge.bytestream import LARGE_BYTES, MAX_BUFFERS, Stream
from tests.edge.raw import run_loop
from tests.patience import PATIENCE_S


class Ends:
    """A stream, and the raw socket at its other end."""

    def __init__(self) -> None:
        mine, self.other = socket.socketpair()
        mine.setblocking(False)
        self.other.setblocking(False)
        self.data = bytearray()
        self.idles = 0
        self.ended: list[str] = []
        self.stream = Stream(mine, on_data=self.data.extend, on_idle=self.count_idle, on_end=self.ended.append)

    def count_idle(self) -> None:
        self.idles += 1

    async def read(self, count: int) -> bytes:
        loop, data = asyncio.get_running_loop(), bytearray()
        while len(data) < count:
            data += await asyncio.wait_for(loop.sock_recv(self.other, 1 << 20), PATIENCE_S)
        return bytes(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.other.close()


@pytest.mark.parametrize(
    "sizes",
    [
        [10],
        [10, 20, 30],
        [5_000_000],
        [100] * 5_000,
        [LARGE_BYTES] * (MAX_BUFFERS + 10),
        [10, 3 * LARGE_BYTES, 10, 10, 2_000_000, 10],
    ],
    ids=["one", "few", "large", "many", "many large", "mixed"],
)
async def test_everything_arrives_in_order_however_much_it_is(sizes: list[int]) -> None:
    buffers = [bytes((number % 256,)) * size for number, size in enumerate(sizes)]
    with Ends() as ends:
        ends.stream.write(buffers)
        assert ends.stream.idle == (sum(sizes) < 100_000)
        ends.stream.write([b"and more"])
        whole = b"".join(buffers) + b"and more"
        assert await ends.read(len(whole)) == whole
        await run_loop()
        assert ends.stream.idle
        assert ends.idles == (sum(sizes) >= 100_000), "told once when what waited has left"


async def test_a_large_body_is_never_copied() -> None:
    sent: list[Any] = []

    class Watched(socket.socket):
        def sendmsg(self, buffers: Any, *_: Any) -> int:
            sent.extend(buffers)
            return sum(map(len, buffers))

    left, right = socket.socketpair()
    watched = Watched(fileno=left.detach())
    stream = Stream(watched, on_data=sent.append, on_idle=sent.clear, on_end=sent.append)
    body = bytes(LARGE_BYTES)
    stream.write([b"head", b"er", body, b"tail"])
    assert [len(buffer) for buffer in sent] == [6, LARGE_BYTES, 4]
    assert sent[1] is body
    stream.close()
    right.close()


async def test_reading_pauses_and_resumes() -> None:
    with Ends() as ends:
        ends.other.send(b"one")
        await run_loop()
        ends.stream.pause()
        ends.stream.pause()
        ends.other.send(b"two")
        await run_loop()
        assert ends.data == b"one"
        ends.stream.resume()
        await run_loop()
        assert ends.data == b"onetwo"


async def test_the_end_is_reported_once() -> None:
    with Ends() as ends:
        ends.other.close()
        await run_loop()
        assert ends.ended == [""]
        ends.stream.write([b"into the void"])
        await run_loop()
        assert ends.ended == [""]


@pytest.mark.parametrize("buffers", [[b"x"], [b"x", b"y"]])
async def test_a_broken_connection_is_reported_after_the_write(buffers: list[bytes]) -> None:
    with Ends() as ends:
        ends.stream.pause()
        ends.other.close()
        ends.stream.write(buffers)
        assert ends.ended == [], "not in the middle of the call"
        await run_loop()
        assert len(ends.ended) == 1
        assert ends.ended[0]


async def test_closing_while_something_waits() -> None:
    with Ends() as ends:
        ends.stream.write([bytes(5_000_000)])
        ends.stream.close()
        ends.stream.close()
        ends.stream.resume()
        await run_loop()
        assert ends.ended == [], "we know that we closed"
