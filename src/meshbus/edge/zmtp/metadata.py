"""Metadata of the ZMTP handshake: named properties, and which socket types match (pubsub.md §3.3).

For these sockets libzmq sends only `Socket-Type`, and compares the name case-sensitively; this module sends that
spelling and accepts any case. A peer without a socket type is accepted, as in libzmq.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from meshbus.edge.zmtp.closereason import CloseReason, Violation

SOCKET_TYPE = "Socket-Type"


class SocketType(StrEnum):
    """Socket types of publishers and subscribers."""

    PUB = "PUB"
    XPUB = "XPUB"
    SUB = "SUB"
    XSUB = "XSUB"

    @property
    def publishes(self) -> bool:
        """Whether the socket sends messages and receives subscriptions."""
        return self in {SocketType.PUB, SocketType.XPUB}


def encode_metadata(properties: Mapping[str, bytes]) -> bytes:
    """Encode properties."""
    return b"".join(
        bytes((len(name),)) + name.encode("ascii") + len(value).to_bytes(4, "big") + value
        for name, value in properties.items()
    )


def decode_metadata(data: bytes) -> dict[str, bytes]:
    """Decode properties, with names in lower case; of two equal names the first counts. Raises Violation."""
    found: dict[str, bytes] = {}
    at = 0
    while at < len(data):
        value_at = at + 1 + data[at] + 4
        length = int.from_bytes(data[value_at - 4 : value_at], "big")
        if value_at + length > len(data):
            raise Violation(CloseReason.MALFORMED, "a metadata property is truncated")
        name = data[at + 1 : value_at - 4].decode("ascii", "replace").lower()
        # setdefault: the first value counts, so a second Socket-Type cannot replace the one that was checked.
        found.setdefault(name, data[value_at : value_at + length])
        at = value_at + length
    return found


def describe_socket(socket_type: SocketType) -> bytes:
    """Encode the properties that a socket sends."""
    return encode_metadata({SOCKET_TYPE: socket_type.value.encode()})


def read_counterpart(data: bytes, mine: SocketType) -> dict[str, bytes]:
    """Decode a peer's properties. Raises Violation if its socket type does not match."""
    properties = decode_metadata(data)
    told = properties.get(SOCKET_TYPE.lower())
    # pubsub.md §3.3: libzmq tolerates a missing socket type.
    if told is not None and told not in _COUNTERPARTS[mine.publishes]:
        allowed = " or ".join(sorted(kind.decode() for kind in _COUNTERPARTS[mine.publishes]))
        problem = f"the peer's socket type is {told[:16].decode('ascii', 'replace')!r}; {mine} accepts {allowed}"
        raise Violation(CloseReason.INCOMPATIBLE_SOCKET, problem)
    return properties


_COUNTERPARTS = {True: {b"SUB", b"XSUB"}, False: {b"PUB", b"XPUB"}}
"""Allowed socket types of the peer, for a socket that publishes and for one that subscribes."""
