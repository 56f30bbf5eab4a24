"""Encode and decode ZMTP frames: flags, a length of one or eight bytes, a body (pubsub.md §3.2).

A message is one or more frames, all but the last with the MORE flag. A command is one frame with a name and data.
Encoding returns whole frames as bytes, so that a message is encoded once for all receivers. `FrameReader` splits an
incoming stream into frames; zmtp/protocol.py interprets them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from meshbus.edge.zmtp.closereason import CloseReason, Violation

MORE, LONG, COMMAND = 1, 2, 4
LONGEST_SHORT = 255
_SHORT_FLAGS = frozenset({0, MORE, COMMAND})
_LONG_FLAGS = frozenset({LONG, LONG | MORE, LONG | COMMAND})
"""pubsub.md §3.2: three flags exist, and commands never carry MORE."""

Frame: TypeAlias = tuple[int, bytes]
"""Flags and body of a frame."""

# All short heads, prepared: most frames are short.
_HEADS = [bytes((0, length)) for length in range(LONGEST_SHORT + 1)]
_MORE_HEADS = [bytes((MORE, length)) for length in range(LONGEST_SHORT + 1)]


@lru_cache(maxsize=1024)  # messages of a publisher have few different lengths
def frame_head(length: int, flags: int = 0) -> bytes:
    """Return flags and length, the bytes before a body."""
    if length <= LONGEST_SHORT:
        return bytes((flags, length))
    # pubsub.md §3.2: up to 255 bytes the length takes one byte, otherwise eight.
    return bytes((flags | LONG,)) + length.to_bytes(8, "big")


def encode_frame(body: bytes, flags: int = 0) -> bytes:
    """Encode one frame."""
    return frame_head(len(body), flags) + body


def encode_command(name: bytes, data: bytes = b"") -> bytes:
    """Encode one command."""
    return encode_frame(bytes((len(name),)) + name + data, COMMAND)


def encode_message(parts: Sequence[bytes]) -> bytes:
    """Encode a message of one or more parts as one bytes object."""
    return b"".join(message_buffers(parts))


def message_buffers(parts: Sequence[bytes]) -> Sequence[bytes]:  # hot: bench_edge
    """Encode a message of one or more parts as a list of heads and bodies; no body is copied."""
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
    """Split the body of a command into name and data. Raises Violation."""
    if not body or len(body) < 1 + body[0]:
        raise Violation(CloseReason.MALFORMED, "the name of a command is truncated")
    return body[1 : 1 + body[0]], body[1 + body[0] :]


class FrameReader:
    """Splits a stream into frames; buffers one incomplete frame and the bytes after it.

    A frame above the limit or with invalid flags ends the stream: the frames before it are still returned, and
    `violation` is set.
    """

    __slots__ = ("_data", "_need", "held", "violation")

    def __init__(self) -> None:
        self._data: bytes | bytearray = b""
        self._need = 0
        """Size of the incomplete frame, as far as it is known."""
        self.held = 0
        """Number of buffered bytes."""
        self.violation: Violation | None = None

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if not self.held:
            self._data = data
        else:
            if not isinstance(self._data, bytearray):  # grows in place: many small pieces do not cost quadratic time
                self._data = bytearray(self._data)
            self._data += data
        self.held += len(data)

    def frames(self, limit: int, most: int = sys.maxsize) -> list[Frame]:  # hot: bench_edge
        """Return the complete frames, at most `most`; a body longer than `limit` is a violation."""
        if self.held < self._need or self.violation is not None:
            return []
        data = bytes(self._data)
        frames: list[Frame] = []
        at, end, need = 0, len(data), 2
        while end - at >= need and len(frames) < most:
            flags, length, start = data[at], data[at + 1], at + 2
            if flags not in _SHORT_FLAGS:
                if flags not in _LONG_FLAGS:
                    self.violation = Violation(CloseReason.BAD_FLAGS, f"invalid frame flags {flags:#04x}")
                    break
                start = at + 9
                # The length itself is not complete yet.
                if start > end:
                    need = 9
                    break
                length = int.from_bytes(data[at + 1 : start], "big")
            # Checked before the body is here, so that an announced length never makes the buffer grow beyond the limit.
            if length > limit:
                self.violation = Violation(CloseReason.TOO_LONG, f"a frame has {length} bytes, the limit is {limit}")
                break
            stop = start + length
            if stop > end:
                need = stop - at
                break
            frames.append((flags, data[start:stop]))
            at = stop
        self._data, self.held, self._need = data[at:], end - at, need
        return frames

    def peek(self) -> bytes:
        """Return the buffered bytes without removing them."""
        return bytes(self._data)

    def skip(self, count: int) -> None:
        """Remove bytes at the front."""
        self._data = self._data[count:]
        self.held = len(self._data)
