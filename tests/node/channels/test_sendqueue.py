"""Events that were sent without waiting: coalesced, in order, bounded, and their failures reported."""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from meshbus import sync
from meshbus.engine.channels.publish import PublishConfig, PublishReport, WhenSendFull
from meshbus.errors import AuthError, Backpressure, ConfigError, LocalProtocolError, PartialDelivery
from meshbus.node.channels.sendqueue import EARLY_BYTES, SendQueue, Unsent
from meshbus.node.node import Node
from meshbus.policy.reason import Reason
from tests.node.channels.test_historyreader import LIDAR, pair
from tests.node.test_node import QUICK, nodes, take, until

__all__ = ["nodes"]  # a fixture

ROOM = 10_000


class Batches:
    """Stands for the publisher: keeps the batches, and ends each when the test says so."""

    def __init__(self, node: Node, **options: Any) -> None:
        self.config = PublishConfig(**{"max_bytes": ROOM, **options})
        self.queue = SendQueue(self.config, lambda: node.live, self.start)
        self.taken: list[list[bytes]] = []
        self.going = asyncio.Event()
        self.going.set()

    def start(self, events: list[bytes]) -> Coroutine[Any, Any, PublishReport]:
        self.taken.append(events)
        return self.publish()

    async def publish(self) -> PublishReport:
        await self.going.wait()
        return PublishReport(1, 1)


async def test_events_of_one_loop_iteration_go_together_and_arrive_in_order(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    async with subscriber.subscribe("sensors/lidar") as subscription:
        lidar = publisher.publisher("sensors/lidar")
        for number in range(50):
            lidar.send(b"%d" % number)
        await lidar.publish(b"50")
        lidar.send("51")
        await lidar.publish_batch([b"52", b"53"])
        lidar.send(bytearray(b"54"))
        report = await lidar.flush()
        assert (report.errors, report.unsent) == ((), 0)
        batches = [await subscription.next_batch()]
        while sum(len(batch) for batch in batches if batch) < 55:
            batches.append(await subscription.next_batch())
        got = [payload for batch in batches if batch for payload in batch.payloads()]
        assert got == [b"%d" % number for number in range(55)]
        assert len(batches) <= 5, "the first fifty share a packet"


async def test_a_batch_waits_behind_the_one_under_way_and_all_count_for_the_bound() -> None:
    async with Node.open(**QUICK) as node:
        batches = Batches(node)
        batches.going.clear()
        batches.queue.add(b"first")
        await until(lambda: batches.taken)
        fitting = [bytes(996)] * 9
        for event in fitting:
            batches.queue.add(event)
        with pytest.raises(
            Backpressure, match=r"9009 bytes wait, 991 more fit, 1000 are needed; await flush\(\) first"
        ):
            batches.queue.add(bytes(996))
        await asyncio.sleep(0)
        assert len(batches.taken) == 1, "one batch is under way at a time"
        batches.going.set()
        await batches.queue.settle()
        assert batches.taken == [[b"first"], fitting]
        assert not batches.queue.nbytes


async def test_the_oldest_or_the_newest_events_are_dropped_and_counted() -> None:
    async with Node.open(**QUICK) as node:
        counters, counted = node.live.engine.counters, Reason.SEND_QUEUE_FULL.counter
        oldest = Batches(node, when_full="drop_oldest")
        for number in range(15):
            oldest.queue.add(b"%03d" % number + bytes(993))
        await oldest.queue.settle()
        assert [event[:3] for event in oldest.taken[0]] == [b"%03d" % number for number in range(5, 15)]
        assert oldest.queue.take_failures(PublishReport(0, 0), 1.0).unsent == 5
        newest = Batches(node, when_full=WhenSendFull.DROP_NEWEST)
        for number in range(15):
            newest.queue.add(b"%03d" % number + bytes(993))
        await newest.queue.settle()
        assert [event[:3] for event in newest.taken[0]] == [b"%03d" % number for number in range(10)]
        assert newest.queue.take_failures(PublishReport(0, 0), 1.0).unsent == 5
        assert newest.queue.take_failures(PublishReport(0, 0), 1.0).unsent == 0, "reported once"
        assert counters.get(*counted) == 10


async def test_what_is_under_way_is_never_dropped_for_a_new_event() -> None:
    async with Node.open(**QUICK) as node:
        batches = Batches(node, when_full="drop_oldest")
        batches.going.clear()
        for _ in range(2):
            batches.queue.add(bytes(4996))
        await until(lambda: batches.taken)
        batches.queue.add(b"no place")
        batches.going.set()
        await batches.queue.settle()
        assert [len(batch) for batch in batches.taken] == [2]
        assert batches.queue.take_failures(PublishReport(0, 0), 1.0).unsent == 1


async def test_events_wait_for_more_but_not_longer_than_allowed_nor_beyond_a_train() -> None:
    async with Node.open(**QUICK) as node:
        patient = Batches(node, max_delay_ms=5.0)
        patient.queue.add(b"a")
        await asyncio.sleep(0)
        patient.queue.add(b"b")
        await until(lambda: patient.taken == [[b"a", b"b"]])
        hasty = Batches(node, max_delay_ms=10_000.0, max_bytes=1 << 20)
        hasty.queue.add(b"c")
        await asyncio.sleep(0)
        assert not hasty.taken
        while not hasty.taken:
            hasty.queue.add(bytes(4092))
            await asyncio.sleep(0)
        assert len(hasty.taken[0]) <= 2 + EARLY_BYTES // 4096


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_bytes": 8108}, "must be more than 8108"),
        ({"max_delay_ms": -1.0}, "must be from 0 to 10000"),
        ({"max_delay_ms": 1e9}, "must be from 0 to 10000"),
        ({"when_full": "block"}, "choose from fail, drop_oldest, drop_newest"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        PublishConfig(**options)


async def test_failures_are_told_and_reported(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    async with subscriber.subscribe("sensors/lidar"):
        lidar = publisher.publisher("sensors/lidar", wait_s=0.0)
        told: list[Unsent] = []
        lidar.on_unsent = told.append
        for _ in range(300):
            lidar.send(bytes(8000))  # four windows
        report = await lidar.flush()
        assert report.unsent == 300
        assert {(error.node_id, error.code) for error in report.errors} == {(subscriber.node_id, "backpressure")}
        await until(lambda: told)
        assert sum(unsent.events for unsent in told) == 300
        assert isinstance(told[0].error, PartialDelivery)
        assert (await lidar.flush()).errors == ()


async def test_a_refusal_of_this_node_is_a_failure_without_a_peer() -> None:
    async with Node.open(**QUICK, channels=[{"name": "closed", "require_token": True}]) as node:
        closed = node.publisher("closed")
        told: list[Unsent] = []
        closed.on_unsent = told.append
        closed.send(b"1")
        closed.send(b"2")
        report = await closed.flush()
        assert report.unsent == 2
        assert [(error.node_id, error.code) for error in report.errors] == [(0, AuthError.code)]
        await until(lambda: told)
        assert isinstance(told[0].error, AuthError)


async def test_a_wrong_event_is_refused_at_once(nodes: tuple[Node, Node]) -> None:
    lidar = nodes[0].publisher("sensors/lidar")
    with pytest.raises(
        LocalProtocolError, match="send takes events of at most 8104 bytes, got 8105; publish a larger one"
    ):
        lidar.send(bytes(8105))
    with pytest.raises(LocalProtocolError, match="an event is bytes or text, got int"):
        lidar.send(7)  # type: ignore[arg-type]
    lidar.send(bytes(8104))
    assert (await lidar.flush()).unsent == 0


async def test_closing_sends_what_waits_and_refuses_more(nodes: tuple[Node, Node]) -> None:
    publisher, subscriber = nodes
    async with subscriber.subscribe("sensors/lidar") as subscription:
        async with publisher.publisher("sensors/lidar") as lidar:
            lidar.send(b"last")
        assert await take(subscription, 1) == [b"last"]
        with pytest.raises(LocalProtocolError, match="closed; open another"):
            lidar.send(b"too late")


async def test_a_closed_node_is_a_failure() -> None:
    async with Node.open(**QUICK) as node:
        lidar = node.publisher("sensors/lidar")
        told: list[Unsent] = []
        lidar.on_unsent = told.append
    lidar.send(b"nobody")
    await until(lambda: told)
    assert told[0].events == 1


async def test_logged_events_keep_their_order(tmp_path: Path) -> None:
    async with pair(tmp_path) as (publisher, subscriber), subscriber.subscribe(LIDAR, since=0) as logged:
        lidar = publisher.publisher(LIDAR)
        for number in range(20):
            lidar.send(b"%d" % number)
            if number % 5 == 4:
                await asyncio.sleep(0)
        assert (await lidar.publish(b"20")).log_seq == 20
        lidar.send(b"21")
        assert (await lidar.publish_batch([b"22"])).log_seq == 22
        lidar.send(b"23")
        assert (await lidar.flush()).unsent == 0
        assert await take(logged, 24) == [b"%d" % number for number in range(24)]


def test_threads_send_without_waiting() -> None:
    with sync.Node.open(**QUICK) as publisher, sync.Node.open(**QUICK) as subscriber:
        subscriber.connect(publisher.address, public_key=publisher.public_key)
        with subscriber.subscribe("sensors/lidar") as subscription:
            lidar = publisher.publisher("sensors/lidar", max_bytes=1 << 20)
            told: list[Unsent] = []
            lidar.on_unsent = told.append
            assert lidar.on_unsent == told.append

            def send(name: int) -> None:
                for number in range(500):
                    lidar.send(b"%d:%d" % (name, number))

            threads = [threading.Thread(target=send, args=(name,)) for name in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert (lidar.flush().unsent, told) == (0, [])
            got: list[bytes] = []
            for event in subscription:
                got.append(bytes(event.payload))
                if len(got) == 1500:
                    break
            for name in range(3):
                own = [payload for payload in got if payload.startswith(b"%d:" % name)]
                assert own == [b"%d:%d" % (name, number) for number in range(500)]
    with pytest.raises(LocalProtocolError, match="closed"):
        lidar.send(b"too late")
