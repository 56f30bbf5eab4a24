"""The gateway's verdict on recorded packets as Spark expressions, so that rows never leave the JVM.

The verdicts equal those of the node's kernel (spark/replay/kernelgateway.py) and are null where no gateway judges. The
rules and their order are defined in policy/verdict.py; this module expresses them with Spark's operators.

`judge_frame` writes one policy into the query itself, because a join would cost as much as the judging. Use it for packets
that Spark reads from files: rows created from Python data are evaluated by Spark's planner, row by row and much slower.
`judge_versions` joins the policies of many recorders and times, which are too many for the text of a query.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from meshbus.log.schema import signed
from meshbus.names.channel import PUBLISH_STREAM_BIT
from meshbus.names.subnet import SubnetId, depth_mask
from meshbus.policy.fate import Fate
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.policy.guard import AuthVerdict
from meshbus.policy.reason import Reason
from meshbus.policy.verdict import EXPORTED, GLOBAL, LOCAL, PARENT, VERDICTS, ChannelRule
from meshbus.spark.replay.kernelgateway import FOR_NULL
from meshbus.spark.replay.perfecthash import PerfectHash, array_sql, build_hash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOBODY, _GUARD, _LIST = range(3)
"""How a channel authorizes publishers: not at all, by the recorded answer of the guard, or by a list."""
# SQL over the columns of `_without_nulls`.
_MEANT = f"_verdict <> {int(Fate.DELIVERED)} AND (_reason < {VERDICTS} OR _reason = {Reason.CROWDED.code})"
_EXPIRED = "_route_ttl = 0 OR (_ttl > 0 AND _hops >= _ttl)"
_PUBLICATION = f"_subprotocol_id = 0 AND _stream_id & {PUBLISH_STREAM_BIT} <> 0 AND _stream_id & 65535 = _chash"
_DEPTH_MASK = (
    f"CASE WHEN _dst & {0xFF} <> 0 THEN -1 WHEN _dst & {0xFF00} <> 0 THEN -{0x100}"
    f" WHEN _dst & {0xFF0000} <> 0 THEN -{0x10000} WHEN _dst <> 0 THEN -{0x1000000} ELSE 0 END"
)
"""Mask of the levels of the destination subnet."""
Versions = Mapping[tuple[int, int], GatewayPolicy]
"""Policies by recorder (as tables store it) and policy version."""


# ── one policy, in the query ────────────────────────────────────────────────────────────────


class _LookupTables(msgspec.Struct, frozen=True):
    """A policy as lookup tables. A row is the slot of a channel; the row after the last slot is for unknown channels."""

    channels: PerfectHash
    subnets: PerfectHash
    rules: tuple[int, ...]
    """By row: visibility | authorization << 2 | index of the list of publishers << 4."""
    reach: tuple[int, ...]
    """By row, then by the slot of a source subnet: one bit per slot of a destination subnet, in 64-bit words."""
    lists: tuple[tuple[int, ...], ...]
    """The distinct lists of publishers."""


def judge_frame(packets: DataFrame, policy: GatewayPolicy, name: str = "judged") -> DataFrame:
    """Add a column with the verdict of one policy on each packet: 0, the code of a drop reason, or null."""
    tables = _build_tables(policy)
    channels, subnets, others = tables.channels, tables.subnets, len(tables.channels.table)
    found = _without_nulls(packets)
    found = found.selectExpr("*", "_src & 4294967295 AS _from", "_dst & 4294967295 AS _to").selectExpr(
        "*",
        f"{subnets.where_sql('_from')} AS _source",
        f"{subnets.where_sql('_to')} AS _dest",
        f"{channels.where_sql('_stream_id')} AS _place",
    )
    found = found.selectExpr("*", f"IF({channels.holds_sql('_stream_id', '_place')}, _place, {others}) AS _row")
    found = found.selectExpr("*", f"get({array_sql(tables.rules)}, _row) AS _rule")
    # With PARENT visibility the reach depends on the source: the subnets above it.
    row = f"IF(_rule & 3 = {PARENT}, _source + {others + 1}, _row)"
    word = f"get({array_sql(tables.reach)}, {row} * {_words(subnets)} + shiftright(_dest, 6))"
    listed = "false"
    if tables.lists:
        lists = ", ".join(map(array_sql, tables.lists))
        listed = f"array_contains(get(array({lists}), CAST(shiftright(_rule, 4) AS INT)), _origin)"
    # LOCAL, PARENT, EXPORTED are dropped for reason 1, 2, 3. A channel without a rule has a row of its own.
    stays = f"WHEN shiftright({word}, _dest & 63) & 1 = 0 THEN (_rule & 3) + 1"
    if policy.unknown_verdict:
        stays = f"WHEN _row = {others} THEN {int(policy.unknown_verdict)} {stays}"
    judged = _judged(
        found,
        name,
        known=f"{subnets.holds_sql('_from', '_source')} AND {subnets.holds_sql('_to', '_dest')}",
        stays=stays,
        refused=_refused("shiftright(_rule, 2) & 3", listed),
    )
    return judged.select(*packets.columns, name)


def _build_tables(policy: GatewayPolicy) -> _LookupTables:
    # Tables store unsigned numbers bit-cast, so the keys must be too (spark.md §3).
    # Channels without a rule are treated by `judge_frame`: their row only stands for "everywhere".
    rules = {_signed64([stream])[0]: rule for stream, rule in policy.rules().items()}
    known = [SubnetId(subnet) for subnet in {0, policy.local_subnet, *policy.peer_subnets}]
    channels, subnets = build_hash(rules), build_hash(known)
    bits = {subnet: 1 << subnets.where(subnet) for subnet in known}
    everywhere = sum(bits.values())
    publishers = _publishers(policy)
    lists = tuple(dict.fromkeys(publishers.values()))
    others = len(channels.table)
    rows = [0] * others + [GLOBAL]
    reach = [0] * others + [everywhere] + [0] * len(subnets.table)
    for stream, rule in rules.items():
        row, listed = channels.where(stream), publishers.get(stream)
        rows[row] = rule.visibility | _asks(rule, listed) << 2 | (lists.index(listed) << 4 if listed is not None else 0)
        # LOCAL channels reach no subnet, and those with PARENT visibility use a row per source instead.
        if rule.visibility == GLOBAL:
            reach[row] = everywhere
        elif rule.visibility == EXPORTED:
            reach[row] = sum(bit for dest, bit in bits.items() if any(target.contains(dest) for target in rule.exports))
    for source in known:
        above = sum(bit for dest, bit in bits.items() if dest.contains(source))
        reach[others + 1 + subnets.where(source)] = above
    words = [mask >> 64 * word & 0xFFFF_FFFF_FFFF_FFFF for mask in reach for word in range(_words(subnets))]
    return _LookupTables(channels, subnets, tuple(rows), tuple(_signed64(words)), lists)


def _words(subnets: PerfectHash) -> int:
    return -(-len(subnets.table) // 64)


# ── many policies, joined ───────────────────────────────────────────────────────────────────


def judge_versions(packets: DataFrame, policies: Versions, name: str = "judged") -> DataFrame:
    """Add a column with the verdict of the policy that was in force at the recorder; null if it is unknown."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    rules, targets = _rules(packets.sparkSession, policies)
    heads = _small_table(
        packets.sparkSession,
        {"_recorder": pa.int64(), "_version": pa.int64(), "_known": pa.list_(pa.int32()), "_unknown": pa.int32()},
        [
            (*whose, _signed32({0, policy.local_subnet, *policy.peer_subnets}), int(policy.unknown_verdict))
            for whose, policy in policies.items()
        ],
    )
    # A policy version is a number of one recorder (docs/decisions/0017), so both are needed.
    keys = (F.col("recorder") == F.col("_recorder")) & (F.col("policy_version") == F.col("_version"))
    joined = _without_nulls(packets).join(F.broadcast(heads), keys, "left").drop("_recorder", "_version")
    joined = joined.join(F.broadcast(rules), keys & (F.col("_stream_id") == F.col("_stream")), "left")
    joined = joined.selectExpr("*", f"coalesce(_asks, {_NOBODY}) AS _asked")
    # `<=>` is never null: channels with fewer targets have nulls in the other columns.
    exported = " OR ".join(f"((_target{place} ^ _dst) & _mask{place}) <=> 0" for place in range(targets)) or "false"
    judged = _judged(
        joined,
        name,
        known="array_contains(_known, _src) AND array_contains(_known, _dst)",
        stays=f"""WHEN _rule IS NULL THEN _unknown
            WHEN _rule = {LOCAL} THEN {Reason.SUBNET_LOCAL.code}
            WHEN _rule = {PARENT} AND (_src ^ _dst) & {_DEPTH_MASK} <> 0 THEN {Reason.NOT_ANCESTOR.code}
            WHEN _rule = {EXPORTED} AND NOT ({exported}) THEN {Reason.NOT_EXPORTED.code}""",
        # The list occurs once in the expression: otherwise Spark would unpack it for every row.
        refused=_refused("_asked", "array_contains(_publishers, _origin)"),
    )
    return judged.select(*packets.columns, F.when(F.col("_known").isNotNull(), F.col(name)).alias(name))


def _rules(spark: SparkSession, policies: Versions) -> tuple[DataFrame, int]:
    """Return the rules of channels as a small table, and the maximum number of export targets.

    Targets are numbers in columns of their own: arrays would be unpacked for every packet.
    """
    import pyarrow as pa

    rules = [
        (whose, _signed64([stream])[0], rule)
        for whose, policy in policies.items()
        for stream, rule in policy.rules().items()
    ]
    publishers = {whose: _publishers(policy) for whose, policy in policies.items()}
    most = max((len(rule.exports) for *_, rule in rules), default=0)
    kinds = {
        **dict.fromkeys(("_recorder", "_version", "_stream"), pa.int64()),
        "_rule": pa.int32(),
        "_asks": pa.int32(),
        "_publishers": pa.list_(pa.int64()),
        **{f"_{what}{place}": pa.int32() for place in range(most) for what in ("target", "mask")},
    }
    rows = []
    for whose, stream, rule in rules:
        targets = [cell for target in rule.exports for cell in _signed32([target, depth_mask(target.depth)])]
        none = [None] * (2 * most - len(targets))
        listed = publishers[whose].get(stream)
        rows.append((*whose, stream, rule.visibility, _asks(rule, listed), listed, *targets, *none))
    return _small_table(spark, kinds, rows), most


def _small_table(spark: SparkSession, kinds: Mapping[str, Any], rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    """Return a DataFrame made from Arrow: Spark keeps it in the plan and broadcasts it without a job of its own."""
    import pyarrow as pa

    columns = zip(*rows, strict=True) if rows else ((),) * len(kinds)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds.values(), strict=True)]
    return spark.createDataFrame(pa.table(arrays, list(kinds)))


# ── both ────────────────────────────────────────────────────────────────────────────────────


def _judged(packets: DataFrame, name: str, *, known: str, stays: str, refused: str) -> DataFrame:
    """Add the verdict: the rules common to both forms, in the kernel's order, and the policy's own as SQL."""
    return packets.selectExpr(
        "*",
        f"""CASE WHEN {_MEANT} THEN CAST(CASE
            WHEN {_EXPIRED} THEN {Reason.TTL_EXPIRED.code}
            WHEN NOT ({_PUBLICATION}) THEN 0
            WHEN NOT ({known}) THEN {Reason.UNKNOWN_SUBNET.code}
            {stays}
            WHEN {refused} THEN {Reason.UNAUTHORIZED_PUBLISHER.code}
            ELSE 0 END AS SMALLINT) END AS {name}""",
    )


def _without_nulls(packets: DataFrame) -> DataFrame:
    """Add copies of the inputs with nulls replaced as for the kernel; Spark then checks for null once per column."""
    return packets.selectExpr("*", *(f"coalesce({name}, {stand_in}) AS _{name}" for name, stand_in in FOR_NULL.items()))


def _publishers(policy: GatewayPolicy) -> dict[int, tuple[int, ...]]:
    """Return the lists of publishers by stream id, both as tables store them."""
    return {_signed64([stream])[0]: tuple(_signed64(listed)) for stream, listed in policy.publishers().items()}


def _asks(rule: ChannelRule, listed: Sequence[int] | None) -> int:
    if not rule.enforced:
        return _NOBODY
    return _GUARD if listed is None else _LIST


def _refused(asks: str, listed: str) -> str:
    return f"""CASE {asks} WHEN {_GUARD} THEN _guard <> {int(AuthVerdict.ALLOWED)}
                WHEN {_LIST} THEN NOT {listed} ELSE false END"""


def _signed32(values: Iterable[int]) -> list[int]:
    stored: list[int] = signed(np.array(list(values), np.uint32)).tolist()
    return stored


def _signed64(values: Iterable[int]) -> list[int]:
    stored: list[int] = signed(np.array(list(values), np.uint64)).tolist()
    return stored
