"""One connected socket on the running loop: reads as they come, writes with as few copies and calls as possible.

What is written goes to the kernel at once when the kernel takes it; what it does not take waits, and the owner is told
when all of it has left. The owner therefore writes again only while the stream is `idle`, and keeps its own queue: the
stream holds one write, however slow the other end is.
"""

from __future__ import annotations

import asyncio
import socket  # noqa: TID251 - works on sockets that edge/server.py opened
from collections.abc import Callable, Sequence

READ_BYTES = 256 << 10
LARGE_BYTES = 32 << 10
"""A buffer from this size on is sent from where it lies: copying it costs more than one more buffer in the call."""
MAX_BUFFERS = 512
"""Buffers of one call; the kernel takes 1024."""

_LATER = (BlockingIOError, InterruptedError)


class Stream:
    """A socket that is read from the moment it is opened; close it when done."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_data: Callable[[bytes], None],
        on_idle: Callable[[], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._socket = sock
        self._on_data, self._on_idle, self._on_end = on_data, on_idle, on_end
        self._loop = asyncio.get_running_loop()
        self._waiting: list[memoryview | bytes] = []
        """What the kernel has not taken."""
        self.reading = False
        """Whether the other end is listened to."""
        self._closed = False
        self.resume()

    @property
    def idle(self) -> bool:
        """Whether everything that was written has left."""
        return not self._waiting

    def pause(self) -> None:
        """Stop reading: the other end will have to wait."""
        if self.reading:
            self.reading = False
            self._loop.remove_reader(self._socket)

    def resume(self) -> None:
        """Read again."""
        if not self.reading and not self._closed:
            self.reading = True
            self._loop.add_reader(self._socket, self._readable)

    def write(self, buffers: Sequence[bytes]) -> None:  # hot: bench_edge
        """Send buffers, in order; what does not fit now is sent when it does."""
        if self._closed:
            return
        if self._waiting:
            self._waiting += buffers
            return
        if len(buffers) == 1:
            buffer = buffers[0]
            sent = self._send(buffer)
            if sent < len(buffer):
                self._wait([memoryview(buffer)[sent:]])
            return
        self._wait(self._send_many(_gather(buffers)), or_not=True)

    def close(self) -> None:
        """Close the socket; what waits is lost. Closing twice is fine."""
        if not self._closed:
            self.pause()
            self._closed = True
            if self._waiting:
                self._loop.remove_writer(self._socket)
                self._waiting = []
            self._socket.close()

    def _wait(self, left: list[memoryview | bytes], *, or_not: bool = False) -> None:
        if self._closed or (or_not and not left):
            return
        self._waiting = left
        self._loop.add_writer(self._socket, self._writable)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except _LATER:
            return
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if data:
            self._on_data(data)
        else:
            self._end("")

    def _writable(self) -> None:
        self._waiting = self._send_many(self._waiting)
        if not self._waiting and not self._closed:
            self._loop.remove_writer(self._socket)
            self._on_idle()

    def _send(self, buffer: bytes) -> int:
        try:
            return self._socket.send(buffer)
        except _LATER:
            return 0
        except OSError as error:
            self._end_soon(error.strerror or str(error))
            return len(buffer)

    def _send_many(self, buffers: list[memoryview | bytes]) -> list[memoryview | bytes]:
        """Send as much as the kernel takes, and give back the rest."""
        try:
            while buffers:
                sent = self._socket.sendmsg(buffers[:MAX_BUFFERS])
                buffers, full = _after(buffers, sent)
                if full:
                    break
        except _LATER:
            pass
        except OSError as error:
            self._end_soon(error.strerror or str(error))
            return []
        return buffers

    def _end_soon(self, problem: str) -> None:
        """Report a broken connection when the caller is done: it may be in the middle of a fan-out."""
        self._loop.call_soon(self._end, problem)

    def _end(self, problem: str) -> None:
        if not self._closed:
            self.close()
            self._on_end(problem)


def _gather(buffers: Sequence[bytes]) -> list[memoryview | bytes]:
    """Join small buffers that follow each other; large ones stay where they are."""
    if max(map(len, buffers)) < LARGE_BYTES:
        return [b"".join(buffers)]
    gathered: list[memoryview | bytes] = []
    small: list[bytes] = []
    for buffer in buffers:
        if len(buffer) < LARGE_BYTES:
            small.append(buffer)
            continue
        if small:
            gathered.append(b"".join(small))
            small = []
        gathered.append(buffer)
    if small:
        gathered.append(b"".join(small))
    return gathered


def _after(buffers: list[memoryview | bytes], sent: int) -> tuple[list[memoryview | bytes], bool]:
    """Give what is left after so many bytes, and whether the kernel stopped inside of a buffer."""
    for place, buffer in enumerate(buffers):
        if sent < len(buffer):
            rest = buffers[place:]
            rest[0] = memoryview(buffer)[sent:] if sent else buffer
            return rest, place < MAX_BUFFERS
        sent -= len(buffer)
    return [], False
