"""A connected socket on the event loop: reads data as it arrives, writes with few copies and system calls.

A write goes to the kernel at once. What the kernel does not accept waits, and `on_idle` is called when all of it was
accepted. The owner writes only while the stream is `idle` and keeps its own queue, so the stream holds at most one
write, however slow the peer is.
"""

from __future__ import annotations

import asyncio
import socket  # noqa: TID251 - works on sockets that edge/server.py opened
from collections.abc import Callable, Sequence

READ_BYTES = 256 << 10
"""Largest read: more than a socket buffer usually holds, so one call empties it."""
LARGE_BYTES = 32 << 10
"""Buffers of this size or more are not joined: copying one costs more than another buffer in the call."""
MAX_BUFFERS = 512
"""Buffers in one call; the kernel accepts 1024 (IOV_MAX)."""

_LATER = (BlockingIOError, InterruptedError)


class Stream:
    """Reads from a socket and writes to it; starts reading when created."""

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
        """Data that the kernel has not accepted yet."""
        self.reading = False
        """Whether data is being read."""
        self._closed = False
        self.resume()

    @property
    def idle(self) -> bool:
        """Whether the kernel accepted everything that was written."""
        return not self._waiting

    def pause(self) -> None:
        """Stop reading, so that TCP slows the peer down."""
        if self.reading:
            self.reading = False
            self._loop.remove_reader(self._socket)

    def resume(self) -> None:
        """Resume reading."""
        if not self.reading and not self._closed:
            self.reading = True
            self._loop.add_reader(self._socket, self._readable)

    def write(self, buffers: Sequence[bytes]) -> None:  # hot: bench_edge
        """Send buffers in order; what the kernel does not accept now is sent later."""
        if self._closed:
            return
        if self._waiting:
            self._waiting += buffers
            return
        if len(buffers) == 1:  # the common case: `send` is cheaper than `sendmsg` with a list
            buffer = buffers[0]
            sent = self._send(buffer)
            if sent < len(buffer):
                self._wait([memoryview(buffer)[sent:]])
            return
        self._wait(self._send_many(_gather(buffers)), or_not=True)

    def close(self) -> None:
        """Close the socket and discard unsent data. Calling it again does nothing."""
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
            # One read per call of the loop, so that a fast peer does not keep the others waiting.
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
            return len(buffer)  # count it as sent: nothing may wait on a broken connection

    def _send_many(self, buffers: list[memoryview | bytes]) -> list[memoryview | bytes]:
        """Send as much as the kernel accepts, and return the rest."""
        try:
            while buffers:
                sent = self._socket.sendmsg(buffers[:MAX_BUFFERS])
                buffers, full = _after(buffers, sent)
                if full:  # another call would only raise BlockingIOError
                    break
        except _LATER:
            pass
        except OSError as error:
            self._end_soon(error.strerror or str(error))
            return []
        return buffers

    def _end_soon(self, problem: str) -> None:
        """Report a broken connection in the next loop iteration: the caller may be in the middle of a fan-out."""
        self._loop.call_soon(self._end, problem)

    def _end(self, problem: str) -> None:
        if not self._closed:  # it may have been closed since `_end_soon`
            self.close()
            self._on_end(problem)


def _gather(buffers: Sequence[bytes]) -> list[memoryview | bytes]:
    """Join adjacent small buffers; leave large ones uncopied."""
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
    """Return the buffers left after `sent` bytes, and whether the kernel's buffer is full."""
    for place, buffer in enumerate(buffers):
        if sent < len(buffer):
            rest = buffers[place:]
            rest[0] = memoryview(buffer)[sent:] if sent else buffer
            return rest, place < MAX_BUFFERS
        sent -= len(buffer)
    return [], False
