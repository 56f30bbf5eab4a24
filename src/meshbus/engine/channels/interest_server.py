"""Interest (0x4D03), the publisher's side: subscribes peers to every channel of this node under a prefix.

Each channel under the prefix of an interest, now and when channels appear, is judged as if the peer had subscribed to
it (engine/channels/admission.py), and the peer gets the verdict in MATCHES. Further rules:

* Channels that are not visible from the peer's subnet are not named, so that a prefix cannot be used to list them.
* An interest counts once in the throttle: as a success if a channel was added, as a failure if all channels that may be
  named were refused.
* Messages may be lost, so a peer repeats its interest. Each repetition judges the channels that it lacks, answers for
  all, and renews the lease; an interest that is not repeated ends with its lease. A CANCEL is confirmed by an answer
  without matches.
* The work that one peer can cause is limited; an interest beyond the limit is dropped, and repeated by the peer.

All this is only for peers that negotiated the subprotocol. The subscriber's side is engine/channels/interest_client.py;
the messages are described in docs/wire/profile.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import PeerFailed, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.base.renaming import move, move_due, move_due_pairs
from meshbus.engine.channels.admission import Admission, Ending, Lapse
from meshbus.engine.channels.authorize import ack_of
from meshbus.engine.channels.interest_client import Following
from meshbus.engine.channels.local import LocalChannels
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.errors import RemoteProtocolError
from meshbus.names.channel import ChannelName
from meshbus.policy.bound import Bound, By
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.policy.limits import TokenBucket
from meshbus.policy.reason import Reason
from meshbus.policy.tokens import Presented
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Buffer
from meshbus.wire.messages.interest import (
    Cancel,
    Interest,
    Match,
    Matches,
    Verdict,
    decode_interest,
    encode_interest,
    split_matches,
)
from meshbus.wire.messages.membership import AckReason
from meshbus.wire.messages.token import TOKEN_BYTES

MAX_INTERESTS = 256
"""Interests of one peer. Our choice."""
LEASE_S = 100.0
"""How long an interest lasts without a repetition: it survives the loss of two refreshes, which come every 30 s."""
CHECKS_PER_S = 5_000.0
"""Channels judged per second for the interests of one peer. Our choice: about a hundredth of a core."""
CHECKS_AT_ONCE = 50_000
"""Channels judged in one burst. Our choice: ten seconds of the rate."""
RECHECK_S = 1.0
"""How long a check of a peer's interests is put off if the rate does not admit it. Our choice."""
TOKEN_CHECKS = 20
"""Channels whose judging costs as much as verifying one signature."""


BOUNDS = (
    Bound(
        name="interests",
        what="prefixes that a peer follows here",
        by=By.PEER,
        per_node=None,
        per={"peer": MAX_INTERESTS},
        full="the new one is refused",
        counter=Reason.REFUSE_TOO_MANY_INTERESTS,
    ),
)


class _AcceptedInterest:
    """One accepted interest of a peer."""

    __slots__ = ("held", "order", "presented")

    def __init__(self, order: Interest, presented: Presented | None) -> None:
        self.order = order
        self.presented = presented
        """Its token, verified once for all channels."""
        self.held: set[ChannelName] = set()
        """The channels to which it subscribed the peer."""


class _PeerInterests:
    """The interests of one peer, and the limit of the work for them."""

    __slots__ = ("rate", "standing")

    def __init__(self) -> None:
        self.standing: dict[int, _AcceptedInterest] = {}
        self.rate = TokenBucket(CHECKS_PER_S, CHECKS_AT_ONCE)


class Interests(Service):
    """The interests of peers, and the subscriptions that they create."""

    def __init__(self, context: Context, admission: Admission, following: Following) -> None:
        self.channels = LocalChannels()
        """The channels that this node publishes."""
        self._admission = admission
        self._following = following
        self._peers = context.peers
        self._counters = context.counters
        self._books: dict[int, _PeerInterests] = {}
        self._leases: Deadlines[tuple[int, int]] = Deadlines()
        self._rechecks: Deadlines[int] = Deadlines()
        """When the interests of a peer are judged again, where the rate did not admit it at once."""
        admission.on_lapse = self._lapsed

    def __len__(self) -> int:
        return len(self._leases)

    def receive(self, peer: Peer, message: Buffer, now: float, out: Output) -> None:
        """Handle one message of the subprotocol; answers go to the subscriber's side."""
        try:
            decoded = decode_interest(message)
        except RemoteProtocolError:
            self._counters.count(Reason.INTEREST_MALFORMED)
            return
        match decoded:
            case Interest():
                self._take_order(peer, decoded, now, out)
            case Cancel(req=req):
                # docs/wire/profile.md: an empty MATCHES confirms a CANCEL, also of an unknown interest: the first answer
                # may have been lost.
                self._end(peer.node_id, req, Ending.CANCELED, out)
                self._answer(peer, req, [], out)
            case Matches():
                self._following.on_matches(peer, decoded, now, out)

    def open_channel(self, channel: ChannelName, now: float, out: Output) -> None:
        """Add a channel that this node publishes."""
        if self.channels.open(channel):
            self._channel_appeared(channel, now, out)

    def close_channel(self, channel: ChannelName, out: Output) -> None:
        """Undo one `open_channel`."""
        if self.channels.close(channel):
            self._channel_vanished(channel, out)

    def _channel_appeared(self, channel: ChannelName, now: float, out: Output) -> None:
        """Subscribe the peers whose interests match a new channel, and tell them."""
        for node_id, book in self._books.items():
            peer = self._peers.get(node_id)
            if peer is None or not peer.uses(Subprotocol.INTEREST):
                continue
            for standing in book.standing.values():
                # profile.md §4: a prefix matches bytes, not segments.
                if channel.startswith(standing.order.prefix):
                    self._tell(peer, standing, self._judge(peer, standing, [channel], now, out), out)

    def _channel_vanished(self, channel: ChannelName, out: Output) -> None:
        """End the subscriptions that interests created for a channel that this node no longer publishes."""
        for node_id, book in self._books.items():
            for req, standing in book.standing.items():
                if channel in standing.held:
                    self._admission.release(node_id, channel, out, request=req, why=Ending.CLOSED)
                    self._take_away(node_id, standing, [channel], out)

    def channels_configured(self, registry: ChannelConfigRegistry | None, now: float, out: Output) -> None:
        """Handle new channel configurations: channels appear and vanish, and others become allowed.

        Admission runs before this service and has already ended what is no longer allowed.
        """
        _, vanished = self.channels.configure(registry)
        for channel in vanished:
            self._channel_vanished(channel, out)
        for node_id in list(self._books):
            peer = self._peers.get(node_id)
            if peer is not None:
                self.claims_changed(peer, now, out)

    def claims_changed(self, peer: Peer, now: float, out: Output) -> None:
        """Judge again the channels that a peer's interests lack, because its claims changed.

        A peer may announce other claims at any time, so this counts against its rate; what the rate does not admit is
        done later, once for all changes until then. Admission runs before this service and has already ended what is no
        longer allowed.
        """
        book = self._books.get(peer.node_id)
        if book is None or peer.node_id in self._rechecks:
            return
        cost = sum(1 + len(self.channels.under(one.order.prefix)) - len(one.held) for one in book.standing.values())
        if not book.rate.take(min(cost, CHECKS_AT_ONCE), now):
            self._rechecks.set(peer.node_id, now + RECHECK_S)
            self._counters.add("defer", "interest_check")
            return
        for standing in self._standing_of(peer.node_id):
            # The token may name an entity that was not known when the interest arrived.
            if standing.presented is None and standing.order.token:
                standing.presented = self._admission.authorizer.present(peer.claims, standing.order.token)
            missing = [name for name in self.channels.under(standing.order.prefix) if name not in standing.held]
            news = self._judge(peer, standing, missing, now, out)
            self._tell(peer, standing, [match for match in news if match.verdict is Verdict.ADDED], out)

    def _lapsed(self, lapses: list[Lapse], out: Output) -> None:
        """Tell peers which channels of their interests a check has ended."""
        for lapse in lapses:
            for standing in self._standing_of(lapse.node_id):
                if lapse.channel in standing.held:
                    self._take_away(lapse.node_id, standing, [lapse.channel], out)

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Keep the interests of a peer that goes on under another id."""
        move(self._books, old, new)
        move_due_pairs(self._leases, old, new)
        move_due(self._rechecks, old, new)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """Remove the interests of a peer that failed or is gone; admission has ended its subscriptions."""
        node_id = down.node_id
        book = self._books.pop(node_id, None)
        self._rechecks.drop(node_id)
        for req in book.standing if book is not None else ():
            self._leases.drop((node_id, req))

    def next_timer(self) -> float | None:
        """Return when the next lease ends or the next check is due, or None."""
        times = (self._leases.next(), self._rechecks.next())
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float, out: Output) -> None:
        """End the interests whose lease is over, and make up for the checks that were put off."""
        for node_id in self._rechecks.over(now):
            peer = self._peers.get(node_id)
            if peer is not None:
                self.claims_changed(peer, now, out)
        for node_id, req in self._leases.over(now):
            self._counters.add("expire", "interest")
            self._end(node_id, req, Ending.CANCELED, out)

    def _take_order(self, peer: Peer, order: Interest, now: float, out: Output) -> None:
        book = self._books.setdefault(peer.node_id, _PeerInterests())
        standing = book.standing.get(order.req)
        repeated = standing is not None and standing.order == order
        channels = self.channels.under(order.prefix)
        # A repetition verifies no signature, because the token was verified when the interest was accepted.
        cost = 1 + len(channels) + (0 if repeated else TOKEN_CHECKS * len(order.token) // TOKEN_BYTES)
        # At most a full bucket: else an interest in more channels than that could never be served.
        if not book.rate.take(min(cost, CHECKS_AT_ONCE), now):
            self._counters.count(Reason.INTEREST_RATE)
            return
        if standing is None or not repeated:
            reason = self._refusal(peer, book, order, now)
            if reason is not None:
                self._answer(peer, order.req, self._refuse_all(peer, channels, reason), out)
                return
            self._end(peer.node_id, order.req, Ending.CANCELED, out)
            standing = _AcceptedInterest(order, self._admission.authorizer.present(peer.claims, order.token))
            book.standing[order.req] = standing
        self._leases.set((peer.node_id, order.req), now + LEASE_S)
        matches = self._judge(peer, standing, channels, now, out)
        if not repeated:
            self._note_outcome(peer, matches, now)
        self._answer(peer, order.req, matches, out)

    def _refusal(self, peer: Peer, book: _PeerInterests, order: Interest, now: float) -> AckReason | None:
        """Return the reason to refuse a new interest as a whole, or None."""
        if self._admission.throttled(peer, now):
            return AckReason.RATE_LIMITED
        if order.req not in book.standing and len(book.standing) >= MAX_INTERESTS:
            self._counters.count(Reason.REFUSE_TOO_MANY_INTERESTS)
            return AckReason.TOO_MANY_CHANNELS
        return None

    def _refuse_all(self, peer: Peer, channels: list[ChannelName], reason: AckReason) -> list[Match]:
        authorizer, verdict = self._admission.authorizer, Verdict.refused(reason)
        return [Match(verdict, name) for name in channels if authorizer.sees(peer.claims, authorizer.config_of(name))]

    def _judge(
        self, peer: Peer, standing: _AcceptedInterest, channels: Iterable[ChannelName], now: float, out: Output
    ) -> list[Match]:
        """Subscribe a peer to those of the channels that it may have, and return the verdicts that it may know."""
        matches = []
        for channel in channels:
            refusal = None if channel in standing.held else self._admit(peer, standing, channel, now, out)
            if refusal is None:
                standing.held.add(channel)
                matches.append(Match(Verdict.ADDED, channel))
            # docs/wire/profile.md: channels that the peer may not see are never named.
            elif refusal is not Reason.REFUSE_NOT_VISIBLE:
                matches.append(Match(Verdict.refused(ack_of(refusal)), channel))
        return matches

    def _admit(
        self, peer: Peer, standing: _AcceptedInterest, channel: ChannelName, now: float, out: Output
    ) -> Reason | None:
        order = standing.order
        return self._admission.admit(
            peer, channel, now, out, token=standing.presented, queue_group=order.queue_group, request=order.req
        )

    def _note_outcome(self, peer: Peer, matches: list[Match], now: float) -> None:
        """Record the outcome of a new interest in the throttle, once."""
        verdicts = {match.verdict for match in matches}
        if Verdict.ADDED in verdicts:
            self._admission.note_success(peer)
        elif Verdict.UNAUTHORIZED in verdicts or Verdict.UNKNOWN_CHANNEL in verdicts:
            self._admission.note_failure(peer, now)

    def _end(self, node_id: int, req: int, why: Ending, out: Output) -> None:
        book = self._books.get(node_id)
        standing = None if book is None else book.standing.pop(req, None)
        if book is None or standing is None:
            return
        self._leases.drop((node_id, req))
        for channel in sorted(standing.held):
            self._admission.release(node_id, channel, out, request=req, why=why)

    def _take_away(self, node_id: int, standing: _AcceptedInterest, channels: list[ChannelName], out: Output) -> None:
        standing.held.difference_update(channels)
        peer = self._peers.get(node_id)
        if peer is not None:
            self._tell(peer, standing, [Match(Verdict.REMOVED, channel) for channel in channels], out)

    def _tell(self, peer: Peer, standing: _AcceptedInterest, news: list[Match], out: Output) -> None:
        if news and peer.uses(Subprotocol.INTEREST):
            self._answer(peer, standing.order.req, news, out)

    def _answer(self, peer: Peer, req: int, matches: list[Match], out: Output) -> None:
        for page in split_matches(req, matches):
            peer.send_message(Subprotocol.INTEREST, encode_interest(page), out)

    def _standing_of(self, node_id: int) -> list[_AcceptedInterest]:
        book = self._books.get(node_id)
        return [] if book is None else list(book.standing.values())
