"""One recorded packet: what a row of 136 bytes holds, and what rows are filled from.

A row is the header and the routing header byte for byte, and beside them what was known and decided. Everything that is
the same for packets that were decided alike is made once, as a *model*: a row without its headers. How rows are filled
while packets pass is log/packets/fill.py, how they lie in memory and in hot files log/packets/packed.py; names, nulls and
signs wait until rows become columns (log/packets/runs.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from meshbus.names.channel import ChannelName
from meshbus.policy.fate import Fate
from meshbus.policy.transit import ROUTE_DTYPE
from meshbus.wire.header import HEADER_DTYPE

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
"""A hop or hash of 0 is none, a guard of NOT_ASKED too. What many columns depend on is in no word that each packet changes."""
ROW_BYTES: Final = 136
ROW_WORDS: Final = 17
NOT_ASKED: Final = 0xFF
ROUTED: Final = 1
"""In `present`: there was a routing header."""
JUDGED: Final = 2
"""In `present`: the subnets are those that a gateway had before it."""

_SMALLEST: Final = 4


def name_table(channels: Iterable[ChannelName]) -> Words:
    """Lay out which stream carries which channel, for `fill`: rows of stream id and canonical hash, open-addressed."""
    streams: dict[int, int] = {}
    for channel in channels:
        # Two names on one stream: a packet cannot say which it is.
        streams[channel.stream_id] = 0 if streams.get(channel.stream_id, channel.hash) != channel.hash else channel.hash
    size = max(_SMALLEST, 1 << (4 * len(streams) - 1).bit_length())
    table = np.zeros((size, 2), np.uint64)
    for stream, canonical in streams.items():
        at = stream & (size - 1)
        while table[at, 0]:
            at = at + 1 & (size - 1)
        table[at] = stream, canonical
    return table


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
) -> Words:
    """Make models for `fill`, with everything but the packets themselves and the time; every fact one for all, or one each.

    `subnets` are source and destination as judged, None when nothing was judged by them.
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
    rows["previous_hop"] = previous_hops
    rows["next_hop"] = np.where(kept & (not here), np.asarray(next_hops, np.uint64), np.uint64(0))
    return words
