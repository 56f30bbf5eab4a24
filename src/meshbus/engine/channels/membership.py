"""Channel membership (0x0A00), both sides: subscribes to channels of publishers, and answers subscribers (policy.md §4).

    subscriber   sends one Subscribe or Unsubscribe with a random nonce, without repetition, and waits 5 s for the Ack,
                 which counts only if it comes from the same peer. `Acked` reports the outcome, also a timeout
    publisher    answers every valid request with one Ack in its own packet; engine/channels/admission.py decides.
                 A malformed request is dropped without an answer, as on 0.23 nodes. Unsubscribe always succeeds

A token is presented in the form of the peer's level, which a 0.23 node reads as long as the level is unknown. If such a
request is refused, it is repeated in the other form, and a publisher that wants a proof of identity gets it first
(dialects.md §3.2, rule 8). The caller sees one request with one outcome.

An event may arrive before the Ack of its subscription, so a channel counts as joined when the request is sent.
Subscriptions belong to the peer and not to a session. But a publisher that was restarted, or declared us failed, has
dropped them, so they are requested again with every new session and after every recovery.
"""

from __future__ import annotations

import msgspec

from meshbus.engine.base.notices import Acked, PeerFailed, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.base.renaming import move, move_pairs
from meshbus.engine.channels.admission import Admission
from meshbus.engine.channels.authorize import ack_of
from meshbus.engine.channels.identityproof import IdentityProofs
from meshbus.engine.session.dialect import Level
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.streams.joined import JoinedChannels
from meshbus.errors import LocalProtocolError, RemoteProtocolError
from meshbus.names.channel import ChannelName
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Buffer
from meshbus.wire.messages.membership import (
    Ack,
    AckReason,
    Subscribe,
    Unsubscribe,
    decode_membership,
    encode_membership,
)
from meshbus.wire.messages.token import count_chain

MAX_PENDING = 65_536
"""Requests that wait for an Ack. Our choice: a bound that ordinary use does not reach within the 5 s of a timeout."""


BOUNDS = (
    Bound(
        name="subscribe_requests",
        what="subscribe requests that wait for an answer",
        by=By.USER,
        per_node=MAX_PENDING,
        full="the call is refused",
        counter="raises LocalProtocolError",
    ),
)


class _Pending(msgspec.Struct, frozen=True):
    node_id: int
    message: Subscribe | Unsubscribe
    """With the number that the caller knows; the nonce of a repeated request differs."""
    deadline: float
    counted: bool = False
    """Whether its token was sent as a chain with its length in front."""
    proved: bool = False
    """Whether this node proved its identity before it."""


class Membership(Service):
    """The subscriptions of this node at publishers, and the answers to its own subscribers."""

    def __init__(self, context: Context, admission: Admission, joined: JoinedChannels, proofs: IdentityProofs) -> None:
        self._admission = admission
        self._joined = joined
        self._proofs = proofs
        proofs.settled = self._proved
        self._peers = context.peers
        self._counters = context.counters
        self._entropy = context.entropy
        self._ack_timeout_s = context.settings.ack_timeout_s
        self._pending: dict[int, _Pending] = {}
        """Requests by nonce. All have the same timeout, so the order of insertion is the order of the deadlines."""
        self._asking: dict[tuple[int, ChannelName], set[int]] = {}
        """Nonces of the pending Subscribes that no later Unsubscribe has revoked."""
        self._unproved: dict[int, list[_Pending]] = {}
        """Requests that wait for a proof of this node's identity, by publisher."""
        self._granted: dict[int, dict[ChannelName, Subscribe]] = {}
        """Accepted subscriptions, by publisher."""

    def subscribe(
        self, peer: Peer, channel: ChannelName, now: float, out: Output, *, token: bytes = b"", queue_group: str = ""
    ) -> int:
        """Subscribe to a channel of a publisher, and return the number that `Acked` carries.

        Raises LocalProtocolError if the token or the queue group is too long, or if too many requests are pending.
        """
        message = Subscribe(nonce=self._nonce(), channel=channel, token=token, queue_group=queue_group)
        self._ask(peer, message, now, out)
        self._joined.add(peer.node_id, channel)
        self._asking.setdefault((peer.node_id, channel), set()).add(message.nonce)
        return message.nonce

    def unsubscribe(self, peer: Peer, channel: ChannelName, now: float, out: Output) -> int:
        """Unsubscribe from a channel, and return the number that `Acked` carries.

        Events that still arrive are no longer delivered.
        """
        message = Unsubscribe(nonce=self._nonce(), channel=channel)
        self._ask(peer, message, now, out)
        self._asking.pop((peer.node_id, channel), None)
        self._granted.get(peer.node_id, {}).pop(channel, None)
        self._joined.remove(peer.node_id, channel)
        return message.nonce

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        """Subscribe again to every accepted channel of a publisher, because it may have dropped them."""
        for one in list(self._granted.get(peer.node_id, {}).values()):
            self.subscribe(peer, one.channel, now, out, token=one.token, queue_group=one.queue_group)

    def token_renewed(self, old: bytes, new: bytes, now: float, out: Output) -> None:
        """Subscribe again, with the new token, to every channel that was accepted with the old one."""
        for node_id, granted in self._granted.items():
            peer = self._peers.get(node_id)
            for one in [one for one in granted.values() if one.token == old]:
                # Kept also for a publisher that is away: it is asked when it is back.
                granted[one.channel] = msgspec.structs.replace(one, token=new)
                if peer is not None:
                    self.subscribe(peer, one.channel, now, out, token=new, queue_group=one.queue_group)

    def recovered(self, peer: Peer, now: float, out: Output) -> None:
        """Subscribe again: a publisher that declared us failed has dropped our subscriptions (policy.md §5.1)."""
        self.peer_up(peer, now, out)

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Keep the subscriptions at a publisher that goes on under another id."""
        self._joined.rename(old, new)
        move(self._unproved, old, new)
        move_pairs(self._asking, old, new)
        for nonce, pending in self._pending.items():
            if pending.node_id == old:
                self._pending[nonce] = msgspec.structs.replace(pending, node_id=new)
        kept = self._granted.pop(old, {})
        granted = self._granted.setdefault(new, {})
        lost = [one for channel, one in kept.items() if channel not in granted]
        granted.update({one.channel: one for one in lost})
        peer = self._peers.get(new)
        if peer is not None:
            # Once more, in case the publisher came back with its new key before it was known whose heir it is.
            for one in lost:
                self.subscribe(peer, one.channel, now, out, token=one.token, queue_group=one.queue_group)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """End the requests to a peer that is gone; one that failed may still answer."""
        if isinstance(down, PeerGone):
            ended = self._unproved.pop(down.node_id, [])
            for nonce, pending in list(self._pending.items()):
                if pending.node_id == down.node_id:
                    del self._pending[nonce]
                    ended.append(pending)
            for pending in ended:
                self._settle(pending, accepted=False)
                message = pending.message
                out.control.append(Acked(message.nonce, down.node_id, message.channel, accepted=False, gone=True))

    def receive(self, peer: Peer, message: Buffer, now: float, out: Output) -> None:
        """Handle one membership message of a peer."""
        try:
            decoded = decode_membership(message)
        except RemoteProtocolError:
            # policy.md §4.2: no Ack for what cannot be read; the requester times out.
            self._counters.count(Reason.MEMBERSHIP_MALFORMED)
            return
        match decoded:
            case Subscribe(nonce=nonce, channel=channel, token=token, queue_group=group):
                refusal = self._admission.subscribe(peer, channel, now, out, token=token, queue_group=group)
                reason = AckReason.NONE if refusal is None else ack_of(refusal)
                self._answer(peer, Ack(nonce=nonce, accepted=refusal is None, reason=reason), out)
            case Unsubscribe(nonce=nonce, channel=channel):
                # policy.md §4.4: always accepted, even from a peer that is not subscribed, and never throttled.
                self._admission.release(peer.node_id, channel, out)
                self._answer(peer, Ack(nonce=nonce, accepted=True), out)
            case Ack():
                self._take_ack(peer, decoded, now, out)

    def next_timer(self) -> float | None:
        """Return the earliest deadline of a request, or None."""
        return next((pending.deadline for pending in self._pending.values()), None)

    def tick(self, now: float, out: Output) -> None:
        """End the requests whose deadline has passed."""
        while self._pending:
            nonce, pending = next(iter(self._pending.items()))
            if now < pending.deadline:
                return
            del self._pending[nonce]
            self._counters.add("timeout", "membership_ack")
            self._settle(pending, accepted=False)
            message = pending.message
            out.control.append(Acked(message.nonce, pending.node_id, message.channel, accepted=False, timed_out=True))

    def _ask(self, peer: Peer, message: Subscribe | Unsubscribe, now: float, out: Output) -> None:
        # policy.md §4.1: a request is sent once; the caller learns of a timeout and may repeat it.
        self._send(peer, _Pending(peer.node_id, message, 0.0, counted=peer.dialect.repairs), message.nonce, now, out)

    def _send(self, peer: Peer, pending: _Pending, nonce: int, now: float, out: Output) -> None:
        message = msgspec.structs.replace(pending.message, nonce=nonce)
        if isinstance(message, Subscribe) and pending.counted:
            message = msgspec.structs.replace(message, token=count_chain(message.token))
        peer.send_message(Subprotocol.MEMBERSHIP, encode_membership(message), out)
        self._pending[nonce] = msgspec.structs.replace(pending, deadline=now + self._ack_timeout_s)

    def _again(self, peer: Peer, pending: _Pending, reason: AckReason, now: float, out: Output) -> bool:
        """Repeat a refused request as another version reads it, if that may help; return whether it goes on."""
        message = pending.message
        if not isinstance(message, Subscribe) or not message.token:
            return False
        if reason is AckReason.IDENTITY_NOT_PROVED and not pending.proved:
            peer.dialect.learn(Level.C)
            self._unproved.setdefault(peer.node_id, []).append(pending)
            self._proofs.prove(peer, now, out)
            return True
        # meshbus reads every form, so that it refused the token itself.
        one_form = peer.negotiated.compatible or peer.dialect.level is Level.A
        if reason is AckReason.UNAUTHORIZED and not pending.counted and not one_form:
            self._send(peer, msgspec.structs.replace(pending, counted=True), self._nonce(), now, out)
            return True
        return False

    def _proved(self, peer: Peer, accepted: bool, now: float, out: Output) -> None:
        """Ask again with the requests that waited for a proof, or end them."""
        for pending in self._unproved.pop(peer.node_id, []):
            if accepted:
                self._send(peer, msgspec.structs.replace(pending, counted=True, proved=True), self._nonce(), now, out)
            else:
                self._finish(pending, accepted=False, reason=AckReason.IDENTITY_NOT_PROVED, out=out)

    def _answer(self, peer: Peer, ack: Ack, out: Output) -> None:
        # policy.md §4.1: each Ack is in a packet of its own, even if the requests shared one.
        peer.send_message(Subprotocol.MEMBERSHIP, encode_membership(ack), out)

    def _take_ack(self, peer: Peer, ack: Ack, now: float, out: Output) -> None:
        pending = self._pending.get(ack.nonce)
        if pending is None:
            self._counters.count(Reason.MEMBERSHIP_UNEXPECTED_ACK)
            return
        # policy.md §4.3: an Ack counts only on the link to the publisher that was asked.
        if pending.node_id != peer.node_id:
            self._counters.count(Reason.MEMBERSHIP_FOREIGN_ACK)
            return
        del self._pending[ack.nonce]
        if not ack.accepted and self._again(peer, pending, ack.reason, now, out):
            return
        if ack.accepted and pending.counted and isinstance(pending.message, Subscribe) and pending.message.token:
            # A 0.23 node takes such a token for none; only an open channel would accept it all the same.
            peer.dialect.learn(Level.B)
        # policy.md §4.3: accepted = 1 is a success, whatever the reason byte says.
        reason = AckReason.NONE if ack.accepted else ack.reason
        self._finish(pending, accepted=ack.accepted, reason=reason, out=out)

    def _finish(self, pending: _Pending, *, accepted: bool, reason: AckReason, out: Output) -> None:
        """Report the outcome of a request."""
        self._settle(pending, accepted=accepted)
        message = pending.message
        leaving = isinstance(message, Unsubscribe)
        out.control.append(Acked(message.nonce, pending.node_id, message.channel, accepted, reason, leaving=leaving))

    def _settle(self, pending: _Pending, *, accepted: bool) -> None:
        """Record an accepted subscription, or leave the channel if no other request or subscription needs it."""
        node_id, message = pending.node_id, pending.message
        asking = self._asking.get((node_id, message.channel), set())
        if not isinstance(message, Subscribe) or message.nonce not in asking:
            return
        asking.remove(message.nonce)
        if not asking:
            del self._asking[node_id, message.channel]
        # A lost Ack of a repeated subscribe must not end a subscription that was granted before.
        if accepted:
            self._granted.setdefault(node_id, {})[message.channel] = message
        elif not asking and message.channel not in self._granted.get(node_id, {}):
            self._joined.remove(node_id, message.channel)

    def _nonce(self) -> int:
        if len(self._pending) >= MAX_PENDING:
            raise LocalProtocolError(
                f"{MAX_PENDING} subscribe requests already wait for an answer, the limit; wait for some of them"
            )
        nonce = int.from_bytes(self._entropy(8), "little")
        while nonce in self._pending:
            nonce = nonce + 1 & 0xFFFFFFFFFFFFFFFF
        return nonce
