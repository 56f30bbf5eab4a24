"""How a node is reached from outside, as announcements carry it: the kind of NAT, and the address that others see.

How a node finds this out about itself is engine/nat/watch.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from meshbus.engine.settings import NatConfig
from meshbus.wire.messages.address import Address

NAT_TAG = "nat:"
"""What the tag of an announcement begins with that says the kind of NAT."""


class Nat(StrEnum):
    """How a node is reached from outside, as its announcement says."""

    UNKNOWN = "unknown"
    OPEN = "open"
    CONE = "cone"
    """Whoever it sends to sees it at one address."""
    SYMMETRIC = "symmetric"
    """Everyone sees it at another port."""

    @classmethod
    def of_tags(cls, tags: Sequence[str]) -> Nat:
        """Read the kind that an announcement tells; unknown when it tells none that we know."""
        told = {tag.removeprefix(NAT_TAG) for tag in tags if tag.startswith(NAT_TAG)}
        return next((kind for kind in cls if kind in told), cls.UNKNOWN)


class NatStatus(msgspec.Struct, frozen=True):
    """What a node has found out about how it is reached."""

    nat: Nat = Nat.UNKNOWN
    reflex: Address | None = None
    """Where others see it."""


def initial_status(config: NatConfig) -> NatStatus:
    """Return what is known before any peer was asked."""
    return NatStatus() if config.public_address is None else NatStatus(Nat.OPEN, config.public_address)
