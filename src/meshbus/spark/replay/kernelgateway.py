"""The gateway over recorded packets, by the node's own kernel: for Python that reads files itself (spark/replay/tally.py).

It takes the packets of log/schema.py and gives 0 for forward or a DropReason; and for which packets that is meant: not for
those that were for the node itself, or that were dropped before a gateway was asked. A subnet that is not recorded played
no part, and counts as GLOBAL.

The counterpart that stays in the JVM is spark/replay/expressions.py; the rules and their order are policy/verdict.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshbus import jit
from meshbus.log.schema import unsigned
from meshbus.policy.fate import Fate, TransitReason
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.policy.verdict import VERDICTS
from meshbus.wire.constants import HEADER_BYTES
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = (
    "verdict", "reason", "route_ttl", "ttl", "hops", "subprotocol_id", "chash", "stream_id", "origin", "src", "dst",
    "guard",
)  # fmt: skip
"""What a verdict depends on, and which packets a gateway judged."""

FOR_NULL = dict.fromkeys(COLUMNS, -1) | {"src": 0, "dst": 0, "route_ttl": 1}
"""What stands for a null: GLOBAL, a packet that has hops left because none are counted, no answer of the guard."""
_HEADER = ("ttl", "hops", "subprotocol_id", "chash", "stream_id", "origin")
_HOPS_AT, _IDS_AT, _STREAM_AT, _ORIGIN_AT = 4, 8, 32, 48
"""Where `lay` writes in a header."""


def _lay_reference(
    rows: NDArray[np.uint8],
    ttl: NDArray[np.int16],
    hops: NDArray[np.int16],
    subprotocol: NDArray[np.int32],
    chash: NDArray[np.int32],
    stream: NDArray[np.int64],
    origin: NDArray[np.int64],
) -> None:
    headers = rows.view(HEADER_DTYPE)
    headers["hop_ttl"], headers["hop_count"] = ttl, hops
    headers["subprotocol_id"], headers["channel_hash"] = subprotocol, chash
    headers["stream_id"], headers["origin_hash"] = unsigned(stream), unsigned(origin)


@jit.kernel(_lay_reference)
def lay(
    rows: NDArray[np.uint8],
    ttl: NDArray[np.int16],
    hops: NDArray[np.int16],
    subprotocol: NDArray[np.int32],
    chash: NDArray[np.int32],
    stream: NDArray[np.int64],
    origin: NDArray[np.int64],
) -> None:
    """Lay stored columns into headers: what the kernel and the lists of publishers read. The rest stays as it is."""
    at = rows.ctypes.data
    for i in range(len(ttl)):
        jit.store_u32(at + _HOPS_AT, int(ttl[i]) << 8 | int(hops[i]) << 16)
        jit.store_u32(at + _IDS_AT, int(subprotocol[i]) | int(chash[i]) << 16)
        jit.store_u32(at + _STREAM_AT, int(stream[i]))
        jit.store_u32(at + _STREAM_AT + 4, int(stream[i]) >> 32)
        jit.store_u32(at + _ORIGIN_AT, int(origin[i]))
        jit.store_u32(at + _ORIGIN_AT + 4, int(origin[i]) >> 32)
        at += HEADER_BYTES


class Judge:
    """One policy, ready to judge columns of recorded packets by the node's kernel. Picklable; for one thread."""

    def __init__(self, policy: GatewayPolicy) -> None:
        self._policy = policy
        self._words = policy.words()
        self._headers = np.zeros(0, HEADER_DTYPE)
        """Kept from batch to batch: fresh memory costs more than what is written to it."""

    def __reduce__(self) -> tuple[type[Judge], tuple[GatewayPolicy]]:
        """Send the policy alone."""
        return Judge, (self._policy,)

    def judge_batch(self, batch: Any) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Judge a pyarrow batch or table that has COLUMNS; gives verdicts, and for which rows they are meant."""
        columns = {name: numbers(batch.column(name), FOR_NULL[name]) for name in COLUMNS}
        reason = columns["reason"]
        meant = (columns["verdict"] != Fate.DELIVERED) & ((reason < VERDICTS) | (reason == TransitReason.CROWDED))
        if len(self._headers) < len(meant):
            self._headers = np.zeros(len(meant), HEADER_DTYPE)
        headers = self._headers[: len(meant)]
        lay.run(headers.view(np.uint8), *(columns[name] for name in _HEADER))
        source, dest = (unsigned(columns[name]) for name in ("src", "dst"))
        ttl, guard = (columns[name].astype(np.uint8) for name in ("route_ttl", "guard"))
        return self._policy.judge_again(headers, source, dest, ttl, guard, words=self._words), meant


def numbers(column: Any, for_null: int = 0) -> NDArray[Any]:
    """See a pyarrow column of numbers as numpy, with a number in the place of nulls; a view where there are none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    filled = pc.fill_null(whole, for_null) if whole.null_count else whole
    array: NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return array
