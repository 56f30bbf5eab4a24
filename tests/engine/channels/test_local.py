"""The channels of a node: channels that appear and vanish, and lookups by prefix."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.channels.local import LocalChannels
from meshbus.names.channel import ChannelName
from tests.engine.stage import channel_config, configs

A, B, C = ChannelName("a"), ChannelName("a/b"), ChannelName("c")


def test_a_channel_is_there_while_a_publisher_is_open() -> None:
    channels = LocalChannels()
    assert channels.open(A)
    assert not channels.open(A)
    assert A in channels
    assert not channels.close(A)
    assert channels.close(A)
    assert not channels.close(A)
    assert (A in channels, len(channels), list(channels)) == (False, 0, [])


def test_configured_channels_are_offered_and_changes_are_reported() -> None:
    channels = LocalChannels()
    registry = configs(channel_config(A), channel_config(B))
    registry.insert_prefix("p/", channel_config("p/label"))
    channels.open(B)
    assert channels.configure(registry) == ([A], []), "a prefix names no channel, and the open one was there"
    assert channels.configure(registry) == ([], [])
    registry.remove_by_name(A)
    registry.remove_by_name(B)
    registry.insert(channel_config(C))
    assert channels.configure(registry) == ([C], [A]), "a publisher still holds the other"
    assert channels.configure(None) == ([], [C])
    assert list(channels) == [B]


NAMES = st.text("ab/", min_size=1, max_size=5).filter(
    lambda name: not name.startswith("/") and not name.endswith("/") and "//" not in name
)


@given(st.sets(NAMES), st.text("ab/", max_size=4))
def test_a_prefix_search_equals_a_scan(names: set[str], prefix: str) -> None:
    channels = LocalChannels()
    for name in names:
        channels.open(ChannelName(name))
    assert channels.under(prefix) == sorted(name for name in names if name.startswith(prefix))


def test_the_version_changes_when_a_channel_appears_or_vanishes() -> None:
    channels = LocalChannels()
    versions = [channels.version]
    for step in (channels.open, channels.open, channels.close, channels.close):
        step(ChannelName("a"))
        versions.append(channels.version)
    assert [after > before for before, after in pairwise(versions)] == [True, False, False, True]
