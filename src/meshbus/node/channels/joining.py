"""Subscribing at publishers: which peers are asked for what the local subscriptions want, with which token, and when.

Peers are asked when a subscription starts, and those that connect later when their session is up. A peer that does not
answer is asked again for as long as it is there. Nothing waits for peers whose heartbeats are missing. Every answer is
recorded in the subscriptions that it concerns. When no local subscription wants a topic from a publisher any more, this
node unsubscribes there. Which local subscription gets an event is decided in node/channels/subscribers.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from math import inf

from meshbus.engine.base.batch import EventBatch
from meshbus.engine.base.notices import Acked, Control, Matched
from meshbus.engine.base.packets import Output
from meshbus.engine.base.renaming import move
from meshbus.engine.core import Engine
from meshbus.engine.session.negotiate import SETTLE_S
from meshbus.engine.session.peer import Health, Peer
from meshbus.errors import ChannelError, ChannelFault, PeerError, PeerFault, Timeout
from meshbus.names.channel import ChannelName, prefixes_of
from meshbus.node.channels.subscribers import Subscribers, SubscriptionSpec
from meshbus.node.channels.subscription import Subscription
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.live import Live
from meshbus.node.driving.waiting import GONE, Kind, answered
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.membership import AckReason
from meshbus.wire.messages.token import PermissionToken, Scope, encode_chain


class Joiner:
    """Subscribes at publishers on behalf of local subscriptions."""

    def __init__(self, live: Live, subscribers: Subscribers, tokens: Sequence[tuple[PermissionToken, ...]]) -> None:
        """Set up; `tokens` are the chains that the node holds, and may grow."""
        self._live = live
        self._subscribers = subscribers
        self._tokens = tokens
        self._interests: dict[str, list[tuple[int, int]]] = {}
        """By prefix: the publishers that were asked, with the number of the request."""
        self._unanswered: dict[int, float] = {}
        """When a peer last let a request time out, by node id."""

    # ── one channel of one publisher ────────────────────────────────────────────────────────

    async def subscribe(self, publisher: int, channel: ChannelName, token: bytes, queue_group: str) -> None:
        """Subscribe to one channel of one peer, and wait for the answer."""
        await self._live.peer(publisher)

        def ask(engine: Engine, now: float, out: Output) -> int:
            return engine.subscribe(publisher, channel, now, out, token=token, queue_group=queue_group)

        self._check(await self._live.begin(Kind.ACK, ask))

    async def unsubscribe(self, publisher: int, channel: ChannelName) -> None:
        """End a subscription to one channel of one peer, and wait for the answer."""
        self._check(
            await self._live.begin(Kind.ACK, lambda engine, now, out: engine.unsubscribe(publisher, channel, now, out))
        )

    # ── local subscriptions ─────────────────────────────────────────────────────────────────

    async def start(self, subscription: Subscription, spec: SubscriptionSpec) -> None:
        """Add a subscription, and ask every peer that may publish what it wants; raise if there are peers and all refuse."""
        if spec.is_prefix or self._needs_profile(spec):
            await self._live.settled(SETTLE_S)  # a peer that has just connected may not have agreed on prefixes yet
        self._subscribers.add(spec, subscription)
        try:
            await self._ask_all(subscription, spec)
        except BaseException:
            await self.stop(subscription)  # some peers may have been asked already
            raise

    async def stop(self, subscription: Subscription) -> None:
        """Remove a subscription, and unsubscribe from what no other local subscription wants."""
        spec = self._subscribers.remove(subscription)
        if spec is not None:
            self._live.act(lambda engine, now, out: self._leave(spec, engine, now, out))

    def hold(self, subscription: Subscription, batch: EventBatch | None) -> None:
        """Stop granting credit for the stream of a batch, or without one for nothing that the subscription held.

        A stream is held as long as at least one subscription holds it.
        """
        streams, now = self._live.engine.streams, Driver.now()
        if batch is not None:
            self._subscribers.hold(subscription, batch)
            streams.hold(batch.publisher, batch.stream_id, now, held=True)
        else:
            for node_id, stream_id in self._subscribers.release(subscription):
                streams.hold(node_id, stream_id, now, held=False)
            self._live.tick()  # grants the credit that was withheld

    # ── peers that connect later ────────────────────────────────────────────────────────────

    def session_up(self, node_id: int) -> None:
        """Ask a new peer for the channels that every peer is asked for."""
        self._ask_again(node_id, [spec for spec in self._subscribers.specs_for(node_id) if not spec.is_prefix])

    def agreed(self, node_id: int) -> None:
        """Ask a peer that now speaks the profile for the prefixes that it was not asked for yet."""
        for spec in self._subscribers.specs_for(node_id):
            asked = {publisher for publisher, _ in self._interests.get(spec.topic, ())}
            if spec.is_prefix and node_id not in asked:
                self._follow(spec, node_id, explicit=False)
            elif self._needs_profile(spec):
                self._ask_again(node_id, [spec])  # now that it is known to read such tokens

    def ask_again(self, node_id: int, topic: str) -> None:
        """Ask a peer once more for a channel that it had refused, without waiting for the answer."""
        self._ask_again(node_id, [spec for spec in self._subscribers.specs_for(node_id) if spec.topic == topic])

    def plain(self, node_id: int) -> None:
        """Record that a peer gets no prefixes: they belong to the profile, which it does not use."""
        for spec in self._subscribers.specs_for(node_id):
            if spec.is_prefix:
                for subscription in self._subscribers.asking(spec.topic, node_id):
                    self._no_prefixes(subscription, spec, node_id)

    def recovered(self, node_id: int) -> None:
        """Ask a peer that had failed for everything again."""
        self.session_up(node_id)
        self.agreed(node_id)

    def renamed(self, old: int, new: int) -> None:
        """Continue with a publisher that has another id."""
        move(self._unanswered, old, new)
        self._interests = {
            topic: [(new if node_id == old else node_id, request) for node_id, request in asked]
            for topic, asked in self._interests.items()
        }
        self._subscribers.rename(old, new)

    def peer_gone(self, node_id: int) -> None:
        """Remove the answers of a peer; it is asked again when it is back."""
        self._unanswered.pop(node_id, None)
        for subscription in self._subscribers.subscriptions():
            subscription.forget(node_id)

    # ── answers ─────────────────────────────────────────────────────────────────────────────

    def acked(self, event: Acked) -> None:
        """Record the answer of a publisher in the subscriptions to its channel; ask again if there was none."""
        node_id, channel, engine = event.node_id, event.channel, self._live.engine
        if event.gone:
            return
        self._note_answer(node_id, timed_out=event.timed_out)
        wanted = [spec for spec in self._subscribers.specs_for(node_id) if spec.topic == channel]
        joined = event.accepted and engine.joined.holds(node_id, channel)  # not if it answers an unsubscribe
        for subscription in self._subscribers.asking(channel, node_id):
            if joined:
                subscription.accept(node_id)
            elif event.accepted:
                subscription.forget(node_id)
            else:
                subscription.refuse(node_id, channel, _reason(event.reason, timed_out=event.timed_out))
        if event.timed_out and self._may_answer(node_id):
            self._ask_again(node_id, wanted)

    def matched(self, event: Matched) -> None:
        """Record what a publisher said about the channels under a prefix; ask again if it said nothing."""
        node_id, request = event.node_id, (event.node_id, event.request)
        if not event.gone:
            self._note_answer(node_id, timed_out=event.timed_out)
        for topic in [topic for topic, asked in self._interests.items() if request in asked]:
            if event.gone or event.timed_out:
                self._interests[topic].remove(request)
            for subscription in self._subscribers.asking(topic, node_id):
                if event.timed_out:
                    subscription.refuse(node_id, topic, _reason(AckReason.NONE, timed_out=True))
                elif not event.gone:
                    subscription.accept(node_id)
                    for channel in (*event.added, *event.removed):
                        subscription.allow(node_id, channel)
                    for channel, reason in event.refused:
                        subscription.refuse(node_id, channel, _reason(reason))
        if event.timed_out and self._may_answer(node_id):
            self.agreed(node_id)

    # ── tokens ──────────────────────────────────────────────────────────────────────────────

    def tokens_for(self, spec: SubscriptionSpec, node_id: int | None = None) -> list[bytes]:
        """Return what to present to a peer for a spec, in the order to try; without a peer, to one that uses the profile.

        A refusal counts against us, so only tokens that can help are presented. A net-mesh 0.23 node does not read
        chains but accepts their last token alone. It is not shown tokens for prefixes, which it does not know.
        """
        if spec.token is not None:
            return [spec.token]
        peer = None if node_id is None else self._live.engine.peers.get(node_id)
        reads_prefixes = node_id is None or (peer is not None and bool(peer.negotiated.compatible))
        presented: list[bytes] = []
        for chain in self._helping(spec):
            if reads_prefixes or not chain[-1].is_prefix:
                presented += [encode_chain(chain), encode_chain(chain[-1:])][: len(chain)]
        return presented or [b""]

    def _helping(self, spec: SubscriptionSpec) -> list[tuple[PermissionToken, ...]]:
        """Return the chains of this node that permit what a spec asks for; for a prefix, those that permit all of it."""
        engine = self._live.engine
        mine = [chain for chain in self._tokens if engine.tokens.names(chain[-1], engine.identity.entity_id)]
        if not spec.is_prefix:
            return [chain for chain in mine if chain[-1].authorizes(Scope.SUBSCRIBE, ChannelName(spec.topic))]
        above = prefixes_of(spec.topic)
        return [
            chain
            for chain in mine
            if chain[-1].is_prefix and chain[-1].allows(Scope.SUBSCRIBE) and chain[-1].channel_hash in above
        ]

    def _needs_profile(self, spec: SubscriptionSpec) -> bool:
        """Return whether a token for a prefix would help, which only peers with the profile are shown."""
        return spec.token is None and any(chain[-1].is_prefix for chain in self._helping(spec))

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    async def _ask_all(self, subscription: Subscription, spec: SubscriptionSpec) -> None:
        peers = self._live.engine.peers
        if spec.publisher is not None:
            self._require_heard(await self._live.peer(spec.publisher))
        else:
            await self._live.proved()
        wanted = [peer for peer in peers if spec.asks(peer.node_id)]
        for peer in wanted:
            if not self._is_heard(peer):
                self._ask_silent(subscription, spec, peer.node_id)
        asked = [peer.node_id for peer in wanted if self._is_heard(peer)]
        asks: list[Awaitable[None]]
        if spec.is_prefix:
            for node_id in asked:
                if self._live.engine.negotiator.counts_as_plain(peers.require(node_id)):
                    self._no_prefixes(subscription, spec, node_id)
            asks = [
                answered(report, self._timeout_s)
                for node_id in asked
                if (report := self._follow(spec, node_id, explicit=spec.publisher is not None)) is not None
            ]
        else:
            asks = [self._ask(node_id, spec) for node_id in asked]
        # One publisher is enough: others may refuse because they do not publish the channel.
        outcomes = await asyncio.gather(*asks, return_exceptions=True)
        refusals = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if refusals and len(refusals) == len(outcomes):
            raise refusals[0]

    async def _ask(self, node_id: int, spec: SubscriptionSpec) -> None:
        """Subscribe at one peer, with each of our tokens until one is accepted."""
        tokens = self.tokens_for(spec, node_id)
        for number, token in enumerate(tokens):
            try:
                await self.subscribe(node_id, ChannelName(spec.topic), token, spec.queue_group)
            except ChannelError:
                if number + 1 == len(tokens):
                    raise
            else:
                return

    def _ask_silent(self, subscription: Subscription, spec: SubscriptionSpec, node_id: int) -> None:
        """Ask a peer whose heartbeats are missing, and do not wait; an answer after all is recorded when it comes."""
        subscription.refuse(node_id, spec.topic, "silent")
        if spec.is_prefix:
            self._follow(spec, node_id, explicit=False)
        else:
            self._ask_again(node_id, [spec])

    def _no_prefixes(self, subscription: Subscription, spec: SubscriptionSpec, node_id: int) -> None:
        subscription.refuse(node_id, spec.topic, Reason.REFUSE_SUBSCRIBE_NO_PREFIXES.why)
        self._live.engine.counters.count(Reason.REFUSE_SUBSCRIBE_NO_PREFIXES)

    def _ask_again(self, node_id: int, specs: list[SubscriptionSpec]) -> None:
        """Ask a peer for channels, without waiting for the answers."""

        def ask(engine: Engine, now: float, out: Output) -> None:
            for spec in specs:
                token, *_ = self.tokens_for(spec, node_id)  # the best one: nothing waits here to try another
                engine.subscribe(node_id, ChannelName(spec.topic), now, out, token=token, queue_group=spec.queue_group)

        if specs and self._live.engine.peers.get(node_id) is not None:  # it may have left in the same batch of packets
            self._live.act(ask)

    def _note_answer(self, node_id: int, *, timed_out: bool) -> None:
        if timed_out:
            self._unanswered[node_id] = Driver.now()
        else:
            self._unanswered.pop(node_id, None)

    def _may_answer(self, node_id: int) -> bool:
        """Return whether it makes sense to ask a peer again now; one that failed is asked when it recovers."""
        peer = self._live.engine.peers.get(node_id)
        # mesh.md §2.2: a 0.23 node behind a relay is never heard, because it cannot send through it.
        return peer is not None and peer.health is not Health.FAILED and peer.link.seen > 0

    def _is_heard(self, peer: Peer) -> bool:
        """Return whether an answer of a peer is worth waiting for."""
        # A peer that let a request time out is waited for again when its next heartbeat has come.
        return peer.health is Health.ALIVE and self._unanswered.get(peer.node_id, -inf) <= peer.heard_at

    def _require_heard(self, peer: Peer) -> None:
        if not self._is_heard(peer):
            problem = "its heartbeats are missing, so it would not answer; try again when it is back"
            raise PeerError(PeerFault.FAILED, peer.node_id, problem)

    def _follow(self, spec: SubscriptionSpec, node_id: int, *, explicit: bool) -> asyncio.Future[Control] | None:
        """Ask one publisher for a prefix; None if it does not support prefixes, unless it was named explicitly."""
        peer = self._live.engine.peers.get(node_id)
        if not explicit and (peer is None or not peer.uses(Subprotocol.INTEREST)):
            return None

        def ask(engine: Engine, now: float, out: Output) -> int:
            token, *_ = self.tokens_for(spec, node_id)
            request = engine.interest(node_id, spec.topic, now, out, token=token, queue_group=spec.queue_group)
            self._interests.setdefault(spec.topic, []).append((node_id, request))
            return request

        return self._live.begin(Kind.MATCH, ask)

    def _leave(self, spec: SubscriptionSpec, engine: Engine, now: float, out: Output) -> None:
        if spec.is_prefix:
            kept = []
            for node_id, request in self._interests.pop(spec.topic, ()):
                if self._subscribers.asking(spec.topic, node_id):
                    kept.append((node_id, request))
                else:
                    engine.following.unfollow(node_id, request, now, out)
            if kept:
                self._interests[spec.topic] = kept
            return
        channel = ChannelName(spec.topic)
        for peer in engine.peers:
            unwanted = not self._subscribers.asking(spec.topic, peer.node_id)
            if unwanted and spec.asks(peer.node_id) and engine.joined.holds(peer.node_id, channel):
                engine.unsubscribe(peer.node_id, channel, now, out)

    def _check(self, event: Control) -> None:
        """Raise the error that the answer to a subscribe or unsubscribe is, if it is one."""
        assert isinstance(event, Acked)
        if event.timed_out:
            raise Timeout(f"publisher {event.node_id:016x} on {str(event.channel)!r}", self._timeout_s)
        if event.gone:
            raise PeerError(PeerFault.FAILED, event.node_id, GONE)
        if not event.accepted:
            reason = _reason(event.reason)
            problem = f"publisher {event.node_id:016x} refused: {reason}"
            raise ChannelError(ChannelFault.REJECTED, event.channel, problem, reason=reason)

    @property
    def _timeout_s(self) -> float:
        return self._live.engine.settings.ack_timeout_s


def _reason(reason: AckReason, *, timed_out: bool = False) -> str:
    return "timeout" if timed_out else AckReason(reason).name.lower()
