"""The router: who gets a batch, and when a channel is no longer wanted."""

import pytest

from meshbus.errors import ChannelError
from meshbus.node.subscribers import Router, Wish
from meshbus.node.subscription import Subscription
from tests.engine.base.test_batch import CHANNEL, batch_of
from tests.node.test_subscription import Desk


def subscription() -> Subscription:
    return Desk().subscription


def test_batches_go_to_every_subscription_that_covers_their_channel() -> None:
    router, exact, again, prefix, everything, other, inbox = Router(), *(subscription() for _ in range(6))
    topics = {exact: CHANNEL, again: CHANNEL, prefix: "sensors/", everything: "", other: "other"}
    for one, topic in topics.items():
        router.add(Wish(topic), one)
    router.add_inbox(inbox)
    batch = batch_of([[b"x"]])
    for _ in range(2):  # found, then remembered
        assert router.route(batch) == [exact, again, prefix, everything]
    assert set(router.subscriptions()) == {*topics, inbox}
    assert [wish.topic for wish in router.wishes()] == [CHANNEL, "sensors/", "", "other"]
    router.remove(prefix)
    assert router.route(batch) == [exact, again, everything]
    assert router.feed(batch)
    assert [one.stats.received for one in (exact, everything, other)] == [1, 1, 0]


@pytest.mark.parametrize("topic", [CHANNEL, "sensors/"])
def test_the_last_subscription_gives_its_topic_up(topic: str) -> None:
    router, first, second = Router(), subscription(), subscription()
    wish = Wish(topic, publisher=7, queue_group="g", token=b"t")
    for one in (first, second):
        router.add(wish, one)
    assert router.wish_of(first) == wish
    assert router.remove(first) is None
    assert router.remove(second) == wish
    assert router.remove(second) is None
    assert router.route(batch_of([[b"x"]])) == []


@pytest.mark.parametrize(
    ("topic", "channel", "covered"),
    [
        ("sensors/", "sensors/lidar", True),
        ("sensors/", "sensors", False),
        ("", "anything", True),
        ("sensors", "sensors/lidar", False),
        ("sensors", "sensors", True),
    ],
)
def test_what_a_wish_covers(topic: str, channel: str, covered: bool) -> None:
    assert Wish(topic).covers(channel) is covered


@pytest.mark.parametrize("topic", ["Sensors", "/", "a//", "a b/"])
def test_a_bad_topic_is_refused(topic: str) -> None:
    with pytest.raises(ChannelError):
        Wish(topic)
