"""The gateway's verdict on recorded packets by the node's own kernel, for workers that read files (spark/replay/tally.py).

`Judge` takes columns of the packet table (log/schema.py). For each row it returns 0 (forward) or the code of a drop
reason, and a mask of the rows that a gateway judges: not packets addressed to the node itself, nor packets dropped before
the gateway. A subnet that was not recorded had no influence and counts as GLOBAL.

The counterpart inside the JVM is spark/replay/expressions.py. The rules and their order are in policy/verdict.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshbus import jit
from meshbus.log.schema import unsigned
from meshbus.policy.fate import Fate
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.policy.reason import Reason
from meshbus.policy.verdict import VERDICTS
from meshbus.wire.constants import HEADER_BYTES
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMNS = (
    "verdict", "reason", "route_ttl", "ttl", "hops", "subprotocol_id", "chash", "stream_id", "origin", "src", "dst",
    "guard",
)  # fmt: skip
"""Columns that a verdict, or the choice of packets to judge, depends on."""

FOR_NULL = dict.fromkeys(COLUMNS, -1) | {"src": 0, "dst": 0, "route_ttl": 1}
"""Replacement of nulls: GLOBAL subnets, a routing TTL that has not expired, and no answer of the guard."""
_HEADER = ("ttl", "hops", "subprotocol_id", "chash", "stream_id", "origin")
_HOPS_AT, _IDS_AT, _STREAM_AT, _ORIGIN_AT = 4, 8, 32, 48
"""Offsets in the header where `lay` writes (transport.md §3)."""


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
    """Write stored columns into headers, only the fields that the kernel and the lists of publishers read."""
    at = rows.ctypes.data
    for i in range(len(ttl)):
        # hop_ttl is the second byte at this offset and hop_count the third; the others are not read.
        jit.store_u32(at + _HOPS_AT, int(ttl[i]) << 8 | int(hops[i]) << 16)
        jit.store_u32(at + _IDS_AT, int(subprotocol[i]) | int(chash[i]) << 16)
        jit.store_u32(at + _STREAM_AT, int(stream[i]))
        jit.store_u32(at + _STREAM_AT + 4, int(stream[i]) >> 32)
        jit.store_u32(at + _ORIGIN_AT, int(origin[i]))
        jit.store_u32(at + _ORIGIN_AT + 4, int(origin[i]) >> 32)
        at += HEADER_BYTES


class Judge:
    """Judges columns of recorded packets by one policy, with the node's kernel. Picklable; not thread-safe."""

    def __init__(self, policy: GatewayPolicy) -> None:
        self._policy = policy
        self._words = policy.words()
        self._headers = np.zeros(0, HEADER_DTYPE)
        """Reused between batches: allocating memory costs more than filling it."""

    def __reduce__(self) -> tuple[type[Judge], tuple[GatewayPolicy]]:
        """Pickle the policy only; the rest is derived from it."""
        return Judge, (self._policy,)

    def judge_batch(self, batch: Any) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Judge a pyarrow batch or table with COLUMNS; returns the verdicts and a mask of the rows that they apply to."""
        columns = {name: numbers(batch.column(name), FOR_NULL[name]) for name in COLUMNS}
        reason = columns["reason"]
        # Reasons from VERDICTS on were given before or after the gateway; CROWDED packets had been forwarded by it.
        meant = (columns["verdict"] != Fate.DELIVERED) & ((reason < VERDICTS) | (reason == Reason.CROWDED.code))
        # Zeros stay valid between batches: `lay` writes the same fields each time.
        if len(self._headers) < len(meant):
            self._headers = np.zeros(len(meant), HEADER_DTYPE)
        headers = self._headers[: len(meant)]
        lay.run(headers.view(np.uint8), *(columns[name] for name in _HEADER))
        source, dest = (unsigned(columns[name]) for name in ("src", "dst"))
        ttl, guard = (columns[name].astype(np.uint8) for name in ("route_ttl", "guard"))
        return self._policy.judge_again(headers, source, dest, ttl, guard, words=self._words), meant


def numbers(column: Any, for_null: int = 0) -> NDArray[Any]:
    """Return a pyarrow column of numbers as a numpy array with nulls replaced; a view if there are none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    filled = pc.fill_null(whole, for_null) if whole.null_count else whole
    array: NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return array
