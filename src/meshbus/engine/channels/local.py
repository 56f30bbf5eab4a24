"""Sorted list of the channels that this node publishes; prefixes of interests are looked up in it.

It knows nothing about permissions: those are decided in engine/channels/authorize.py.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator

from meshbus.names.channel import ChannelName
from meshbus.policy.channels import ChannelConfigRegistry

_BEYOND = "\x7f"
"""Sorts after every character of a valid channel name (policy.md §1.1)."""


class LocalChannels:
    """The channels of this node: those configured by name, and those with an open publisher."""

    def __init__(self) -> None:
        self.version = 0
        """Increases whenever a channel appears or vanishes."""
        self._names: list[ChannelName] = []
        """Sorted."""
        self._reasons: Counter[ChannelName] = Counter()
        """Number of publishers of each channel, plus one if it is configured."""
        self._configured: set[ChannelName] = set()

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[ChannelName]:
        return iter(self._names)

    def __contains__(self, channel: object) -> bool:
        return channel in self._reasons

    def open(self, channel: ChannelName) -> bool:
        """Count one more publisher of a channel, and return whether the channel is new."""
        self._reasons[channel] += 1
        appeared = self._reasons[channel] == 1
        if appeared:
            insort(self._names, channel)
            self.version += 1
        return appeared

    def close(self, channel: ChannelName) -> bool:
        """Undo one `open`, and return whether the channel vanished."""
        if channel not in self._reasons:
            return False
        self._reasons[channel] -= 1
        vanished = self._reasons[channel] == 0
        if vanished:
            del self._reasons[channel]
            del self._names[bisect_left(self._names, channel)]
            self.version += 1
        return vanished

    def configure(self, registry: ChannelConfigRegistry | None) -> tuple[list[ChannelName], list[ChannelName]]:
        """Replace the configured names by those of a registry, and return the channels that appeared and vanished.

        Call it again whenever the registry changes.
        """
        names = set() if registry is None else {config.name for config in registry}
        appeared = [channel for channel in sorted(names - self._configured) if self.open(channel)]
        vanished = [channel for channel in sorted(self._configured - names) if self.close(channel)]
        self._configured = names
        return appeared, vanished

    def under(self, prefix: str) -> list[ChannelName]:
        """Return the channels whose names start with a prefix."""
        start = bisect_left(self._names, prefix)
        return self._names[start : bisect_left(self._names, prefix + _BEYOND, start)]
