"""Mapping between ZeroMQ topics and mesh channels, and between topic prefixes and mesh subscriptions.

A topic is a channel name without `strip` and with `add` before it. ZeroMQ matches topics by bytes, the mesh by whole
levels (`sensors/`). A prefix that ends within a level therefore subscribes to all of that level, and the hub filters
out the rest. This module does no I/O; edge/ingress.py and edge/egress.py use it.
"""

from __future__ import annotations

from meshbus.config.edge import EdgeEntry, covers, is_prefix
from meshbus.errors import ChannelError
from meshbus.names.channel import ChannelName


class TopicMap:
    """Converts between the topics and the channels of one bridge."""

    def __init__(self, entry: EdgeEntry) -> None:
        self._strip, self._add = entry.strip, entry.add.encode()
        self._in, self._out = entry.channels_in, entry.channels_out

    def topic_of(self, channel: str) -> bytes:
        """Return the topic of a channel, or the common topic prefix of all channels under a channel prefix."""
        return self._add + channel.removeprefix(self._strip).encode()

    def channel_of(self, topic: bytes) -> ChannelName:
        """Return the channel of a topic. Raises ChannelError if the topic cannot be a channel."""
        if not topic.startswith(self._add):
            return ChannelName("")  # raises ChannelError: the empty name is never valid
        return ChannelName(self._strip + topic.removeprefix(self._add).decode("utf-8", "backslashreplace"))

    def takes(self, channel: str) -> bool:
        """Return whether applications may publish on a channel."""
        return any(covers(one, channel) for one in self._in)

    def demands(self, prefix: bytes) -> frozenset[str]:
        """Return the channels and channel prefixes to subscribe to for a topic prefix that an application subscribed."""
        found = (self._demand(entry, prefix) for entry in self._out)
        return frozenset(demand for demand in found if demand is not None)

    def _demand(self, channels: str, prefix: bytes) -> str | None:
        topic = self.topic_of(channels)
        if topic.startswith(prefix):
            return channels
        if not (is_prefix(channels) and prefix.startswith(topic)):
            return None
        # Cut the prefix after its last slash: the mesh can subscribe to whole levels only.
        levels = prefix[len(topic) : prefix.rfind(b"/") + 1]
        demand = channels + levels.decode("utf-8", "backslashreplace")
        try:
            ChannelName(f"{demand}x")
        except ChannelError:  # no channel name can begin like this
            return None
        return demand
