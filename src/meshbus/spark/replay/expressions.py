"""The gateway over recorded packets, as expressions of Spark: for tables that it holds anyway, so nothing leaves the JVM.

Verdicts are those of the node's kernel (spark/replay/kernelgateway.py), null where a gateway has nothing to say. The rules and their
order are policy/verdict.py's; this file only finds the same answer with Spark's operators.

One policy is written into the query itself (`judge_frame`): a join would cost as much as judging. That is for packets that
are read from files; rows that were handed over from Python, Spark judges while it plans, and builds the tables anew for each.
Policies of many recorders and times are too many for a query, and are joined (`judge_versions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from meshbus.log.schema import signed
from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.names.subnet import SubnetId, depth_mask
from meshbus.policy.fate import Fate, TransitReason
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.policy.guard import AuthVerdict
from meshbus.policy.verdict import EXPORTED, GLOBAL, LOCAL, PARENT, VERDICTS, ChannelRule, DropReason
from meshbus.spark.replay.kernelgateway import FOR_NULL
from meshbus.spark.replay.perfecthash import Places, arrange, array_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOBODY, _GUARD, _LIST = range(3)
"""Who is asked about a publisher."""
_MEANT = f"_verdict <> {int(Fate.DELIVERED)} AND (_reason < {VERDICTS} OR _reason = {int(TransitReason.CROWDED)})"
_EXPIRED = "_route_ttl = 0 OR (_ttl > 0 AND _hops >= _ttl)"
_PUBLICATION = f"_subprotocol_id = 0 AND _stream_id & {PUBLISH_STREAM_BIT} <> 0 AND _stream_id & 65535 = _chash"
_DEPTH_MASK = (
    f"CASE WHEN _dst & {0xFF} <> 0 THEN -1 WHEN _dst & {0xFF00} <> 0 THEN -{0x100}"
    f" WHEN _dst & {0xFF0000} <> 0 THEN -{0x10000} WHEN _dst <> 0 THEN -{0x1000000} ELSE 0 END"
)
"""Of the destination: what keeps its levels."""
Versions = Mapping[tuple[int, int], GatewayPolicy]
"""Policies by the recorder, as it is stored, and the version of its policy."""


# ── one policy, in the query ────────────────────────────────────────────────────────────────


class _Written(msgspec.Struct, frozen=True):
    """A policy as tables for a query. A row is the place of a channel; the one behind the last is that of all others."""

    channels: Places
    subnets: Places
    rules: tuple[int, ...]
    """By row: visibility | who is asked << 2 | number of the list of publishers << 4."""
    reach: tuple[int, ...]
    """By row, then by the place of a source: a bit for each place of a destination, in words of 64."""
    lists: tuple[tuple[int, ...], ...]
    """Publishers that channels name."""


def judge_frame(packets: DataFrame, policy: GatewayPolicy, name: str = "judged") -> DataFrame:
    """Add a column with the verdict of one policy on each packet."""
    written = _write(policy)
    channels, subnets, others = written.channels, written.subnets, len(written.channels.table)
    found = _without_nulls(packets)
    found = found.selectExpr("*", "_src & 4294967295 AS _from", "_dst & 4294967295 AS _to").selectExpr(
        "*",
        f"{subnets.where_sql('_from')} AS _source",
        f"{subnets.where_sql('_to')} AS _dest",
        f"{channels.where_sql('_stream_id')} AS _place",
    )
    found = found.selectExpr("*", f"IF({channels.holds_sql('_stream_id', '_place')}, _place, {others}) AS _row")
    found = found.selectExpr("*", f"get({array_sql(written.rules)}, _row) AS _rule")
    # How far a channel reaches depends on the source where that is what is above the source.
    row = f"IF(_rule & 3 = {PARENT}, _source + {others + 1}, _row)"
    word = f"get({array_sql(written.reach)}, {row} * {_words(subnets)} + shiftright(_dest, 6))"
    listed = "false"
    if written.lists:
        lists = ", ".join(map(array_sql, written.lists))
        listed = f"array_contains(get(array({lists}), CAST(shiftright(_rule, 4) AS INT)), _origin)"
    judged = _judged(
        found,
        name,
        known=f"{subnets.holds_sql('_from', '_source')} AND {subnets.holds_sql('_to', '_dest')}",
        stays=f"WHEN shiftright({word}, _dest & 63) & 1 = 0 THEN (_rule & 3) + 1",  # reasons follow visibilities
        refused=_refused("shiftright(_rule, 2) & 3", listed),
    )
    return judged.select(*packets.columns, name)


def _write(policy: GatewayPolicy) -> _Written:
    rules = {_signed64([stream])[0]: rule for stream, rule in policy.rules().items()}
    known = [SubnetId(subnet) for subnet in {0, policy.local_subnet, *policy.peer_subnets}]
    channels, subnets = arrange(rules), arrange(known)
    bits = {subnet: 1 << subnets.where(subnet) for subnet in known}
    everywhere = sum(bits.values())
    publishers = _publishers(policy)
    lists = tuple(dict.fromkeys(publishers.values()))
    others = len(channels.table)
    rows = [0] * others + [_without_rule(policy)]
    reach = [0] * others + [everywhere if policy.forward_unknown else 0] + [0] * len(subnets.table)
    for stream, rule in rules.items():
        row, listed = channels.where(stream), publishers.get(stream)
        rows[row] = rule.visibility | _asks(rule, listed) << 2 | (lists.index(listed) << 4 if listed is not None else 0)
        if rule.visibility == GLOBAL:
            reach[row] = everywhere
        elif rule.visibility == EXPORTED:
            reach[row] = sum(bit for dest, bit in bits.items() if any(target.contains(dest) for target in rule.exports))
    for source in known:
        above = sum(bit for dest, bit in bits.items() if dest.contains(source))
        reach[others + 1 + subnets.where(source)] = above
    words = [mask >> 64 * word & 0xFFFF_FFFF_FFFF_FFFF for mask in reach for word in range(_words(subnets))]
    return _Written(channels, subnets, tuple(rows), tuple(_signed64(words)), lists)


def _words(subnets: Places) -> int:
    return -(-len(subnets.table) // 64)


# ── many policies, joined ───────────────────────────────────────────────────────────────────


def judge_versions(packets: DataFrame, policies: Versions, name: str = "judged") -> DataFrame:
    """Add a column with the verdict of the policy that was in force at the recorder; null where it is not known."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    rules, targets = _rules(packets.sparkSession, policies)
    heads = _small_table(
        packets.sparkSession,
        {"_recorder": pa.int64(), "_version": pa.int64(), "_known": pa.list_(pa.int32()), "_unknown": pa.int32()},
        [
            (*whose, _signed32({0, policy.local_subnet, *policy.peer_subnets}), _without_rule(policy))
            for whose, policy in policies.items()
        ],
    )
    keys = (F.col("recorder") == F.col("_recorder")) & (F.col("policy_version") == F.col("_version"))
    joined = _without_nulls(packets).join(F.broadcast(heads), keys, "left").drop("_recorder", "_version")
    joined = joined.join(F.broadcast(rules), keys & (F.col("_stream_id") == F.col("_stream")), "left")
    joined = joined.selectExpr("*", "coalesce(_rule, _unknown) AS _visibility", f"coalesce(_asks, {_NOBODY}) AS _asked")
    exported = " OR ".join(f"((_target{place} ^ _dst) & _mask{place}) <=> 0" for place in range(targets)) or "false"
    judged = _judged(
        joined,
        name,
        known="array_contains(_known, _src) AND array_contains(_known, _dst)",
        stays=f"""WHEN _visibility = {LOCAL} THEN {int(DropReason.SUBNET_LOCAL)}
            WHEN _visibility = {PARENT} AND (_src ^ _dst) & {_DEPTH_MASK} <> 0 THEN {int(DropReason.NOT_ANCESTOR)}
            WHEN _visibility = {EXPORTED} AND NOT ({exported}) THEN {int(DropReason.NOT_EXPORTED)}""",
        # The list is named once: Spark then unpacks it only where it is looked at.
        refused=_refused("_asked", "array_contains(_publishers, _origin)"),
    )
    return judged.select(*packets.columns, F.when(F.col("_known").isNotNull(), F.col(name)).alias(name))


def _rules(spark: SparkSession, policies: Versions) -> tuple[DataFrame, int]:
    """Give the rules of channels as a small table, and how many export targets its rows have room for.

    Numbers in columns of their own: texts would be compared and arrays unpacked for every packet.
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
    """Give a few rows to Spark as Arrow: it keeps them in its plan, and broadcasts them without a job of their own."""
    import pyarrow as pa

    columns = zip(*rows, strict=True) if rows else ((),) * len(kinds)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds.values(), strict=True)]
    return spark.createDataFrame(pa.table(arrays, list(kinds)))


# ── both ────────────────────────────────────────────────────────────────────────────────────


def _judged(packets: DataFrame, name: str, *, known: str, stays: str, refused: str) -> DataFrame:
    """Add the verdict: what all forms have in common, and the rules that need to know the policy."""
    return packets.selectExpr(
        "*",
        f"""CASE WHEN {_MEANT} THEN CAST(CASE
            WHEN {_EXPIRED} THEN {int(DropReason.TTL_EXPIRED)}
            WHEN NOT ({_PUBLICATION}) THEN 0
            WHEN NOT ({known}) THEN {int(DropReason.UNKNOWN_SUBNET)}
            {stays}
            WHEN {refused} THEN {int(DropReason.UNAUTHORIZED_PUBLISHER)}
            ELSE 0 END AS SMALLINT) END AS {name}""",
    )


def _without_nulls(packets: DataFrame) -> DataFrame:
    """Add what a verdict depends on once more, as the kernel sees it: Spark then looks for a null once, not at every comparison."""
    return packets.selectExpr("*", *(f"coalesce({name}, {stand_in}) AS _{name}" for name, stand_in in FOR_NULL.items()))


def _without_rule(policy: GatewayPolicy) -> int:
    """Give the visibility of channels that a policy does not know."""
    return GLOBAL if policy.forward_unknown else LOCAL


def _publishers(policy: GatewayPolicy) -> dict[int, tuple[int, ...]]:
    """Give the publishers that channels name, by stream id, as they are stored."""
    return {
        _signed64([ChannelName(channel.name).stream_id])[0]: tuple(_signed64(channel.publishers))
        for channel in policy.channels
        if channel.publishers is not None
    }


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
