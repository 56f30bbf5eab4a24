"""Serving: cut a log into messages, each with events of one epoch."""

from __future__ import annotations

from collections.abc import Iterator

from meshbus.engine.replicas.base import Seat
from meshbus.wire.column import nbytes_of
from meshbus.wire.messages.leadership import DATA_ROOM, EVENT_COST, Data


def chunk(seat: Seat, first: int, round_: int, committed: int, max_bytes: int = DATA_ROOM) -> Data:
    """Return the events from a sequence on that fit `max_bytes`; at the end of the log, a message without events.

    Events that are not in memory also give a message without events; then `first` is below the tail.
    """
    journal = seat.journal
    at_end = first >= journal.tail
    epoch = journal.runs.last_epoch if at_end else journal.runs.epoch_at(first)
    count = 0 if at_end else journal.runs.end_of(first, journal.tail) - first
    return Data(
        channel_id=seat.channel_id,
        epoch=journal.ballot.promised,
        round=round_,
        prev_epoch=journal.runs.epoch_at(first - 1),
        entry_epoch=epoch,
        committed=committed,
        first_retained=journal.first_retained,
        first_seq=first,
        payloads=journal.read(first, count, max_bytes, EVENT_COST) if count else (),
    )


def size_of(data: Data) -> int:
    """Return the bytes that the events of a message take, so that both sides know when an answer is complete."""
    return nbytes_of(data.payloads) + EVENT_COST * len(data.payloads)


def chunks(seat: Seat, first: int, committed: int, max_bytes: int) -> Iterator[Data]:
    """Yield messages from a sequence on until their events take `max_bytes`, or up to one with the end of the log."""
    journal = seat.journal
    first = max(first, journal.first_retained)
    while max_bytes > 0:
        data = chunk(seat, first, 0, committed)
        # A message without events before the end would look like the end.
        if data.payloads or first >= journal.tail:
            yield data
        first += len(data.payloads)
        max_bytes -= size_of(data)
        if not data.payloads:
            return
