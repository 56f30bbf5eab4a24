"""What can be set about the edge of a node: where ZeroMQ applications attach, who may, and which channels they see.

Each `[[edge]]` table of a file is one bridge. Only the settings are here; what they do is edge/bridge.py.
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
    """How applications prove who they are."""

    NULL = "null"
    """Not at all: for this machine only."""
    PLAIN = "plain"
    """Name and password, in clear text: for this machine only."""
    CURVE = "curve"
    """Encrypted, by key."""


class EdgeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One bridge between ZeroMQ applications and the channels of a node.

    A channel is given by its name, or with all others under a prefix that ends in `/`; the empty prefix is for all.
    """

    publishers: str | None = None
    """Where the PUB sockets of applications connect, such as `tcp://127.0.0.1:5555` or `ipc:///run/app/in.sock`."""
    subscribers: str | None = None
    """Where their SUB sockets connect."""
    notices: str | None = None
    """Where SUB sockets connect that want to know what was refused, and why."""
    channels_in: tuple[str, ...] = ()
    """What applications may publish on, as far as the policy of a channel lets this node."""
    channels_out: tuple[str, ...] = ()
    """What they may subscribe to, as far as publishers let this node."""
    strip: str = ""
    """What channel names begin with and topics do not."""
    add: str = ""
    """What topics begin with and channel names do not."""
    security: EdgeSecurity = EdgeSecurity.NULL
    passwords_file: Path | None = None
    """For `plain`: a TOML file of `name = "password"`."""
    curve_secret_file: Path | None = None
    """For `curve`: our secret key."""
    curve_clients: tuple[str, ...] = ()
    """For `curve`: the public keys of those who may attach."""

    def __post_init__(self) -> None:
        for side, channels in (("publishers", "channels_in"), ("subscribers", "channels_out")):
            if (getattr(self, side) is None) != (not getattr(self, channels)):
                missing, given = (side, channels) if getattr(self, side) is None else (channels, side)
                raise ConfigError(missing, f"is missing, and {given} is given: set both, or none")
            self._check_channels(channels, getattr(self, channels))
        if self.publishers is None and self.subscribers is None:
            raise ConfigError("publishers", "is missing, and so is subscribers: say where applications connect")
        for side in ("publishers", "subscribers", "notices"):
            self._check_address(side)
        self._check_security()

    def _check_channels(self, key: str, channels: Iterable[str]) -> None:
        for channel in channels:
            try:
                ChannelName(f"{channel}x" if is_prefix(channel) else channel)
            except ChannelError as error:
                raise ConfigError(key, str(error)) from None
            if not channel.startswith(self.strip):
                raise ConfigError("strip", f"{channel!r} of {key} does not begin with {self.strip!r}")
        for one, other in permutations(channels, 2):
            if covers(one, other):
                raise ConfigError(key, f"{other!r} is a part of {one!r}: keep one of the two")

    def _check_address(self, side: str) -> None:
        text = getattr(self, side)
        if text is None:
            return
        try:
            address = parse_address(text, listening=True)
        except ConfigError as error:
            raise ConfigError(side, error.problem) from None
        if self.security is EdgeSecurity.CURVE or isinstance(address, IpcAddress) or not _is_exposed(address.host):
            return
        raise ConfigError(
            side, f"{text} is reachable from other machines: bind 127.0.0.1, or set security to {EdgeSecurity.CURVE}"
        )

    def _check_security(self) -> None:
        needed = {"passwords_file": EdgeSecurity.PLAIN}
        needed |= dict.fromkeys(("curve_secret_file", "curve_clients"), EdgeSecurity.CURVE)
        for key, security in needed.items():
            if bool(getattr(self, key)) == (self.security is security):
                continue
            if self.security is security:
                raise ConfigError(key, f"is missing: security is {security}")
            raise ConfigError(key, f"belongs to security = {str(security)!r}, which is {str(self.security)!r}")


def is_prefix(channels: str) -> bool:
    """Say whether this stands for every channel whose name begins with it."""
    return not channels or channels.endswith("/")


def covers(channels: str, channel: str) -> bool:
    """Say whether a channel, or everything under a prefix, is among what a name or prefix stands for."""
    return channel.startswith(channels) if is_prefix(channels) else channel == channels


def _is_exposed(host: str) -> bool:
    """Say whether other machines reach an address for certain; a name is looked up when it is bound."""
    try:
        return not ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
