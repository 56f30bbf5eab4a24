"""Identity proofs (0x0A01), both sides: net-mesh from 0.37 on wants one before it believes a token (dialects.md §2.7).

    prover     asks for a challenge, at most `TRIES` times, signs it for this session and waits for the verdict. A
               verifier must be the peer itself: its entity has to belong to its node id, or nothing is signed
    verifier   remembers one challenge for each peer, and accepts a proof of it once. An entity counts only if it belongs
               to the node id of the peer, and if the peer has not announced another one

A proved entity is part of the peer's claims until the session ends; tokens are judged by it as by an announced one. It
opens nothing else: a peer that only proved itself is in no subnet.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.notices import PeerFailed, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.session.dialect import Level
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.errors import RemoteProtocolError
from meshbus.names.identity import derive_node_id, verify_signature
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.identityproof import (
    CHALLENGE_BYTES,
    REQUEST_ID_BYTES,
    Proof,
    ProofChallenge,
    ProofMessage,
    ProofRequest,
    ProofVerdict,
    decode_proof,
    encode_proof,
    signed_bytes,
)

TRIES = 5
RETRY_S = 0.4
"""Between two tries. Our choice: all of them fit into the 5 s in which a subscribe is answered."""
CHALLENGE_S = 10.0
"""How long a challenge can be answered. Our choice: twice as long as a subscriber waits."""
MAX_CHALLENGES = 4096
"""Peers with an open challenge. Our choice."""
REFUSED = 1
"""Reason of a refused proof. net-mesh has shown only 0, for an accepted one."""


BOUNDS = (
    Bound(
        name="proof_challenges",
        what="peers that were sent a challenge for an identity proof",
        by=By.MEMBER,
        per_node=MAX_CHALLENGES,
        full="the oldest goes",
        counter=forgotten("proof_challenges"),
    ),
)


class _Challenge(msgspec.Struct, frozen=True):
    session_id: int
    challenge: bytes
    until: float


class _Attempt:
    """A proof of our identity that is under way."""

    __slots__ = ("due", "proof", "request_id", "tries")

    def __init__(self, request_id: bytes) -> None:
        self.request_id = request_id
        """Of the request, or of the proof once it was sent."""
        self.proof: Proof | None = None
        self.tries = 0
        self.due = 0.0


class IdentityProofs(Service):
    """Proves this node's identity to publishers, and verifies that of subscribers."""

    def __init__(self, context: Context) -> None:
        self.settled: Callable[[Peer, bool, float, Output], None] = lambda _peer, _accepted, _now, _out: None
        """Called with the outcome of a proof of ours."""
        self._identity = context.identity
        self._entropy = context.entropy
        self._peers = context.peers
        self._counters = context.counters
        self._attempts: dict[int, _Attempt] = {}
        """By the verifier's node id."""
        self._challenges: BoundedMap[int, _Challenge] = BoundedMap(
            MAX_CHALLENGES, self._counters.forgetting("proof_challenges")
        )

    def prove(self, peer: Peer, now: float, out: Output) -> None:
        """Begin to prove this node's identity to a peer; `settled` reports the outcome. Does nothing if it is under way."""
        if peer.node_id not in self._attempts:
            attempt = self._attempts[peer.node_id] = _Attempt(self._entropy(REQUEST_ID_BYTES))
            self._send_next(peer, attempt, now, out)

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Handle one message of a proof."""
        try:
            heard = decode_proof(message)
        except RemoteProtocolError:
            self._counters.count(Reason.PROOF_MALFORMED)
            return
        peer.dialect.learn(Level.C)
        match heard:
            case ProofRequest():
                self._challenge(peer, heard, now, out)
            case ProofChallenge():
                self._answer(peer, heard, now, out)
            case Proof():
                self._verify(peer, heard, now, out)
            case ProofVerdict():
                self._take_verdict(peer, heard, now, out)

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        """Drop the proofs of an earlier session."""
        self._attempts.pop(peer.node_id, None)
        peer.claims = msgspec.structs.replace(peer.claims, proved_entity_id=None)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """End the attempt at a peer that is gone."""
        if isinstance(down, PeerGone):
            self._attempts.pop(down.node_id, None)

    def next_timer(self) -> float | None:
        """Return when the next message is due again, or None."""
        return min((attempt.due for attempt in self._attempts.values()), default=None)

    def tick(self, now: float, out: Output) -> None:
        """Send again what was not answered, or give up."""
        for node_id, attempt in [item for item in self._attempts.items() if item[1].due <= now]:
            peer = self._peers.get(node_id)
            if peer is not None and attempt.tries < TRIES:
                self._send_next(peer, attempt, now, out)
                continue
            del self._attempts[node_id]
            self._counters.add("timeout", "identity_proof")
            if peer is not None:
                self.settled(peer, False, now, out)

    def _send_next(self, peer: Peer, attempt: _Attempt, now: float, out: Output) -> None:
        attempt.tries += 1
        attempt.due = now + RETRY_S
        _send(peer, attempt.proof or ProofRequest(request_id=attempt.request_id), out)

    def _answer(self, peer: Peer, challenge: ProofChallenge, now: float, out: Output) -> None:
        """Sign the challenge that was asked for."""
        attempt = self._attempts.get(peer.node_id)
        if attempt is None or attempt.proof is not None or attempt.request_id != challenge.request_id:
            self._counters.count(Reason.PROOF_UNEXPECTED)
            return
        if derive_node_id(challenge.verifier) != peer.node_id:
            self._counters.count(Reason.PROOF_WRONG_ENTITY)
            return
        attempt.request_id = self._entropy(REQUEST_ID_BYTES)
        signed = signed_bytes(
            verifier=challenge.verifier,
            prover=self._identity.entity_id,
            node_id=self._identity.node_id,
            session_id=peer.link.session_id,
            challenge=challenge.challenge,
        )
        attempt.proof = Proof(
            request_id=attempt.request_id,
            prover=self._identity.entity_id,
            challenge=challenge.challenge,
            signature=self._identity.sign(signed),
        )
        self._send_next(peer, attempt, now, out)

    def _take_verdict(self, peer: Peer, verdict: ProofVerdict, now: float, out: Output) -> None:
        attempt = self._attempts.get(peer.node_id)
        if attempt is None or attempt.proof is None or attempt.request_id != verdict.request_id:
            self._counters.count(Reason.PROOF_UNEXPECTED)
            return
        del self._attempts[peer.node_id]
        self.settled(peer, verdict.accepted, now, out)

    def _challenge(self, peer: Peer, request: ProofRequest, now: float, out: Output) -> None:
        """Send a challenge; a repeated request gets the same one, because its answer may be on the way."""
        known = self._challenges.get(peer.node_id)
        if known is None or known.session_id != peer.link.session_id or now >= known.until:
            known = _Challenge(peer.link.session_id, self._entropy(CHALLENGE_BYTES), now + CHALLENGE_S)
            self._challenges.put(peer.node_id, known)
        verifier, challenge = self._identity.entity_id, known.challenge
        _send(peer, ProofChallenge(request_id=request.request_id, verifier=verifier, challenge=challenge), out)

    def _verify(self, peer: Peer, proof: Proof, now: float, out: Output) -> None:
        refusal = self._refusal(peer, proof, now)
        if refusal is None:
            self._challenges.pop(peer.node_id)
            peer.claims = msgspec.structs.replace(peer.claims, proved_entity_id=proof.prover)
            self._counters.add("identity_proof", "accepted")
        else:
            self._counters.count(refusal)
        reason = 0 if refusal is None else REFUSED
        _send(peer, ProofVerdict(request_id=proof.request_id, accepted=refusal is None, reason=reason), out)

    def _refusal(self, peer: Peer, proof: Proof, now: float) -> Reason | None:
        """Return why a proof is not believed, or None; the cheap checks come before the signature."""
        known = self._challenges.get(peer.node_id)
        session_id = peer.link.session_id
        if known is None or now >= known.until or (known.session_id, known.challenge) != (session_id, proof.challenge):
            return Reason.PROOF_UNEXPECTED
        announced = peer.claims.entity_id
        if derive_node_id(proof.prover) != peer.node_id or announced not in {None, proof.prover}:
            return Reason.PROOF_WRONG_ENTITY
        signed = signed_bytes(
            verifier=self._identity.entity_id,
            prover=proof.prover,
            node_id=peer.node_id,
            session_id=session_id,
            challenge=proof.challenge,
        )
        return None if verify_signature(proof.prover, signed, proof.signature) else Reason.PROOF_BAD_SIGNATURE


def _send(peer: Peer, message: ProofMessage, out: Output) -> None:
    peer.send_message(Subprotocol.IDENTITY_PROOF, encode_proof(message), out)
