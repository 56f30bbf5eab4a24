"""The policy of a gateway as a value that can be stored with recorded packets and applied to them again.

A verdict depends on the packet, its subnets, the answer of the auth guard, and this policy. `SubnetGateway.snapshot`
returns it, `words` is the form that the kernel of policy/verdict.py reads, and `judge_again` applies it to recorded
columns: with the policy of the recording it returns exactly the recorded verdicts.

A packet carries only a hash of its channel's name, so a rule by prefix applies to the channels whose names are known:
`names` holds those that the gateway had learned. A name that is configured by itself wins over learned ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName, hash_name
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
    """The rules of a gateway for one channel, or for all channels with a prefix."""

    name: str
    """The name of the channel, or the prefix."""
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
    """Whether publications on channels without a rule are forwarded."""
    channels: tuple[ChannelPolicy, ...] = ()
    """Rules by name."""
    prefixes: tuple[ChannelPolicy, ...] = ()
    """Rules by prefix; the longest one applies."""
    names: tuple[str, ...] = ()
    """Names of channels that the gateway learned; without rules by prefix they are not needed."""

    def rule_of(self, name: str) -> ChannelPolicy | None:
        """Return the rule for a channel, whether or not its name was learned: its own, or that of the longest prefix."""
        own = next((channel for channel in self.channels if channel.name == name), None)
        return own or self._by_prefix(name, self._longest_first())

    def resolved(self) -> dict[int, ChannelPolicy | None]:
        """Return the rule of each stream id whose channel is known, or None if two names share the stream id."""
        configured = _by_stream(self.channels)
        if not self.prefixes:
            return configured
        prefixes = self._longest_first()
        # A name without a rule is resolved too: it is known that no prefix matches it.
        rest = ChannelPolicy("", Visibility.GLOBAL if self.forward_unknown else Visibility.SUBNET_LOCAL)
        learned = [
            self._by_prefix(name, prefixes) or msgspec.structs.replace(rest, name=name)
            for name in dict.fromkeys(self.names)
        ]
        # What is configured wins: whoever can find a second name with the same hash must not change its rule.
        return _by_stream(learned) | configured

    def streams(self) -> dict[int, ChannelName | None]:
        """Return the channel of each stream id, or None if two names share it, because a packet does not show which."""
        return {
            stream: None if channel is None else ChannelName(channel.name)
            for stream, channel in self.resolved().items()
        }

    def rules(self) -> dict[int, ChannelRule]:
        """Return the rule of each stream id; if two names share it, the rule is that of a SUBNET_LOCAL channel."""
        # Fail closed: a stream id that does not tell the channel must not choose the more permissive rule.
        return {
            stream: ChannelRule(0, LOCAL) if channel is None else _rule(channel)
            for stream, channel in self.resolved().items()
        }

    def publishers(self) -> dict[int, tuple[int, ...]]:
        """Return the lists of publishers by stream id, of the channels that have one."""
        return {
            stream: channel.publishers
            for stream, channel in self.resolved().items()
            if channel is not None and channel.publishers is not None
        }

    @property
    def unknown_verdict(self) -> int:
        """The verdict on publications on channels that are not known: 0 to forward, or the code of a drop reason."""
        # A channel without a known name may have any of the rules by prefix, so only the mildest of them decides.
        if self.prefixes and not (self.forward_unknown and all(map(_is_open, self.prefixes))):
            return DropReason.UNRESOLVED_CHANNEL
        return 0 if self.forward_unknown else DropReason.SUBNET_LOCAL

    def words(self) -> NDArray[np.uint64]:
        """Return the policy in the form that the kernel reads."""
        # GLOBAL is always known and needs no entry (policy/verdict.py).
        known = {self.local_subnet, *self.peer_subnets}
        return build_policy(self.rules(), known, unknown_verdict=self.unknown_verdict)

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
        for stream, publishers in self.publishers().items():
            mine = np.flatnonzero(streams == np.uint64(stream))
            allowed[mine] = np.isin(origins[mine], np.array(publishers, np.uint64))

    def _longest_first(self) -> list[ChannelPolicy]:
        return sorted(self.prefixes, key=lambda rule: -len(rule.name))

    @staticmethod
    def _by_prefix(name: str, longest_first: Iterable[ChannelPolicy]) -> ChannelPolicy | None:
        # policy.md §2.2: the longest prefix wins, by characters.
        found = next((rule for rule in longest_first if name.startswith(rule.name)), None)
        return None if found is None else msgspec.structs.replace(found, name=name)


def _by_stream(channels: Iterable[ChannelPolicy]) -> dict[int, ChannelPolicy | None]:
    found: dict[int, ChannelPolicy | None] = {}
    for channel in channels:
        # Not by ChannelName, which checks the name again: a gateway with many names does this once a second.
        stream = hash_name(channel.name) | PUBLISH_STREAM_BIT
        # policy.md §1.2: names whose hashes differ only in bit 48 share a stream id.
        found[stream] = None if stream in found else channel
    return found


def _is_open(rule: ChannelPolicy) -> bool:
    return rule.visibility is Visibility.GLOBAL and not rule.enforced


def _rule(channel: ChannelPolicy) -> ChannelRule:
    return ChannelRule(
        canonical=hash_name(channel.name),
        visibility=_VISIBILITY[channel.visibility],
        enforced=channel.enforced,
        exports=tuple(SubnetId(subnet) for subnet in channel.exports),
    )
