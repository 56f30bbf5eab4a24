"""The channels that concern this node: those it publishes, and those it gets from others.

`LocalChannels` is what a prefix is resolved against (engine/interest.py). `JoinedChannels` gives names back to the
streams of publications, which carry only a hash. Neither says who may do what: that is engine/authorize.py.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator

from meshbus.engine.roster import Request
from meshbus.names.channel import ChannelName
from meshbus.policy.channels import ChannelConfigRegistry

_BEYOND = "\x7f"
"""Sorts after every character of a legal name."""


class LocalChannels:
    """The channels this node publishes: those configured by name, and those that publishers were opened for."""

    def __init__(self) -> None:
        self._names: list[ChannelName] = []
        """In order."""
        self._reasons: Counter[ChannelName] = Counter()
        """How many publishers, plus one when configured."""
        self._configured: set[ChannelName] = set()

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[ChannelName]:
        return iter(self._names)

    def __contains__(self, channel: object) -> bool:
        return channel in self._reasons

    def open(self, channel: ChannelName) -> bool:
        """Count a publisher of a channel; True when the channel appeared by it."""
        self._reasons[channel] += 1
        appeared = self._reasons[channel] == 1
        if appeared:
            insort(self._names, channel)
        return appeared

    def close(self, channel: ChannelName) -> bool:
        """Take back an `open`; True when the channel vanished by it."""
        if channel not in self._reasons:
            return False
        self._reasons[channel] -= 1
        vanished = self._reasons[channel] == 0
        if vanished:
            del self._reasons[channel]
            del self._names[bisect_left(self._names, channel)]
        return vanished

    def configure(self, registry: ChannelConfigRegistry | None) -> tuple[list[ChannelName], list[ChannelName]]:
        """Take the names of a registry in place of the earlier ones; gives the channels that appeared and vanished.

        To be called again when the registry has changed.
        """
        names = set() if registry is None else {config.channel for config in registry}
        appeared = [channel for channel in sorted(names - self._configured) if self.open(channel)]
        vanished = [channel for channel in sorted(self._configured - names) if self.close(channel)]
        self._configured = names
        return appeared, vanished

    def under(self, prefix: str) -> list[ChannelName]:
        """List the channels whose names start with a text."""
        start = bisect_left(self._names, prefix)
        return self._names[start : bisect_left(self._names, prefix + _BEYOND, start)]


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
