"""A gateway's policy as a value: what can be written down with a record, and judged by again.

Verdicts depend on the packet, its subnets, what the auth guard said, and this. `SubnetGateway.snapshot` gives it,
`words` is what the kernel of policy/verdict.py reads, and `judge_again` repeats verdicts over recorded columns: under the
policy that was in force it gives exactly what was recorded.
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
    """What a gateway goes by for one channel."""

    name: str
    visibility: Visibility
    enforced: bool = False
    """Only publishers that the auth guard allows."""
    exports: tuple[int, ...] = ()
    """Subnets that it may reach, when it is exported."""
    publishers: tuple[int, ...] | None = None
    """Origin hashes that the auth guard allows, where they are listed; None where only its recorded answer tells."""


class GatewayPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway goes by."""

    local_subnet: int
    peer_subnets: tuple[int, ...] = ()
    forward_unknown: bool = False
    """Publications on channels that are not listed pass."""
    channels: tuple[ChannelPolicy, ...] = ()

    def streams(self) -> dict[int, ChannelName | None]:
        """Return the channel of each stream id; None where two names share one, so that a packet cannot say which."""
        found: dict[int, ChannelName | None] = {}
        for channel in self.channels:
            name = ChannelName(channel.name)
            found[name.stream_id] = None if name.stream_id in found else name
        return found

    def rules(self) -> dict[int, ChannelRule]:
        """Return the rule of each stream id; where two names share one it is that of a channel that stays local."""
        streams = self.streams()
        found: dict[int, ChannelRule] = {}
        for channel in self.channels:
            name = ChannelName(channel.name)
            known = streams[name.stream_id] is not None
            found[name.stream_id] = _rule(channel, name) if known else ChannelRule(0, LOCAL)
        return found

    def words(self) -> NDArray[np.uint64]:
        """Lay the policy out for the kernel."""
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
        """Judge recorded packets: 0 for forward, else a DropReason.

        `ttl` is that of the routing headers, `guard` the AuthVerdict codes that were recorded. Where this policy asks
        the guard, the list of the channel's publishers decides, if it has one; else what was recorded, and a packet on
        which the guard was not heard counts as not allowed. Who judges many batches keeps `words` and passes them.
        """
        verdicts = np.empty(len(headers), np.uint8)
        rows = np.ascontiguousarray(headers).view(np.uint8)
        words = self.words() if words is None else words
        if judge.run(rows, source, dest, ttl, words, verdicts, np.zeros(VERDICTS, np.int64)):
            asked = np.flatnonzero(verdicts == ASK_GUARD)
            allowed = guard[asked] == AuthVerdict.ALLOWED
            self._go_by_lists(headers["stream_id"][asked], headers["origin_hash"][asked], allowed)
            verdicts[asked] = np.where(allowed, 0, DropReason.UNAUTHORIZED_PUBLISHER)
        return verdicts

    def _go_by_lists(
        self, streams: NDArray[np.uint64], origins: NDArray[np.uint64], allowed: NDArray[np.bool_]
    ) -> None:
        """Decide by the publishers of the channels that list them."""
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
