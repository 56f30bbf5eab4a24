"""The subscriptions of a daemon, as its snapshot carries them, so that the next node subscribes again (compute.md §2)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.names.channel import ChannelName
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout, pack_channel, take_field, unpack_channel

_WHAT = "daemon subscriptions"
_COUNT = Layout(_WHAT, "<I")
_PUBLISHER = Layout(_WHAT, "<Q")
_SIZE = Layout(_WHAT, "<H")
_MIN_ENTRY = 11
"""A publisher, an empty name and a flag: a count that needs more bytes than there are is refused at once."""
_MAX_TOKEN = 0xFFFF


class Binding(msgspec.Struct, frozen=True):
    """One subscription of a daemon."""

    publisher: int
    """Node id."""
    channel: ChannelName
    token: bytes | None = None


def encode_bindings(bindings: Sequence[Binding]) -> bytes:
    """Write the subscriptions of a daemon; none are no bytes at all."""
    if not bindings:
        return b""
    return _COUNT.pack(len(bindings)) + b"".join(map(_encode_binding, bindings))


def decode_bindings(buffer: Buffer) -> tuple[Binding, ...]:
    """Read the subscriptions of a daemon."""
    if not len(buffer):
        return ()
    (count,) = _COUNT.unpack_prefix(buffer)
    rest = memoryview(buffer)[_COUNT.size :]
    if count > len(rest) // _MIN_ENTRY:
        raise MalformedPacket(_WHAT, Fault.TRUNCATED, f"{count} entries in {len(rest)} bytes")
    found = list[Binding]()
    for _ in range(count):
        binding, rest = _decode_binding(rest)
        found.append(binding)
    if len(rest):
        raise MalformedPacket(_WHAT, Fault.TRAILING, f"{len(rest)} bytes after the last entry")
    return tuple(found)


def _encode_binding(binding: Binding) -> bytes:
    name = pack_channel(binding.channel)
    head = _PUBLISHER.pack(binding.publisher) + _SIZE.pack(len(name)) + name
    if binding.token is None:
        return head + b"\0"
    if len(binding.token) > _MAX_TOKEN:
        raise LocalProtocolError(f"a token of {len(binding.token)} bytes is too long; at most {_MAX_TOKEN}")
    return head + b"\1" + _SIZE.pack(len(binding.token)) + binding.token


def _decode_binding(view: memoryview) -> tuple[Binding, memoryview]:
    (publisher,) = _PUBLISHER.unpack_prefix(view)
    name, rest = take_field(_WHAT, "name", view[_PUBLISHER.size :], _SIZE.size)
    channel = unpack_channel(_WHAT, name)
    if not len(rest):
        raise MalformedPacket(_WHAT, Fault.TRUNCATED, "the token flag is missing")
    flag, rest = rest[0], rest[1:]
    if flag > 1:
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, f"token flag {flag}")
    if not flag:
        return Binding(publisher, channel), rest
    token, rest = take_field(_WHAT, "token", rest, _SIZE.size)
    return Binding(publisher, channel, bytes(token)), rest
