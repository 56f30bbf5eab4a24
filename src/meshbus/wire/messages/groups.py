"""Groups of daemons (0x4D07): who runs which member of a replica, standby or fork group, and events for a member.

Every node that may run members tells the others what it runs and what copies it has; who runs what follows from that
(compute/groups.py), so there is no message for an election. 0x0900, which net-mesh reserves for this, is not used. The
bytes are in docs/wire/profile.md.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from itertools import pairwise
from typing import TypeAlias

import msgspec

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.constants import FRAME_PREFIX_BYTES, ROUTED_PAYLOAD
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

_WHAT = "group message"
_STATE = Layout(_WHAT, "<BIB")
_SLOT = Layout(_WHAT, "<BBQQQ")
_INPUT = Layout(_WHAT, "<BIBQQ")
_REFUSED = Layout(_WHAT, "<BIBBQ")

MAX_SLOTS = 255
"""Members of one group: their index has one byte (compute.md §8)."""
MAX_INPUT = ROUTED_PAYLOAD - FRAME_PREFIX_BYTES - _INPUT.size
"""The longest event for a member."""


class _Kind(IntEnum):
    STATE = 1
    INPUT = 2
    REFUSED = 3


class SlotFlags(IntFlag):
    """What a node is to a member of a group."""

    NONE = 0
    RUNS = 1
    """The member runs there."""
    COPY = 2
    """A copy of its state is there, up to `through`."""


class SlotState(msgspec.Struct, frozen=True):
    """What one node has of one member, fields in wire order."""

    slot: int
    flags: SlotFlags = SlotFlags.NONE
    epoch: int = 0
    """The time of the present runner; whoever takes over chooses a higher one."""
    through: int = 0
    """Number of the last output that is in the state."""
    hash: int = 0
    """Hash of that output."""


class GroupState(msgspec.Struct, frozen=True, kw_only=True):
    """What the sender has of all members of a group."""

    group: int
    slots: tuple[SlotState, ...]
    """In ascending order, each at most once."""


class GroupInput(msgspec.Struct, frozen=True, kw_only=True):
    """An event for the node that runs a member."""

    group: int
    slot: int
    origin: int
    sequence: int
    payload: bytes


class RefusalCode(IntEnum):
    """Why an event for a member was not taken."""

    NOT_HERE = 1
    """The member runs elsewhere; `runner` says where, if that is known."""
    PAUSED = 2
    """The member takes no events now."""
    FAILED = 3
    """The member failed."""


class GroupRefused(msgspec.Struct, frozen=True, kw_only=True):
    """Answers an event that was not taken."""

    group: int
    slot: int
    code: RefusalCode
    runner: int = 0
    """The node that runs the member, or 0."""


GroupMessage: TypeAlias = GroupState | GroupInput | GroupRefused


def encode_group(message: GroupMessage) -> bytes:
    """Write a group message; raise LocalProtocolError for one that peers would refuse."""
    match message:
        case GroupState(group=group, slots=slots):
            if len(slots) > MAX_SLOTS or not _ascends(slots):
                raise LocalProtocolError(f"{_WHAT}: up to {MAX_SLOTS} members in ascending order, got {len(slots)}")
            states = (_SLOT.pack(one.slot, one.flags, one.epoch, one.through, one.hash) for one in slots)
            return _STATE.pack(_Kind.STATE, group, len(slots)) + b"".join(states)
        case GroupInput(payload=payload):
            if len(payload) > MAX_INPUT:
                raise LocalProtocolError(f"{_WHAT}: {len(payload)} bytes do not fit {MAX_INPUT}")
            head = _INPUT.pack(_Kind.INPUT, message.group, message.slot, message.origin, message.sequence)
            return head + payload
        case GroupRefused():
            return _REFUSED.pack(_Kind.REFUSED, message.group, message.slot, message.code, message.runner)


def decode_group(event: Buffer) -> GroupMessage:
    """Read a group message; payloads are copied."""
    view = memoryview(event)
    match view[0] if view else None:
        case None:
            raise MalformedPacket(_WHAT, Fault.TRUNCATED, "empty")
        case _Kind.STATE:
            return _decode_state(view)
        case _Kind.INPUT:
            _, group, slot, origin, sequence = _INPUT.unpack_prefix(view)
            payload = bytes(view[_INPUT.size :])
            return GroupInput(group=group, slot=slot, origin=origin, sequence=sequence, payload=payload)
        case _Kind.REFUSED:
            _, group, slot, code, runner = _REFUSED.unpack(view)
            if not RefusalCode.NOT_HERE <= code <= RefusalCode.FAILED:
                raise MalformedPacket(_WHAT, Fault.BAD_VALUE, f"code {code}")
            return GroupRefused(group=group, slot=slot, code=RefusalCode(code), runner=runner)
        case kind:
            raise MalformedPacket(_WHAT, Fault.UNKNOWN_KIND, f"kind {kind}")


def _decode_state(view: memoryview) -> GroupState:
    _, group, count = _STATE.unpack_prefix(view)
    rest = view[_STATE.size :]
    if len(rest) != count * _SLOT.size:
        raise MalformedPacket(_WHAT, Fault.BAD_LENGTH, f"{len(rest)} bytes for {count} members")
    fields = (_SLOT.unpack(rest[start : start + _SLOT.size]) for start in range(0, len(rest), _SLOT.size))
    slots = tuple(SlotState(slot, SlotFlags(flags & 3), *others) for slot, flags, *others in fields)
    if not _ascends(slots):
        raise MalformedPacket(_WHAT, Fault.BAD_VALUE, "the members are not in ascending order")
    return GroupState(group=group, slots=slots)


def _ascends(slots: tuple[SlotState, ...]) -> bool:
    return all(left.slot < right.slot for left, right in pairwise(slots))
