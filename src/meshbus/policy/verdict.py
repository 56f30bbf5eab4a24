"""Gateway verdicts: the rules for forwarded packets, and the kernel that applies them to a batch of headers.

The rules, in this order (profile.md §9). A packet is a *publication* if its subprotocol is 0, its stream id has the
publish bit, and the low 16 bits of the stream id equal its channel hash. All other packets are opaque: only rule 1
applies to them.

    1  routing ttl is 0, or the inner hop_count has reached a non-zero hop_ttl      TTL_EXPIRED
    2  source or destination is neither GLOBAL, local, nor a registered peer        UNKNOWN_SUBNET
    3  the channel has no rule                 SUBNET_LOCAL, or UNRESOLVED_CHANNEL if its name might have one, or forward
    4  by the visibility of the channel                     SUBNET_LOCAL, NOT_ANCESTOR, NOT_EXPORTED
    5  the channel restricts its publishers                                         ask the auth guard

The same kernel judges live batches in a node and recorded headers in Spark. Its tables are built from
policy/gatewaypolicy.py.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from meshbus import jit
from meshbus.names.channel import PUBLISH_STREAM_BIT
from meshbus.names.subnet import SubnetId, depth_mask
from meshbus.policy.reason import DropReason, Reason
from meshbus.wire.constants import HEADER_BYTES
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Counts = NDArray[np.int64]
    Subnets = NDArray[np.uint32]
    Words = NDArray[np.uint64]


VERDICTS: Final = len(DropReason) + 1
"""Number of verdicts: forward, and the drop reasons."""
ASK_GUARD: Final = VERDICTS
"""Intermediate verdict within a batch: forward if the auth guard allows the publisher."""
# The compiler accepts only plain integers.
_SUBNET_LOCAL, _NOT_ANCESTOR = Reason.SUBNET_LOCAL.code, Reason.NOT_ANCESTOR.code
_NOT_EXPORTED, _UNKNOWN_SUBNET = Reason.NOT_EXPORTED.code, Reason.UNKNOWN_SUBNET.code
_TTL_EXPIRED = Reason.TTL_EXPIRED.code


class ForwardDecision(msgspec.Struct, frozen=True):
    """The decision about a packet: FORWARD, or Drop(reason)."""


class Drop(ForwardDecision, frozen=True):
    """The decision to drop a packet."""

    reason: DropReason


FORWARD: Final = ForwardDecision()


LOCAL, PARENT, EXPORTED, GLOBAL = 0, 1, 2, 3
"""Codes of the visibilities."""


class ChannelRule(msgspec.Struct, frozen=True):
    """The rule for the channel of one stream id."""

    canonical: int
    visibility: int
    enforced: bool = False
    """Whether only publishers that the auth guard allows may publish."""
    exports: tuple[SubnetId, ...] = ()


_PUBLISH_BIT = np.uint64(PUBLISH_STREAM_BIT)
_WIRE_MASK = np.uint64(0xFFFF)
# Multiplicative hashing: 2^32 divided by the golden ratio.
_SPREAD = np.uint32(2654435761)
_SPREAD_SHIFT = np.uint32(16)
_HOPS_AT, _IDS_AT, _STREAM_AT, _SUBNET_AT = 4, 8, 32, 56
"""Offsets in the header at which the kernel reads (transport.md §3)."""


# A policy is one array of words, because each further array adds more to a kernel call than judging a packet costs. It
# contains a head, the channel table, the export list (target | mask << 32), and the set of known subnets.
_HEAD_WORDS = 5
_CHANNEL_ROWS, _EXPORTS_AT, _KNOWN_AT, _KNOWN_ROWS, _UNKNOWN_VERDICT = range(_HEAD_WORDS)
# A row of the channel table, which uses open addressing by stream id; key 0 marks a free row.
_ROW_WORDS = 4
_KEY, _CANONICAL, _RULE, _SPAN = range(_ROW_WORDS)
"""_RULE is visibility | enforced << 8; _SPAN is first | count << 32, a range of the export list."""


def build_policy(rules: dict[int, ChannelRule], known_subnets: Collection[int], *, unknown_verdict: int) -> Words:
    """Return a policy in the form that the kernel reads: rules by stream id, and the known subnets.

    `unknown_verdict` is the verdict on publications on channels without a rule: 0 to forward, or the code of a reason.
    """
    rows, subnet_rows = _table_size(len(rules)), _table_size(len(known_subnets))
    channels = np.zeros((rows, _ROW_WORDS), np.uint64)
    exports: list[int] = []
    for stream, rule in rules.items():
        # The low bits of a stream id are those of a hash, so they need no further mixing.
        row = stream & (rows - 1)
        while channels[row, _KEY]:
            row = row + 1 & (rows - 1)
        span = len(exports) | len(rule.exports) << 32
        channels[row] = stream, rule.canonical, rule.visibility | rule.enforced << 8, span
        exports += [target | depth_mask(target.depth) << 32 for target in rule.exports]
    known = np.zeros(subnet_rows, np.uint64)
    for subnet in sorted(set(known_subnets) - {0}):  # 0 is GLOBAL, which is always known; here it marks a free row
        # Subnet ids differ mostly in their high bytes, so they are mixed before the low bits select a row.
        row = (subnet * int(_SPREAD) & 0xFFFFFFFF) >> int(_SPREAD_SHIFT) & (subnet_rows - 1)
        while known[row]:
            row = row + 1 & (subnet_rows - 1)
        known[row] = subnet
    exports_at = _HEAD_WORDS + channels.size
    head = [rows, exports_at, exports_at + len(exports), subnet_rows, unknown_verdict]
    return np.concatenate([np.array(head, np.uint64), channels.reshape(-1), np.array(exports, np.uint64), known])


def _table_size(entries: int) -> int:
    """Return a power of two that keeps a table at most a quarter full, so that probes are short and always end."""
    return max(4, 1 << (4 * entries - 1).bit_length())


def _channels_of(policy: Words) -> NDArray[np.uint64]:
    rows = int(policy[_CHANNEL_ROWS])
    return policy[_HEAD_WORDS : _HEAD_WORDS + rows * _ROW_WORDS].reshape(rows, _ROW_WORDS)


@jit.helper
def _depth_mask(subnet: Any) -> Any:
    # policy.md §6.1: the depth is that of the deepest level that is not 0. [3, 0, 7] has depth 3.
    if subnet & np.uint32(0xFF):
        return np.uint32(0xFFFFFFFF)
    if subnet & np.uint32(0xFF00):
        return np.uint32(0xFFFFFF00)
    if subnet & np.uint32(0xFF0000):
        return np.uint32(0xFFFF0000)
    return np.uint32(0xFF000000) if subnet else np.uint32(0)


@jit.helper
def _is_known(subnet: Any, policy: Words) -> bool:
    if subnet == 0:
        return True
    at, mask = policy[_KNOWN_AT], policy[_KNOWN_ROWS] - np.uint64(1)
    row = np.uint64((subnet * _SPREAD) >> _SPREAD_SHIFT) & mask
    while policy[at + row] != 0:
        if policy[at + row] == subnet:
            return True
        row = (row + np.uint64(1)) & mask
    return False


def _judge_reference(
    rows: Bytes, source: Subnets, dest: Subnets, ttl: Bytes, policy: Words, verdicts: Bytes, counts: Counts
) -> int:
    headers = rows.view(HEADER_DTYPE)
    if not len(source):
        source = headers["subnet_id"]
    source, dest = source.astype(np.uint32), dest.astype(np.uint32)
    stream, hop_ttl = headers["stream_id"], headers["hop_ttl"]
    # profile.md §9: packets of 0.23 nodes have hop_ttl 0, which therefore means no limit.
    expired = (hop_ttl > 0) & (headers["hop_count"] >= hop_ttl)
    if len(ttl):
        expired |= ttl == 0
    opaque = (
        (headers["subprotocol_id"] != 0)
        | (stream & _PUBLISH_BIT == 0)
        | ((stream & _WIRE_MASK) != headers["channel_hash"])
    )
    known = policy[int(policy[_KNOWN_AT]) :]
    unknown_subnet = ~(((source == 0) | np.isin(source, known)) & ((dest == 0) | np.isin(dest, known)))
    channels = _channels_of(policy)
    # -1 for unknown channels also selects a row, the last one; `found` masks what is read from it.
    row = _rows_of(stream, channels)
    found = row >= 0
    rule = np.where(found, channels[row, _RULE], np.uint64(GLOBAL))
    unknown_verdict = np.int64(policy[_UNKNOWN_VERDICT])
    visibility = rule & np.uint64(0xFF)
    ancestor = (source ^ dest) & _depth_masks(dest) == 0
    exported = _exported(np.where(found, channels[row, _SPAN], np.uint64(0)), dest, policy)
    verdicts[:] = np.select(
        [
            expired,
            opaque,
            unknown_subnet,
            ~found,
            visibility == LOCAL,
            (visibility == PARENT) & ~ancestor,
            (visibility == EXPORTED) & ~exported,
            rule >> np.uint64(8) > 0,
        ],
        [
            _TTL_EXPIRED,
            0,
            _UNKNOWN_SUBNET,
            unknown_verdict,
            _SUBNET_LOCAL,
            _NOT_ANCESTOR,
            _NOT_EXPORTED,
            ASK_GUARD,
        ],
        0,
    )
    totals = np.bincount(verdicts, minlength=ASK_GUARD + 1)
    counts += totals[:ASK_GUARD]
    return int(totals[ASK_GUARD])


def _exported(spans: Words, dest: Subnets, policy: Words) -> NDArray[np.bool_]:
    """Return which destinations are in the export list of their channel."""
    targets = policy[int(policy[_EXPORTS_AT]) : int(policy[_KNOWN_AT])]
    first, count = (spans & np.uint64(0xFFFFFFFF)).astype(np.int64), (spans >> np.uint64(32)).astype(np.int64)
    exported = np.zeros(len(dest), np.bool_)
    for step in range(int(count.max(initial=0))):
        # Clipped, because shorter lists are read beyond their end; `step < count` masks that.
        target = targets[np.minimum(first + step, len(targets) - 1)]
        exported |= (step < count) & ((target ^ dest) & (target >> np.uint64(32)) == 0)
    return exported


def _depth_masks(subnets: Subnets) -> Subnets:
    return np.select(
        [subnets & 0xFF != 0, subnets & 0xFF00 != 0, subnets & 0xFF0000 != 0, subnets != 0],
        [np.uint32(0xFFFFFFFF), np.uint32(0xFFFFFF00), np.uint32(0xFFFF0000), np.uint32(0xFF000000)],
        np.uint32(0),
    )


def _rows_of(streams: Words, channels: Words) -> NDArray[np.int64]:
    """Return the row of each stream id in a channel table, or -1."""
    mask = len(channels) - 1
    rows = (streams & np.uint64(mask)).astype(np.int64)
    found = np.full(len(streams), -1, np.int64)
    pending = np.arange(len(streams))
    while len(pending):
        keys = channels[rows[pending], _KEY]
        hit = keys == streams[pending]
        found[pending[hit]] = rows[pending[hit]]
        pending = pending[~hit & (keys != 0)]
        rows[pending] = rows[pending] + 1 & mask
    return found


def canonical_of(streams: Words, policy: Words) -> Words:
    """Return the canonical channel hashes of streams; the policy must have a rule for each."""
    channels = _channels_of(policy)
    return np.asarray(channels[_rows_of(streams, channels), _CANONICAL])


@jit.kernel(_judge_reference)
def judge(  # noqa: C901 - one branch per rule; a call with an array costs more than the rule itself
    rows: Bytes, source: Subnets, dest: Subnets, ttl: Bytes, policy: Words, verdicts: Bytes, counts: Counts
) -> int:
    """Judge rows of headers, count the verdicts, and return how many need the auth guard.

    With an empty `source`, the subnets of the headers are used; with an empty `ttl`, there are no routing headers.
    """
    mask = policy[_CHANNEL_ROWS] - np.uint64(1)
    at, asking = rows.ctypes.data, 0
    for i in range(len(verdicts)):
        hops = jit.load_u32(at + _HOPS_AT)  # priority, hop_ttl, hop_count, frag_flags
        hop_ttl, hop_count = (hops >> 8) & 0xFF, (hops >> 16) & 0xFF
        ids = jit.load_u32(at + _IDS_AT)  # subprotocol_id, channel_hash
        stream = jit.load_u64(at + _STREAM_AT)
        verdict: Any = 0
        if (len(ttl) and ttl[i] == 0) or (hop_ttl > 0 and hop_count >= hop_ttl):
            verdict = _TTL_EXPIRED
        elif ids & 0xFFFF == 0 and stream & _PUBLISH_BIT and stream & _WIRE_MASK == ids >> 16:
            target = np.uint32(dest[i])
            origin = np.uint32(source[i]) if len(source) else jit.load_u32(at + _SUBNET_AT)
            row = np.uint64(_HEAD_WORDS) + (stream & mask) * np.uint64(_ROW_WORDS)
            # Open addressing; the exports follow the last row of the table.
            while policy[row] != 0 and policy[row] != stream:
                row += np.uint64(_ROW_WORDS)
                if row == policy[_EXPORTS_AT]:
                    row = np.uint64(_HEAD_WORDS)
            if not (_is_known(origin, policy) and _is_known(target, policy)):
                verdict = _UNKNOWN_SUBNET
            elif policy[row] == 0:
                verdict = np.int64(policy[_UNKNOWN_VERDICT])
            else:
                rule = policy[row + np.uint64(_RULE)]
                visibility = rule & np.uint64(0xFF)
                if visibility == LOCAL:
                    verdict = _SUBNET_LOCAL
                elif visibility == PARENT:
                    if (origin ^ target) & _depth_mask(target):
                        verdict = _NOT_ANCESTOR
                elif visibility == EXPORTED:
                    verdict = _NOT_EXPORTED
                    span = policy[row + np.uint64(_SPAN)]
                    first = policy[_EXPORTS_AT] + (span & np.uint64(0xFFFFFFFF))
                    for k in range(first, first + (span >> np.uint64(32))):
                        export = policy[k]
                        if (np.uint32(export) ^ target) & np.uint32(export >> np.uint64(32)) == 0:
                            verdict = 0
                            break
                # Last, because the guard is outside the kernel and is asked for packets that everything else allows.
                if verdict == 0 and rule >> np.uint64(8):
                    verdict = ASK_GUARD
        verdicts[i] = verdict
        if verdict == ASK_GUARD:
            asking += 1
        else:
            counts[verdict] += 1
        at += HEADER_BYTES
    return asking
