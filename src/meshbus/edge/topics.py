"""Topics of ZeroMQ applications and channels of the mesh: which is which, and what a subscription asks the mesh for.

A topic is the name of a channel, without `strip` and with `add` before it. ZeroMQ matches topics by bytes, the mesh by
whole levels (`sensors/`). So a prefix that ends within a level asks the mesh for all of that level, and the hub leaves
out what was not meant. Pure: what becomes of an answer is edge/ingress.py's and edge/egress.py's.
"""

from __future__ import annotations

from meshbus.config.edge import EdgeEntry, covers, is_prefix
from meshbus.errors import ChannelError
from meshbus.names.channel import ChannelName


class TopicMap:
    """The topics of one bridge."""

    def __init__(self, entry: EdgeEntry) -> None:
        self._strip, self._add = entry.strip, entry.add.encode()
        self._in, self._out = entry.channels_in, entry.channels_out

    def topic_of(self, channel: str) -> bytes:
        """Give the topic of a channel, or the beginning of the topics of all channels under a prefix."""
        return self._add + channel.removeprefix(self._strip).encode()

    def channel_of(self, topic: bytes) -> ChannelName:
        """Give the channel of a topic. Raises ChannelError when no channel can have it."""
        if not topic.startswith(self._add):
            return ChannelName("")
        return ChannelName(self._strip + topic.removeprefix(self._add).decode("utf-8", "backslashreplace"))

    def takes(self, channel: str) -> bool:
        """Say whether applications may publish on a channel."""
        return any(covers(one, channel) for one in self._in)

    def wishes(self, prefix: bytes) -> frozenset[str]:
        """Give what to ask the mesh for when an application wants all topics that begin with some bytes."""
        found = (self._wish(entry, prefix) for entry in self._out)
        return frozenset(wish for wish in found if wish is not None)

    def _wish(self, channels: str, prefix: bytes) -> str | None:
        topic = self.topic_of(channels)
        if topic.startswith(prefix):
            return channels
        if not (is_prefix(channels) and prefix.startswith(topic)):
            return None
        levels = prefix[len(topic) : prefix.rfind(b"/") + 1]
        wish = channels + levels.decode("utf-8", "backslashreplace")
        try:
            ChannelName(f"{wish}x")
        except ChannelError:  # no channel can have a name like this
            return None
        return wish
