"""Rates of a document: what changed since the one before, per second.

A row that the document before did not have gets no rate: it may have been left out there. Drops and refusals are never
left out, so one that is new has begun at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec.structs import replace

from meshbus.web.document import ChannelRow, DaemonRow, Document, Flow, LogRow, LossRow

Row = TypeVar("Row")


def with_rates(before: Document | None, now: Document) -> Document:
    """Return a document with the rates since an earlier one of the same node; None for the first one."""
    if before is None or now.uptime_s <= before.uptime_s:
        return now
    seconds = now.uptime_s - before.uptime_s

    def rate(earlier: int | None, later: int | None) -> float | None:
        # A log that was closed and opened again counts from 0.
        if earlier is None or later is None or later < earlier:
            return None
        return round((later - earlier) / seconds, 1)

    def flow(earlier: Flow, later: Flow) -> Flow:
        return replace(
            later,
            events_per_s=rate(earlier.events, later.events),
            bytes_per_s=rate(earlier.bytes, later.bytes),
        )

    def channel(earlier: ChannelRow | None, row: ChannelRow) -> ChannelRow:
        if earlier is None:
            return row
        return replace(
            row, published=flow(earlier.published, row.published), received=flow(earlier.received, row.received)
        )

    def loss(earlier: LossRow | None, row: LossRow) -> LossRow:
        return replace(row, per_s=rate(0 if earlier is None else earlier.count, row.count))

    def log(earlier: LogRow | None, row: LogRow) -> LogRow:
        return replace(row, per_s=None if earlier is None else rate(earlier.appended, row.appended))

    def daemon(earlier: DaemonRow | None, row: DaemonRow) -> DaemonRow:
        return replace(row, per_s=None if earlier is None else rate(earlier.processed, row.processed))

    return replace(
        now,
        sent=flow(before.sent, now.sent),
        received=flow(before.received, now.received),
        forwarded_per_s=rate(before.forwarded, now.forwarded),
        channels=_paired(before.channels, now.channels, lambda row: row.channel, channel),
        losses=_paired(before.losses, now.losses, lambda row: (row.kind, row.why), loss),
        logs=None if now.logs is None else _paired(before.logs, now.logs, lambda row: (row.log, row.channel), log),
        daemons=None if now.daemons is None else _paired(before.daemons, now.daemons, lambda row: row.origin, daemon),
    )


def _paired(
    before: Iterable[Row] | None,
    now: Iterable[Row],
    key: Callable[[Row], object],
    change: Callable[[Row | None, Row], Row],
) -> tuple[Row, ...]:
    earlier = {key(row): row for row in before or ()}
    return tuple(change(earlier.get(key(row)), row) for row in now)
