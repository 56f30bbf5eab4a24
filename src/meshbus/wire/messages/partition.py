"""Partition detection (0x0800): which nodes a node reaches, which it misses, and which it has found again.

Nodes compare what they reach with what their peers reach (compute/partition.py): a node that a peer still reaches has lost
one path, and not the mesh. The bytes are in docs/wire/profile.md.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise
from typing import TypeAlias

import msgspec
import numpy as np

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.constants import FRAME_PREFIX_BYTES, ROUTED_PAYLOAD
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

_WHAT = "partition message"
_VIEW = Layout(_WHAT, "<BQH")
_NODE = Layout(_WHAT, "<BQ")
_ID = np.dtype("<u8")
MAX_VIEW = (ROUTED_PAYLOAD - FRAME_PREFIX_BYTES - _VIEW.size) // _ID.itemsize
"""1009 nodes: as many as fit one packet, also through a relay."""


class _Kind(IntEnum):
    VIEW = 1
    SUSPECT = 2
    HEALED = 3


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that the sender reaches."""

    epoch: int
    """Grows with each view of a sender, so that a late one is not taken for the newest."""
    nodes: tuple[int, ...]
    """In ascending order, without the sender."""


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """The sender has lost a node together with others of its subnet."""

    node: int


class Healed(msgspec.Struct, frozen=True, kw_only=True):
    """The sender has found a lost node again."""

    node: int


PartitionMessage: TypeAlias = View | Suspect | Healed


def encode_partition(message: PartitionMessage) -> bytes:
    """Write a partition message; raise LocalProtocolError for a view that peers would refuse."""
    match message:
        case View(epoch=epoch, nodes=nodes):
            if len(nodes) > MAX_VIEW or not _ascends(nodes):
                raise LocalProtocolError(f"a view has up to {MAX_VIEW} nodes in ascending order, got {len(nodes)}")
            return _VIEW.pack(_Kind.VIEW, epoch, len(nodes)) + np.array(nodes, _ID).tobytes()
        case Suspect(node=node):
            return _NODE.pack(_Kind.SUSPECT, node)
        case Healed(node=node):
            return _NODE.pack(_Kind.HEALED, node)


def decode_partition(event: Buffer) -> PartitionMessage:
    """Read a partition message."""
    view = memoryview(event)
    match view[0] if view else None:
        case None:
            raise MalformedPacket(_WHAT, Fault.TRUNCATED, "empty")
        case _Kind.VIEW:
            return _decode_view(view)
        case _Kind.SUSPECT:
            return Suspect(node=_NODE.unpack(view)[1])
        case _Kind.HEALED:
            return Healed(node=_NODE.unpack(view)[1])
        case kind:
            raise MalformedPacket(_WHAT, Fault.UNKNOWN_KIND, f"kind {kind}")


def _decode_view(view: memoryview) -> View:
    _, epoch, count = _VIEW.unpack_prefix(view)
    rest = view[_VIEW.size :]
    if len(rest) != count * _ID.itemsize:
        raise MalformedPacket(_WHAT, Fault.BAD_LENGTH, f"{len(rest)} bytes for {count} nodes")
    nodes: tuple[int, ...] = tuple(np.frombuffer(rest, _ID).tolist())
    if not _ascends(nodes):
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, "the nodes are not in ascending order")
    return View(epoch=epoch, nodes=nodes)


def _ascends(nodes: tuple[int, ...]) -> bool:
    return all(left < right for left, right in pairwise(nodes))
