"""Settings of the edge: where ZeroMQ applications connect, who may connect, and which channels they see.

Each `[[edge]]` table of a file is one bridge. This module only checks the settings; edge/bridge.py applies them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from ipaddress import ip_address
from itertools import permutations
from pathlib import Path

import msgspec

from meshbus.config.edgeaddress import IpcAddress, parse_address
from meshbus.errors import ChannelError, ConfigError
from meshbus.names.channel import ChannelName


class EdgeSecurity(StrEnum):
    """How applications authenticate: a ZMTP security mechanism."""

    NULL = "null"
    """No authentication; loopback and Unix sockets only."""
    PLAIN = "plain"
    """Name and password in clear text; loopback and Unix sockets only."""
    CURVE = "curve"
    """Encryption and authentication by key."""


class EdgeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One bridge between ZeroMQ applications and the channels of a node.

    Channels are listed by name, or by a prefix that ends in `/` for every channel below it; the empty prefix means all.
    Prefixes reach meshbus nodes only: list the channels of plain net-mesh nodes one by one, also beside a prefix.
    """

    publishers: str | None = None
    """Address that PUB sockets of applications connect to, such as `tcp://127.0.0.1:5555` or `ipc:///run/app/in.sock`."""
    subscribers: str | None = None
    """Address that SUB sockets of applications connect to."""
    notices: str | None = None
    """Address that SUB sockets connect to for notices of refused messages and subscriptions."""
    channels_in: tuple[str, ...] = ()
    """Channels that applications may publish on, if the channel's policy allows this node to."""
    channels_out: tuple[str, ...] = ()
    """Channels that applications may subscribe to, if the publisher allows this node to."""
    strip: str = ""
    """Prefix that is removed from channel names to make topics."""
    add: str = ""
    """Prefix that is put before topics, after `strip` is removed from the channel name."""
    security: EdgeSecurity = EdgeSecurity.NULL
    """How applications authenticate: `null` and `plain` on this machine only, `curve` with encryption and keys."""
    passwords_file: Path | None = None
    """For `plain`: a TOML file with lines `name = "password"`."""
    curve_secret_file: Path | None = None
    """For `curve`: the file with this node's secret key."""
    curve_clients: tuple[str, ...] = ()
    """For `curve`: the public keys of applications that may connect."""

    def __post_init__(self) -> None:
        for side, channels in (("publishers", "channels_in"), ("subscribers", "channels_out")):
            if (getattr(self, side) is None) != (not getattr(self, channels)):
                missing, given = (side, channels) if getattr(self, side) is None else (channels, side)
                raise ConfigError(missing, f"required because {given} is set; set both or neither")
            self._check_channels(channels, getattr(self, channels))
        if self.publishers is None and self.subscribers is None:
            raise ConfigError("publishers", "neither publishers nor subscribers is set; set at least one of them")
        for side in ("publishers", "subscribers", "notices"):
            self._check_address(side)
        self._check_security()

    def _check_channels(self, key: str, channels: Iterable[str]) -> None:
        for channel in channels:
            try:
                # A name may not end in a slash, so a prefix is checked with one more letter.
                ChannelName(f"{channel}x" if is_prefix(channel) else channel)
            except ChannelError as error:
                raise ConfigError(key, str(error)) from None
            if not channel.startswith(self.strip):
                raise ConfigError(
                    "strip",
                    f"{channel!r} in {key} does not begin with {self.strip!r}; change strip, or move it to another [[edge]] table",
                )
        # A single channel may stand beside a prefix that covers it: a plain net-mesh publisher knows single channels only.
        for one, other in permutations(channels, 2):
            if covers(one, other) and (one == other or is_prefix(other)):
                raise ConfigError(key, f"{other!r} is already covered by {one!r}; remove one of them")

    def _check_address(self, side: str) -> None:
        text = getattr(self, side)
        if text is None:
            return
        try:
            address = parse_address(text, listening=True)
        except ConfigError as error:
            raise ConfigError(side, error.problem) from None
        # A host name passes here; edge/server.py checks the address that it resolves to.
        if self.security is EdgeSecurity.CURVE or isinstance(address, IpcAddress) or not _is_exposed(address.host):
            return
        raise ConfigError(
            side, f"{text} is reachable from other machines; use 127.0.0.1, or set security to {EdgeSecurity.CURVE}"
        )

    def _check_security(self) -> None:
        needed = {"passwords_file": EdgeSecurity.PLAIN}
        needed |= dict.fromkeys(("curve_secret_file", "curve_clients"), EdgeSecurity.CURVE)
        for key, security in needed.items():
            if bool(getattr(self, key)) == (self.security is security):
                continue
            if self.security is security:
                raise ConfigError(key, f"required because security is {str(security)!r}")
            raise ConfigError(
                key, f"only allowed if security is {str(security)!r}, but it is {str(self.security)!r}; remove {key}"
            )


def is_prefix(channels: str) -> bool:
    """Return whether this is a prefix, which means every channel whose name begins with it."""
    return not channels or channels.endswith("/")


def covers(channels: str, channel: str) -> bool:
    """Return whether a name or prefix covers a channel, or every channel below another prefix."""
    return channel.startswith(channels) if is_prefix(channels) else channel == channels


def _is_exposed(host: str) -> bool:
    """Return whether a host is certainly reachable from other machines; a name is resolved only when it is bound."""
    try:
        return not ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
