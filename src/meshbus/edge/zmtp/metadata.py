"""What two ZMTP peers tell about themselves in the handshake: named properties, and which sockets fit each other.

libzmq sends `Socket-Type` alone for these sockets and compares its name with case; we spell it so and read any case.
A peer that does not tell its type is taken, as libzmq does.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from meshbus.edge.zmtp.closereason import CloseReason, Violation

SOCKET_TYPE = "Socket-Type"


class SocketType(StrEnum):
    """The sockets of the publish-subscribe family."""

    PUB = "PUB"
    XPUB = "XPUB"
    SUB = "SUB"
    XSUB = "XSUB"

    @property
    def publishes(self) -> bool:
        """Whether messages leave here and subscriptions arrive."""
        return self in {SocketType.PUB, SocketType.XPUB}


def encode_metadata(properties: Mapping[str, bytes]) -> bytes:
    """Write properties."""
    return b"".join(
        bytes((len(name),)) + name.encode("ascii") + len(value).to_bytes(4, "big") + value
        for name, value in properties.items()
    )


def decode_metadata(data: bytes) -> dict[str, bytes]:
    """Read properties, their names in lower case; the first of two equal names counts."""
    found: dict[str, bytes] = {}
    at = 0
    while at < len(data):
        value_at = at + 1 + data[at] + 4
        length = int.from_bytes(data[value_at - 4 : value_at], "big")
        if value_at + length > len(data):
            raise Violation(CloseReason.MALFORMED, "a property that does not end")
        name = data[at + 1 : value_at - 4].decode("ascii", "replace").lower()
        found.setdefault(name, data[value_at : value_at + length])
        at = value_at + length
    return found


def describe_socket(socket_type: SocketType) -> bytes:
    """Write the properties that we send."""
    return encode_metadata({SOCKET_TYPE: socket_type.value.encode()})


def read_counterpart(data: bytes, mine: SocketType) -> dict[str, bytes]:
    """Read a peer's properties, and raise Violation unless its socket fits ours."""
    properties = decode_metadata(data)
    told = properties.get(SOCKET_TYPE.lower())
    if told is not None and told not in _COUNTERPARTS[mine.publishes]:
        raise Violation(CloseReason.INCOMPATIBLE_SOCKET, f"the peer is {told[:16]!r}, and we are {mine}")
    return properties


_COUNTERPARTS = {True: {b"SUB", b"XSUB"}, False: {b"PUB", b"XPUB"}}
"""Who may face a socket that publishes, and one that does not."""
