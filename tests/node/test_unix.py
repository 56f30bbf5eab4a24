"""The local socket is for its owner alone, survives bad clients, and leaves nothing behind."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meshbus.errors import ConfigError
from meshbus.node import unix
from meshbus.node.unix import MAX_LINE, LineClient, LineServer, Stream
from tests.patience import PATIENCE_S


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run" / "admin.sock"


class Echo:
    """Answers a line with itself, and `count` with a stream that goes on until it is closed."""

    def __init__(self) -> None:
        self.streams = 0
        self.ended = asyncio.Event()

    async def __call__(self, line: bytes) -> bytes | Stream:
        return self._count() if line == b"count\n" else line

    async def _count(self) -> Stream:
        self.streams += 1
        try:
            for number in range(10**9):
                yield b"%d\n" % number
                await asyncio.sleep(0.001)
        finally:
            self.ended.set()


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture
async def server(place: Path, echo: Echo) -> AsyncIterator[LineServer]:
    async with LineServer(place, echo, refusal=b"no\n") as opened:
        yield opened


async def _ask(place: Path, line: bytes) -> bytes:
    async with await LineClient.connect(place) as client:
        await client.send(line)
        return await client.receive()


async def _receive_all(client: LineClient) -> None:
    while True:
        await client.receive()


def _put_file(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_text("mine", "utf-8")


def _text(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None


def _remove(path: Path) -> None:
    path.unlink()


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_the_socket_is_private_in_a_private_folder(place: Path, server: LineServer) -> None:
    assert _mode(place) == 0o600
    assert _mode(place.parent) == 0o700


async def test_lines_are_answered_in_order_on_one_connection(place: Path, server: LineServer) -> None:
    async with await LineClient.connect(place) as client:
        await client.send(b"a\nb\n")
        assert [await client.receive(), await client.receive()] == [b"a\n", b"b\n"]
        await client.send(b"c\n")
        assert await client.receive() == b"c\n"


async def test_a_client_that_closes_its_end_still_gets_its_answer(place: Path, server: LineServer) -> None:
    reader, writer = await asyncio.open_unix_connection(place)
    writer.write(b"a\n")
    writer.write_eof()
    assert await reader.read() == b"a\n"
    writer.close()


async def test_a_stream_ends_when_the_client_leaves(place: Path, server: LineServer, echo: Echo) -> None:
    async with await LineClient.connect(place) as client:
        await client.send(b"count\n")
        assert [await client.receive() for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
    await asyncio.wait_for(echo.ended.wait(), PATIENCE_S)


async def test_a_stream_ends_with_the_next_line(place: Path, server: LineServer, echo: Echo) -> None:
    async with await LineClient.connect(place) as client:
        await client.send(b"count\n")
        await client.receive()
        await client.send(b"enough\n")
        while await client.receive() != b"enough\n":
            pass
        assert echo.ended.is_set()


async def test_a_line_beyond_the_limit_is_refused(place: Path, server: LineServer) -> None:
    assert await _ask(place, b"x" * (MAX_LINE + 2) + b"\n") == b"no\n"
    assert await _ask(place, b"fine\n") == b"fine\n"


async def test_clients_beyond_the_limit_are_refused(
    place: Path, server: LineServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix, "MAX_CONNECTIONS", 1)
    async with await LineClient.connect(place) as first:
        await first.send(b"a\n")
        await first.receive()
        async with await LineClient.connect(place) as second:
            assert await second.receive() == b"no\n"
        await first.send(b"b\n")
        assert await first.receive() == b"b\n"


async def test_closing_ends_connections_and_removes_the_socket(place: Path, echo: Echo) -> None:
    server = LineServer(place, echo)
    await server.open()
    async with await LineClient.connect(place) as client:
        await client.send(b"count\n")
        await client.receive()
        await server.close()
        await server.close()
        assert echo.ended.is_set()
        with pytest.raises(ConnectionError, match="closed its admin socket"):
            await _receive_all(client)
    assert _text(place) is None


async def test_a_socket_left_behind_is_replaced(place: Path, server: LineServer, echo: Echo) -> None:
    left = place.with_name("left.sock")
    os.link(place, left)
    await server.close()
    assert left.exists()
    async with LineServer(left, echo):
        assert await _ask(left, b"a\n") == b"a\n"


async def test_a_live_socket_is_not_taken(place: Path, server: LineServer, echo: Echo) -> None:
    with pytest.raises(ConfigError, match="another node serves it"):
        await LineServer(place, echo).open()
    assert await _ask(place, b"a\n") == b"a\n"


async def test_closing_does_not_remove_the_socket_of_a_successor(place: Path, server: LineServer, echo: Echo) -> None:
    _remove(place)
    async with LineServer(place, echo):
        await server.close()
        assert await _ask(place, b"a\n") == b"a\n"


async def test_another_file_is_not_removed(place: Path, echo: Echo) -> None:
    _put_file(place)
    with pytest.raises(ConfigError, match="exists and is not a socket"):
        await LineServer(place, echo).open()
    assert _text(place) == "mine"


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701])
async def test_a_folder_that_others_can_enter_is_refused(place: Path, echo: Echo, mode: int) -> None:
    place.parent.mkdir()
    place.parent.chmod(mode)
    with pytest.raises(ConfigError, match=f"others can enter it .mode {mode:04o}.; run `chmod 700"):
        await LineServer(place, echo).open()


async def test_a_folder_of_another_user_is_refused(place: Path, echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match="belongs to another user"):
        await LineServer(place, echo).open()


async def test_a_path_that_cannot_be_created_is_refused(tmp_path: Path, echo: Echo) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(ConfigError, match="cannot be created"):
        await LineServer(tmp_path / "file" / "x" / "admin.sock", echo).open()
    with pytest.raises(ConfigError, match=r"cannot be opened: .*choose another admin_socket"):
        await LineServer(tmp_path / "run" / ("x" * 120), echo).open()


async def test_a_client_without_a_server_gets_an_error_with_advice(place: Path, server: LineServer) -> None:
    with pytest.raises(ConnectionError, match="there is no such socket; start a node with `meshbus up`"):
        await LineClient.connect(place.with_name("none"))
    left = place.with_name("left.sock")
    os.link(place, left)
    await server.close()
    with pytest.raises(ConnectionError, match="no node answers"):
        await LineClient.connect(left)


async def test_a_client_of_another_user_gets_an_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "denied")

    monkeypatch.setattr(asyncio, "open_unix_connection", refuse)
    with pytest.raises(ConnectionError, match="it belongs to another user"):
        await LineClient.connect(place)


async def test_a_path_is_checked_without_creating_anything(place: Path, echo: Echo) -> None:
    unix.check_socket(place / "deep" / "admin.sock")
    assert not place.parent.exists() or not list(place.parent.iterdir())
    assert not await unix.is_served(place)
    async with LineServer(place, echo):
        unix.check_socket(place)
        assert await unix.is_served(place)
    place.parent.chmod(0o755)
    with pytest.raises(ConfigError, match="others can enter it"):
        unix.check_socket(place)


async def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", "utf-8")
    with pytest.raises(ConfigError, match="is not writable"):
        unix.check_socket(tmp_path / "file" / "run" / "admin.sock")
