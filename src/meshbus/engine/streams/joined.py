"""Joined channels: the channels that this node subscribed to at other nodes, by publisher and stream.

A packet carries only hashes of its channel (transport.md §13); this table returns the name. Permissions are not checked
here: engine/channels/authorize.py does that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from meshbus.names.channel import ChannelName

Request: TypeAlias = int | None
"""What a channel was joined for: the number of an interest, or None for a plain subscription."""


class JoinedChannels:
    """The channels that this node receives, by publisher and stream.

    A channel stays joined as long as at least one request, a plain subscription or an interest, needs it.
    """

    def __init__(self) -> None:
        self.version = 0
        """Increases with every change, so that derived values can be cached."""
        self._streams: dict[int, dict[int, tuple[ChannelName, set[Request]]]] = {}

    def __iter__(self) -> Iterator[ChannelName]:
        """Iterate over the channels of all publishers; a channel with two publishers comes twice."""
        return (channel for streams in self._streams.values() for channel, _ in streams.values())

    def add(self, node_id: int, channel: ChannelName, request: Request = None) -> bool:
        """Record a request for a channel of a publisher, and return whether it is the first one."""
        streams = self._streams.setdefault(node_id, {})
        found = streams.get(channel.stream_id)
        # Two names with the same stream id cannot be told apart on the wire, so the first one keeps the stream. The id
        # is a 64-bit hash with one bit fixed, so this practically never happens.
        if found is None:
            streams[channel.stream_id] = (channel, {request})
            self.version += 1
            return True
        found[1].add(request)
        return False

    def remove(self, node_id: int, channel: ChannelName, request: Request = None) -> bool:
        """Remove a request for a channel, and return whether it was the last one."""
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

    def rename(self, old: int, new: int) -> None:
        """Record that a publisher goes on under another id."""
        if old in self._streams:
            self._streams.setdefault(new, {}).update(self._streams.pop(old))
            self.version += 1

    def channel_of(self, node_id: int, stream_id: int) -> ChannelName | None:  # hot: bench_stream
        """Return the channel of a publisher's stream, or None if this node did not subscribe to it."""
        streams = self._streams.get(node_id)
        found = None if streams is None else streams.get(stream_id)
        return None if found is None else found[0]

    def holds(self, node_id: int, channel: ChannelName, request: Request = None) -> bool:
        """Return whether this request needs a channel."""
        found = self._streams.get(node_id, {}).get(channel.stream_id)
        return found is not None and request in found[1]

    def channels_of(self, node_id: int) -> list[ChannelName]:
        """Return the channels that this node receives from a publisher, sorted."""
        return sorted(channel for channel, _ in self._streams.get(node_id, {}).values())
