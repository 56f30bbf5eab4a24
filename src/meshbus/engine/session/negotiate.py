"""Negotiation of the meshbus profile (0x0600): exchanges manifests, and sets what may be used with each peer.

A plain 0.23 peer must never receive a manifest: it would hand it to its application (subprotocols.md §6). So none is
sent before the peer has asked for the profile, either with the tag of 0x0600 in a signed announcement of its own that
was received in this session, or by configuration (docs/wire/profile.md, Negotiation). The node ids fix the roles, so
that nobody answers an answer:

    lower id    offers its manifest, up to three times, one second apart, until a manifest arrives; if none arrives, the
                peer stays plain until it announces itself again
    higher id   answers every offer, and repeats its answer twice because nothing confirms it; an offer that arrives
                before the peer's announcement waits for it

When the subprotocols of a node change, it stops using what was removed at once and tells its peers: the lower id with a
new offer, the higher id with its manifest, as in an answer. Two nodes that both speak 0x4D04 agree on that alone at
first; the rest is used when the session is secure, and manifests are exchanged once more there. A new session starts the negotiation again, because the
peer may have been restarted with other software; failure and recovery within a session do not. policy/registry.py
computes the common set of two manifests.
"""

from __future__ import annotations

from enum import StrEnum

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.notices import Negotiated, PeerFailed, PeerGone, PeerPlain
from meshbus.engine.base.packets import Output
from meshbus.engine.base.renaming import move, move_kept
from meshbus.engine.session.peer import Peer, PeerClaims
from meshbus.engine.session.service import Context, Service
from meshbus.errors import RemoteProtocolError
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.reason import Reason
from meshbus.policy.registry import NegotiatedSet, negotiate
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Buffer
from meshbus.wire.messages.manifest import decode_manifest, encode_manifest
from meshbus.wire.subprotocol import TAG_PREFIX, SubprotocolManifest, capability_tag

# profile.md §1: a peer that does not answer within 3 × 1 s stays plain.
TRIES = 3
TRIES_AGAIN = 15
"""Offers to a peer that agreed in an earlier session: its reliable streams wait for the answer for RESUME_S
(engine/streams/reliable.py), so none of that time is wasted."""
RETRY_S = 1.0
MAX_KNOWN = 65_536
"""Peers remembered as meshbus nodes."""
SETTLE_S = 2.0
"""How long reliable events wait for the end of a negotiation. Our choice: two offers; most negotiations take a few
milliseconds, and a peer that stays silent for so long gets the events as a plain peer would."""

PLAIN_S = (TRIES + 1) * RETRY_S
"""When a peer that did not announce itself counts as plain: after the last offer could have been answered."""

_ASKS = capability_tag(Subprotocol.NEGOTIATION)


BOUNDS = (
    Bound(
        name="profile_peers",
        what="nodes that used the profile before",
        by=By.MEMBER,
        per_node=MAX_KNOWN,
        full="the oldest goes",
        counter=forgotten("profile_peers"),
    ),
)


class Profile(StrEnum):
    """Configured use of the profile with a peer."""

    AUTO = "auto"
    """Use the profile if the peer announces it."""
    MESHBUS = "meshbus"
    """Use the profile without waiting for an announcement."""
    PLAIN = "plain"
    """Never use the profile."""


class _Negotiation:
    """The negotiation with one peer in one session."""

    __slots__ = ("announced", "called_plain", "held", "offered_for", "theirs", "tries")

    def __init__(self) -> None:
        self.announced = False
        """Whether the peer announced itself in this session."""
        self.held: SubprotocolManifest | None = None
        """An offer that waits for the peer's announcement."""
        self.theirs: SubprotocolManifest | None = None
        """The peer's manifest, once it is in use."""
        self.offered_for: PeerClaims | None = None
        """The peer's claims when this node last sent its manifest."""
        self.tries = 0
        self.called_plain = False
        """Whether the peer was reported as plain."""


class Negotiator(Service):
    """Negotiates with each peer which profile subprotocols may be used, and sets `peer.negotiated`."""

    def __init__(self, context: Context) -> None:
        self._identity = context.identity
        self._peers = context.peers
        self._registry = context.registry
        self._counters = context.counters
        self._needs = {row.id: row.needs for row in context.services.table if row.needs is not None}
        """By subprotocol, another one that it needs; without that, both sides leave it out of the set."""
        self._announces = context.settings.announce.enrich
        """Whether our announcement carries the tags; without them only a peer that is configured would answer."""
        self._profiles: dict[int, Profile] = {}
        self._agreed_before: BoundedMap[int, None] = BoundedMap(MAX_KNOWN, context.counters.forgetting("profile_peers"))
        self._negotiations: dict[int, _Negotiation] = {}
        self._due: dict[int, float] = {}
        """When the next manifest is due, by node id."""
        self._plain_at: dict[int, float] = {}
        """When a peer that has not announced itself by then is reported as plain, by node id."""

    def configure(self, node_id: int, profile: Profile) -> None:
        """Set the use of the profile with a peer; takes effect with its next session."""
        self._profiles[node_id] = profile

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        """Start the negotiation again in a new session."""
        self._forget(peer.node_id)
        self._negotiations[peer.node_id] = _Negotiation()
        self._use(peer, NegotiatedSet(), out)
        peer.settles_at = 0.0 if self.is_plain(peer) else now + SETTLE_S
        self._plain_at[peer.node_id] = now if self.is_plain(peer) else now + PLAIN_S
        self._advance(peer, now, out)

    def vouched(self, peer: Peer, now: float, out: Output) -> None:
        """Continue the negotiation with a peer that announced itself in this session."""
        negotiation = self._negotiations.get(peer.node_id)
        if negotiation is not None:
            negotiation.announced = True
            self._plain_at.pop(peer.node_id, None)
            if self.is_plain(peer):
                peer.settles_at = 0.0
                self._call_plain(peer.node_id, negotiation, out)
            self._advance(peer, now, out)

    def is_plain(self, peer: Peer) -> bool:
        """Return whether a peer is known not to use the profile with this node; otherwise it may still agree."""
        negotiation = self._negotiations.get(peer.node_id)
        decided = negotiation is not None and (negotiation.announced or self._never(peer))
        return negotiation is None or (decided and not self._may_negotiate(peer, negotiation))

    def counts_as_plain(self, peer: Peer) -> bool:
        """Return whether a peer was reported as plain, or is known to be, and has not agreed since."""
        negotiation = self._negotiations.get(peer.node_id)
        return self.is_plain(peer) or (
            negotiation is not None and negotiation.called_plain and negotiation.theirs is None
        )

    def receive(self, peer: Peer, message: Buffer, now: float, out: Output) -> None:
        """Handle a manifest from a peer."""
        negotiation = self._negotiations.get(peer.node_id)
        try:
            manifest = decode_manifest(message)
        except RemoteProtocolError:
            self._counters.count(Reason.MANIFEST_MALFORMED)
            return
        if negotiation is None or not self._registry.is_handled(Subprotocol.NEGOTIATION):
            self._counters.count(Reason.MANIFEST_UNWANTED)
            return
        # The peer's announcement may be late or lost; without it, answering could reach a plain peer.
        if not self._may_negotiate(peer, negotiation):
            negotiation.held = manifest
            self._counters.add("hold", "manifest_unannounced")
            return
        self._take(peer, negotiation, manifest, now, out)

    def not_agreed(self, peer: Peer, now: float, out: Output) -> None:
        """Offer again to a peer that uses the profile although we did not agree: its answer was lost."""
        negotiation = self._negotiations.get(peer.node_id)
        if (
            negotiation is not None
            and negotiation.theirs is None
            and self._offers_to(peer)
            and self._may_negotiate(peer, negotiation)
            and peer.node_id not in self._due
        ):
            self._send(peer, negotiation, now, out, first=True)

    def registry_changed(self, now: float, out: Output) -> None:
        """Apply a change of the registry, and tell the peers."""
        for node_id, negotiation in list(self._negotiations.items()):
            peer = self._peers.get(node_id)
            if peer is not None and negotiation.theirs is not None:
                self._settle(peer, negotiation.theirs, out)
                self._send(peer, negotiation, now, out, first=True)

    def secured(self, peer: Peer, now: float, out: Output) -> None:
        """Use everything that was agreed, in a session that is secure now, and exchange the manifests again.

        Those that came before could have been changed on the way.
        """
        negotiation = self._negotiations.get(peer.node_id)
        if negotiation is not None and negotiation.theirs is not None:
            self._settle(peer, negotiation.theirs, out)
            if self._offers_to(peer):
                self._send(peer, negotiation, now, out, first=True)

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Keep what was agreed with a peer that goes on under another id."""
        for table in (self._profiles, self._negotiations, self._due, self._plain_at):
            move(table, old, new)
        move_kept(self._agreed_before, old, new)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """End the negotiation with a peer that is gone; one that failed may come back in the same session."""
        if isinstance(down, PeerGone):
            self._forget(down.node_id)

    def _forget(self, node_id: int) -> None:
        self._negotiations.pop(node_id, None)
        self._due.pop(node_id, None)
        self._plain_at.pop(node_id, None)

    def next_timer(self) -> float | None:
        """Return when the next manifest or report is due, or None."""
        return min((*self._due.values(), *self._plain_at.values()), default=None)

    def tick(self, now: float, out: Output) -> None:
        """Send the manifests that are due again, or give up; report the peers that turned out to be plain."""
        for node_id in [node_id for node_id, at in self._plain_at.items() if at <= now]:
            self._call_plain(node_id, self._negotiations[node_id], out)
        for node_id in [node_id for node_id, due in self._due.items() if due <= now]:
            del self._due[node_id]
            peer, negotiation = self._peers.get(node_id), self._negotiations[node_id]
            if peer is None:
                self._forget(node_id)
            elif negotiation.tries < (
                TRIES_AGAIN if negotiation.theirs is None and self._offers_again(peer) else TRIES
            ):
                self._send(peer, negotiation, now, out)
            elif negotiation.theirs is None:
                self._counters.add("negotiation", "no_answer")
                self._call_plain(node_id, negotiation, out)

    def _advance(self, peer: Peer, now: float, out: Output) -> None:
        """Take the next step: answer an offer that waited, send an offer, or stop using what is no longer announced."""
        negotiation = self._negotiations[peer.node_id]
        if not self._may_negotiate(peer, negotiation):
            # Only an announcement of this session withdraws the profile, not one that is still missing.
            if negotiation.announced and negotiation.theirs is not None:
                self._due.pop(peer.node_id, None)
                negotiation.theirs = None
                self._use(peer, NegotiatedSet(), out)
            return
        if negotiation.held is not None:
            held, negotiation.held = negotiation.held, None
            self._take(peer, negotiation, held, now, out)
        if self._offers_to(peer) and self._has_news(peer, negotiation):
            self._send(peer, negotiation, now, out, first=True)

    def _take(
        self, peer: Peer, negotiation: _Negotiation, manifest: SubprotocolManifest, now: float, out: Output
    ) -> None:
        """Use a peer's manifest, and answer it if it is an offer."""
        self._due.pop(peer.node_id, None)
        negotiation.theirs = manifest
        # The answer must leave before any packet that uses the result, or the peer would drop it as not negotiated.
        if not self._offers_to(peer):
            self._send(peer, negotiation, now, out, first=True)
        self._settle(peer, manifest, out)

    def _has_news(self, peer: Peer, negotiation: _Negotiation) -> bool:
        """Return whether to offer: there was no answer so far, or the peer announced other subprotocols since."""
        if peer.node_id in self._due:
            return False
        if negotiation.theirs is None or negotiation.offered_for is None:
            return True
        return _subprotocol_tags(negotiation.offered_for) != _subprotocol_tags(peer.claims)

    def _send(self, peer: Peer, negotiation: _Negotiation, now: float, out: Output, *, first: bool = False) -> None:
        negotiation.tries = 1 if first else negotiation.tries + 1
        negotiation.offered_for = peer.claims
        self._due[peer.node_id] = now + RETRY_S
        peer.send_message(Subprotocol.NEGOTIATION, encode_manifest(self._registry.manifest()), out)

    def _call_plain(self, node_id: int, negotiation: _Negotiation, out: Output) -> None:
        """Report a peer that does not use the profile, once in a session."""
        self._plain_at.pop(node_id, None)
        if negotiation.theirs is None and not negotiation.called_plain:
            negotiation.called_plain = True
            out.control.append(PeerPlain(node_id))

    def _settle(self, peer: Peer, theirs: SubprotocolManifest, out: Output) -> None:
        self._plain_at.pop(peer.node_id, None)
        agreed = self._usable(negotiate(self._registry.manifest(), theirs))
        if Subprotocol.SECURE in agreed and not peer.link.epoch:
            # The rest follows in the secure session, and what waits for the end of the negotiation waits for that.
            agreed = NegotiatedSet(frozenset({Subprotocol.SECURE}), agreed.incompatible)
        else:
            peer.settles_at = 0.0
        self._use(peer, agreed, out)

    def _use(self, peer: Peer, agreed: NegotiatedSet, out: Output) -> None:
        # Remembered beyond the session: such a peer is worth more offers when it comes back.
        if agreed.compatible:
            self._agreed_before.put(peer.node_id, None)
        changed = agreed != peer.negotiated
        peer.negotiated = agreed
        if changed:
            out.control.append(Negotiated(peer.node_id, agreed.compatible, agreed.incompatible))

    def _usable(self, agreed: NegotiatedSet) -> NegotiatedSet:
        """Remove the subprotocols that need another one which was not agreed."""
        usable = frozenset(
            id_ for id_ in agreed.compatible if id_ not in self._needs or self._needs[id_] in agreed.compatible
        )
        return NegotiatedSet(usable, agreed.incompatible)

    def _may_negotiate(self, peer: Peer, negotiation: _Negotiation) -> bool:
        """Return whether the peer asked for the profile."""
        if not self._registry.is_handled(Subprotocol.NEGOTIATION):
            return False
        profile = self._profiles.get(peer.node_id, Profile.AUTO)
        asked = self._announces and negotiation.announced and _ASKS in peer.claims.capabilities.tags
        return profile is Profile.MESHBUS or (profile is Profile.AUTO and asked)

    def _offers_again(self, peer: Peer) -> bool:
        return self._offers_to(peer) and peer.node_id in self._agreed_before

    def _never(self, peer: Peer) -> bool:
        """Return whether this node would not use the profile with a peer, whatever that announces."""
        plain = self._profiles.get(peer.node_id) is Profile.PLAIN
        return plain or not self._registry.is_handled(Subprotocol.NEGOTIATION)

    def _offers_to(self, peer: Peer) -> bool:
        return self._identity.node_id < peer.node_id


def _subprotocol_tags(claims: PeerClaims) -> frozenset[str]:
    return frozenset(tag for tag in claims.capabilities.tags if tag.startswith(TAG_PREFIX))
