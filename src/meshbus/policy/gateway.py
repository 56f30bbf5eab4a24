"""The subnet gateway: may a packet cross from one subnet to another? It reads headers only and changes nothing.

`decide` answers for one packet in the documented form (a channel hash, two subnets, a TTL); `decide_batch` answers for
columns of forwarded headers by the rules of policy/verdict.py. Both read the same channel configurations and export
table. Which packets are forwarded at all, and by which next hop, is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.channels import ChannelConfigRegistry, Visibility
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
    """How many packets were judged, and how."""

    forwarded: int
    drops: dict[DropReason, int]

    @property
    def dropped(self) -> int:
        """All drops together."""
        return sum(self.drops.values())


class SubnetGateway:
    """Enforce channel visibility at the boundary of a subnet."""

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
        """Set up a gateway.

        `forward_unknown` lets publications on unconfigured channels pass (they are dropped by default).
        `publishers`, where given, is asked for channels whose configuration names who may publish: it holds
        (origin hash, canonical channel hash) pairs. `verify_publisher(origin, channel)` is the full check behind it.
        """
        self.local_subnet = SubnetId(local_subnet)
        self._peer_subnets = {SubnetId(subnet) for subnet in peer_subnets}
        self._channels = channels
        self._forward_unknown = forward_unknown
        self._publishers = publishers
        self._verify_publisher = verify_publisher
        self._exports: dict[ChannelName, tuple[SubnetId, ...]] = {}
        self._counts = np.zeros(VERDICTS, np.int64)
        self._changes = 0
        self._policy: NDArray[np.uint64] | None = None
        self._policy_version = -1

    @property
    def peer_subnets(self) -> tuple[SubnetId, ...]:
        """The subnets that packets may come from and go to beside the local one, in order."""
        return tuple(sorted(self._peer_subnets))

    def add_peer_subnet(self, subnet: int) -> None:
        """Register a subnet beyond the boundary."""
        self._peer_subnets.add(SubnetId(subnet))
        self._policy = None
        self._changes += 1

    def remove_peer_subnet(self, subnet: int) -> None:
        """Forget a subnet beyond the boundary."""
        self._peer_subnets.discard(SubnetId(subnet))
        self._policy = None
        self._changes += 1

    def export(self, channel: str, subnets: Iterable[int]) -> None:
        """Let an EXPORTED channel reach these subnets and what lies below them; replaces the earlier list."""
        self._exports[ChannelName(channel)] = tuple(SubnetId(subnet) for subnet in subnets)
        self._policy = None
        self._changes += 1

    def exports_of(self, channel: str) -> tuple[SubnetId, ...]:
        """Return the subnets an EXPORTED channel may reach."""
        return self._exports.get(ChannelName(channel), ())

    @property
    def stats(self) -> GatewayStats:
        """Count the decisions so far, scalar and batch together."""
        counts = self._counts.tolist()
        return GatewayStats(counts[0], {reason: counts[reason] for reason in DropReason})

    def decide(self, channel_hash: int, source: int, dest: int, ttl: int, hop_count: int = 0) -> ForwardDecision:
        """Judge one packet of a channel.

        `channel_hash` is the 16 bits of the header, or the canonical 64 bits (anything above 0xFFFF). A 16-bit hash
        that no or several configured channels share decides nothing and stays local.
        """
        decision = self._decide(channel_hash, SubnetId(source), SubnetId(dest), ttl, hop_count)
        self.record(decision)
        return decision

    @property
    def version(self) -> tuple[int, int, int]:
        """Differs after everything that may change a decision, for those who keep one."""
        guard = 0 if self._publishers is None else self._publishers.version
        return self._changes, self._channels.version, guard

    def count(self, verdict: int, packets: int) -> None:
        """Count packets with the same verdict, for a caller that judged with `judge_batch`."""
        self._counts[verdict] += packets

    def record(self, decision: ForwardDecision) -> None:
        """Count a decision that other code made by this gateway's rules."""
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
        """Judge many forwarded packets, by their headers and the destination subnet of each, and count the verdicts.

        Return 0 for forward, else a DropReason code. `source` is the subnet each origin is believed to be in (the
        header's own claim when omitted), `ttl` that of the routing headers (not judged when omitted), `out` memory to
        reuse for the verdicts, `guard` memory for the answers of the auth guard where it is asked.
        """
        batch = headers if isinstance(headers, HeaderBatch) else HeaderBatch.of(headers)
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
        """Judge packets of which each stands for others, without counting: the caller knows how many and calls `count`."""
        verdicts, uncounted = np.empty(len(headers.status), _U8), np.zeros(VERDICTS, np.int64)
        policy = self.policy
        if judge.run(headers.rows, source, dest, ttl, policy, verdicts, uncounted):
            self._ask_guard(headers.columns, policy, verdicts, uncounted, guard)
        return verdicts

    @property
    def policy(self) -> NDArray[np.uint64]:
        """The policy as the kernel reads it (see policy/verdict.py), rebuilt after a change."""
        if self._policy is None or self._policy_version != self._channels.version:
            self._policy = self.snapshot().words()
            self._policy_version = self._channels.version
        return self._policy

    def _decide(self, channel_hash: int, source: SubnetId, dest: SubnetId, ttl: int, hop_count: int) -> ForwardDecision:
        if ttl == 0 or hop_count >= ttl:
            return Drop(DropReason.TTL_EXPIRED)
        if not (self._knows(source) and self._knows(dest)):
            return Drop(DropReason.UNKNOWN_SUBNET)
        by_wire_hash = channel_hash <= 0xFFFF
        find = self._channels.get_by_wire_hash if by_wire_hash else self._channels.get
        config = find(channel_hash)
        if config is None:
            return FORWARD if self._forward_unknown and not by_wire_hash else Drop(DropReason.SUBNET_LOCAL)
        match config.visibility:
            case Visibility.GLOBAL:
                return FORWARD
            case Visibility.PARENT_VISIBLE:
                return FORWARD if dest.contains(source) else Drop(DropReason.NOT_ANCESTOR)
            case Visibility.EXPORTED:
                exported = any(target.contains(dest) for target in self._exports.get(config.channel, ()))
                return FORWARD if exported else Drop(DropReason.NOT_EXPORTED)
            case Visibility.SUBNET_LOCAL:
                return Drop(DropReason.SUBNET_LOCAL)

    def _knows(self, subnet: SubnetId) -> bool:
        return subnet.is_global or subnet == self.local_subnet or subnet in self._peer_subnets

    def snapshot(self) -> GatewayPolicy:
        """Return what verdicts go by, as a value."""
        channels = [
            ChannelPolicy(
                str(config.channel),
                config.visibility,
                enforced=self._publishers is not None and (config.publish_caps is not None or config.require_token),
                exports=tuple(int(subnet) for subnet in self._exports.get(config.channel, ())),
            )
            for config in sorted(self._channels, key=lambda config: config.channel)
        ]
        return GatewayPolicy(
            local_subnet=int(self.local_subnet),
            peer_subnets=tuple(int(subnet) for subnet in self.peer_subnets),
            forward_unknown=self._forward_unknown,
            channels=tuple(channels),
        )

    def continue_from(self, earlier: SubnetGateway) -> None:
        """Go on counting where an earlier gateway, which this one replaces, stopped."""
        self._counts += earlier._counts

    def _ask_guard(
        self,
        headers: NDArray[np.void],
        policy: NDArray[np.uint64],
        verdicts: NDArray[np.uint8],
        counts: NDArray[np.int64],
        said: NDArray[np.uint8] | None,
    ) -> None:
        """Settle the packets whose channel names its publishers; only such a channel needs a guard to be there."""
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
        """Run the full check once per pair; those that pass are remembered."""
        for origin, channel in sorted(pairs):
            if self._verify_publisher is not None and self._verify_publisher(origin, channel):
                guard.authorize(origin, channel)
