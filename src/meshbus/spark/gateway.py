"""The gateway over recorded packets, in two forms that say the same: Column expressions, and the node's own kernel.

Column expressions (`judge_frame`) are for tables that Spark holds anyway: nothing leaves the JVM. The kernel
(`judge_batch`) is for Python that reads files itself (spark/replay.py). Both take the packets of log/schema.py and give
0 for forward or a DropReason; null where a gateway has nothing to say: packets that were for the node itself, or that
were dropped before one was asked. A subnet that is not recorded played no part, and counts as GLOBAL.

The rules and their order are policy/verdict.py's; this file only finds the same answer with Spark's operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np

from meshbus import jit
from meshbus.log.schema import signed, unsigned
from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.names.subnet import depth_mask
from meshbus.policy.fate import Fate, TransitReason
from meshbus.policy.guard import AuthVerdict
from meshbus.policy.snapshot import GatewayPolicy
from meshbus.policy.verdict import EXPORTED, GLOBAL, LOCAL, PARENT, VERDICTS, DropReason
from meshbus.wire.constants import HEADER_BYTES
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame, SparkSession

COLUMNS = (
    "verdict", "reason", "route_ttl", "ttl", "hops", "subprotocol_id", "chash", "stream_id", "origin", "src", "dst",
    "guard",
)  # fmt: skip
"""What a verdict depends on, and which packets a gateway judged."""

_WITHOUT = {"src": 0, "dst": 0, "route_ttl": 1}
"""What stands for a null: GLOBAL, and a packet that has hops left because none are counted."""
_NULL = -1
"""What stands for one elsewhere: no answer of the guard."""
_NOBODY, _GUARD, _LIST = range(3)
"""Who is asked about a publisher."""
_HEADER = ("ttl", "hops", "subprotocol_id", "chash", "stream_id", "origin")
_HOPS_AT, _IDS_AT, _STREAM_AT, _ORIGIN_AT = 4, 8, 32, 48
"""Where `lay` writes in a header."""
Versions = Mapping[tuple[int, int], GatewayPolicy]
"""Policies by the recorder, as it is stored, and the version of its policy."""


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
        columns = {name: numbers(batch.column(name), _WITHOUT.get(name, _NULL)) for name in COLUMNS}
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


# ── Column expressions ──────────────────────────────────────────────────────────────────────


def judge_frame(spark: SparkSession, packets: DataFrame, policy: GatewayPolicy, name: str = "judged") -> DataFrame:
    """Add a column with the verdict of one policy on each packet."""
    from pyspark.sql import functions as F

    rules, targets = _rules(spark, {(0, 0): policy})
    rules = rules.drop("_recorder", "_version")
    joined = _without_nulls(packets).join(F.broadcast(rules), F.col("_stream_id") == F.col("_stream"), "left")
    known = _signed32(_known(policy))
    judged = _judged(joined, name, lambda subnet: subnet.isin(0, *known), F.lit(policy.forward_unknown), targets)
    return judged.select(*packets.columns, name)


def judge_versions(spark: SparkSession, packets: DataFrame, policies: Versions, name: str = "judged") -> DataFrame:
    """Add a column with the verdict of the policy that was in force at the recorder; null where it is not known."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    rules, targets = _rules(spark, policies)
    heads = _small_table(
        spark,
        {"_recorder": pa.int64(), "_version": pa.int64(), "_known": pa.list_(pa.int32()), "_unknown": pa.bool_()},
        [(*whose, [0, *_signed32(_known(policy))], policy.forward_unknown) for whose, policy in policies.items()],
    )
    keys = (F.col("recorder") == F.col("_recorder")) & (F.col("policy_version") == F.col("_version"))
    joined = _without_nulls(packets).join(F.broadcast(heads), keys, "left").drop("_recorder", "_version")
    joined = joined.join(F.broadcast(rules), keys & (F.col("_stream_id") == F.col("_stream")), "left")
    judged = _judged(joined, name, lambda subnet: F.array_contains("_known", subnet), F.col("_unknown"), targets)
    known = F.when(F.col("_known").isNotNull(), F.col(name)).alias(name)
    return judged.select(*packets.columns, known)


def _without_nulls(packets: DataFrame) -> DataFrame:
    """Add COLUMNS once more, as the kernel sees them: Spark then looks for a null once, not at every comparison."""
    from pyspark.sql import functions as F

    return packets.withColumns(
        {f"_{name}": F.coalesce(F.col(name), F.lit(_WITHOUT.get(name, _NULL))) for name in COLUMNS}
    )


def _known(policy: GatewayPolicy) -> list[int]:
    return [policy.local_subnet, *policy.peer_subnets]


def _rules(spark: SparkSession, policies: Versions) -> tuple[DataFrame, int]:
    """Give the rules of channels as a small table, and how many export targets its rows have room for.

    Numbers in columns of their own: texts would be compared and arrays unpacked for every packet.
    """
    import pyarrow as pa

    rules = [(whose, stream, rule) for whose, policy in policies.items() for stream, rule in policy.rules().items()]
    publishers = {
        (whose, ChannelName(channel.name).stream_id): _signed64(channel.publishers)
        for whose, policy in policies.items()
        for channel in policy.channels
        if channel.publishers is not None
    }
    most = max((len(rule.exports) for *_, rule in rules), default=0)
    kinds = {
        **dict.fromkeys(("_recorder", "_version", "_stream"), pa.int64()),
        "_visibility": pa.int32(),
        "_asks": pa.int32(),
        "_publishers": pa.list_(pa.int64()),
        **{f"_{what}{place}": pa.int32() for place in range(most) for what in ("target", "mask")},
    }
    rows = []
    for whose, stream, rule in rules:
        targets = [cell for target in rule.exports for cell in _signed32([target, depth_mask(target.depth)])]
        none = [None] * (2 * most - len(targets))
        listed = publishers.get((whose, stream))
        asks = _NOBODY if not rule.enforced else _GUARD if listed is None else _LIST
        rows.append((*whose, *_signed64([stream]), rule.visibility, asks, listed, *targets, *none))
    return _small_table(spark, kinds, rows), most


def _small_table(spark: SparkSession, kinds: Mapping[str, Any], rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    """Give a few rows to Spark as Arrow: it keeps them in its plan, and broadcasts them without a job of their own."""
    import pyarrow as pa

    columns = zip(*rows, strict=True) if rows else ((),) * len(kinds)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds.values(), strict=True)]
    return spark.createDataFrame(pa.table(arrays, list(kinds)))


def _judged(joined: DataFrame, name: str, knows: Any, forward_unknown: Column, targets: int) -> DataFrame:
    """Add the verdict, as an expression over a packet and the rule that was joined to it."""
    from pyspark.sql import functions as F

    col = F.col
    src, dst, stream, visibility = col("_src"), col("_dst"), col("_stream_id"), col("_visibility")
    expired = (col("_route_ttl") == 0) | ((col("_ttl") > 0) & (col("_hops") >= col("_ttl")))
    publication = (
        (col("_subprotocol_id") == 0)
        & (stream.bitwiseAND(F.lit(_signed64([PUBLISH_STREAM_BIT])[0])) != 0)
        & (stream.bitwiseAND(F.lit(0xFFFF)) == col("_chash"))
    )
    exported = reduce(
        or_,
        (
            F.coalesce(col(f"_target{place}").bitwiseXOR(dst).bitwiseAND(col(f"_mask{place}")) == 0, F.lit(False))
            for place in range(targets)
        ),
        F.lit(False),
    )
    # The list is named once: Spark then unpacks it only where it is looked at.
    refused = (
        F.when(col("_asks") == _GUARD, col("_guard") != int(AuthVerdict.ALLOWED))
        .when(col("_asks") == _LIST, ~F.array_contains("_publishers", col("_origin")))
        .otherwise(F.lit(False))
    )
    drop = {reason: F.lit(int(reason)) for reason in DropReason}
    judged = (
        F.when(expired, drop[DropReason.TTL_EXPIRED])
        .when(~publication, F.lit(0))
        .when(~(knows(src) & knows(dst)), drop[DropReason.UNKNOWN_SUBNET])
        .when(visibility == LOCAL, drop[DropReason.SUBNET_LOCAL])
        .when(
            (visibility == PARENT) & (src.bitwiseXOR(dst).bitwiseAND(_depth_mask(dst)) != 0),
            drop[DropReason.NOT_ANCESTOR],
        )
        .when((visibility == EXPORTED) & ~exported, drop[DropReason.NOT_EXPORTED])
        .when(refused, drop[DropReason.UNAUTHORIZED_PUBLISHER])
        .otherwise(F.lit(0))
    )
    judged_then = (col("_reason") < VERDICTS) | (col("_reason") == int(TransitReason.CROWDED))
    meant = (col("_verdict") != int(Fate.DELIVERED)) & judged_then
    without_rule = F.when(forward_unknown, F.lit(GLOBAL)).otherwise(F.lit(LOCAL))
    return joined.withColumns(
        {"_visibility": F.coalesce(visibility, without_rule), "_asks": F.coalesce(col("_asks"), F.lit(_NOBODY))}
    ).withColumn(name, F.when(meant, judged.cast("smallint")))


def _depth_mask(subnet: Column) -> Column:
    from pyspark.sql import functions as F

    masks = [(0xFF, 0xFFFFFFFF), (0xFF00, 0xFFFFFF00), (0xFF0000, 0xFFFF0000), (0xFF000000, 0xFF000000)]
    expression = F.lit(0)
    for bits, mask in reversed(masks):
        found = subnet.bitwiseAND(F.lit(_signed32([bits])[0])) != 0
        expression = F.when(found, F.lit(_signed32([mask])[0])).otherwise(expression)
    return expression


def _signed32(values: Iterable[int]) -> list[int]:
    stored: list[int] = signed(np.array(list(values), np.uint32)).tolist()
    return stored


def _signed64(values: Iterable[int]) -> list[int]:
    stored: list[int] = signed(np.array(list(values), np.uint64)).tolist()
    return stored
