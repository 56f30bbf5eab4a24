"""Admission of subscribers: keeps the roster and the auth guard in line with the decisions of authorize.py.

A peer that may subscribe is added to the roster and, as (node id, channel), to the guard; it leaves both together.
Before it is judged, it must not be throttled (too many refusals in a short time) nor be in too many channels
(policy.md §4.4). Every refusal is counted under "refuse"; those that the peer could have avoided count in the throttle.

Decisions are not permanent. A peer is checked again when its claims change, and every 30 s (`tick`); tokens also at each
publish (`filter`, policy.md §4.6):

    channel not visible from the peer's subnet     the subscription stays, but gets no events until it is visible again
    token expired or revoked                       no events from the next publish on; removed from the roster at the
                                                   next tick
    capabilities no longer match, or the channel   removed from the roster
    is no longer configured
    its key was revoked                            removed from the roster at once

The 0.23 wire has no message that tells a subscriber about any of this. The decisions are in engine/channels/authorize.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

import msgspec

from meshbus.engine.base.notices import PeerFailed, PeerGone, Subscribed, Unsubscribed
from meshbus.engine.base.packets import Output
from meshbus.engine.channels.authorize import Authorizer, ack_of
from meshbus.engine.channels.roster import BROADCAST, SubscriberRoster
from meshbus.engine.session.peer import Peer, PeerClaims
from meshbus.engine.session.service import Context, Service
from meshbus.engine.settings import MAX_CHANNELS_PER_PEER
from meshbus.engine.streams.joined import Request
from meshbus.names.channel import ChannelName
from meshbus.policy.bound import Bound, By
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.policy.guard import AuthGuard, AuthVerdict
from meshbus.policy.limits import FailureThrottle
from meshbus.policy.reason import Reason
from meshbus.policy.tokens import Presented
from meshbus.wire.messages.membership import AckReason

MIN_SWEEP_INTERVAL_S = 1.0
"""Shortest interval between two checks of all subscriptions (policy.md §4.6: an interval of 0 means 1 s)."""
MIN_REBUILD = 1024
"""Revocations after which the bloom filter of the guard is rebuilt, if they also outnumber its entries. Our choice:
nothing in policy.md §3.2 rebuilds it, and the false positives would only grow."""

# policy.md §4.4: only these two count as failures in the throttle.
_AGAINST_PEER = frozenset({AckReason.UNAUTHORIZED, AckReason.UNKNOWN_CHANNEL})


BOUNDS = (
    Bound(
        name="subscriptions",
        what="channels that a peer subscribes to",
        by=By.PEER,
        per_node=None,
        per={"peer": MAX_CHANNELS_PER_PEER},
        full="the request is refused",
        counter=Reason.REFUSE_TOO_MANY_CHANNELS,
    ),
)


class Ending(StrEnum):
    """Why a subscription ended, if neither a check (then a LAPSE reason) nor the loss of the peer ended it."""

    ASKED = "asked"
    """The peer unsubscribed."""
    CANCELED = "canceled"
    """The interest that created the subscription ended."""
    CLOSED = "closed"
    """This node no longer publishes the channel."""


class Lapse(msgspec.Struct, frozen=True):
    """A subscription that a later check ended."""

    node_id: int
    channel: ChannelName
    why: Reason


class Admission(Service):
    """The subscribers of this node's channels: adds them, checks them again, and removes them."""

    def __init__(self, context: Context, throttle: FailureThrottle[int] | None = None) -> None:
        """Start with an empty roster."""
        self.authorizer = Authorizer(context)
        self.roster = SubscriberRoster()
        self.guard = AuthGuard()
        self.on_lapse: Callable[[list[Lapse], Output], None] = lambda _lapses, _out: None
        """Called with the subscriptions that a later check ended."""
        self._revoked = context.revocations
        self._peers = context.peers
        self._counters = context.counters
        self._throttle = (
            FailureThrottle[int](forget=self._counters.forgetting("failures")) if throttle is None else throttle
        )
        self._max_channels = context.settings.max_channels_per_peer
        self._sweep_interval_s = context.settings.token_sweep_s
        """Interval between checks of all subscriptions; with None, tokens are checked only when publishing."""
        self._sweep_at: float | None = None

    def subscribe(
        self,
        peer: Peer,
        channel: ChannelName,
        now: float,
        out: Output,
        *,
        token: bytes = b"",
        queue_group: str = BROADCAST,
    ) -> Reason | None:
        """Handle a subscribe request of a peer, and return the reason to refuse it, or None if it was accepted."""
        if self.throttled(peer, now):
            return Reason.REFUSE_THROTTLED
        return self._note(peer, self.admit(peer, channel, now, out, token=token, queue_group=queue_group), now)

    def vet(self, peer: Peer, channel: ChannelName, now: float, *, token: bytes = b"") -> Reason | None:
        """Return the reason to refuse a peer that wants to read a channel without a subscription, or None.

        The checks are those of a subscribe request, throttle included.
        """
        if self.throttled(peer, now):
            return Reason.REFUSE_THROTTLED
        refusal = self._judge_right(peer, channel, token, now)
        if refusal is not None:
            self._counters.count(refusal)
        return self._note(peer, refusal, now)

    def may_request(self, peer: Peer, channel: ChannelName, now: float) -> AckReason:
        """Return the reason to refuse a request on a channel, or AckReason.NONE.

        A requester sends and receives on the channel, so it must be allowed to subscribe and to publish (profile.md §7).
        """
        refusal = self._judge_right(peer, channel, None, now)
        if refusal is not None:
            return ack_of(refusal)
        return AckReason.NONE if self.may_publish(peer, channel, now) else AckReason.UNAUTHORIZED

    def may_publish(self, peer: Peer, channel: ChannelName, now: float) -> bool:
        """Return whether a peer may publish on a channel through this node."""
        if peer.node_id in self._revoked.publishers:
            self._counters.count(Reason.REFUSE_REVOKED)
            return False
        return self.authorizer.can_publish(peer.claims, channel, now)

    def lapse(self, node_id: int, channel: ChannelName, now: float) -> Reason | None:
        """Return the reason why a peer may no longer get the events of a channel, or None."""
        if node_id in self._revoked.subscribers:
            return Reason.LAPSE_REVOKED
        return self.authorizer.lapse(self._claims(node_id), channel, now)

    def _note(self, peer: Peer, refusal: Reason | None, now: float) -> Reason | None:
        """Record the outcome in the throttle, and return it."""
        if refusal is None:
            self.note_success(peer)
        elif ack_of(refusal) in _AGAINST_PEER:
            self.note_failure(peer, now)
        return refusal

    def throttled(self, peer: Peer, now: float) -> bool:
        """Return whether a peer was refused too often lately; if so, count one more refusal."""
        throttled = self._throttle.throttled(peer.node_id, now)
        if throttled:
            self._counters.count(Reason.REFUSE_THROTTLED)
        return throttled

    def note_success(self, peer: Peer) -> None:
        """Clear the failures of a peer in the throttle."""
        self._throttle.succeed(peer.node_id)

    def note_failure(self, peer: Peer, now: float) -> None:
        """Record a failure of a peer in the throttle."""
        self._throttle.fail(peer.node_id, now)

    def admit(
        self,
        peer: Peer,
        channel: ChannelName,
        now: float,
        out: Output,
        *,
        token: bytes | Presented | None = None,
        queue_group: str = BROADCAST,
        request: Request = None,
    ) -> Reason | None:
        """Judge one subscription without the throttle, and add the peer to the channel if it passes."""
        refusal = self._judge(peer, channel, token, now)
        if refusal is not None:
            self._counters.count(refusal)
            return refusal
        # policy.md §3.1: the key of the guard is the full node id of the subscriber, not its origin hash.
        self.guard.allow_channel(peer.node_id, channel)
        if self.roster.add(channel, peer.node_id, queue_group, request=request):
            out.control.append(Subscribed(peer.node_id, channel, queue_group))
        if self._sweep_at is None:
            self._schedule_sweep(now)
        return None

    def release(
        self, node_id: int, channel: ChannelName, out: Output, *, request: Request = None, why: str = Ending.ASKED
    ) -> bool:
        """End one request of a peer for a channel, and return whether that ended its subscription."""
        gone = self.roster.release(channel, node_id, request=request)
        if gone:
            self._left(node_id, channel, why, out)
        return gone

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Keep the subscriptions of a peer that goes on under another id."""
        for channel in self.roster.rename(old, new):
            self.guard.revoke_channel(old, channel)
            self.guard.allow_channel(new, channel)

    def became(self, old: int, now: float, out: Output) -> None:
        """Publish under the new key of this node."""
        self.authorizer.became()

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """Remove a peer that failed or is gone from every channel."""
        for channel in self.roster.remove_peer(down.node_id):
            self._left(down.node_id, channel, down.reason, out)

    def channels_configured(self, registry: ChannelConfigRegistry | None, now: float, out: Output) -> None:
        """Install channel configurations, and check every subscription against them."""
        self.authorizer.registry = registry
        self._recheck(self.roster.peers(), now, out)

    def claims_changed(self, peer: Peer, now: float, out: Output) -> None:
        """Check the subscriptions of a peer whose claims changed."""
        self._recheck([peer.node_id], now, out)

    def next_timer(self) -> float | None:
        """Return the time of the next check of all subscriptions, or None."""
        return self._sweep_at

    def tick(self, now: float, out: Output) -> None:
        """Check all subscriptions if that is due."""
        if self._sweep_at is not None and now >= self._sweep_at:
            self.tokens_changed(now, out)

    def tokens_changed(self, now: float, out: Output) -> None:
        """Check all subscriptions, remove expired tokens, and rebuild the guard if it holds too many revoked pairs."""
        self._recheck(self.roster.peers(), now, out)
        self.authorizer.evict_expired(now)
        # policy.md §3.2: revoking leaves bits in the bloom filter, so that revoked pairs need the full check.
        if self.guard.revocations_since_rebuild > max(MIN_REBUILD, len(self.guard)):
            self.guard.rebuild_bloom()
        self._schedule_sweep(now)

    def filter(  # hot: bench_publish
        self, node_id: int, channel: ChannelName, canonical: int, config: ChannelConfig | None, now: float
    ) -> Reason | None:
        """Return the reason to leave a subscriber out of a publish, or None.

        `canonical` is the hash of the channel name and `config` its configuration; callers pass both, because they need
        them only once per publish.
        """
        if not self.authorizer.sees(self._claims(node_id), config):
            return Reason.FILTER_NOT_VISIBLE
        guard = self.guard
        verdict = guard.check_fast(node_id, canonical)
        # policy.md §3.2: an allowed hash is confirmed by the exact name, because another name may have the same hash.
        if verdict is AuthVerdict.DENIED or not guard.is_authorized_full(node_id, channel):
            return Reason.FILTER_NOT_AUTHORIZED
        if verdict is AuthVerdict.NEEDS_FULL_CHECK:
            guard.authorize(node_id, canonical)
        if config is None or not config.require_token:
            return None
        if self.authorizer.holds_token(self._claims(node_id), channel, now):
            return None
        # policy.md §4.6: the expiry takes effect at once in the guard; the roster entry goes with the next check.
        guard.revoke_channel(node_id, channel)
        self._hurry_sweep(now)
        return Reason.FILTER_TOKEN

    def _judge(self, peer: Peer, channel: ChannelName, token: bytes | Presented | None, now: float) -> Reason | None:
        full = self.roster.count(peer.node_id) >= self._max_channels
        # policy.md §4.4: a peer at its limit may still renew a subscription that it has.
        if full and self.roster.group_of(channel, peer.node_id) is None:
            return Reason.REFUSE_TOO_MANY_CHANNELS
        return self._judge_right(peer, channel, token, now)

    def _judge_right(
        self, peer: Peer, channel: ChannelName, token: bytes | Presented | None, now: float
    ) -> Reason | None:
        # By the node id, which every session has: a peer that announced nothing has no other name.
        if peer.node_id in self._revoked.subscribers:
            return Reason.REFUSE_REVOKED
        return self.authorizer.judge(peer.claims, channel, now, token)

    def _recheck(self, node_ids: Iterable[int], now: float, out: Output) -> None:
        lapses = [lapse for node_id in node_ids for lapse in self._lapses(node_id, now)]
        for lapse in lapses:
            self.roster.remove(lapse.channel, lapse.node_id)
            self._left(lapse.node_id, lapse.channel, lapse.why.why, out)
            self._counters.count(lapse.why)
        self.on_lapse(lapses, out)

    def _lapses(self, node_id: int, now: float) -> Iterator[Lapse]:
        for channel in self.roster.channels_of(node_id):
            why = self.lapse(node_id, channel, now)
            if why is not None:
                yield Lapse(node_id, channel, why)

    def _left(self, node_id: int, channel: ChannelName, why: str, out: Output) -> None:
        # A 0.23 node keeps the guard entries of a failed peer (policy.md §5.1). Here they go, so that the guard holds
        # exactly what the roster holds.
        self.guard.revoke_channel(node_id, channel)
        out.control.append(Unsubscribed(node_id, channel, str(why)))

    def _schedule_sweep(self, now: float) -> None:
        if self._sweep_interval_s is None or not len(self.roster):
            self._sweep_at = None
        else:
            self._sweep_at = now + max(self._sweep_interval_s, MIN_SWEEP_INTERVAL_S)

    def _hurry_sweep(self, now: float) -> None:
        if self._sweep_at is not None:
            self._sweep_at = min(self._sweep_at, now)

    def _claims(self, node_id: int) -> PeerClaims:
        peer = self._peers.get(node_id)
        return PeerClaims() if peer is None else peer.claims
