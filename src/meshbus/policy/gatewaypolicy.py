"""The policy of a gateway as a value that can be stored with recorded packets and applied to them again.

A verdict depends on the packet, its subnets, the answer of the auth guard, and this policy. `SubnetGateway.snapshot`
returns it, `words` is the form that the kernel of policy/verdict.py reads, and `judge_again` applies it to recorded
columns: with the policy of the recording it returns exactly the recorded verdicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.channels import Visibility
from meshbus.policy.guard import AuthVerdict
from meshbus.policy.reason import DropReason
from meshbus.policy.verdict import (
    ASK_GUARD,
    EXPORTED,
    GLOBAL,
    LOCAL,
    PARENT,
    VERDICTS,
    ChannelRule,
    build_policy,
    judge,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VISIBILITY = {
    Visibility.SUBNET_LOCAL: LOCAL,
    Visibility.PARENT_VISIBLE: PARENT,
    Visibility.EXPORTED: EXPORTED,
    Visibility.GLOBAL: GLOBAL,
}


class ChannelPolicy(msgspec.Struct, frozen=True):
    """The rules of a gateway for one channel."""

    name: str
    visibility: Visibility
    enforced: bool = False
    """Whether only publishers that the auth guard allows may publish."""
    exports: tuple[int, ...] = ()
    """Subnets to which it is exported, if its visibility is EXPORTED."""
    publishers: tuple[int, ...] | None = None
    """Origin hashes of the allowed publishers, if they are listed; with None, the recorded answer of the guard counts."""


class GatewayPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of a gateway."""

    local_subnet: int
    peer_subnets: tuple[int, ...] = ()
    forward_unknown: bool = False
    """Whether publications on channels that are not listed are forwarded."""
    channels: tuple[ChannelPolicy, ...] = ()

    def streams(self) -> dict[int, ChannelName | None]:
        """Return the channel of each stream id, or None if two names share it, because a packet does not show which."""
        found: dict[int, ChannelName | None] = {}
        for channel in self.channels:
            name = ChannelName(channel.name)
            # policy.md §1.2: names whose hashes differ only in bit 48 share a stream id.
            found[name.stream_id] = None if name.stream_id in found else name
        return found

    def rules(self) -> dict[int, ChannelRule]:
        """Return the rule of each stream id; if two names share it, the rule is that of a SUBNET_LOCAL channel."""
        streams = self.streams()
        found: dict[int, ChannelRule] = {}
        for channel in self.channels:
            name = ChannelName(channel.name)
            # Fail closed: a stream id that does not tell the channel must not choose the more permissive rule.
            known = streams[name.stream_id] is not None
            found[name.stream_id] = _rule(channel, name) if known else ChannelRule(0, LOCAL)
        return found

    def words(self) -> NDArray[np.uint64]:
        """Return the policy in the form that the kernel reads."""
        # GLOBAL is always known and needs no entry (policy/verdict.py).
        known = {self.local_subnet, *self.peer_subnets}
        return build_policy(self.rules(), known, forward_unknown=self.forward_unknown)

    def judge_again(
        self,
        headers: NDArray[np.void],
        source: NDArray[np.uint32],
        dest: NDArray[np.uint32],
        ttl: NDArray[np.uint8],
        guard: NDArray[np.uint8],
        *,
        words: NDArray[np.uint64] | None = None,
    ) -> NDArray[np.uint8]:
        """Judge recorded packets: return 0 for forward, otherwise a DropReason code.

        `ttl` holds those of the routing headers, `guard` the recorded AuthVerdict codes. Where this policy consults the
        guard, the channel's list of publishers decides if it has one, otherwise the recorded code; a packet for which
        the guard was not consulted counts as not allowed. To judge many batches, compute `words` once and pass it.
        """
        verdicts = np.empty(len(headers), np.uint8)
        rows = np.ascontiguousarray(headers).view(np.uint8)
        words = self.words() if words is None else words
        # The kernel also counts. A replay must not add to the counts of a gateway, so these are dropped.
        if judge.run(rows, source, dest, ttl, words, verdicts, np.zeros(VERDICTS, np.int64)):
            asked = np.flatnonzero(verdicts == ASK_GUARD)
            allowed = guard[asked] == AuthVerdict.ALLOWED
            self._go_by_lists(headers["stream_id"][asked], headers["origin_hash"][asked], allowed)
            verdicts[asked] = np.where(allowed, 0, DropReason.UNAUTHORIZED_PUBLISHER)
        return verdicts

    def _go_by_lists(
        self, streams: NDArray[np.uint64], origins: NDArray[np.uint64], allowed: NDArray[np.bool_]
    ) -> None:
        """Overwrite `allowed` for the channels that list their publishers."""
        for channel in self.channels:
            if channel.publishers is not None:
                mine = np.flatnonzero(streams == np.uint64(ChannelName(channel.name).stream_id))
                allowed[mine] = np.isin(origins[mine], np.array(channel.publishers, np.uint64))


def _rule(channel: ChannelPolicy, name: ChannelName) -> ChannelRule:
    return ChannelRule(
        canonical=name.hash,
        visibility=_VISIBILITY[channel.visibility],
        enforced=channel.enforced,
        exports=tuple(SubnetId(subnet) for subnet in channel.exports),
    )
