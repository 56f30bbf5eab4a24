"""The channels that this node publishes: what the prefix of an interest is resolved against.

Nothing here says who may do what: that is engine/channels/authorize.py.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator

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
        """Take the names of a registry in place of the earlier ones, and return the channels that appeared and vanished.

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
