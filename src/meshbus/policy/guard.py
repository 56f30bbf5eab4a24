"""Auth guard: fast check whether an origin may use a channel, for one packet or a batch (policy.md §3).

It has two structures. A bloom filter of 2^15 bits (4 KB, fits the first-level cache) rejects most unauthorized pairs
with two probes. The exact set of verified pairs is the authority. A pair that is only in the bloom filter (revoked, or a
false positive) needs the full check, which the caller runs.

The guard is local: nothing of it is on the wire. It does not decide which pairs are authorized: that is done by
engine/channels/admission.py and engine/routes/boundary.py.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from meshbus import jit
from meshbus.names.channel import hash_name
from meshbus.policy.xxh3 import hash_pair

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

BLOOM_BITS = 1 << 15
"""Size of the bloom filter (policy.md §3.1)."""
_BLOOM_MASK = BLOOM_BITS - 1
_BLOOM_SHIFT = 15
_SLOT_SHIFT = 30
"""Bits 0 to 29 of the hash select the two bloom bits; the rest selects the slot in the table of verified pairs."""

_KEY = Struct("<QQ")
_ORIGIN, _CHANNEL, _STATE = 0, 1, 2
"""Columns of the slot table: passing one array of plain words to a kernel is faster than passing records."""
_FREE, _TAKEN, _REMOVED = 0, 1, 2
_MIN_SLOTS = 64
"""Smallest slot table; a power of two, because slots are selected with a mask."""

_U64 = np.dtype(np.uint64)
_U8 = np.dtype(np.uint8)


class AuthVerdict(IntEnum):
    """The verdict about an (origin, channel) pair; the codes of `check_batch`."""

    DENIED = 0
    ALLOWED = 1
    NEEDS_FULL_CHECK = 2


class AuthGuard:
    """The authorized pairs, and checks of one pair or a batch.

    `origin` is a 64-bit id: the subscriber's node id at fan-out, the publisher's origin hash at a forwarder. `channel`
    is the canonical hash of the channel.
    """

    def __init__(self) -> None:
        # policy.md §3.2: with 1000 pairs, 0.45 % of the probes for other pairs pass the filter.
        self._bloom = np.zeros(BLOOM_BITS // 8, np.uint8)
        self._verified: set[tuple[int, int]] = set()
        self._names: set[tuple[int, str]] = set()
        self._slots = np.zeros((_MIN_SLOTS, 3), _U64)
        self._used_slots = 0
        self.revocations_since_rebuild = 0
        self.version = 0
        """Incremented by every change, so that derived data can be kept until then."""

    def __len__(self) -> int:
        return len(self._verified)

    @property
    def bloom(self) -> bytes:
        """A copy of the 4096 bytes of the bloom filter."""
        return self._bloom.tobytes()

    def authorize(self, origin: int, channel: int) -> None:
        """Authorize a pair."""
        if (origin, channel) in self._verified:
            return
        self.version += 1
        self._verified.add((origin, channel))
        self._mark(origin, channel)
        self._insert(origin, channel)

    def revoke(self, origin: int, channel: int) -> None:
        """Revoke a pair. Its bloom bits stay, so the next check returns NEEDS_FULL_CHECK."""
        self.version += 1
        # policy.md §3.2: counted even if the pair was not authorized.
        self.revocations_since_rebuild += 1
        if (origin, channel) in self._verified:
            self._verified.remove((origin, channel))
            self._slots[self._find(origin, channel), _STATE] = _REMOVED

    def check_fast(self, origin: int, channel: int) -> AuthVerdict:
        """Return the verdict about one pair."""
        # The set first: in CPython it is faster than the bloom filter that protects it (policy.md §3.2).
        if (origin, channel) in self._verified:
            return AuthVerdict.ALLOWED
        bloom = self._bloom
        for bit in _bits(origin, channel):
            if not bloom[bit >> 3] >> (bit & 7) & 1:
                return AuthVerdict.DENIED
        return AuthVerdict.NEEDS_FULL_CHECK

    def check_batch(  # hot: bench_kernels
        self, origins: ArrayLike, channels: ArrayLike, *, out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """Return the AuthVerdict code of each pair, in the array `out` if it is given."""
        origins = np.asarray(origins, _U64)
        channels = np.asarray(channels, _U64)
        verdicts = np.empty(len(origins), _U8) if out is None else out
        _check.run(origins, channels, self._bloom, self._slots, verdicts)
        return verdicts

    def allow_channel(self, origin: int, name: str) -> None:
        """Authorize a pair by channel name; `is_authorized_full` uses the name to detect hash collisions."""
        self.version += 1
        self._names.add((origin, name))
        self.authorize(origin, hash_name(name))

    def revoke_channel(self, origin: int, name: str) -> None:
        """Undo `allow_channel`."""
        self._names.discard((origin, name))
        self.revoke(origin, hash_name(name))

    def is_authorized(self, origin: int, channel: int) -> bool:
        """Return whether a pair is authorized."""
        return (origin, channel) in self._verified

    def is_authorized_full(self, origin: int, name: str) -> bool:
        """Return whether exactly this name is authorized, and not only another one with the same hash."""
        return (origin, name) in self._names

    def rebuild_bloom(self) -> None:
        """Clear the bits of revoked pairs, so that they are denied again without a full check."""
        self._bloom[:] = 0
        for origin, channel in self._verified:
            self._mark(origin, channel)
        self.revocations_since_rebuild = 0

    def _mark(self, origin: int, channel: int) -> None:
        for bit in _bits(origin, channel):
            self._bloom[bit >> 3] |= 1 << (bit & 7)

    def _insert(self, origin: int, channel: int) -> None:
        # At most half full, counting removed slots: so probes are short, and every probe ends at a free slot.
        if 2 * (self._used_slots + 1) > len(self._slots):
            self._rebuild_slots()
        else:
            self._slots[self._free_slot(origin, channel)] = (origin, channel, _TAKEN)
            self._used_slots += 1

    def _rebuild_slots(self) -> None:
        size = _MIN_SLOTS
        # A quarter full, so that as many pairs can be added before the next rebuild.
        while size < 4 * len(self._verified):
            size *= 2
        self._slots = np.zeros((size, 3), _U64)
        self._used_slots = len(self._verified)
        for origin, channel in self._verified:
            self._slots[self._free_slot(origin, channel)] = (origin, channel, _TAKEN)

    def _free_slot(self, origin: int, channel: int) -> int:
        states, mask = self._slots[:, _STATE], len(self._slots) - 1
        slot = _hash(origin, channel) >> _SLOT_SHIFT & mask
        while states[slot] != _FREE:
            slot = slot + 1 & mask
        return slot

    def _find(self, origin: int, channel: int) -> int:
        mask = len(self._slots) - 1
        slot = _hash(origin, channel) >> _SLOT_SHIFT & mask
        # Ends, because the caller knows that the pair is there.
        while self._slots[slot].tolist() != [origin, channel, _TAKEN]:
            slot = slot + 1 & mask
        return slot


def _hash(origin: int, channel: int) -> int:
    return xxhash.xxh3_64_intdigest(_KEY.pack(origin, channel))


def _bits(origin: int, channel: int) -> tuple[int, int]:
    """Return the two bloom positions of a pair, which may be equal (policy.md §3.1)."""
    hashed = _hash(origin, channel)
    return hashed & _BLOOM_MASK, hashed >> _BLOOM_SHIFT & _BLOOM_MASK


_U15, _U30, _UMASK = np.uint64(_BLOOM_SHIFT), np.uint64(_SLOT_SHIFT), np.uint64(_BLOOM_MASK)


def _check_reference(
    origins: NDArray[np.uint64],
    channels: NDArray[np.uint64],
    bloom: NDArray[np.uint8],
    slots: NDArray[np.uint64],
    verdicts: NDArray[np.uint8],
) -> None:
    hashed = hash_pair(origins, channels)
    first = (hashed & _UMASK).astype(np.int64)
    second = ((hashed >> _U15) & _UMASK).astype(np.int64)
    hit = (bloom[first >> 3] >> (first & 7)) & (bloom[second >> 3] >> (second & 7)) & 1
    verdicts[:] = AuthVerdict.DENIED
    pending = np.flatnonzero(hit)
    mask = len(slots) - 1
    slot = (hashed[pending] >> _U30).astype(np.int64) & mask
    while len(pending):
        probed = slots[slot]
        found = (
            (probed[:, _STATE] == _TAKEN)
            & (probed[:, _ORIGIN] == origins[pending])
            & (probed[:, _CHANNEL] == channels[pending])
        )
        verdicts[pending[found]] = AuthVerdict.ALLOWED
        # policy.md §3.2: both bits are set, but the pair is not verified.
        verdicts[pending[probed[:, _STATE] == _FREE]] = AuthVerdict.NEEDS_FULL_CHECK
        going_on = ~found & (probed[:, _STATE] != _FREE)
        pending = pending[going_on]
        slot = slot[going_on] + 1 & mask


@jit.kernel(_check_reference)
def _check(
    origins: NDArray[np.uint64],
    channels: NDArray[np.uint64],
    bloom: NDArray[np.uint8],
    slots: NDArray[np.uint64],
    verdicts: NDArray[np.uint8],
) -> None:
    mask = np.uint64(len(slots) - 1)
    one = np.uint64(1)
    for i in range(len(origins)):
        origin, channel = origins[i], channels[i]
        hashed = hash_pair(origin, channel)
        first = hashed & _UMASK
        second = (hashed >> _U15) & _UMASK
        verdict = 0
        if (bloom[first >> np.uint64(3)] >> (first & np.uint64(7))) & one and (
            bloom[second >> np.uint64(3)] >> (second & np.uint64(7))
        ) & one:
            verdict = 2
            slot = (hashed >> _U30) & mask
            while slots[slot, _STATE] != _FREE:
                if (
                    slots[slot, _ORIGIN] == origin
                    and slots[slot, _CHANNEL] == channel
                    and slots[slot, _STATE] == _TAKEN
                ):
                    verdict = 1
                    break
                slot = (slot + one) & mask
        verdicts[i] = verdict
