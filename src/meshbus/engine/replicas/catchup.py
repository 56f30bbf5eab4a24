"""Catch-up over 0x0E00: how a leader answers a request, and how a replica applies an answer (redex.md §7).

The reference packs up to 64 MiB into one datagram, which its own receivers drop above 8104 bytes. Here a response always
fits one packet, whatever is asked for; larger ones of a reference leader are applied all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

import msgspec

from meshbus.wire.messages.redex import (
    EVENT_COST,
    RESPONSE_ROOM,
    BandwidthClass,
    NackCode,
    SyncNack,
    SyncRequest,
    SyncResponse,
)

CEILING = 64 << 20
_BACKGROUND_CEILING = 4 << 20
RESPONSE_PRICE = 47
"""What a response costs in the bandwidth budget besides its events; the number is the reference's."""


class Retained(msgspec.Struct, frozen=True):
    """The events of a log from a requested sequence on, as far as they were read."""

    first_retained: int
    next_seq: int
    events: Sequence[tuple[int, bytes]]
    """Sequence and payload, in order."""


def chunk_budget(request: SyncRequest, packet_room: int | None = RESPONSE_ROOM) -> int:
    """Return how many bytes of events the answer to a request may have."""
    ceiling = _BACKGROUND_CEILING if request.bandwidth_class == BandwidthClass.BACKGROUND else CEILING
    asked = request.chunk_max or CEILING
    return min(asked, ceiling, CEILING if packet_room is None else packet_room)


def answer(request: SyncRequest, log: Retained, packet_room: int | None = RESPONSE_ROOM) -> SyncResponse | SyncNack:
    """Answer a request: the events that fit, at least one; BadRange if none is left or the first one never fits."""
    if request.since_seq >= log.next_seq:
        return respond(request, log, ())
    budget = chunk_budget(request, packet_room)
    taken: list[tuple[int, bytes]] = []
    for seq, payload in log.events:
        budget -= EVENT_COST + len(payload)
        if budget < 0 and taken:
            break
        taken.append((seq, payload))
    limit = CEILING if packet_room is None else packet_room - EVENT_COST
    if not taken or len(taken[0][1]) > limit:
        what = "nothing is retained" if not taken else f"event {taken[0][0]} is larger than {limit} bytes"
        return refuse(request, NackCode.BAD_RANGE, what, log.first_retained)
    return respond(request, log, tuple(taken))


def respond(request: SyncRequest, log: Retained, events: tuple[tuple[int, bytes], ...]) -> SyncResponse:
    """Return a response with these events."""
    return SyncResponse(
        channel_id=request.channel_id,
        first_seq=events[0][0] if events else request.since_seq,
        leader_first_retained_seq=log.first_retained,
        request_id=request.request_id,
        events=events,
    )


def refuse(request: SyncRequest, code: NackCode, detail: str, first_retained: int = 0) -> SyncNack:
    """Reject a request."""
    return SyncNack(
        channel_id=request.channel_id,
        since_seq=request.since_seq,
        code=code,
        leader_first_retained_seq=first_retained,
        request_id=request.request_id,
        detail=detail,
    )


class Fit(Enum):
    """How a response fits the log of a replica."""

    APPLY = auto()
    SKIP = auto()
    """It begins later than the log ends: the leader no longer has what is between."""
    NOTHING = auto()
    """It has no events, and the replica has all of them."""
    STALE = auto()
    BROKEN = auto()
    """Its sequences do not count up from the first one."""


def fit(response: SyncResponse, next_seq: int) -> Fit:
    """Return how a response fits a log that ends at `next_seq`."""
    if response.first_seq < next_seq:
        return Fit.STALE
    if not response.events:
        return Fit.NOTHING
    if any(seq != response.first_seq + place for place, (seq, _) in enumerate(response.events)):
        return Fit.BROKEN
    return Fit.SKIP if response.first_seq > next_seq else Fit.APPLY


def skip_target(nack: SyncNack) -> int:
    """Return where a replica continues after BadRange: at the leader's first event, or one event further."""
    return nack.leader_first_retained_seq or nack.since_seq + 1
