"""Channel names: the rules for legal names, and the hashes that represent them.

A name is hashed once to 64 bits (the *canonical* hash, the only one that authorizes anything); the packet header
carries its low 16 bits (the *wire* hash, a filter whose collisions are routine). Policy attached to names lives in
policy/channels.py.
"""

from __future__ import annotations

from collections import defaultdict
from hashlib import blake2s
from typing import Self

import msgspec
import xxhash

from meshbus.errors import ChannelError, ChannelFault

MAX_NAME_BYTES = 255
"""A name must fit the one-byte length of a membership message."""

PUBLISH_STREAM_BIT = 1 << 48
"""Set in the stream id of every channel publication, which is otherwise the canonical hash."""

MAX_PREFIX_LEVELS = 16
"""Levels of a name that are looked at for tokens of a prefix. Our choice: it bounds the work for one name."""

_PREFIX_KEY = b"meshbus-prefix-v1"
_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_./")


def hash_name(name: str) -> int:
    """Hash any text to the canonical 64 bits, without checking that it is a legal name."""
    # policy.md §1.2: XXH3 with seed 0 and the default secret.
    return xxhash.xxh3_64_intdigest(name.encode())


def hash_prefix(prefix: str) -> int:
    """Hash a prefix such as `sensors/`, which ends with a slash, to the 64 bits by which tokens name it.

    Raises ChannelError if no channel can be below it. It is never the hash of a channel's name: another function makes it.
    """
    if not prefix.endswith("/"):
        raise ChannelError(ChannelFault.INVALID_FORMAT, prefix, "is not a prefix; end it with a slash")
    if ChannelName(prefix[:-1]).depth > MAX_PREFIX_LEVELS:
        raise ChannelError(
            ChannelFault.TOO_LONG, prefix, f"has more than {MAX_PREFIX_LEVELS} levels; use a shorter prefix"
        )
    return _hash_prefix(prefix)


def prefixes_of(name: str) -> list[int]:
    """Return the hashes of all prefixes that a channel is under: for `a/b/c` those of `a/` and `a/b/`."""
    ends = [at + 1 for at, character in enumerate(name) if character == "/"]
    return [_hash_prefix(name[:end]) for end in ends[:MAX_PREFIX_LEVELS]]


def _hash_prefix(prefix: str) -> int:
    digest = blake2s(prefix.encode(), key=_PREFIX_KEY, digest_size=8).digest()
    return int.from_bytes(digest, "little")


class ChannelName(str):
    """A validated channel name such as `sensors/lidar/front`; a `str` in all other respects."""

    __slots__ = ()

    def __new__(cls, name: str) -> Self:
        """Check a name.

        Raises ChannelError with the kind of the first rule that the name breaks.
        """
        if type(name) is cls:
            return name
        _check(name)
        return super().__new__(cls, name)

    def __repr__(self) -> str:
        return f"ChannelName({str(self)!r})"

    @property
    def hash(self) -> int:
        """The canonical hash: 64 bits, the key of every authorization."""
        return hash_name(self)

    @property
    def wire_hash(self) -> int:
        """The low 16 bits of the hash, as the packet header carries them."""
        return self.hash & 0xFFFF

    @property
    def stream_id(self) -> int:
        """The stream that publications on this channel travel on."""
        # policy.md §1.2: two hashes that differ only in this bit share a stream, which is harmless.
        return self.hash | PUBLISH_STREAM_BIT

    @property
    def depth(self) -> int:
        """The number of segments between slashes."""
        return self.count("/") + 1

    def is_prefix_of(self, other: str) -> bool:
        """Return whether `other` is this channel or lies below it in the hierarchy."""
        # policy.md §1.3: a prefix ends where a segment ends, so `sensors` is not a prefix of `sensorsx`.
        return other == self or other.startswith(f"{self}/")


class ChannelId(msgspec.Struct, frozen=True):
    """A channel name beside its canonical hash, for tables that look up by either."""

    name: ChannelName
    hash: int

    @classmethod
    def of(cls, name: str) -> ChannelId:
        """Pair a name with its hash."""
        checked = ChannelName(name)
        return cls(checked, checked.hash)


class ChannelRegistry:
    """The channels that exist here, found by name, by canonical hash or by wire hash."""

    def __init__(self) -> None:
        self._by_name: dict[str, ChannelId] = {}
        self._by_hash: defaultdict[int, list[ChannelId]] = defaultdict(list)
        self._by_wire_hash: defaultdict[int, list[ChannelId]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def register(self, name: str) -> tuple[ChannelId, bool]:
        """Add a channel; the flag says whether its canonical hash was already taken by another name."""
        if name in self._by_name:
            raise ChannelError(ChannelFault.ALREADY_EXISTS, name, "is already registered")
        channel = ChannelId.of(name)
        # policy.md §1.4: a collision is reported and not refused; both channels can be found by the hash.
        collides = bool(self._by_hash.get(channel.hash))
        self._by_name[channel.name] = channel
        self._by_hash[channel.hash].append(channel)
        self._by_wire_hash[channel.hash & 0xFFFF].append(channel)
        return channel, collides

    def remove(self, name: str) -> ChannelId | None:
        """Remove a channel and return it, or None if it was not there."""
        channel = self._by_name.pop(name, None)
        if channel is not None:
            self._by_hash[channel.hash].remove(channel)
            self._by_wire_hash[channel.hash & 0xFFFF].remove(channel)
        return channel

    def get(self, name: str) -> ChannelId | None:
        """Find a channel by its exact name."""
        return self._by_name.get(name)

    def get_all_by_hash(self, canonical_hash: int) -> list[ChannelId]:
        """Find the channels that share a canonical hash."""
        return list(self._by_hash.get(canonical_hash, ()))

    def get_all_by_wire_hash(self, wire_hash: int) -> list[ChannelId]:
        """Find the channels that share a wire hash; several is normal."""
        return list(self._by_wire_hash.get(wire_hash, ()))


def _check(name: str) -> None:
    """Apply the rules in the order of net-mesh, and report the first that is broken."""
    if not name:
        raise ChannelError(ChannelFault.EMPTY, name, "a channel name cannot be empty")
    # policy.md §1.1: bytes count, not characters. A lone surrogate must reach the check below, not raise here.
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > MAX_NAME_BYTES:
        raise ChannelError(ChannelFault.TOO_LONG, name, f"is {size} bytes long, at most {MAX_NAME_BYTES} fit")
    if name.startswith("/") or name.endswith("/") or "//" in name:
        raise ChannelError(ChannelFault.INVALID_FORMAT, name, "segments cannot be empty; drop the extra '/'")
    # policy.md §1.1, step 5: one scan for both errors, so the first bad character decides which it is.
    for character in name:
        if "A" <= character <= "Z":
            raise ChannelError(
                ChannelFault.INVALID_FORMAT, name, f"upper case is not allowed on the wire; try {_similar(name)!r}"
            )
        if character not in _LEGAL:
            raise ChannelError(
                ChannelFault.INVALID_CHAR,
                name,
                f"{character!r} is not allowed; use a-z, 0-9, '-', '_', '.' and '/', such as {_similar(name)!r}",
            )
    # policy.md §1.1, step 6: whole segments only; `a..b` and `...` are legal.
    if any(segment in {".", ".."} for segment in name.split("/")):
        raise ChannelError(ChannelFault.INVALID_FORMAT, name, "a segment cannot be '.' or '..'")


def _similar(name: str) -> str:
    """Return a legal name that resembles an illegal one."""
    replaced = "".join(character if character in _LEGAL else "-" for character in name.lower())
    segments = [segment for segment in replaced.split("/") if segment not in {"", ".", ".."}]
    return "/".join(segments)[:MAX_NAME_BYTES].rstrip("/") or "channel"
