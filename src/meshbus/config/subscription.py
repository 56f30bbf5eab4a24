"""Settings of standing subscriptions: what a node subscribes to as long as it runs, without a program.

Each `[[subscriptions]]` table of a file is one subscription. This module only checks the settings; node/channels/standing.py keeps
the subscriptions, and node/logs/logs.py writes what they bring.
"""

from __future__ import annotations

import msgspec

from meshbus.config.spelling import NodeId
from meshbus.errors import ChannelError, ConfigError
from meshbus.names.channel import ChannelName


class SubscriptionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A channel, or all channels with a prefix, that the node subscribes to as long as it runs."""

    channel: ChannelName | None = None
    """Name of the channel."""
    prefix: str | None = None
    """Instead of `channel`: a prefix that ends in `/`, such as `sensors/`, or empty for every channel. Prefixes reach
    meshbus nodes only; name each channel of a plain net-mesh node."""
    publisher: NodeId | None = None
    """Node id of the publisher; by default every peer is asked, and those that connect later too."""
    queue_group: str = ""
    """Queue group to join; each event goes to one member of the group."""
    log: bool = True
    """Write the events to the received logs in `log_dir`. A `[[channels]]` entry of the same channel sets how."""

    def __post_init__(self) -> None:
        if (self.channel is None) == (self.prefix is None):
            raise ConfigError("channel", "set exactly one of 'channel' and 'prefix'")
        if self.prefix is None:
            return
        if self.prefix and not self.prefix.endswith("/"):
            raise ConfigError("prefix", f"must end in '/' or be empty, got {self.prefix!r}")
        try:
            ChannelName(f"{self.prefix}x")
        except ChannelError as error:
            raise ConfigError("prefix", str(error)) from None

    @property
    def topic(self) -> str:
        """The channel or the prefix, as `Node.subscribe` takes it."""
        return self.channel if self.channel is not None else self.prefix or ""

    def covers(self, channel: str) -> bool:
        """Return whether the subscription is for this channel."""
        return channel == self.channel if self.prefix is None else channel.startswith(self.prefix)
