"""NAT type and public address of a node, as announcements carry them (mesh.md §8.2).

A node detects its own in engine/nat/watch.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from meshbus.engine.settings import NatConfig
from meshbus.wire.messages.address import Address

NAT_TAG = "nat:"
"""Prefix of the tag that announces the NAT type."""


class Nat(StrEnum):
    """NAT type of a node."""

    UNKNOWN = "unknown"
    OPEN = "open"
    """No NAT: it is seen at the address that it is bound to."""
    CONE = "cone"
    """All peers see it at the same port."""
    SYMMETRIC = "symmetric"
    """Every peer sees it at another port."""

    @classmethod
    def of_tags(cls, tags: Sequence[str]) -> Nat:
        """Return the NAT type in the tags of an announcement, or UNKNOWN."""
        told = {tag.removeprefix(NAT_TAG) for tag in tags if tag.startswith(NAT_TAG)}
        return next((kind for kind in cls if kind in told), cls.UNKNOWN)


class NatStatus(msgspec.Struct, frozen=True):
    """What a node knows about its own NAT."""

    nat: Nat = Nat.UNKNOWN
    reflex: Address | None = None
    """The address at which others see it."""


def initial_status(config: NatConfig) -> NatStatus:
    """Return the status before any peer was asked: open if the public address is configured, otherwise unknown."""
    return NatStatus() if config.public_address is None else NatStatus(Nat.OPEN, config.public_address)
