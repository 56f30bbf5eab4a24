"""The gateway over recorded packets, in two forms that say the same: Column expressions, and the node's own kernel.

Column expressions (`judge_frame`) are for tables that Spark holds anyway: nothing leaves the JVM. The kernel
(`judge_batch`) is for Python that reads files itself (spark/replay.py). Both take the packets of log/schema.py and give
0 for forward or a DropReason; null where a gateway has nothing to say: packets that were for the node itself, or that
were dropped before one was asked. A subnet that is not recorded played no part, and counts as GLOBAL.

The rules and their order are policy/verdict.py's; this file only finds the same answer with Spark's operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np

from meshbus.log.schema import signed, unsigned
from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.names.subnet import SubnetId, depth_mask
from meshbus.policy.channels import Visibility
from meshbus.policy.fate import Fate, TransitReason
from meshbus.policy.guard import AuthVerdict
from meshbus.policy.snapshot import ChannelPolicy, GatewayPolicy
from meshbus.policy.verdict import VERDICTS, DropReason
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
_HEADER = {
    "hop_ttl": "ttl",
    "hop_count": "hops",
    "subprotocol_id": "subprotocol_id",
    "channel_hash": "chash",
}
_BIT_CAST = {"stream_id": "stream_id", "origin_hash": "origin"}
Versions = Mapping[tuple[int, int], GatewayPolicy]
"""Policies by the recorder, as it is stored, and the version of its policy."""


class Judge:
    """One policy, ready to judge columns of recorded packets by the node's kernel. Picklable."""

    def __init__(self, policy: GatewayPolicy) -> None:
        self._policy = policy

    def judge_batch(self, batch: Any) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
        """Judge a pyarrow batch or table that has COLUMNS; gives verdicts, and for which rows they are meant."""
        columns = {name: _numpy(batch.column(name), _WITHOUT.get(name, -1)) for name in COLUMNS}
        reason = columns["reason"]
        meant = (columns["verdict"] != Fate.DELIVERED) & ((reason < VERDICTS) | (reason == TransitReason.CROWDED))
        headers = np.zeros(len(meant), HEADER_DTYPE)
        for field, name in _HEADER.items():
            headers[field] = columns[name]
        for field, name in _BIT_CAST.items():
            headers[field] = unsigned(columns[name])
        source, dest = (unsigned(columns[name]) for name in ("src", "dst"))
        ttl, guard = (columns[name].astype(np.uint8) for name in ("route_ttl", "guard"))
        verdicts = self._policy.judge_again(headers, source, dest, ttl, guard)
        return verdicts.astype(np.int16), meant


def _numpy(column: Any, null: int) -> NDArray[Any]:
    """See a column of numbers as numpy."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    filled = pc.fill_null(whole, null) if whole.null_count else whole
    array: NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    return array


# ── Column expressions ──────────────────────────────────────────────────────────────────────


def judge_frame(spark: SparkSession, packets: DataFrame, policy: GatewayPolicy, name: str = "judged") -> DataFrame:
    """Add a column with the verdict of one policy on each packet."""
    from pyspark.sql import functions as F

    rules, targets = _rules(spark, {(0, 0): policy})
    joined = packets.join(
        F.broadcast(rules.drop("_recorder", "_version")), packets["stream_id"] == rules["_stream"], "left"
    )
    known = _signed32([policy.local_subnet, *policy.peer_subnets])
    verdict = _verdict(lambda subnet: subnet.isin(0, *known), F.lit(policy.forward_unknown), targets)
    return joined.withColumn(name, verdict).select(*packets.columns, name)


def judge_versions(spark: SparkSession, packets: DataFrame, policies: Versions, name: str = "judged") -> DataFrame:
    """Add a column with the verdict of the policy that was in force at the recorder; null where it is not known."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BooleanType, IntegerType, LongType, StructField, StructType

    rules, targets = _rules(spark, policies)
    kinds = (LongType(), LongType(), ArrayType(IntegerType()), BooleanType())
    schema = StructType(
        [
            StructField(key, kind)
            for key, kind in zip(("_recorder", "_version", "_known", "_unknown"), kinds, strict=True)
        ]
    )
    heads = spark.createDataFrame(
        [
            (recorder, version, [0, *_signed32([policy.local_subnet, *policy.peer_subnets])], policy.forward_unknown)
            for (recorder, version), policy in policies.items()
        ],
        schema,
    )
    keys = (packets["recorder"] == F.col("_recorder")) & (packets["policy_version"] == F.col("_version"))
    columns = packets.columns
    joined = packets.join(F.broadcast(heads), keys, "left").drop("_recorder", "_version")
    keys = (F.col("recorder") == F.col("_recorder")) & (F.col("policy_version") == F.col("_version"))
    joined = joined.join(F.broadcast(rules), keys & (F.col("stream_id") == F.col("_stream")), "left")
    verdict = _verdict(lambda subnet: F.array_contains("_known", subnet), F.col("_unknown"), targets)
    return joined.withColumn(name, F.when(F.col("_known").isNotNull(), verdict)).select(*columns, name)


def _rules(spark: SparkSession, policies: Versions) -> tuple[DataFrame, int]:
    """Give the rules of channels as a small table, and how many export targets its rows have room for."""
    from pyspark.sql.types import ArrayType, BooleanType, IntegerType, LongType, StringType, StructField, StructType

    rows = []
    for (recorder, version), policy in policies.items():
        for stream, channel in _by_stream(policy).items():
            exports = [SubnetId(subnet) for subnet in channel.exports]
            publishers = channel.publishers
            rows.append(
                (
                    recorder,
                    version,
                    int(signed(np.array([stream], np.uint64))[0]),
                    channel.visibility.value,
                    channel.enforced,
                    None if publishers is None else signed(np.array(publishers, np.uint64)).tolist(),
                    [(target, depth_mask(target.depth)) for target in exports],
                )
            )
    most = max((len(row[-1]) for row in rows), default=0)
    fields = [
        StructField("_recorder", LongType()),
        StructField("_version", LongType()),
        StructField("_stream", LongType()),
        StructField("_visibility", StringType()),
        StructField("_enforced", BooleanType()),
        StructField("_publishers", ArrayType(LongType())),
    ]
    # Flat columns: a fifth quicker than an array of targets (docs/decisions/0014).
    for place in range(most):
        fields += [StructField(f"_target{place}", IntegerType()), StructField(f"_mask{place}", IntegerType())]
    flat = []
    for *head, pairs in rows:
        cells: list[int | None] = []
        for place in range(most):
            cells += _signed32(pairs[place]) if place < len(pairs) else [None, None]
        flat.append((*head, *cells))
    return spark.createDataFrame(flat, StructType(fields)), most


def _by_stream(policy: GatewayPolicy) -> dict[int, ChannelPolicy]:
    """Give the rules by stream id; two names on one stream stay local, as in policy/snapshot.py."""
    streams = policy.streams()
    found = {}
    for channel in policy.channels:
        stream = ChannelName(channel.name).stream_id
        ambiguous = streams[stream] is None
        found[stream] = ChannelPolicy(channel.name, Visibility.SUBNET_LOCAL) if ambiguous else channel
    return found


def _verdict(knows: Any, forward_unknown: Column, targets: int) -> Column:
    """Give the verdict as an expression over a packet and the rule that was joined to it."""
    from pyspark.sql import functions as F

    col = F.col
    src, dst, route_ttl = (F.coalesce(col(name), F.lit(null)) for name, null in _WITHOUT.items())
    visibility = col("_visibility")
    expired = (route_ttl == 0) | ((col("ttl") > 0) & (col("hops") >= col("ttl")))
    stream = col("stream_id")
    publish_bit = F.lit(int(signed(np.array([PUBLISH_STREAM_BIT], np.uint64))[0]))
    publication = (
        (col("subprotocol_id") == 0)
        & (stream.bitwiseAND(publish_bit) != 0)
        & (stream.bitwiseAND(F.lit(0xFFFF)) == col("chash"))
    )
    exported = reduce(
        or_,
        (
            F.coalesce(col(f"_target{place}").bitwiseXOR(dst).bitwiseAND(col(f"_mask{place}")) == 0, F.lit(False))
            for place in range(targets)
        ),
        F.lit(False),
    )
    allowed = F.when(
        col("_publishers").isNotNull(),
        F.array_contains(F.coalesce("_publishers", F.array().cast("array<bigint>")), col("origin")),
    ).otherwise(F.coalesce(col("guard") == int(AuthVerdict.ALLOWED), F.lit(False)))
    drop = {reason: F.lit(int(reason)) for reason in DropReason}
    judged = (
        F.when(expired, drop[DropReason.TTL_EXPIRED])
        .when(~publication, F.lit(0))
        .when(~(knows(src) & knows(dst)), drop[DropReason.UNKNOWN_SUBNET])
        .when(visibility.isNull(), F.when(forward_unknown, F.lit(0)).otherwise(drop[DropReason.SUBNET_LOCAL]))
        .when(visibility == Visibility.SUBNET_LOCAL.value, drop[DropReason.SUBNET_LOCAL])
        .when(
            (visibility == Visibility.PARENT_VISIBLE.value) & (src.bitwiseXOR(dst).bitwiseAND(_depth_mask(dst)) != 0),
            drop[DropReason.NOT_ANCESTOR],
        )
        .when((visibility == Visibility.EXPORTED.value) & ~exported, drop[DropReason.NOT_EXPORTED])
        .when(col("_enforced") & ~allowed, drop[DropReason.UNAUTHORIZED_PUBLISHER])
        .otherwise(F.lit(0))
    )
    judged_then = (col("reason") < VERDICTS) | (col("reason") == int(TransitReason.CROWDED))
    meant = (col("verdict") != int(Fate.DELIVERED)) & judged_then
    return F.when(meant, judged.cast("smallint"))


def _depth_mask(subnet: Column) -> Column:
    from pyspark.sql import functions as F

    masks = [(0xFF, 0xFFFFFFFF), (0xFF00, 0xFFFFFF00), (0xFF0000, 0xFFFF0000), (0xFF000000, 0xFF000000)]
    expression = F.lit(0)
    for bits, mask in reversed(masks):
        found = subnet.bitwiseAND(F.lit(_signed32([bits])[0])) != 0
        expression = F.when(found, F.lit(_signed32([mask])[0])).otherwise(expression)
    return expression


def _signed32(values: Any) -> list[int]:
    stored: list[int] = signed(np.array(list(values), np.uint32)).tolist()
    return stored
