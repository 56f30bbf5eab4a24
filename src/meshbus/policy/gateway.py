"""Subnet gateway: decides whether a packet may cross from one subnet to another, by its header (policy.md §6.3).

`decide` judges one packet in the form of the specification: a channel hash, two subnets, a TTL. `decide_batch` judges
columns of forwarded headers by the rules of policy/verdict.py. Both use the same channel configurations and export
table. The gateway changes no packet. Which packets are forwarded, and to which next hop, is decided in
engine/routes/forward.py; the subnets of origins and destinations come from engine/routes/boundary.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
from meshbus.policy.gatewaypolicy import ChannelPolicy, GatewayPolicy
from meshbus.policy.guard import AuthGuard, AuthVerdict
from meshbus.policy.reason import DropReason
from meshbus.policy.verdict import (
    ASK_GUARD,
    FORWARD,
    VERDICTS,
    Drop,
    ForwardDecision,
    canonical_of,
    judge,
)
from meshbus.wire.headerbatch import HeaderBatch

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_U32 = np.dtype(np.uint32)
_U8 = np.dtype(np.uint8)
_NO_SOURCE = np.empty(0, _U32)
_NO_TTL = np.empty(0, _U8)


class GatewayStats(msgspec.Struct, frozen=True):
    """Numbers of forwarded and dropped packets."""

    forwarded: int
    drops: dict[DropReason, int]

    @property
    def dropped(self) -> int:
        """Sum of all drops."""
        return sum(self.drops.values())


class SubnetGateway:
    """Enforces the visibility of channels at the boundary of a subnet."""

    def __init__(
        self,
        local_subnet: int,
        peer_subnets: Iterable[int] = (),
        *,
        channels: ChannelConfigRegistry,
        forward_unknown: bool = False,
        publishers: AuthGuard | None = None,
        verify_publisher: Callable[[int, int], bool] | None = None,
    ) -> None:
        """Create a gateway.

        `forward_unknown` forwards publications on channels without a configuration, which are dropped by default.
        `publishers`, if given, is consulted for channels whose configuration restricts publishers; it holds pairs of
        origin hash and canonical channel hash. `verify_publisher(origin, channel)` is its full check.
        """
        self.local_subnet = SubnetId(local_subnet)
        self._peer_subnets = {SubnetId(subnet) for subnet in peer_subnets}
        self._channels = channels
        self._forward_unknown = forward_unknown
        self._publishers = publishers
        self._verify_publisher = verify_publisher
        self._exports: dict[ChannelName, tuple[SubnetId, ...]] = {}
        self._names: tuple[ChannelName, ...] = ()
        """Sorted names of channels that were learned."""
        self._counts = np.zeros(VERDICTS, np.int64)
        self._changes = 0
        self._policy: NDArray[np.uint64] | None = None
        self._policy_version = -1

    @property
    def peer_subnets(self) -> tuple[SubnetId, ...]:
        """The subnets, besides the local one, between which packets may cross, sorted."""
        return tuple(sorted(self._peer_subnets))

    def add_peer_subnet(self, subnet: int) -> None:
        """Register a subnet beyond the boundary."""
        self._peer_subnets.add(SubnetId(subnet))
        self._policy = None
        self._changes += 1

    def remove_peer_subnet(self, subnet: int) -> None:
        """Remove a subnet beyond the boundary."""
        self._peer_subnets.discard(SubnetId(subnet))
        self._policy = None
        self._changes += 1

    def export(self, channel: str, subnets: Iterable[int]) -> None:
        """Export an EXPORTED channel to these subnets and all below them, replacing its earlier list."""
        self._exports[ChannelName(channel)] = tuple(SubnetId(subnet) for subnet in subnets)
        self._policy = None
        self._changes += 1

    def exports_of(self, channel: str) -> tuple[SubnetId, ...]:
        """Return the subnets to which an EXPORTED channel is exported."""
        return self._exports.get(ChannelName(channel), ())

    def learn(self, names: Iterable[ChannelName]) -> None:
        """Apply rules by prefix to these channels too, replacing the names that were learned before."""
        learned = tuple(sorted(set(names)))
        if learned != self._names:
            self._names = learned
            self._policy = None
            self._changes += 1

    @property
    def stats(self) -> GatewayStats:
        """The numbers of decisions so far, of single packets and batches together."""
        counts = self._counts.tolist()
        return GatewayStats(counts[0], {reason: counts[reason] for reason in DropReason})

    def decide(self, channel_hash: int, source: int, dest: int, ttl: int, hop_count: int = 0) -> ForwardDecision:
        """Return the decision about one packet of a channel, and count it.

        `channel_hash` is the 16-bit hash of the header, or the canonical 64-bit hash (any value above 0xFFFF). A 16-bit
        hash of no channel, or of several, is treated as SUBNET_LOCAL (policy.md §6.3).
        """
        decision = self._decide(channel_hash, SubnetId(source), SubnetId(dest), ttl, hop_count)
        self.record(decision)
        return decision

    @property
    def version(self) -> tuple[int, int, int]:
        """A value that changes whenever a decision may change, so that decisions can be kept until then."""
        guard = 0 if self._publishers is None else self._publishers.version
        return self._changes, self._channels.version, guard

    def count(self, verdict: int, packets: int) -> None:
        """Count packets with a verdict of `judge_batch`."""
        self._counts[verdict] += packets

    def record(self, decision: ForwardDecision) -> None:
        """Count a decision that other code made by the rules of this gateway."""
        self._counts[decision.reason if isinstance(decision, Drop) else 0] += 1

    def decide_batch(  # hot: bench_kernels
        self,
        headers: HeaderBatch | NDArray[np.void],
        dest: ArrayLike,
        *,
        source: ArrayLike = _NO_SOURCE,
        ttl: ArrayLike = _NO_TTL,
        out: NDArray[np.uint8] | None = None,
        guard: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """Judge many forwarded packets by their headers and destination subnets, and count the verdicts.

        Returns 0 for each packet to forward, otherwise a DropReason code. `source` holds the subnets of the origins (by
        default those in the headers), `ttl` those of the routing headers (by default not judged). `out` is an array to
        reuse for the verdicts, and `guard` one that receives the codes of the auth guard where it is consulted.
        """
        batch = headers if isinstance(headers, HeaderBatch) else HeaderBatch.of(headers)
        # Converted only if needed: this runs for every batch.
        if type(source) is not np.ndarray:
            source = np.asarray(source, _U32)
        if type(dest) is not np.ndarray:
            dest = np.asarray(dest, _U32)
        if type(ttl) is not np.ndarray:
            ttl = np.asarray(ttl, _U8)
        verdicts = np.empty(len(batch.status), _U8) if out is None else out
        policy = self.policy
        if judge.run(batch.rows, source, dest, ttl, policy, verdicts, self._counts):
            self._ask_guard(batch.columns, policy, verdicts, self._counts, guard)
        return verdicts

    def judge_batch(
        self,
        headers: HeaderBatch,
        source: NDArray[np.uint32],
        dest: NDArray[np.uint32],
        ttl: NDArray[np.uint8],
        guard: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """Judge packets without counting: each stands for a number of packets, and the caller calls `count`."""
        verdicts, uncounted = np.empty(len(headers.status), _U8), np.zeros(VERDICTS, np.int64)
        policy = self.policy
        if judge.run(headers.rows, source, dest, ttl, policy, verdicts, uncounted):
            self._ask_guard(headers.columns, policy, verdicts, uncounted, guard)
        return verdicts

    @property
    def policy(self) -> NDArray[np.uint64]:
        """The policy as the kernel of policy/verdict.py reads it; rebuilt after a change."""
        if self._policy is None or self._policy_version != self._channels.version:
            self._policy = self.snapshot().words()
            self._policy_version = self._channels.version
        return self._policy

    def _decide(self, channel_hash: int, source: SubnetId, dest: SubnetId, ttl: int, hop_count: int) -> ForwardDecision:
        # policy.md §6.3: this order. Here ttl is the hop_ttl of the header; `decide_batch` ignores a hop_ttl of 0
        # (profile.md §9), because 0.23 nodes always send 0.
        if ttl == 0 or hop_count >= ttl:
            return Drop(DropReason.TTL_EXPIRED)
        # policy.md §9: a reason that 0.23 nodes never produce; it comes right after the TTL.
        if not (self._knows(source) and self._knows(dest)):
            return Drop(DropReason.UNKNOWN_SUBNET)
        by_wire_hash = channel_hash <= 0xFFFF
        find = self._channels.get_by_wire_hash if by_wire_hash else self._channels.get
        config = find(channel_hash)
        if config is not None:
            return self._cross(config.visibility, config.name, source, dest)
        # docs/decisions/0003: 16 bits are shared by several channels too often to forward by them.
        return Drop(DropReason.SUBNET_LOCAL) if by_wire_hash else self._decide_learned(channel_hash, source, dest)

    def _decide_learned(self, canonical: int, source: SubnetId, dest: SubnetId) -> ForwardDecision:
        """Return the decision about a channel that has no configuration of its own."""
        policy = self.snapshot()
        known, stream = policy.resolved(), canonical | PUBLISH_STREAM_BIT
        if stream not in known:
            verdict = policy.unknown_verdict
            return Drop(DropReason(verdict)) if verdict else FORWARD
        rule = known[stream]
        return (
            Drop(DropReason.SUBNET_LOCAL)
            if rule is None
            else self._cross(rule.visibility, ChannelName(rule.name), source, dest)
        )

    def _cross(self, visibility: Visibility, name: ChannelName, source: SubnetId, dest: SubnetId) -> ForwardDecision:
        match visibility:
            case Visibility.GLOBAL:
                return FORWARD
            case Visibility.PARENT_VISIBLE:
                return FORWARD if dest.contains(source) else Drop(DropReason.NOT_ANCESTOR)
            case Visibility.EXPORTED:
                # policy.md §6.3: an export to GLOBAL exports to all subnets, because GLOBAL contains them.
                exported = any(target.contains(dest) for target in self._exports.get(name, ()))
                return FORWARD if exported else Drop(DropReason.NOT_EXPORTED)
            # policy.md §6.3: even between nodes of one subnet, so a plain relay must not apply this rule
            # (docs/decisions/0013).
            case Visibility.SUBNET_LOCAL:
                return Drop(DropReason.SUBNET_LOCAL)

    def _knows(self, subnet: SubnetId) -> bool:
        # docs/decisions/0002: compared for equality. A subnet below a registered one is still unknown.
        return subnet.is_global or subnet == self.local_subnet or subnet in self._peer_subnets

    def snapshot(self) -> GatewayPolicy:
        """Return the policy of the gateway as a value."""
        by_name = {config.name: config for config in self._channels}
        # An export names its channel, so a rule by prefix is applied to it without learning the name.
        for name in self._exports:
            if (config := self._channels.rule_of(name)) is not None:
                by_name[name] = config
        # Sorted, so that equal policies are equal values: the recorder numbers them (log/packets/policies.py).
        return GatewayPolicy(
            local_subnet=int(self.local_subnet),
            peer_subnets=tuple(int(subnet) for subnet in self.peer_subnets),
            forward_unknown=self._forward_unknown,
            channels=tuple(self._rule(name, by_name[name], self.exports_of(name)) for name in sorted(by_name)),
            prefixes=tuple(self._rule(prefix, config) for prefix, config in sorted(self._channels.prefixes.items())),
            names=tuple(str(name) for name in self._names if name not in by_name) if self._channels.prefixes else (),
        )

    def _rule(self, name: str, config: ChannelConfig, exports: Iterable[int] = ()) -> ChannelPolicy:
        """Return the rule for a channel or a prefix."""
        return ChannelPolicy(
            str(name),
            config.visibility,
            enforced=self._publishers is not None and config.restricts_publishers,
            exports=tuple(map(int, exports)),
        )

    def restricted(self) -> dict[int, ChannelName]:
        """Return the channels that restrict their publishers, by stream id."""
        return {
            stream: ChannelName(rule.name)
            for stream, rule in self.snapshot().resolved().items()
            if rule is not None and rule.enforced
        }

    def continue_from(self, earlier: SubnetGateway) -> None:
        """Add the counts of an earlier gateway, which this one replaces."""
        self._counts += earlier._counts

    def _ask_guard(
        self,
        headers: NDArray[np.void],
        policy: NDArray[np.uint64],
        verdicts: NDArray[np.uint8],
        counts: NDArray[np.int64],
        said: NDArray[np.uint8] | None,
    ) -> None:
        """Decide the packets whose channel restricts its publishers, by the auth guard."""
        # Rules are marked as enforced only if there is a guard (`snapshot`).
        guard = self._publishers
        assert guard is not None
        pending = np.flatnonzero(verdicts == ASK_GUARD)
        origins = headers["origin_hash"][pending]
        channels = canonical_of(headers["stream_id"][pending], policy)
        answers = guard.check_batch(origins, channels)
        unsure = answers == AuthVerdict.NEEDS_FULL_CHECK
        if unsure.any():
            self._check_fully(guard, set(zip(origins[unsure].tolist(), channels[unsure].tolist(), strict=True)))
            answers = guard.check_batch(origins, channels)
        if said is not None:
            said[pending] = answers
        allowed = answers == AuthVerdict.ALLOWED
        verdicts[pending] = np.where(allowed, 0, DropReason.UNAUTHORIZED_PUBLISHER)
        counts[0] += np.count_nonzero(allowed)
        counts[DropReason.UNAUTHORIZED_PUBLISHER] += np.count_nonzero(~allowed)

    def _check_fully(self, guard: AuthGuard, pairs: set[tuple[int, int]]) -> None:
        """Run the full check once for each pair, and authorize those that pass."""
        for origin, channel in sorted(pairs):
            if self._verify_publisher is not None and self._verify_publisher(origin, channel):
                guard.authorize(origin, channel)
