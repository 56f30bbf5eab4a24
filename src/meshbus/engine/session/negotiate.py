"""Agreeing on the meshbus profile (0x0600): manifests out and in, and the set both sides may use.

A manifest is a byte that a plain 0.23 peer must never see, so none is sent before the peer has asked for it: by the
tag of 0x0600 in an announcement of its own, signed and heard *in this session*, or by configuration. The roles are
fixed by node id, so that nobody answers an answer:

    lower id    offers its manifest, three times a second apart until a manifest comes; without one the peer stays plain
                until it announces itself again
    higher id   answers every offer, and repeats its answer twice because nothing confirms it; an offer that comes
                before the announcement waits for it, unanswered

When the subprotocols of a side change it uses less at once and tells the other: the lower by a new offer, the higher by
its manifest, as if answering. A new session starts over, because the peer may have been restarted as something else; a
failure and recovery within a session does not. What is in a manifest and what follows from two of them is in
policy/registry.py.
"""

from __future__ import annotations

from enum import StrEnum

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.notices import Negotiated
from meshbus.engine.base.packets import Output
from meshbus.engine.session.peer import Peer, PeerClaims, PeerTable
from meshbus.errors import RemoteProtocolError
from meshbus.policy.reason import Reason
from meshbus.policy.registry import NegotiatedSet, SubprotocolRegistry, negotiate
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Buffer
from meshbus.wire.messages.manifest import decode_manifest, encode_manifest
from meshbus.wire.subprotocol import TAG_PREFIX, SubprotocolManifest, capability_tag

TRIES = 3
RETRY_S = 1.0

NEEDS = {
    Subprotocol.HISTORY: Subprotocol.RELIABLE,
    Subprotocol.LEADERSHIP: Subprotocol.REDEX,
    Subprotocol.REQUEST: Subprotocol.RELIABLE,
}
"""What a subprotocol is useless without; such a one is dropped from the set by both sides alike."""

_ASKS = capability_tag(Subprotocol.NEGOTIATION)


class Profile(StrEnum):
    """What is configured about a peer."""

    AUTO = "auto"
    """Speak the profile when the peer announces it."""
    MESHBUS = "meshbus"
    """Speak it without waiting for an announcement."""
    PLAIN = "plain"
    """Never speak it."""


class _Talk:
    """The negotiation with one peer in one session."""

    __slots__ = ("announced", "held", "offered_for", "theirs", "tries")

    def __init__(self) -> None:
        self.announced = False
        """The peer announced itself in this session."""
        self.held: SubprotocolManifest | None = None
        """An offer that waits for the announcement."""
        self.theirs: SubprotocolManifest | None = None
        """The peer's manifest, once it counts."""
        self.offered_for: PeerClaims | None = None
        """The claims that were in force when we offered last."""
        self.tries = 0


class Negotiator:
    """Finds out with each peer what may be used beyond the 0.23 wire, and keeps `peer.negotiated`."""

    def __init__(
        self,
        node_id: int,
        peers: PeerTable,
        registry: SubprotocolRegistry,
        counters: Counters,
        *,
        announces: bool = True,
    ) -> None:
        self._node_id = node_id
        self._peers = peers
        self._registry = registry
        self._counters = counters
        self._announces = announces
        """Whether our announcement carries the tags; without them no peer that is not configured would answer."""
        self._profiles: dict[int, Profile] = {}
        self._talks: dict[int, _Talk] = {}
        self._due: dict[int, float] = {}
        """When the next try is due, of those that wait."""

    def configure(self, node_id: int, profile: Profile) -> None:
        """Say what is known about a peer; holds from its next session on."""
        self._profiles[node_id] = profile

    def session_up(self, peer: Peer, now: float, out: Output) -> None:
        """Start over with a peer that has a new session."""
        self.forget(peer.node_id)
        self._talks[peer.node_id] = _Talk()
        self._use(peer, NegotiatedSet(), out)
        self._advance(peer, now, out)

    def announced(self, peer: Peer, now: float, out: Output) -> None:
        """Take note that a peer stands by its claims; call it whenever the directory says so."""
        talk = self._talks.get(peer.node_id)
        if talk is not None:
            talk.announced = True
            self._advance(peer, now, out)

    def is_plain(self, peer: Peer) -> bool:
        """Say whether a peer will not speak the profile with us, as far as it has told; else it may yet agree."""
        talk = self._talks.get(peer.node_id)
        told = talk is not None and (talk.announced or self._profiles.get(peer.node_id) is Profile.PLAIN)
        return talk is None or (told and not self._may_speak(peer, talk))

    def receive(self, peer: Peer, message: Buffer, now: float, out: Output) -> None:
        """Take a manifest that came from a peer."""
        talk = self._talks.get(peer.node_id)
        try:
            manifest = decode_manifest(message)
        except RemoteProtocolError:
            self._counters.count(Reason.MANIFEST_MALFORMED)
            return
        if talk is None or not self._registry.is_handled(Subprotocol.NEGOTIATION):
            self._counters.count(Reason.MANIFEST_UNWANTED)
            return
        if not self._may_speak(peer, talk):
            talk.held = manifest
            self._counters.add("hold", "manifest_unannounced")
            return
        self._take(peer, talk, manifest, now, out)

    def missed(self, peer: Peer, now: float, out: Output) -> None:
        """Take note that a peer used a part of the profile before we agreed: its answer was lost, so ask again."""
        talk = self._talks.get(peer.node_id)
        if (
            talk is not None
            and talk.theirs is None
            and self._offers_to(peer)
            and self._may_speak(peer, talk)
            and peer.node_id not in self._due
        ):
            self._send(peer, talk, now, out, first=True)

    def registry_changed(self, now: float, out: Output) -> None:
        """Use the registry as it is now, and tell the peers."""
        for node_id, talk in list(self._talks.items()):
            peer = self._peers.get(node_id)
            if peer is not None and talk.theirs is not None:
                self._settle(peer, talk.theirs, out)
                self._send(peer, talk, now, out, first=True)

    def forget(self, node_id: int) -> None:
        """End the negotiation with a peer that is gone."""
        self._talks.pop(node_id, None)
        self._due.pop(node_id, None)

    def next_timer(self) -> float | None:
        """Say when `tick` has something to do."""
        return min(self._due.values(), default=None)

    def tick(self, now: float, out: Output) -> None:
        """Try again, or give up."""
        for node_id in [node_id for node_id, due in self._due.items() if due <= now]:
            del self._due[node_id]
            peer, talk = self._peers.get(node_id), self._talks[node_id]
            if peer is None:
                self.forget(node_id)
            elif talk.tries < TRIES:
                self._send(peer, talk, now, out)
            elif talk.theirs is None:
                self._counters.add("negotiation", "no_answer")

    def _advance(self, peer: Peer, now: float, out: Output) -> None:
        """Do what became possible: answer an offer that waited, offer, or stop using what is no longer announced."""
        talk = self._talks[peer.node_id]
        if not self._may_speak(peer, talk):
            if talk.announced and talk.theirs is not None:
                self._due.pop(peer.node_id, None)
                talk.theirs = None
                self._use(peer, NegotiatedSet(), out)
            return
        if talk.held is not None:
            held, talk.held = talk.held, None
            self._take(peer, talk, held, now, out)
        if self._offers_to(peer) and self._has_news(peer, talk):
            self._send(peer, talk, now, out, first=True)

    def _take(self, peer: Peer, talk: _Talk, manifest: SubprotocolManifest, now: float, out: Output) -> None:
        """Use a manifest; an offer is answered."""
        self._due.pop(peer.node_id, None)
        talk.theirs = manifest
        if not self._offers_to(peer):
            self._send(peer, talk, now, out, first=True)
        self._settle(peer, manifest, out)

    def _has_news(self, peer: Peer, talk: _Talk) -> bool:
        """Say whether there is a reason to offer: no answer so far, or other subprotocols announced since we offered."""
        if peer.node_id in self._due:
            return False
        if talk.theirs is None or talk.offered_for is None:
            return True
        return _spoken(talk.offered_for) != _spoken(peer.claims)

    def _send(self, peer: Peer, talk: _Talk, now: float, out: Output, *, first: bool = False) -> None:
        talk.tries = 1 if first else talk.tries + 1
        talk.offered_for = peer.claims
        self._due[peer.node_id] = now + RETRY_S
        peer.send_message(Subprotocol.NEGOTIATION, encode_manifest(self._registry.manifest()), out)

    def _settle(self, peer: Peer, theirs: SubprotocolManifest, out: Output) -> None:
        self._use(peer, _with_needs(negotiate(self._registry.manifest(), theirs)), out)

    def _use(self, peer: Peer, agreed: NegotiatedSet, out: Output) -> None:
        changed = agreed != peer.negotiated
        peer.negotiated = agreed
        if changed:
            out.control.append(Negotiated(peer.node_id, agreed.compatible))

    def _may_speak(self, peer: Peer, talk: _Talk) -> bool:
        """Say whether the peer asked for the profile."""
        if not self._registry.is_handled(Subprotocol.NEGOTIATION):
            return False
        profile = self._profiles.get(peer.node_id, Profile.AUTO)
        asked = self._announces and talk.announced and _ASKS in peer.claims.capabilities.tags
        return profile is Profile.MESHBUS or (profile is Profile.AUTO and asked)

    def _offers_to(self, peer: Peer) -> bool:
        return self._node_id < peer.node_id


def _spoken(claims: PeerClaims) -> frozenset[str]:
    return frozenset(tag for tag in claims.capabilities.tags if tag.startswith(TAG_PREFIX))


def _with_needs(agreed: NegotiatedSet) -> NegotiatedSet:
    """Leave out what lacks something it needs."""
    usable = frozenset(id_ for id_ in agreed.compatible if id_ not in NEEDS or NEEDS[id_] in agreed.compatible)
    return NegotiatedSet(usable, agreed.incompatible)
