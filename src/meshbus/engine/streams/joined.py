"""The channels that this node gets from others: they give names back to streams, which carry only a hash.

Nothing here says who may do what: that is engine/channels/authorize.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from meshbus.names.channel import ChannelName

Request: TypeAlias = int | None
"""What asks for a channel: the number of an interest, or None for a plain subscribe."""


class JoinedChannels:
    """The channels this node subscribed to at others, by publisher and stream.

    A channel is here for as long as one request, a plain subscribe or an interest, asks for it.
    """

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change, for those who keep something derived."""
        self._streams: dict[int, dict[int, tuple[ChannelName, set[Request]]]] = {}

    def __iter__(self) -> Iterator[ChannelName]:
        """Go through the channels of all publishers; one comes as often as it has publishers."""
        return (channel for streams in self._streams.values() for channel, _ in streams.values())

    def add(self, node_id: int, channel: ChannelName, request: Request = None) -> bool:
        """Note that a request asks for a channel of a publisher; True when none did before."""
        streams = self._streams.setdefault(node_id, {})
        found = streams.get(channel.stream_id)
        # Names of one stream cannot be told apart, and the first keeps it; there are 2^63 streams.
        if found is None:
            streams[channel.stream_id] = (channel, {request})
            self.version += 1
            return True
        found[1].add(request)
        return False

    def remove(self, node_id: int, channel: ChannelName, request: Request = None) -> bool:
        """Note that a request no longer asks for a channel; True when none does now."""
        streams = self._streams.get(node_id, {})
        found = streams.get(channel.stream_id)
        if found is None:
            return False
        found[1].discard(request)
        if found[1]:
            return False
        del streams[channel.stream_id]
        self.version += 1
        if not streams:
            del self._streams[node_id]
        return True

    def channel_of(self, node_id: int, stream_id: int) -> ChannelName | None:  # hot: bench_stream
        """Give the channel that a stream of a publisher carries, if we asked for it."""
        streams = self._streams.get(node_id)
        found = None if streams is None else streams.get(stream_id)
        return None if found is None else found[0]

    def holds(self, node_id: int, channel: ChannelName, request: Request = None) -> bool:
        """Say whether this request asks for a channel."""
        found = self._streams.get(node_id, {}).get(channel.stream_id)
        return found is not None and request in found[1]

    def channels_of(self, node_id: int) -> list[ChannelName]:
        """List the channels we get from a publisher, in order."""
        return sorted(channel for channel, _ in self._streams.get(node_id, {}).values())
