"""The router: who gets a batch, and when a channel is no longer wanted."""

from meshbus.names.channel import ChannelName
from meshbus.node.router import Router
from meshbus.node.subscription import Subscription
from tests.engine.test_batch import CHANNEL, batch_of
from tests.node.test_subscription import Desk


def subscription() -> Subscription:
    return Desk().subscription


def test_batches_go_to_every_subscription_of_their_channel() -> None:
    router, first, second, other, inbox = Router(), *(subscription() for _ in range(4))
    for one, channel in ((first, CHANNEL), (second, CHANNEL), (other, ChannelName("other"))):
        router.add(channel, one, publisher=None, queue_group="", token=None)
    router.add_inbox(inbox)
    batch = batch_of([[b"x"]])
    assert router.route(batch) == [first, second]
    assert set(router.subscriptions()) == {first, second, other, inbox}
    assert [channel for channel, _ in router.wishes()] == [CHANNEL, "other"]


def test_the_last_subscription_gives_its_channel_up() -> None:
    router, first, second = Router(), subscription(), subscription()
    for one in (first, second):
        router.add(CHANNEL, one, publisher=7, queue_group="g", token=b"t")
    assert router.wish_of(first).publisher == 7
    assert router.remove(first) is None
    assert router.remove(second) == CHANNEL
    assert router.remove(second) is None
    assert router.route(batch_of([[b"x"]])) == []
