"""Rendezvous (0x0D01): a coordinator introduces two nodes behind NATs, which then punch (mesh.md §8.3).

The only subprotocol with big-endian integers. The keep-alives that open the NATs are in wire/punch.py.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec

from meshbus.errors import Fault, MalformedPacket
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout
from meshbus.wire.messages.address import Address, pack_address, unpack_address

# mesh.md §8.3: exact lengths of 28, 36 and 21 bytes; any other is dropped. dialects.md §2.8: 32 and 14 from 0.32 on.
_REQUEST = Layout("punch request", ">BQ19s")
_NUMBERED_REQUEST = Layout("punch request", ">BQI19s")
_REJECT = Layout("punch reject", ">BQIB")
_INTRODUCE = Layout("punch introduction", ">BQ19sQ")
_ACK = Layout("punch ack", ">BQQI")


class _Kind(IntEnum):
    REQUEST = 1
    INTRODUCE = 2
    ACK = 3
    REJECT = 4


class RejectReason(IntEnum):
    """Why a coordinator refused an introduction; a peer may send other numbers."""

    RATE = 1
    NO_REFLEX = 2
    NO_SESSION = 3
    FOREIGN_ADDRESS = 4


class PunchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Ask a coordinator for an introduction to a node."""

    target: int
    self_reflex: Address
    """The address at which others see the node that asks."""
    punch_id: int | None = None
    """A number from 1 on, in the form of 32 bytes that net-mesh reads from 0.32 on; None in that of 28 bytes."""


class PunchIntroduce(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the other node and the time to send, for both nodes."""

    peer: int
    peer_reflex: Address
    fire_at_ms: int
    """Milliseconds since the Unix epoch."""


class PunchAck(msgspec.Struct, frozen=True, kw_only=True):
    """Report, through the coordinator, that a keep-alive got through."""

    from_peer: int
    to_peer: int
    punch_id: int = 0
    """Always 0 from 0.23 nodes."""


class PunchReject(msgspec.Struct, frozen=True, kw_only=True):
    """Refuse a request that carried a number."""

    target: int
    punch_id: int
    reason: int
    """A `RejectReason`, or a number that a later version has added."""


RendezvousMessage: TypeAlias = PunchRequest | PunchIntroduce | PunchAck | PunchReject


def encode_rendezvous(message: RendezvousMessage) -> bytes:
    """Write a rendezvous message."""
    match message:
        case PunchRequest(target=target, self_reflex=reflex, punch_id=None):
            return _REQUEST.pack(_Kind.REQUEST, target, pack_address(reflex))
        case PunchRequest(target=target, self_reflex=reflex, punch_id=punch_id):
            return _NUMBERED_REQUEST.pack(_Kind.REQUEST, target, punch_id, pack_address(reflex))
        case PunchIntroduce(peer=peer, peer_reflex=reflex, fire_at_ms=fire_at_ms):
            return _INTRODUCE.pack(_Kind.INTRODUCE, peer, pack_address(reflex), fire_at_ms)
        case PunchAck(from_peer=from_peer, to_peer=to_peer, punch_id=punch_id):
            return _ACK.pack(_Kind.ACK, from_peer, to_peer, punch_id)
        case PunchReject(target=target, punch_id=punch_id, reason=reason):
            return _REJECT.pack(_Kind.REJECT, target, punch_id, reason)


def decode_rendezvous(event: Buffer) -> RendezvousMessage:
    """Read a rendezvous message; each kind has one length, and a request two."""
    if not len(event):
        raise MalformedPacket("rendezvous", Fault.TRUNCATED, "empty")
    match event[0]:
        case _Kind.REQUEST if len(event) > _REQUEST.size:
            _, target, punch_id, reflex = _NUMBERED_REQUEST.unpack(event)
            return PunchRequest(target=target, self_reflex=unpack_address(reflex), punch_id=punch_id)
        case _Kind.REQUEST:
            _, target, reflex = _REQUEST.unpack(event)
            return PunchRequest(target=target, self_reflex=unpack_address(reflex))
        case _Kind.INTRODUCE:
            _, peer, reflex, fire_at_ms = _INTRODUCE.unpack(event)
            return PunchIntroduce(peer=peer, peer_reflex=unpack_address(reflex), fire_at_ms=fire_at_ms)
        case _Kind.ACK:
            _, from_peer, to_peer, punch_id = _ACK.unpack(event)
            return PunchAck(from_peer=from_peer, to_peer=to_peer, punch_id=punch_id)
        case _Kind.REJECT:
            _, target, punch_id, reason = _REJECT.unpack(event)
            return PunchReject(target=target, punch_id=punch_id, reason=reason)
        case kind:
            raise MalformedPacket("rendezvous", Fault.UNKNOWN_KIND, f"kind {kind}")
