"""A standing subscription is one channel or one prefix, and is logged unless it says otherwise."""

import pytest

from meshbus.config.node import Logged, NodeConfig
from meshbus.config.subscription import SubscriptionEntry
from meshbus.errors import ConfigError
from meshbus.log.durability import NEVER, LogConfig, Retention
from meshbus.names.channel import ChannelName


def test_it_covers_its_channel_or_everything_below_its_prefix() -> None:
    one = SubscriptionEntry(channel=ChannelName("sensors/lidar"))
    assert (one.topic, one.covers("sensors/lidar"), one.covers("sensors/lidar/front")) == ("sensors/lidar", True, False)
    many = SubscriptionEntry(prefix="sensors/")
    assert (many.topic, many.covers("sensors/lidar"), many.covers("orders")) == ("sensors/", True, False)
    assert SubscriptionEntry(prefix="").covers("anything")


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({}, "set exactly one of 'channel' and 'prefix'"),
        ({"channel": "a", "prefix": "a/"}, "set exactly one of 'channel' and 'prefix'"),
        ({"prefix": "sensors"}, "must end in '/' or be empty, got 'sensors'"),
        ({"prefix": "Sensors/"}, "upper case is not allowed"),
        ({"channel": "a", "publisher": "xyz"}, "expected a node id"),
    ],
)
def test_a_wrong_entry_is_named(entry: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        NodeConfig.load(env={}, psk="5a" * 32, log_dir="log", subscriptions=[entry])
    assert refused.value.key.startswith("subscriptions[0]")


def test_what_it_brings_is_logged_even_if_the_entry_of_the_channel_only_says_how() -> None:
    config = NodeConfig.load(
        env={},
        log_dir="log",
        subscriptions=[{"prefix": "robot/"}, {"channel": "other", "log": False}],
        channels=[{"name": "robot/status", "log": "published", "log_fsync": "never"}],
    )
    how = config.log_config("robot/status", Logged.RECEIVED)
    assert how is not None
    assert how.fsync == NEVER
    bounded = LogConfig(retention=Retention(max_bytes=1 << 30))
    assert config.log_config("robot/pose", Logged.RECEIVED) == bounded
    assert config.log_config("robot/pose", Logged.PUBLISHED) is None
    assert config.log_config("other", Logged.RECEIVED) is None


def test_a_logged_subscription_needs_a_place() -> None:
    with pytest.raises(ConfigError, match="required because a subscription is logged") as refused:
        NodeConfig.load(env={}, subscriptions=[{"prefix": "robot/"}])
    assert refused.value.key == "log_dir"
    assert NodeConfig.load(env={}, subscriptions=[{"prefix": "robot/", "log": False}]).subscriptions


def test_a_second_node_with_the_same_settings_does_not_subscribe() -> None:
    config = NodeConfig.load(env={}, log_dir="log", subscriptions=[{"prefix": "robot/"}])
    assert config.without_logs().subscriptions == ()
