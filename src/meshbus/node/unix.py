"""A unix socket for the owner alone: lines in, lines out.

Who may connect is decided by the file system: the socket has mode 0600 in a folder with mode 0700, so there are no
passwords here. A line asks for one answer, or for a stream of lines that goes on until the client sends another line or
closes its end. What the lines mean is in node/admin.py.
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

MAX_LINE = 128 * 1024
"""The largest event as JSON text, every byte of it escaped, and room for the rest."""
MAX_CONNECTIONS = 64

_OTHERS = 0o077
"""Every permission of the group and of the world."""

Stream: TypeAlias = AsyncGenerator[bytes, None]
Answer: TypeAlias = Callable[[bytes], Awaitable[bytes | Stream]]
"""Answers one line with one line, or with a stream of them; never raises for what a client sends."""


class LineServer:
    """Serves one unix socket."""

    def __init__(self, path: Path, answer: Answer, *, refusal: bytes = b"") -> None:
        self.path = path
        self._answer = answer
        self._refusal = refusal
        """Told to a client that cannot be served: there are too many, or its line is too long."""
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

        Raises ConfigError when its folder is open to others, when another process serves it, or when the system
        refuses.
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
        """Stop listening, end the connections and remove the socket; closing twice is fine."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.wait_closed()
        with suppress(FileNotFoundError):
            if self.path.stat().st_ino == self._inode:  # and not another server's, who came after us
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
            pass  # the client is gone, or we are
        except ValueError:  # a line beyond the limit: what follows cannot be told apart from it
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
    """Send a stream until the client has enough; gives the line by which it said so, empty when it closed its end."""

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
    """The other end, for one conversation."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, path: Path) -> Self:
        """Connect; raises ConnectionError when nobody serves the socket."""
        try:
            return cls(*await asyncio.open_unix_connection(path, limit=MAX_LINE * 8))
        except (OSError, ValueError) as error:
            why = "there is no such socket" if isinstance(error, FileNotFoundError) else "nobody answers there"
            if isinstance(error, PermissionError):
                why = "it belongs to another user"
            raise ConnectionError(
                f"{path}: {why}; start a node with `meshbus up`, or name its socket with --admin"
            ) from None

    async def send(self, line: bytes) -> None:
        """Send a line, which ends with a newline."""
        self._writer.write(line)
        await self._writer.drain()

    async def receive(self) -> bytes:
        """Wait for a line; raises ConnectionError when the server is gone."""
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the node closed its admin socket; look at its own messages")
        return line

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _make_private_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise _bad(folder, f"cannot be created: {error.strerror or error}; choose another admin_socket") from None
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.geteuid():
        raise _bad(folder, "belongs to another user: choose an admin_socket in a folder of your own")
    if mode & _OTHERS:
        raise _bad(folder, f"others can enter it (mode {mode:04o}): run `chmod 700 {folder}`, or choose another folder")


async def _remove_stale(path: Path) -> None:
    """Remove what a node that ended badly left behind; refuse to remove anything else."""
    if not _is_socket(path):
        return
    try:
        client = await LineClient.connect(path)
    except ConnectionError:
        Path.unlink(path, missing_ok=True)
        return
    await client.close()
    raise _bad(path, "another node serves it: stop that one, or choose another admin_socket")


def _is_socket(path: Path) -> bool:
    """Say whether there is a socket; raises ConfigError when there is something else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise _bad(path, "there is a file that is no socket: move it away, or choose another admin_socket")
    return True


def _bad(path: Path, problem: str) -> ConfigError:
    return ConfigError("admin_socket", problem, source=str(path))
