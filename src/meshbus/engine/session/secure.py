"""Secure sessions (0x4D04): replace the keys of a 0.23 session by keys that only its two nodes have, again and again.

The exchange is in wire/secure.py, docs/wire/secure.md has the protocol and its security argument. The side that began the
session, the initiator, offers; the other one answers. The steps from one epoch to the next:

    initiator                                    responder
    sends OFFER, repeats it                      verifies it, can open packets under the new keys, sends ACCEPT
    verifies ACCEPT, seals with the new keys,    seals with the new keys when the first packet under them arrives
    sends DONE, repeats it                       answers DONE
    the first packet under the new keys ends the repetition

Each side opens packets under the old keys until `OVERLAP_S` after the other side was seen to use the new ones. The id in
the header says which keys a packet was sealed with, so nothing is tried twice, and nothing is lost: streams do not notice.

What happens without it. A node *expects* a peer to be secure if it is pinned (it was secure before), or if `require` is set.
From the first packet on, nothing but what leads to secure sessions (`IN_THE_CLEAR`) is then sent to such a peer or accepted
from it under the keys of the 0.23 handshake. A peer that announces 0x4D04 or agrees on it is held to it from that moment,
but what it sent before that is still accepted. If the session does not become secure in `patience_s`, that is counted and
reported, and data stays refused; the exchange is tried on. A plain 0.23 peer announces nothing, and notices nothing.
"""

from __future__ import annotations

import msgspec

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import DownReason, PeerFailed, PeerGone, PeerInsecure, PeerSecured
from meshbus.engine.base.packets import Output
from meshbus.engine.session.link import Link
from meshbus.engine.session.negotiate import Negotiator
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.pins import Pins
from meshbus.engine.session.service import Context, Service
from meshbus.engine.settings import SecureMode
from meshbus.errors import BadTag, RemoteProtocolError
from meshbus.names.identity import derive_node_id
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.keys import Role
from meshbus.wire.messages.secure import Accept, Done, Offer, decode_secure, encode_secure
from meshbus.wire.noise import KEY_BYTES
from meshbus.wire.secure import Agreement, Chain, Ends, Offering, answer
from meshbus.wire.subprotocol import capability_tag

RETRIES_S = (0.2, 0.4, 0.8, 1.6)
"""Pauses between repetitions of a message; the last one is used again. Our choice: dense at first, because data waits."""
OVERLAP_S = 2.0
"""How long packets under the old keys are still opened. Our choice: longer than packets are on the way."""
CHECK_S = 5.0
"""How often to look whether keys are worn. Our choice: a few million packets later is early enough."""

_TAG = capability_tag(Subprotocol.SECURE)


class _Answer:
    """What the responder sent for an offer, until the first packet under its keys arrives."""

    __slots__ = ("accept", "agreement", "offer")

    def __init__(self, offer: Offer, accept: bytes, agreement: Agreement) -> None:
        self.offer = offer
        self.accept = accept
        self.agreement = agreement


class _Session:
    """The keys of one session, and what is under way to replace them."""

    __slots__ = (
        "answered",
        "chain",
        "check_at",
        "close_at",
        "entity_id",
        "insecure_at",
        "keyed_at",
        "link",
        "offering",
        "resend_at",
        "resigning",
        "retire_at",
        "tries",
        "unconfirmed",
        "unsigned_at",
    )

    def __init__(self, link: Link, now: float) -> None:
        self.link = link
        self.chain = Chain.begin(link.handshake_hash)
        self.entity_id = b""
        """The entity at the other end, once it has signed an exchange."""
        self.offering: Offering | None = None
        """Our offer, until it is answered."""
        self.answered: _Answer | None = None
        """Our answer, until the other side uses its keys."""
        self.unconfirmed = False
        """Whether we seal with new keys, and the other side does not yet."""
        self.tries = 0
        self.keyed_at = now
        """When the current keys came into use."""
        self.resend_at: float | None = None
        """When to repeat the last message."""
        self.retire_at: float | None = None
        """When to forget the last keys."""
        self.close_at: float | None = None
        """When data under the keys of the 0.23 handshake is no longer accepted."""
        self.insecure_at: float | None = None
        """When to report that the session is not secure."""
        self.check_at: float | None = None
        """When to look whether the keys are worn."""
        self.unsigned_at: float | None = None
        """When the session ends unless the new key of the other node has signed it."""
        self.resigning = False
        """Whether one of the two nodes goes on under another key, which has not signed the session yet."""

    def due(self) -> float | None:
        times = (self.resend_at, self.retire_at, self.close_at, self.insecure_at, self.check_at, self.unsigned_at)
        return min((time for time in times if time is not None), default=None)


class Secure(Service):
    """Makes sessions secure, keeps them so, and refuses those that should be and are not."""

    def __init__(self, context: Context) -> None:
        self.pins = Pins(context.settings.secure.pins, lambda: context.counters.count(Reason.REFUSE_PINS_FULL))
        self._identity = context.identity
        self._revocations = context.revocations
        self._services = context.services
        self._entropy = context.entropy
        self._peers = context.peers
        self._counters = context.counters
        self._negotiator = context.services[Negotiator]
        self._config = context.settings.secure
        self._offered = context.registry.is_handled(Subprotocol.SECURE)
        """Whether this node uses secure sessions at all."""
        self._sessions: dict[int, _Session] = {}
        self._due: Deadlines[int] = Deadlines()

    # ── a peer's life ───────────────────────────────────────────────────────────────────────

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        """Begin a session; one with a peer that is expected to be secure is closed until it is."""
        if not self._offered:
            return
        session = self._sessions[peer.node_id] = _Session(peer.link, now)
        if self._config.mode is SecureMode.REQUIRE or peer.node_id in self.pins:
            peer.link.closed = True
            self._hold(peer, session, now)
        self._schedule(peer.node_id, session)

    def vouched(self, peer: Peer, now: float, out: Output) -> None:
        """Hold data for a peer whose signed announcement says that it uses secure sessions."""
        session = self._sessions.get(peer.node_id)
        # A peer that is configured as plain is not asked, whatever it announces; nor is any by a node without tags.
        speaks = _TAG in peer.claims.capabilities.tags and not self._negotiator.is_plain(peer)
        if session is not None and speaks:
            self._hold(peer, session, now)

    def agreed(self, peer: Peer, now: float, out: Output) -> None:
        """Begin the exchange when both sides have agreed on it."""
        session = self._sessions.get(peer.node_id)
        if session is None or session.link.epoch or not peer.uses(Subprotocol.SECURE):
            return
        self._hold(peer, session, now)
        if session.link.role is Role.INITIATOR and session.offering is None:
            self._offer(peer, session, now, out)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """End a session; one that failed may recover."""
        if isinstance(down, PeerGone):
            self._sessions.pop(down.node_id, None)
            self._due.drop(down.node_id)

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Expect a node under its new key: it is pinned as it was, and an open session has to be signed by that key soon.

        The old key is the proof of the session until then, as it was when the session began.
        """
        entity_id = self._revocations.key_of(new)
        pinned = self.pins.forget(old)
        if entity_id is not None and pinned:
            self.pins.add(new, entity_id)
        session, peer = self._sessions.pop(old, None), self._peers.get(new)
        self._due.drop(old)
        if session is None or peer is None or peer.link is not session.link or entity_id is None:
            return
        self._sessions[new] = session
        if peer.claims.entity_id is not None:
            peer.claims = msgspec.structs.replace(peer.claims, entity_id=entity_id)
        session.entity_id = entity_id
        session.unsigned_at = now + self._config.patience_s
        self._exchange_again(peer, session, now, out)

    def became(self, old: int, now: float, out: Output) -> None:
        """Sign all sessions with the new key of this node."""
        for peer in self._peers:
            session = self._sessions.get(peer.node_id)
            if session is not None and peer.link.epoch:
                self._exchange_again(peer, session, now, out)

    def _exchange_again(self, peer: Peer, session: _Session, now: float, out: Output) -> None:
        """Replace the keys of a session at once; what was under way between the old keys of its nodes is void."""
        session.offering = session.answered = None
        session.resigning = True
        if peer.link.role is Role.INITIATOR:
            self._offer(peer, session, now, out)
        self._schedule(peer.node_id, session)

    def is_signed(self, node_id: int) -> bool:
        """Return whether the session with a peer is secure, and signed by the present keys of both nodes."""
        session = self._sessions.get(node_id)
        return session is not None and session.chain.epoch > 0 and not session.resigning

    def forget(self, node_id: int) -> bool:
        """Remove the pin of a node, and return whether there was one; its present session may go on without it."""
        known = self.pins.forget(node_id)
        peer, session = self._peers.get(node_id), self._sessions.get(node_id)
        if peer is not None and session is not None and not peer.link.epoch and self._config.mode is SecureMode.AUTO:
            peer.link.closed = peer.link.holds = peer.link.refused = False
            session.insecure_at = session.check_at = None
        return known

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Handle one message of an exchange."""
        session = self._sessions.get(peer.node_id)
        try:
            heard = decode_secure(message)
        except RemoteProtocolError:
            self._counters.count(Reason.SECURE_MALFORMED)
            return
        match heard:
            case Offer() if session is not None and peer.link.role is Role.RESPONDER:
                self._take_offer(peer, session, heard, out)
            case Accept() if session is not None and session.offering is not None:
                self._take_accept(peer, session, session.offering, heard, now, out)
            case Done() if session is not None and heard.epoch == peer.link.epoch:
                # Only the responder answers, so that nobody answers an answer.
                if peer.link.role is Role.RESPONDER:
                    _send(peer, encode_secure(heard), out)
            case _:
                self._counters.count(Reason.SECURE_UNEXPECTED)

    def turned(self, peer: Peer, now: float, out: Output) -> None:
        """Handle the first packet of a peer under new keys: it has them."""
        peer.link.turned = False
        session = self._sessions[peer.node_id]
        session.unconfirmed = False
        session.retire_at = now + OVERLAP_S
        if session.answered is not None:
            taken, session.answered = session.answered, None
            self._adopt(peer, session, taken.agreement, taken.offer.entity_id, now, out)
        self._schedule(peer.node_id, session)

    def _take_offer(self, peer: Peer, session: _Session, offer: Offer, out: Output) -> None:
        """Answer an offer; the same one again gets the same answer, which may have been lost."""
        if session.answered is not None and session.answered.offer == offer:
            _send(peer, session.answered.accept, out)
            return
        if session.answered is not None or offer.epoch != session.chain.epoch + 1:
            self._counters.count(Reason.SECURE_UNEXPECTED)
            return
        if not self._is_right(peer, session, offer.entity_id):
            return
        try:
            message, agreement = answer(
                self._identity, self._ends(peer), session.chain, offer, self._entropy(KEY_BYTES)
            )
        except RemoteProtocolError as error:
            self._counters.count(_reason(error))
            return
        if self._peers.add_keys(peer, agreement.keys.session_id):
            peer.link.expect(agreement.keys)
            session.answered = _Answer(offer, message, agreement)
            _send(peer, message, out)
        else:
            self._counters.count(Reason.SECURE_UNEXPECTED)

    def _take_accept(
        self, peer: Peer, session: _Session, offering: Offering, accept: Accept, now: float, out: Output
    ) -> None:
        """Use the keys of an answer to our offer."""
        if accept.epoch != offering.offer.epoch:
            self._counters.count(Reason.SECURE_UNEXPECTED)
            return
        if not self._is_right(peer, session, accept.entity_id):
            return
        try:
            agreement = offering.take(accept)
        except RemoteProtocolError as error:
            self._counters.count(_reason(error))
            return
        if not self._peers.add_keys(peer, agreement.keys.session_id):
            self._counters.count(Reason.SECURE_UNEXPECTED)
            return
        session.offering = None
        session.unconfirmed = True
        peer.link.expect(agreement.keys)
        peer.link.seal_anew()
        session.tries = 0
        self._repeat(peer, session, now, out)
        self._adopt(peer, session, agreement, accept.entity_id, now, out)
        self._schedule(peer.node_id, session)

    def _is_right(self, peer: Peer, session: _Session, entity_id: bytes) -> bool:
        """Return whether an entity may be at the other end; count it if not."""
        # A node id is a hash of the entity key. It has 64 bits only, so the whole key is compared where it is known.
        known = {peer.claims.entity_id, self.pins.get(peer.node_id), session.entity_id or None} - {None}
        right = derive_node_id(entity_id) == peer.node_id and known <= {entity_id}
        if not right:
            self._counters.count(Reason.SECURE_WRONG_ENTITY)
        return right

    def _adopt(
        self, peer: Peer, session: _Session, agreement: Agreement, entity_id: bytes, now: float, out: Output
    ) -> None:
        """Use new keys from now on; with the first ones the session becomes secure."""
        first = session.chain.epoch == 0
        session.chain, session.entity_id, session.keyed_at = agreement.chain, entity_id, now
        self._counters.add("secure", "established" if first else "rekeyed")
        session.check_at = now + CHECK_S if peer.link.role is Role.INITIATOR else None
        session.unsigned_at = None
        if not first:
            if session.resigning:
                session.resigning = False
                out.control.append(PeerSecured(peer.node_id, entity_id, pinned=False))
            return
        session.insecure_at = None
        session.close_at = now + OVERLAP_S
        peer.link.refused = False
        pinned = self.pins.add(peer.node_id, entity_id)
        out.control.append(PeerSecured(peer.node_id, entity_id, pinned))
        self._negotiator.secured(peer, now, out)
        peer.release(out)
        self._count_unsent(peer)

    # ── time ────────────────────────────────────────────────────────────────────────────────

    def next_timer(self) -> float | None:
        """Return when something is due, or None."""
        return self._due.next()

    def tick(self, now: float, out: Output) -> None:
        """Repeat messages, forget old keys, replace worn ones, and report sessions that did not become secure."""
        for node_id in self._due.over(now):
            peer, session = self._peers.get(node_id), self._sessions.get(node_id)
            if peer is not None and session is not None:
                self._advance(peer, session, now, out)
                if node_id in self._sessions:
                    self._schedule(node_id, session)

    def _advance(self, peer: Peer, session: _Session, now: float, out: Output) -> None:
        if _is_due(session.unsigned_at, now):
            session.unsigned_at = None
            self._counters.count(Reason.REFUSE_UNSIGNED)
            self._peers.remove(peer.node_id)
            down = PeerGone(peer.node_id, DownReason.REVOKED)
            out.control.append(down)
            self._services.peer_down(down, now, out)
            return
        if _is_due(session.resend_at, now):
            self._repeat(peer, session, now, out)
        if _is_due(session.retire_at, now):
            session.retire_at = None
            self._peers.drop_keys(peer)
        if _is_due(session.close_at, now):
            session.close_at = None
            peer.link.closed = True
        if _is_due(session.insecure_at, now):
            session.insecure_at = None
            session.check_at = now
            self._report(peer, out)
        if _is_due(session.check_at, now):
            session.check_at = now + CHECK_S
            if peer.link.refused:
                self._drop_held(peer)
            elif self._is_worn(session, now) and session.offering is None and not session.unconfirmed:
                self._offer(peer, session, now, out)

    def _offer(self, peer: Peer, session: _Session, now: float, out: Output) -> None:
        session.offering = Offering(self._identity, self._ends(peer), session.chain, self._entropy(KEY_BYTES))
        session.tries = 0
        self._repeat(peer, session, now, out)
        self._schedule(peer.node_id, session)

    def _repeat(self, peer: Peer, session: _Session, now: float, out: Output) -> None:
        """Send what the other side has not answered yet, and schedule the next time."""
        if session.offering is not None:
            message = session.offering.message
        elif session.unconfirmed:
            message = encode_secure(Done(epoch=peer.link.epoch))
        else:
            session.resend_at = None
            return
        session.resend_at = now + RETRIES_S[min(session.tries, len(RETRIES_S) - 1)]
        session.tries += 1
        _send(peer, message, out)

    def _is_worn(self, session: _Session, now: float) -> bool:
        packets = max(session.link.sealer.sent, session.link.opener.window.next)
        return now - session.keyed_at >= self._config.rekey_s or packets >= self._config.rekey_packets

    # ── small parts ─────────────────────────────────────────────────────────────────────────

    def _hold(self, peer: Peer, session: _Session, now: float) -> None:
        """Let data wait until the session is secure."""
        if not (peer.link.epoch or peer.link.holds):
            peer.link.holds = True
            session.insecure_at = now + self._config.patience_s
            # Publishers wait so long for the end of a negotiation.
            peer.settles_at = max(peer.settles_at, session.insecure_at)
            self._schedule(peer.node_id, session)

    def _report(self, peer: Peer, out: Output) -> None:
        """Refuse data in a session that did not become secure, and report it."""
        peer.link.closed = peer.link.refused = True
        peer.settles_at = 0.0
        self._counters.count(Reason.REFUSE_DOWNGRADE)
        out.control.append(PeerInsecure(peer.node_id, self._problem(peer)))

    def _problem(self, peer: Peer) -> str:
        versions = next((one for one in peer.negotiated.incompatible if one.id == Subprotocol.SECURE), None)
        if versions is not None:
            return (
                f"it has version {versions.remote_version} of secure sessions, and this node {versions.local_version},"
                " which do not fit; upgrade the older of the two nodes"
            )
        if peer.node_id in self.pins:
            return (
                "it used secure sessions before and does not now; its settings or its version were changed, or its offers"
                f" are removed on the path. If it is intended, run `meshbus pins reset {peer.node_id:016x}`"
            )
        if _TAG in peer.claims.capabilities.tags:
            return "it announces secure sessions, but the exchange of keys did not succeed; look at its counters"
        return "it does not offer secure sessions, and secure is 'require' here; use 'auto', or upgrade it"

    def _drop_held(self, peer: Peer) -> None:
        peer.unsent += len(peer.held)
        peer.held.clear()
        self._count_unsent(peer)

    def _count_unsent(self, peer: Peer) -> None:
        self._counters.count(Reason.UNSENT_INSECURE, peer.unsent)
        peer.unsent = 0

    def _schedule(self, node_id: int, session: _Session) -> None:
        due = session.due()
        if due is None:
            self._due.drop(node_id)
        elif due != self._due.get(node_id):
            self._due.set(node_id, due)

    def _ends(self, peer: Peer) -> Ends:
        mine, theirs = self._identity.node_id, peer.node_id
        return Ends(mine, theirs) if peer.link.role is Role.INITIATOR else Ends(theirs, mine)


def _send(peer: Peer, message: bytes, out: Output) -> None:
    peer.send_message(Subprotocol.SECURE, message, out)


def _reason(error: RemoteProtocolError) -> Reason:
    return Reason.SECURE_BAD_SIGNATURE if isinstance(error, BadTag) else Reason.SECURE_MALFORMED


def _is_due(time: float | None, now: float) -> bool:
    return time is not None and time <= now
