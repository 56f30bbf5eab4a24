"""Local subscriptions: who gets a batch, and when a channel is no longer wanted."""

import pytest
from msgspec.structs import replace

from meshbus.errors import ChannelError
from meshbus.names.channel import ChannelName
from meshbus.node.channels import subscribers as subject
from meshbus.node.channels.subscribers import Subscribers, SubscriptionSpec
from meshbus.node.channels.subscription import Subscription
from tests.engine.base.test_batch import CHANNEL, batch_of
from tests.node.channels.test_subscription import Desk


def subscription() -> Subscription:
    return Desk().subscription


def test_batches_go_to_every_subscription_that_covers_their_channel() -> None:
    subscribers, exact, again, prefix, everything, other, inbox = Subscribers(), *(subscription() for _ in range(6))
    topics = {exact: CHANNEL, again: CHANNEL, prefix: "sensors/", everything: "", other: "other"}
    for one, topic in topics.items():
        subscribers.add(SubscriptionSpec(topic), one)
    subscribers.add_inbox(inbox)
    batch = batch_of([[b"x"]])
    for _ in range(2):  # found, then remembered
        assert subscribers.find(batch) == [exact, again, prefix, everything]
    assert set(subscribers.subscriptions()) == {*topics, inbox}
    assert [spec.topic for spec in subscribers.specs_for(7)] == [CHANNEL, "sensors/", "", "other"]
    subscribers.remove(prefix)
    assert subscribers.find(batch) == [exact, again, everything]
    assert subscribers.feed(batch)
    assert [one.stats.received for one in (exact, everything, other)] == [1, 1, 0]


def test_a_stream_is_held_until_the_last_full_subscription_has_room() -> None:
    subscribers, first, second, batch = Subscribers(), subscription(), subscription(), batch_of([[b"x"]])
    stream = batch.publisher, batch.stream_id
    for one in (first, second, first):
        subscribers.hold(one, batch)
    assert subscribers.release(second) == []
    assert subscribers.release(first) == [stream]
    assert subscribers.release(first) == []


@pytest.mark.parametrize("topic", [CHANNEL, "sensors/"])
def test_a_topic_is_wanted_until_its_last_subscription_ends(topic: str) -> None:
    subscribers, first, second = Subscribers(), subscription(), subscription()
    spec = SubscriptionSpec(topic, publisher=7, queue_group="g", token=b"t")
    for one in (first, second):
        subscribers.add(spec, one)
    assert subscribers.remove(first) == spec
    assert subscribers.asking(topic, 7)
    assert not subscribers.asking(topic, 8)
    assert subscribers.remove(second) == spec
    assert not subscribers.asking(topic, 7)
    assert subscribers.remove(second) is None
    assert subscribers.find(batch_of([[b"x"]])) == []


@pytest.mark.parametrize("topic", [CHANNEL, "sensors/"])
def test_a_subscription_to_one_publisher_gets_nothing_of_others(topic: str) -> None:
    subscribers, one, every = Subscribers(), subscription(), subscription()
    batch = batch_of([[b"x"]])
    subscribers.add(SubscriptionSpec(topic, publisher=batch.publisher + 1), one)
    assert subscribers.find(batch) == []
    subscribers.add(SubscriptionSpec(topic), every)
    for _ in range(2):
        assert subscribers.find(batch) == [every]
    subscribers.remove(one)
    subscribers.add(SubscriptionSpec(topic, publisher=batch.publisher), one)
    assert set(subscribers.find(batch)) == {one, every}


def test_an_older_subscription_to_another_publisher_hides_nothing_from_a_new_peer() -> None:
    subscribers = Subscribers()
    restricted, free = SubscriptionSpec(CHANNEL, publisher=7), SubscriptionSpec(CHANNEL, queue_group="g")
    for spec in (restricted, free):
        subscribers.add(spec, subscription())
    assert list(subscribers.specs_for(7)) == [restricted]
    assert list(subscribers.specs_for(8)) == [free]


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
def test_what_a_spec_covers(topic: str, channel: str, covered: bool) -> None:
    assert SubscriptionSpec(topic).covers(channel) is covered


@pytest.mark.parametrize("topic", ["Sensors", "/", "a//", "a b/"])
def test_an_invalid_topic_is_refused(topic: str) -> None:
    with pytest.raises(ChannelError):
        SubscriptionSpec(topic)


def test_channels_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_REMEMBERED", 3)
    subscribers, everything, batch = Subscribers(), subscription(), batch_of([[b"x"]])
    subscribers.add(SubscriptionSpec(""), everything)
    for number in range(8):
        assert subscribers.find(replace(batch, channel=ChannelName(f"made/up/{number}"))) == [everything]
        assert len(subscribers._remembered) <= 3


def test_a_publisher_with_another_id_is_asked_and_heard_as_before() -> None:
    subscribers, named, other, any_of = Subscribers(), subscription(), subscription(), subscription()
    batch = batch_of([[b"x"]])
    subscribers.add(SubscriptionSpec(CHANNEL, publisher=batch.publisher), named)
    subscribers.add(SubscriptionSpec(CHANNEL, publisher=99), other)
    subscribers.add(SubscriptionSpec(CHANNEL), any_of)
    named.accept(batch.publisher)
    subscribers.hold(named, batch)
    assert subscribers.find(batch) == [named, any_of]
    subscribers.rename(batch.publisher, 5)
    assert subscribers.find(batch) == [any_of]
    assert subscribers.find(replace(batch, publisher=5)) == [named, any_of]
    assert named.publishers == (5,)
    assert subscribers.release(named) == [(5, batch.stream_id)]
