"""Rates of the live page: differences of two documents, and null where one of them is not known."""

from typing import Any

from msgspec.structs import replace

from meshbus.web.document import About, ChannelRow, DaemonRow, Document, Flow, LogRow, LossRow
from meshbus.web.rates import with_rates

ABOUT = About(node_id="01", name=None, address="127.0.0.1:1", subnet="global", gateway=False, nat="unknown")


def flow(events: int | None) -> Flow:
    return Flow(events=events, bytes=None if events is None else 10 * events)


def document(uptime_s: float, **more: Any) -> Document:
    filled = {
        "sent": flow(0),
        "forwarded": 0,
        "received": flow(0),
        "channels": (),
        "losses": (),
        "logs": None,
        "daemons": None,
        **more,
    }
    return Document(
        at_ms=0,
        uptime_s=uptime_s,
        about=ABOUT,
        problems=(),
        states={},
        nodes=(),
        peers=(),
        replicas=(),
        consumers=None,
        left_out={},
        **filled,
    )


def channel(name: str, published: int | None, received: int | None) -> ChannelRow:
    return ChannelRow(
        channel=name,
        publishes=True,
        subscribed=False,
        subscribers=0,
        publishers=0,
        publisher_names=(),
        published=flow(published),
        received=flow(received),
    )


def log(appended: int) -> LogRow:
    return LogRow(
        log="published",
        channel="a",
        first_seq=0,
        next_seq=appended,
        unsynced=0,
        appended=appended,
        appended_bytes=0,
        refused=0,
        failures=0,
        waits=None,
    )


def daemon(processed: int | None) -> DaemonRow:
    return DaemonRow(
        origin="01",
        name=None,
        state="running",
        node=None,
        inputs=(),
        output=None,
        processed=processed,
        moves=None,
        errors=0,
        problem=None,
    )


def test_the_first_document_has_no_rates() -> None:
    first = document(5.0, sent=flow(100))
    assert with_rates(None, first) is first
    assert with_rates(first, first) is first  # no time has passed
    assert first.sent.events_per_s is None


def test_rates_are_differences_by_the_time_between() -> None:
    before = document(10.0, sent=flow(100), received=flow(5), forwarded=4, channels=(channel("a", 10, None),))
    after = document(12.0, sent=flow(300), received=flow(5), forwarded=9, channels=(channel("a", 40, None),))
    told = with_rates(before, after)
    assert (told.sent.events_per_s, told.sent.bytes_per_s) == (100.0, 1000.0)
    assert told.received.events_per_s == 0.0
    assert told.forwarded_per_s == 2.5
    assert told.channels[0].published.events_per_s == 15.0
    assert told.channels[0].received.events_per_s is None  # not counted by itself


def test_a_channel_that_was_not_in_the_document_before_has_no_rate_yet() -> None:
    told = with_rates(document(1.0), document(2.0, channels=(channel("late", 5000, 0),)))
    assert told.channels[0].published.events_per_s is None


def test_a_loss_that_is_new_has_begun_at_zero() -> None:
    lost = LossRow(kind="drop", why="bad_tag", count=4, sentence="…")
    told = with_rates(document(1.0), document(3.0, losses=(lost,)))
    assert told.losses[0].per_s == 2.0
    again = with_rates(document(3.0, losses=(lost,)), document(4.0, losses=(replace(lost, count=5),)))
    assert again.losses[0].per_s == 1.0


def test_logs_and_daemons() -> None:
    before = document(1.0, logs=(log(100),), daemons=(daemon(7),))
    told = with_rates(before, document(2.0, logs=(log(150),), daemons=(daemon(9),)))
    assert told.logs is not None
    assert told.daemons is not None
    assert (told.logs[0].per_s, told.daemons[0].per_s) == (50.0, 2.0)
    reopened = with_rates(before, document(2.0, logs=(log(3),), daemons=(daemon(None),)))
    assert reopened.logs is not None
    assert reopened.daemons is not None
    assert (reopened.logs[0].per_s, reopened.daemons[0].per_s) == (None, None)
