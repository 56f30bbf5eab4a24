"""The blocking twin: works in a script, and inside a running loop."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from meshbus import sync
from meshbus.errors import ChannelError, HandshakeError

PSK = "5a" * 32


@pytest.fixture
def pair() -> Iterator[tuple[sync.Node, sync.Node]]:
    with ExitStack() as stack:
        first, second = (stack.enter_context(sync.Node.open(psk=PSK, ephemeral=True)) for _ in range(2))
        second.connect(first.address, public_key=first.public_key)
        yield first, second


def talk(publisher: sync.Node, subscriber: sync.Node) -> list[bytes]:
    with subscriber.subscribe("sensors/lidar") as subscription:
        report = publisher.publisher("sensors/lidar").publish_batch([b"1", b"2", b"3"])
        assert report.delivered == 1
        got: list[bytes] = []
        for event in subscription:
            got.append(event.payload)
            if len(got) == 3:
                break
        assert subscription.stats.delivered == 3
    return got


def test_a_third_node_is_reached_past_nats_without_await(pair: tuple[sync.Node, sync.Node]) -> None:
    hub, here = pair
    with sync.Node.open(psk=PSK, ephemeral=True) as there:
        there.connect(hub.address, public_key=hub.public_key)
        reached = here.connect_direct(there.node_id, public_key=there.public_key, coordinator=hub.node_id)
        assert (reached.node_id, reached.relayed) == (there.node_id, False)


def test_two_nodes_talk_without_await(pair: tuple[sync.Node, sync.Node]) -> None:
    first, second = pair
    assert talk(first, second) == [b"1", b"2", b"3"]
    assert [peer.node_id for peer in first.peers] == [second.node_id]


async def test_it_works_inside_a_running_loop(pair: tuple[sync.Node, sync.Node]) -> None:
    assert asyncio.get_running_loop().is_running()
    assert talk(*pair) == [b"1", b"2", b"3"]


def test_errors_cross_the_thread(pair: tuple[sync.Node, sync.Node]) -> None:
    first, _ = pair
    with pytest.raises(ChannelError):
        first.publisher("Bad Name")
    with pytest.raises(HandshakeError):
        first.connect("127.0.0.1:9", public_key=first.public_key)


def test_waiting_ends_in_time_and_closing_twice_is_fine(pair: tuple[sync.Node, sync.Node]) -> None:
    first, second = pair
    with second.subscribe("quiet/channel", publisher=first.node_id) as subscription:
        with pytest.raises(TimeoutError):
            subscription.next_batch(timeout_s=0.05)
        subscription.close()
        assert list(subscription.batches()) == []
    second.close()
    second.close()
