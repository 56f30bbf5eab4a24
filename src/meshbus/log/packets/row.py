"""A recorded packet: the layout of a row of 136 bytes, and the models that rows are filled from.

A row holds the header and the routing header byte for byte, and what was known and decided about the packet. Everything
that is the same for packets with the same decision is prepared once as a *model*: a row without its headers. Rows are
filled in log/packets/fill.py and packed in log/packets/packed.py; names, nulls and signs are added when rows become
columns (log/packets/runs.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.policy.fate import Fate
from meshbus.wire.constants import NET_MAGIC, VERSION
from meshbus.wire.header import HEADER_DTYPE
from meshbus.wire.routebatch import ROUTE_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.uint64]

ROW = np.dtype(
    [
        ("header", HEADER_DTYPE),
        ("policy_version", "<u4"),
        ("route", ROUTE_DTYPE),
        ("unused", "<u2"),
        ("src", "<u4"),
        ("dst", "<u4"),
        ("verdict", "u1"),
        ("reason", "u1"),
        ("guard", "u1"),
        ("present", "u1"),
        ("ts_ns", "<i8"),
        ("previous_hop", "<u8"),
        ("next_hop", "<u8"),
        ("chash64", "<u8"),
    ]
)
"""A hop or hash of 0 and a guard of NOT_ASKED stand for none. Fields that many columns depend on do not share a word
with fields that change in every packet."""
# 136 bytes are 17 words of 8, which the packed form compares (log/packets/packed.py).
ROW_BYTES: Final = 136
ROW_WORDS: Final = 17
NOT_ASKED: Final = 0xFF
ROUTED: Final = 1
"""Flag in `present`: there was a routing header."""
JUDGED: Final = 2
"""Flag in `present`: the subnets are those that a gateway judged by."""

_PUBLISH_BIT = np.uint64(PUBLISH_STREAM_BIT)
_WIRE_MASK = np.uint64(0xFFFF)


class Names(NamedTuple):
    """The channels that are known, by stream id."""

    streams: Words
    """Sorted stream ids; the first is 0, so that every search finds an entry."""
    hashes: Words
    """The canonical hash of each; 0 if two channels share the stream, because packets do not tell them apart."""

    @classmethod
    def of(cls, channels: Iterable[ChannelName]) -> Names:
        """Build the table of some channels."""
        streams = {0: 0}
        for channel in channels:
            known = streams.get(channel.stream_id, channel.hash)
            streams[channel.stream_id] = channel.hash if known == channel.hash else 0
        table = np.array(sorted(streams.items()), np.uint64)
        return cls(table[:, 0].copy(), table[:, 1].copy())

    def hashes_of(self, headers: NDArray[np.void]) -> Words:
        """Return the canonical hash of each publication; 0 if it is unknown or the packet is not a publication."""
        streams = headers["stream_id"]
        # The same test as that of the gateway (profile.md §9).
        publication = (headers["subprotocol_id"] == 0) & (streams & _PUBLISH_BIT != 0)
        # The stream id holds the channel's wire hash; if the header has another one, the channel is unknown.
        publication &= (streams & _WIRE_MASK) == headers["channel_hash"]
        publication &= (headers["magic"] == NET_MAGIC) & (headers["version"] == VERSION)
        places = np.searchsorted(self.streams, streams, side="right") - 1
        return np.where(publication & (self.streams[places] == streams), self.hashes[places], np.uint64(0))


def models(
    count: int,
    reasons: Bytes | int,
    *,
    here: bool,
    routed: bool,
    previous_hops: Words | int,
    next_hops: Words | int,
    subnets: tuple[Any, Any] | None,
    guard: Any,
    policy: int,
    hashes: Words,
) -> Words:
    """Return models for `fill`: everything but the headers and the time. Each argument has one value for all or one each.

    `subnets` are source and destination as judged, or None if the decision did not depend on them.
    """
    words = np.zeros(count * ROW_WORDS, np.uint64)
    rows = words.view(ROW)
    kept = np.equal(reasons, 0)
    rows["verdict"] = np.where(kept, Fate.DELIVERED if here else Fate.FORWARDED, Fate.DROPPED)
    rows["reason"] = reasons
    rows["guard"] = guard
    rows["present"] = (ROUTED if routed else 0) | (JUDGED if subnets is not None else 0)
    if subnets is not None:
        rows["src"], rows["dst"] = subnets
    rows["policy_version"] = policy
    rows["chash64"] = hashes
    rows["previous_hop"] = previous_hops
    rows["next_hop"] = np.where(kept & (not here), np.asarray(next_hops, np.uint64), np.uint64(0))
    return words
