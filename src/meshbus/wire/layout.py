"""Struct layouts and length-prefixed fields that raise meshbus errors.

This is where the small codecs translate `struct.error`: a value that cannot be written is a LocalProtocolError, bytes
that cannot be read are a MalformedPacket. The module that owns a layout defines what its fields mean.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from meshbus.errors import ChannelError, Fault, LocalProtocolError, MalformedPacket
from meshbus.names.channel import ChannelName
from meshbus.wire.header import Buffer

_SIZE = np.dtype("<u4")
SIZE_BYTES = _SIZE.itemsize
"""4: what `pack_sized` adds to each payload."""


class Layout:
    """A `struct` format, with a name for errors."""

    __slots__ = ("_struct", "size", "what")

    def __init__(self, what: str, layout: str) -> None:
        self._struct = struct.Struct(layout)
        self.size = self._struct.size
        self.what = what

    def pack(self, *fields: object) -> bytes:
        """Write the fields; raise LocalProtocolError for one that does not fit.

        Byte strings are not checked: `struct` pads or cuts them to their size.
        """
        try:
            return self._struct.pack(*fields)
        except struct.error as error:
            raise LocalProtocolError(f"{self.what}: {error}") from error

    def unpack(self, buffer: Buffer) -> tuple[Any, ...]:
        """Read a buffer that holds exactly this layout."""
        # Most messages have one length, and 0.23 nodes drop those with trailing bytes too.
        if len(buffer) > self.size:
            raise MalformedPacket(self.what, Fault.TRAILING, f"{len(buffer)} bytes, expected {self.size}")
        return self.unpack_prefix(buffer)

    def unpack_prefix(self, buffer: Buffer) -> tuple[Any, ...]:
        """Read the start of a buffer; what follows is ignored."""
        if len(buffer) < self.size:
            raise MalformedPacket(self.what, Fault.TRUNCATED, f"{len(buffer)} of {self.size} bytes")
        return self._struct.unpack_from(buffer)


def take_field(what: str, field: str, view: memoryview, width: int) -> tuple[memoryview, memoryview]:
    """Read a field with a length of `width` bytes before it, and return the field and the rest."""
    # If even the length is cut off, `end` is beyond the view as well: both cases are truncated.
    end = width + int.from_bytes(view[:width], "little")
    if len(view) < end:
        raise MalformedPacket(what, Fault.TRUNCATED, f"the {field} ends early")
    return view[width:end], view[end:]


def pack_channel(channel: str) -> bytes:
    """Write a channel name, without its length; raise LocalProtocolError for one that no peer would accept."""
    try:
        # Validated again: a plain str may be passed where a ChannelName is expected.
        return ChannelName(channel).encode()
    except ChannelError as error:
        raise LocalProtocolError(str(error)) from error


def unpack_channel(what: str, raw: memoryview) -> ChannelName:
    """Read a channel name."""
    try:
        # A legal name is ASCII; another byte becomes a character that the rules for names refuse.
        return ChannelName(str(raw, "ascii", "replace"))
    except ChannelError as error:
        raise MalformedPacket(what, Fault.BAD_NAME, str(error)) from error


def pack_sized(payloads: Sequence[bytes]) -> bytes:
    """Write the sizes of payloads, then the payloads; their number is written elsewhere."""
    return b"".join((np.array([len(payload) for payload in payloads], _SIZE).tobytes(), *payloads))


def unpack_sized(what: str, view: memoryview, count: int) -> tuple[bytes, ...]:
    """Read as many payloads, which fill the view; they are copied."""
    data_at = count * SIZE_BYTES
    if len(view) < data_at:
        raise MalformedPacket(what, Fault.TRUNCATED, f"the sizes of {count} payloads in {len(view)} bytes")
    sizes: list[int] = np.frombuffer(view[:data_at], _SIZE).tolist()
    edges = list(accumulate(sizes, initial=data_at))
    if edges[-1] != len(view):
        fault = Fault.TRUNCATED if edges[-1] > len(view) else Fault.TRAILING
        raise MalformedPacket(what, fault, f"{len(view)} bytes, expected {edges[-1]}")
    raw = bytes(view)  # slices of bytes are cheaper than copies of slices of a view
    return tuple([raw[left:right] for left, right in pairwise(edges)])
