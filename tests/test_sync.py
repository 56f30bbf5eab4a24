"""The blocking twin: works in a script, and inside a running loop."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from itertools import islice

import pytest

import meshbus
from meshbus import sync
from meshbus.engine.base.notices import Unsubscribed
from meshbus.engine.channels.publish import PublishConfig
from meshbus.errors import ChannelError, HandshakeError, LocalProtocolError
from meshbus.node.channels.publisher import ChannelPublisher
from meshbus.node.channels.subscription import Subscription, WhenFull
from meshbus.node.daemons.coordinating import Coordinating
from meshbus.node.peers.noticelog import Notice
from tests.twins import attributes, differences

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
    with pytest.raises(LocalProtocolError, match="not open"):
        second.subscribe("quiet/channel")


def test_questions_are_answered_by_a_plain_function(pair: tuple[sync.Node, sync.Node]) -> None:
    first, second = pair

    def answer(question: bytes) -> bytes:
        if not question:
            raise ValueError("ask something")
        return question.upper()

    with first.respond("tools/upper", answer):
        assert second.request(first.node_id, "tools/upper", b"loud") == b"LOUD"
        with pytest.raises(ChannelError, match="ask something"):
            second.request(first.node_id, "tools/upper", b"")
    with pytest.raises(ChannelError):
        second.request(first.node_id, "tools/upper", b"loud")


def test_what_was_begun_may_outlive_its_node(pair: tuple[sync.Node, sync.Node]) -> None:
    first, second = pair
    with (
        first.respond("tools/echo", lambda question: question),
        first.subscribe("sensors/lidar", publisher=second.node_id) as subscription,
    ):
        end = first.watch(print)
        first.close()
        end()
        assert list(subscription.batches()) == []


def test_what_happens_is_told_until_the_node_is_closed(pair: tuple[sync.Node, sync.Node]) -> None:
    first, second = pair
    heard: list[Notice] = []
    end = first.watch(heard.append)
    told: list[Notice] = []
    caught_up = threading.Event()

    def follow() -> None:
        for notice in first.notices():
            told.append(notice)
            if isinstance(notice, Unsubscribed):
                caught_up.set()

    follower = threading.Thread(target=follow)
    follower.start()
    with second.subscribe("sensors/lidar"):
        assert first.look(lambda node: node.roster.members("sensors/lidar")) == [second.node_id]
    end()
    before = len(heard)
    assert before
    with second.subscribe("sensors/lidar"):
        pass
    assert len(heard) == before
    assert caught_up.wait(30), "closing drops what was not read yet"
    first.close()
    follower.join(10)
    assert not follower.is_alive()
    assert [notice for notice in told if notice in heard][:before] == heard


def test_no_event_is_lost_when_the_reader_times_out(pair: tuple[sync.Node, sync.Node]) -> None:
    first, second = pair
    sent, got = 600, []

    def publish() -> None:
        with first.publisher("sensors/lidar", reliable=True) as publisher:
            for number in range(sent):
                publisher.publish(b"%d" % number)

    with second.subscribe("sensors/lidar") as subscription:
        publishing = threading.Thread(target=publish)
        publishing.start()
        while publishing.is_alive() or subscription.stats.pending:
            with suppress(TimeoutError):
                batch = subscription.next_batch(timeout_s=0.0002)
                got += [] if batch is None else batch.payloads()
        publishing.join()
        with suppress(TimeoutError):
            while (late := subscription.next_batch(timeout_s=1)) is not None:
                got += late.payloads()
        assert got == [b"%d" % number for number in range(sent)]
        assert subscription.stats.delivered == sent


def test_an_interrupted_batch_is_still_pending(
    pair: tuple[sync.Node, sync.Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    result = Future.result

    def interrupted(future: Future[object], timeout: float | None = None) -> None:
        result(future, timeout)
        raise KeyboardInterrupt

    with second.subscribe("sensors/lidar") as subscription, first.publisher("sensors/lidar") as publisher:
        publisher.publish(b"12345")
        with monkeypatch.context() as patched:
            patched.setattr(Future, "result", interrupted)
            with pytest.raises(KeyboardInterrupt):
                subscription.next_batch()
        stats = subscription.stats
        assert (stats.delivered, stats.pending, stats.pending_bytes) == (0, 1, 5)
        batch = subscription.next_batch()
        assert batch is not None
        assert batch.payloads() == [b"12345"]
        assert subscription.stats.delivered == 1


def test_a_listener_that_calls_its_node_gets_an_error_and_does_not_hang(pair: tuple[sync.Node, sync.Node]) -> None:
    first, second = pair
    raised: list[str] = []

    def listener(_: Notice) -> None:
        try:
            assert first.peers
        except RuntimeError as error:
            raised.append(str(error))

    end = first.watch(listener)
    with second.subscribe("sensors/lidar"):
        pass
    end()
    assert raised
    assert "call it from another thread" in raised[0]


def test_a_node_starts_without_a_with_block() -> None:
    node = sync.Node.open(psk=PSK, ephemeral=True)
    try:
        with pytest.raises(LocalProtocolError, match="not open"):
            assert node.address
        node.start()
        node.start()
        assert node.address.startswith("127.0.0.1:")
    finally:
        node.close()


def test_events_reach_an_inbox(pair: tuple[sync.Node, sync.Node]) -> None:
    first, second = pair
    with first.inbox() as inbox:
        second.send(first.node_id, b"hello", b"again")
        assert [event.payload for event in islice(inbox, 2)] == [b"hello", b"again"]
    second.disconnect(first.node_id)
    assert second.peers == []


def test_the_twin_has_the_signatures_and_docstrings_of_the_original() -> None:
    inside = {"live"}
    views = {"mesh", "roster"}  # read with `look`
    found = set(differences(meshbus.Node, sync.Node, {"watch": ()}))
    assert {line for line in found if not line.startswith("respond")} == {  # that one takes a plain function
        *(f"{name} is missing" for name in inside | views),
        *(f"{name} is new" for name in ("look", "config", "identity")),
    }


def test_daemons_have_the_signatures_and_docstrings_of_the_originals() -> None:
    assert set(differences(meshbus.Daemons, sync.Daemons)) == set()


def test_histories_and_groups_have_the_signatures_and_docstrings_of_the_originals() -> None:
    fed_by_the_node = {"emitted", "take", "close"}
    assert set(differences(Coordinating, sync.Coordinating)) == {f"{name} is missing" for name in fed_by_the_node}


def test_publishers_and_subscriptions_have_the_signatures_and_docstrings_of_the_originals() -> None:
    assert set(differences(ChannelPublisher, sync.Publisher)) == {"channel is new", "config is new"}
    fed_by_the_node = {"feed", "miss", "fail", "accept", "refuse", "allow", "forget", "rename"}
    assert set(differences(Subscription, sync.Subscription, {"next_batch": ("timeout_s",)})) == {
        *(f"{name} is missing" for name in fed_by_the_node),
        *(f"{name} is new" for name in ("topic", "when_full")),
    }


def test_the_twins_have_the_attributes_of_the_originals(pair: tuple[sync.Node, sync.Node]) -> None:
    node = pair[0]
    with node.publisher("a") as publisher, node.subscribe("a") as subscription:
        assert attributes(node._node) <= attributes_of(node)
        assert attributes(publisher._publisher) <= attributes_of(publisher)
        assert attributes(subscription._subscription) <= attributes_of(subscription)
        assert (publisher.channel, subscription.topic) == ("a", "a")
        assert subscription.when_full is WhenFull.BLOCK
        assert publisher.config == PublishConfig()
        assert node.config.ephemeral
        assert node.identity.node_id == node.node_id


def attributes_of(twin: object) -> set[str]:
    return {name for name in dir(twin) if not name.startswith("_")}


def test_a_drifted_twin_is_noticed() -> None:
    class Original:
        async def one(self, size: int, *, deep: bool = True) -> AsyncIterator[bytes]:
            """Do it with `async with`."""
            raise NotImplementedError

        async def two(self) -> None:
            """Do it too."""

    class Twin:
        def one(self, size: int, *, deep: bool = True) -> Iterator[bytes]:
            """Do it with `with`."""
            raise NotImplementedError

        def two(self) -> None:
            """Do it too."""

    class Drifted(Twin):
        def one(self, size: int, *, deep: bool = False) -> Iterator[bytes]:
            """Do it."""
            raise NotImplementedError

        def three(self) -> None:
            """Do more."""

    assert list(differences(Original, Twin)) == []
    changed, said, new = differences(Original, Drifted)
    assert changed.startswith("one: {'size'")
    assert said.startswith("one says 'Do it.'")
    assert new == "three is new"
    assert [line for line in differences(Drifted, Original) if "missing" in line] == ["three is missing"]


def test_chains_are_announced_found_and_withdrawn(pair: tuple[sync.Node, sync.Node]) -> None:
    node, _ = pair
    node.announce_chain("alarms/fire", tip=3)
    assert node.find_chain_holders("alarms/fire") == [node.node_id]
    node.withdraw_chain("alarms/fire")
    assert node.find_chain_holders("alarms/fire") == []
