"""The walk of one event in ARCHITECTURE.md matches the calls that are really made, in their order, in all three lanes."""

import asyncio
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from meshbus.engine.base.packets import Output, PacketBatch
from meshbus.engine.channels.publish import PublishConfig
from meshbus.log.log import Redex
from meshbus.names.channel import ChannelName
from meshbus.node.driving.driver import QUIET_S
from meshbus.node.node import Node
from meshbus.testing.fakenet import FakeNode
from meshbus.wire.frames import columns_of
from tests.engine.fleet import numbered, pair, subscribed
from tests.house.tree import PACKAGE, ROOT, imports

PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
CHANNELS = ("sensors/lidar", "sensors/radar")
MANY = 500
MOST_CALLS_OUT, MOST_CALLS_IN = 16, 42
"""Functions of this package that one event may take on its way out and in. Raise them only for something worth its time."""


class Calls(list[tuple[str, str]]):
    """The functions of the package that were called, in their order: path and qualified name."""

    def first_missing(self, steps: Iterable[str]) -> str | None:
        """Return the first step that was not called after the steps before it, or None.

        A step is a path (`engine/session/link.py`, or a folder), or a method (`Link.seal_one`).
        """
        calls = iter(self)
        for step in steps:
            if not any(path.startswith(step) or name == step for path, name in calls):
                return step
        return None


@contextmanager
def traced() -> Iterator[Calls]:
    """Collect the calls of this thread."""
    calls = Calls()
    begin = f"{PACKAGE}/"

    def see(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(begin):
            calls.append((frame.f_code.co_filename.removeprefix(begin), frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@contextmanager
def counted(name: str, through: str) -> Iterator[list[int]]:
    """Count how many functions of the package run within a call of one, itself included; if it calls another one, too."""
    counts: list[int] = []
    depth, begin, within = 0, f"{PACKAGE}/", list[str]()

    def see(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal depth
        called = frame.f_code.co_qualname
        if not frame.f_code.co_filename.startswith(begin):
            return
        if event == "call" and (depth or called == name):
            depth += 1
            within.append(called)
        elif event == "return" and depth:
            depth -= 1
            if not depth:
                if through in within:
                    counts.append(len(within))
                within.clear()

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        yield counts
    finally:
        sys.setprofile(before)


def steps_of(cell: str) -> list[str]:
    """Return the paths and methods of a cell, without those in parentheses, which are helpers of a step."""
    return re.findall(r"`([\w/]+\.py|[\w/]+/|[A-Z]\w+\.\w+)`", re.sub(r"\(.*?\)", "", cell))


def numbered_steps(numbers: Sequence[int]) -> list[str]:
    """Return the steps of some rows of the walk."""
    rows = {int(row[1]): row[2] for row in re.finditer(r"^\| (\d+) \| (.*?) \|", PAGE, re.MULTILINE)}
    return list(chain.from_iterable(steps_of(rows[number]) for number in numbers))


def lane(name: str) -> list[str]:
    """Return the steps of a lane on the way in."""
    found = re.search(rf"^\| {name} \| .*? \| (.*?) \|$", PAGE, re.MULTILINE)
    assert found is not None, f"ARCHITECTURE.md has no lane {name!r}"
    return steps_of(found[1])


@pytest.fixture
def ends() -> tuple[FakeNode, FakeNode]:
    """A publisher, and a node that is subscribed to two channels of it."""
    _, publisher, subscriber = pair()
    for channel in CHANNELS:
        subscribed(subscriber, publisher, channel)
    return publisher, subscriber


def published(node: FakeNode, channel: str, events: int) -> list[bytes]:
    """Publish events that fill a packet each, and return the datagrams."""
    out = Output()
    payloads = numbered(events, size=5000)
    node.engine.publish(ChannelName(channel), *columns_of(payloads), PublishConfig(), node.net.clock.now, out)
    return [datagram for train in out.trains for datagram in train.datagrams()]


def received(node: FakeNode, source: FakeNode, datagrams: Sequence[bytes]) -> Calls:
    """Make a node receive datagrams as one batch, and return what it called; every datagram carries one event."""
    batch = PacketBatch.of([(source.name, datagram) for datagram in datagrams])
    with traced() as calls:
        out = node.engine.receive(batch, node.net.clock.now)
    assert sum(map(len, out.events)) == len(datagrams)
    return calls


def test_one_packet_takes_its_lane(ends: tuple[FakeNode, FakeNode]) -> None:
    publisher, subscriber = ends
    calls = received(subscriber, publisher, published(publisher, CHANNELS[0], 1))
    assert len(lane("one packet")) == 3
    assert calls.first_missing(lane("one packet")) is None
    assert calls.first_missing(["Link.open_run"])
    assert calls.first_missing(["Link.open_batch"])


def test_a_run_takes_its_lane(ends: tuple[FakeNode, FakeNode]) -> None:
    publisher, subscriber = ends
    calls = received(subscriber, publisher, published(publisher, CHANNELS[0], 8))
    assert len(lane("a run")) == 5
    assert calls.first_missing(lane("a run")) is None
    assert calls.first_missing(["Intake.receive_one"])
    assert calls.first_missing(["Link.open_batch"])


def test_a_few_packets_in_front_of_a_run_leave_it_its_lane(ends: tuple[FakeNode, FakeNode]) -> None:
    publisher, subscriber = ends
    small, long = (published(publisher, channel, 9) for channel in CHANNELS)
    calls = received(subscriber, publisher, [small[0], *long])
    assert calls.first_missing([*lane("one packet"), *lane("a run")[2:]]) is None
    assert calls.first_missing(["Link.open_batch"])


def test_a_mixed_batch_takes_its_lane(ends: tuple[FakeNode, FakeNode]) -> None:
    publisher, subscriber = ends
    both = zip(*(published(publisher, channel, 8) for channel in CHANNELS), strict=True)
    calls = received(subscriber, publisher, list(chain.from_iterable(both)))
    assert len(lane("mixed")) == 6
    assert calls.first_missing(lane("mixed")) is None
    assert calls.first_missing(["Intake.receive_one"])
    assert calls.first_missing(["Link.open_run"])


def test_a_single_event_takes_the_short_way_out(ends: tuple[FakeNode, FakeNode]) -> None:
    publisher, _ = ends
    with traced() as calls, publisher.turn() as (engine, now, out):
        engine.publish_one(ChannelName(CHANNELS[0]), b"scan", PublishConfig(), now, out)
    short = re.search(r"short way:(.*?)\.\n", PAGE, re.DOTALL)
    assert short is not None
    steps = steps_of(short[1])
    assert len(steps) == 2
    assert calls.first_missing(["Publications.publish_one", *steps]) is None


async def test_an_event_walks_from_a_publisher_to_a_subscription() -> None:
    options: dict[str, Any] = {"psk": "5a" * 32, "ephemeral": True}
    async with Node.open(**options) as publisher, Node.open(**options) as subscriber:
        await subscriber.connect(publisher.address, public_key=publisher.public_key)
        async with subscriber.subscribe(CHANNELS[0]) as subscription:
            with traced() as calls:
                await publisher.publisher(CHANNELS[0]).publish_batch(numbered(3, size=1000))
                batch = await subscription.next_batch()
    assert batch is not None
    assert calls.first_missing(numbered_steps(range(1, 12))) is None


async def test_a_single_event_takes_few_calls() -> None:
    """From `publish` to the socket, and from the socket to the subscriber's task; the fewest of many events count.

    On a busy machine a grant or a timer is due beside most of them.
    """
    options: dict[str, Any] = {"psk": "5a" * 32, "ephemeral": True}
    async with Node.open(**options) as publisher, Node.open(**options) as subscriber:
        await subscriber.connect(publisher.address, public_key=publisher.public_key)
        async with subscriber.subscribe(CHANNELS[0]) as subscription:
            sending = publisher.publisher(CHANNELS[0])
            out: list[int] = []
            with counted("Driver._readable", "Delivery.take_one") as received:
                for _ in range(MANY):
                    with counted("ChannelPublisher.publish", "Link.seal_one") as published_by:
                        await sending.publish(b"pose")
                    out += published_by
                    assert await subscription.next_batch() is not None
                    await asyncio.sleep(2 * QUIET_S)
                    if min(out, default=inf) <= MOST_CALLS_OUT and min(received, default=inf) <= MOST_CALLS_IN:
                        break
    assert min(out) <= MOST_CALLS_OUT
    assert min(received) <= MOST_CALLS_IN


def test_an_append_becomes_a_block_and_a_segment(tmp_path: Path) -> None:
    with Redex(tmp_path) as logs, logs.open(CHANNELS[0]) as log:
        with traced() as calls:
            log.append_batch(numbered(100))
        assert calls.first_missing(numbered_steps([13])) is None
        with traced() as calls:
            log.seal()
        assert calls.first_missing(numbered_steps([14])) is None


def test_the_steps_to_a_table_know_each_other() -> None:
    """Steps that need Spark or a recorder are not run here; at least, each one names the one before it, or is named."""
    cells = [
        row[1] for row in re.finditer(r"^\| (?:\d+ )?\|? ?(`(?:engine|log|node|spark)/.*?) \|", PAGE, re.MULTILINE)
    ]
    pairs = [
        (before, step)
        for cell in cells
        for before, steps in pairwise(steps_of(part) for part in cell.split("→"))
        for step in steps
    ]
    assert len(pairs) > 20
    strange = [(before, step) for before, step in pairs if not any(_know(one, step) for one in before)]
    assert not strange, "ARCHITECTURE.md puts these next to each other, but neither names the other"


def _know(one: str, other: str) -> bool:
    return _names(one, other) or _names(other, one)


def _names(one: str, other: str) -> bool:
    """Return whether a module, or a module of a folder, imports another, or loads it by its name."""
    path = PACKAGE / one
    wanted = "meshbus." + other.removesuffix(".py").strip("/").replace("/", ".")
    modules = list(path.rglob("*.py") if path.is_dir() else [path])
    names = {name for module in modules for _, name in imports(module)}
    by_import = any(f"{name}.".startswith(f"{wanted}.") for name in names)
    by_name = any(f'"{wanted}.' in module.read_text("utf-8") for module in modules)
    # Gold tables are found by their folder (spark/lake/catalog.py); both sides know them by their type.
    return by_import or by_name or (other == "spark/lake/gold/" and "meshbus.spark.lake.goldtable" in names)
