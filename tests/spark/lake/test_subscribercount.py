"""Channels are matched by prefix, and each peer counts once."""

from meshbus.spark.lake.subscribercount import PrefixSubscription, count_subscribers


def test_channels_are_matched_by_prefix_each_peer_once() -> None:
    wanted = [PrefixSubscription(1, ""), PrefixSubscription(1, "a"), PrefixSubscription(2, "a/b")]
    assert count_subscribers(["a/b/c", "a", "z"], wanted) == {"a/b/c": 2, "a": 1, "z": 1}
