"""Test the table of joined channels, which names streams."""

from meshbus.engine.streams.joined import JoinedChannels
from meshbus.names.channel import ChannelName

A, B, C = ChannelName("a"), ChannelName("a/b"), ChannelName("c")


def test_streams_get_their_names_back_while_a_request_asks_for_them() -> None:
    joined = JoinedChannels()
    assert joined.channel_of(1, A.stream_id) is None
    assert joined.add(1, A)
    assert not joined.add(1, A, 7)
    assert joined.add(1, C, 7)
    assert joined.channel_of(1, A.stream_id) == A
    assert joined.channel_of(2, A.stream_id) is None, "another publisher"
    assert joined.channel_of(1, B.stream_id) is None
    assert joined.channels_of(1) == [A, C]
    assert joined.holds(1, A, 7)
    assert not joined.holds(1, C)
    assert not joined.remove(1, A)
    assert joined.channel_of(1, A.stream_id) == A, "the interest still asks for it"
    assert joined.remove(1, A, 7)
    assert not joined.remove(1, A, 7)
    assert joined.remove(1, C, 7)
    assert joined.channels_of(1) == []
    assert not joined.remove(2, A)


def test_a_publisher_with_another_id_keeps_its_channels() -> None:
    joined, channel = JoinedChannels(), ChannelName("a")
    joined.add(1, channel, 5)
    version = joined.version
    joined.rename(1, 9)
    joined.rename(2, 9)
    assert joined.version == version + 1
    assert joined.channel_of(9, channel.stream_id) == channel
    assert joined.holds(9, channel, 5)
    assert joined.channel_of(1, channel.stream_id) is None
