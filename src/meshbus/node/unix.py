"""A unix socket that only its owner can open: lines in, lines out.

The file system decides who may connect: the socket has mode 0600 in a folder with mode 0700, so there are no passwords.
Each line is answered with one line, or with a stream of lines that continues until the client sends another line or
closes the connection. What the lines mean is defined in node/admin.py.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Self, TypeAlias

from meshbus.errors import ConfigError
from meshbus.policy.bound import Bound, By

MAX_LINE = 128 * 1024
"""Bytes of a line: the largest event as JSON text with every byte escaped, and room for the rest."""
MAX_ANSWER = 96 << 20
"""Bytes of one line that a client reads: an event of the largest size, in base64."""
MAX_CONNECTIONS = 64
"""Clients at a time: far more than the commands of one user, far fewer than the open files of a process."""

_OTHERS = 0o077
"""The permission bits of group and others."""

Stream: TypeAlias = AsyncGenerator[bytes, None]
Answer: TypeAlias = Callable[[bytes], Awaitable[bytes | Stream]]
"""Answers one line with one line, or with a stream of lines; never raises because of what a client sends."""


BOUNDS = (
    Bound(
        name="admin_clients",
        what="connections to the admin socket",
        by=By.USER,
        per_node=MAX_CONNECTIONS,
        per={"connection, in bytes of a line": MAX_LINE},
        full="the new one is refused",
        counter="answers with an error",
    ),
)


class LineServer:
    """Serves one unix socket."""

    def __init__(self, path: Path, answer: Answer, *, refusal: bytes = b"") -> None:
        self.path = path
        self._answer = answer
        self._refusal = refusal
        """Sent to a client that cannot be served: there are too many, or its line is too long."""
        self._server: asyncio.Server | None = None
        self._inode: int | None = None
        self._tasks: set[asyncio.Task[object]] = set()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Create the socket and listen.

        Raises ConfigError if others can enter its folder, if another process serves it, or if the system refuses.
        """
        _make_private_folder(self.path.parent)
        await _remove_stale(self.path)
        try:
            self._server = await asyncio.start_unix_server(self._serve, path=self.path, limit=MAX_LINE)
            self.path.chmod(0o600)
            self._inode = self.path.stat().st_ino
        except OSError as error:
            raise _bad(self.path, f"cannot be opened: {error.strerror or error}; choose another admin_socket") from None

    async def close(self) -> None:
        """Stop listening, close the connections and remove the socket; closing twice is fine."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()
        with suppress(FileNotFoundError):
            if self.path.stat().st_ino == self._inode:  # not the socket of another server that was started after us
                self.path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._tasks) >= MAX_CONNECTIONS:
            writer.write(self._refusal)
            writer.close()
            return
        self._tasks.add(task)
        try:
            await self._converse(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client closed the connection, or the server is closing
        except ValueError:  # a line over the limit: where the next one starts is unknown
            writer.write(self._refusal)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        while line:
            answer = await self._answer(line)
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
                line = await reader.readline()
            else:
                line = await _stream(answer, reader, writer)


async def _stream(answer: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Send a stream until the client sends a line; return that line, or b"" if the client closed the connection."""

    async def pump() -> None:
        async with aclosing(answer) as lines:
            async for line in lines:
                writer.write(line)
                await writer.drain()

    following = b""
    try:
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(pump())
            following = await reader.readline()
            sending.cancel()
    except* ConnectionError:
        following = b""
    return following


class LineClient:
    """The client side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, path: Path) -> Self:
        """Connect to a socket. Raises ConnectionError if no node serves it."""
        try:
            return cls(*await asyncio.open_unix_connection(path, limit=MAX_ANSWER))
        except (OSError, ValueError) as error:
            why = "there is no such socket" if isinstance(error, FileNotFoundError) else "no node answers"
            if isinstance(error, PermissionError):
                why = "it belongs to another user"
            raise ConnectionError(
                f"{path}: {why}; start a node with `meshbus up`, or name its socket with --admin"
            ) from None

    async def send(self, line: bytes) -> None:
        """Send a line; it must end with a newline."""
        self._writer.write(line)
        await self._writer.drain()

    async def receive(self) -> bytes:
        """Wait for a line and return it. Raises ConnectionError if the server closed the connection."""
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the node closed its admin socket; see its log for the reason")
        return line

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def check_socket(path: Path) -> None:
    """Raise ConfigError if a server could not open this path; creates nothing, and does not ask who serves it."""
    folder = path.parent
    if folder.exists():
        _check_folder(folder)
        _is_socket(path)
        return
    above = next(one for one in folder.parents if one.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise _bad(folder, f"cannot be created: {above} is not writable; choose another admin_socket")


async def is_served(path: Path) -> bool:
    """Return whether a node answers on a socket."""
    try:
        client = await LineClient.connect(path)
    except ConnectionError:
        return False
    await client.close()
    return True


def _make_private_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _bad(folder, f"cannot be created: {error.strerror or error}; choose another admin_socket") from None
    _check_folder(folder)


def _check_folder(folder: Path) -> None:
    status = folder.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        raise _bad(folder, "belongs to another user; choose an admin_socket in a folder of your own")
    if mode & _OTHERS:
        raise _bad(folder, f"others can enter it (mode {mode:04o}); run `chmod 700 {folder}`, or choose another folder")


async def _remove_stale(path: Path) -> None:
    """Remove the socket of a node that crashed. Raises ConfigError if a node serves it, or if it is not a socket."""
    if not _is_socket(path):
        return
    if not await is_served(path):
        Path.unlink(path, missing_ok=True)
        return
    raise _bad(path, "another node serves it; stop that node, or choose another admin_socket")


def _is_socket(path: Path) -> bool:
    """Return whether there is a socket. Raises ConfigError if there is another kind of file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise _bad(path, "exists and is not a socket; move it away, or choose another admin_socket")
    return True


def _bad(path: Path, problem: str) -> ConfigError:
    return ConfigError("admin_socket", problem, source=str(path))
