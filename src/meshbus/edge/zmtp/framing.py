"""ZMTP frames: flags, a length of one or eight bytes, a body.

A message is one frame or several, all but the last with MORE. A command is one frame that holds a name and data.
Writing gives whole frames as bytes, so that one message is encoded once for all its receivers; `FrameReader` cuts an
incoming stream apart. What frames mean is the session's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from meshbus.edge.zmtp.closereason import CloseReason, Violation

MORE, LONG, COMMAND = 1, 2, 4
LONGEST_SHORT = 255

Frame: TypeAlias = tuple[int, bytes]
"""Flags and body."""

_HEADS = [bytes((0, length)) for length in range(LONGEST_SHORT + 1)]
_MORE_HEADS = [bytes((MORE, length)) for length in range(LONGEST_SHORT + 1)]


@lru_cache(maxsize=1024)  # a publisher's messages come in few lengths
def frame_head(length: int, flags: int = 0) -> bytes:
    """Write what stands before a body of this length."""
    if length <= LONGEST_SHORT:
        return bytes((flags, length))
    return bytes((flags | LONG,)) + length.to_bytes(8, "big")


def encode_frame(body: bytes, flags: int = 0) -> bytes:
    """Write one frame."""
    return frame_head(len(body), flags) + body


def encode_command(name: bytes, data: bytes = b"") -> bytes:
    """Write one command."""
    return encode_frame(bytes((len(name),)) + name + data, COMMAND)


def encode_message(parts: Sequence[bytes]) -> bytes:
    """Write a message of one or more parts as one piece of bytes."""
    return b"".join(message_buffers(parts))


def message_buffers(parts: Sequence[bytes]) -> Sequence[bytes]:  # hot: bench_edge
    """Write a message of one or more parts as heads and bodies; no body is copied."""
    if len(parts) == 1:
        body = parts[0]
        length = len(body)
        return (_HEADS[length] if length <= LONGEST_SHORT else frame_head(length), body)
    buffers: list[bytes] = []
    for part in parts:
        length = len(part)
        buffers += (_MORE_HEADS[length] if length <= LONGEST_SHORT else frame_head(length, MORE), part)
    length = len(parts[-1])
    buffers[-2] = _HEADS[length] if length <= LONGEST_SHORT else frame_head(length)
    return buffers


def split_command(body: bytes) -> tuple[bytes, bytes]:
    """Take the body of a command apart: name and data."""
    if not body or len(body) < 1 + body[0]:
        raise Violation(CloseReason.MALFORMED, "a command without a whole name")
    return body[1 : 1 + body[0]], body[1 + body[0] :]


class FrameReader:
    """Cuts a stream into frames; holds at most one unfinished frame and what was fed behind it.

    A frame above the limit, or with flags that do not exist, ends the stream: the frames before it are still given,
    and `violation` is set.
    """

    __slots__ = ("_data", "_need", "held", "violation")

    def __init__(self) -> None:
        self._data: bytes | bytearray = b""
        self._need = 0
        """Bytes that the unfinished frame takes, as far as is known."""
        self.held = 0
        """Bytes that wait."""
        self.violation: Violation | None = None

    def feed(self, data: bytes) -> None:
        """Take in what arrived."""
        if not self.held:
            self._data = data
        else:
            if not isinstance(self._data, bytearray):  # it grows in place, however small the pieces are
                self._data = bytearray(self._data)
            self._data += data
        self.held += len(data)

    def frames(self, limit: int, most: int | None = None) -> list[Frame]:  # hot: bench_edge
        """Give the whole frames that are there, at most `most`; bodies above `limit` are a violation."""
        if self.held < self._need or self.violation is not None:
            return []
        data = bytes(self._data)
        frames: list[Frame] = []
        at, end, need = 0, len(data), 2
        while end - at >= need and (most is None or len(frames) < most):
            flags = data[at]
            if flags > 7 or flags & (COMMAND | MORE) == COMMAND | MORE:
                self.violation = Violation(CloseReason.BAD_FLAGS, f"frame flags {flags:#04x}")
                break
            if flags & LONG:
                if end - at < 9:
                    need = 9
                    break
                start = at + 9
                length = int.from_bytes(data[at + 1 : start], "big")
            else:
                start = at + 2
                length = data[at + 1]
            if length > limit:
                self.violation = Violation(CloseReason.TOO_LONG, f"a frame of {length} bytes, {limit} are allowed")
                break
            if start + length > end:
                need = start + length - at
                break
            at = start + length
            frames.append((flags, data[start:at]))
        self._data, self.held, self._need = data[at:], end - at, need
        return frames

    def peek(self) -> bytes:
        """Look at everything that waits."""
        return bytes(self._data)

    def skip(self, count: int) -> None:
        """Forget so many bytes at the front."""
        self._data = self._data[count:]
        self.held = len(self._data)
