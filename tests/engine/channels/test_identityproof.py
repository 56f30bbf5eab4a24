"""Identity proofs between two nodes: what is accepted, for how long, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.channels.identityproof import CHALLENGE_S, RETRY_S, TRIES, IdentityProofs
from meshbus.engine.session.dialect import Level
from meshbus.engine.session.peer import Peer
from meshbus.names.identity import Identity
from meshbus.testing.rig import rig
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.identityproof import (
    Proof,
    ProofChallenge,
    ProofMessage,
    ProofRequest,
    ProofVerdict,
    decode_proof,
    encode_proof,
    signed_bytes,
)
from tests.engine.wires import FarEnd

OTHER = Identity.from_seed(bytes([9]) * 32)
REQUEST = bytes(range(8))


class Scene:
    """A node, and a peer whose identity the test has."""

    def __init__(self) -> None:
        self.engine = rig(seed=1)
        self.proofs = self.engine.services[IdentityProofs]
        self.far = FarEnd(self.engine.peers, OTHER.node_id)
        self.verdicts: list[bool] = []
        self.proofs.settled = lambda _peer, accepted, _now, _out: self.verdicts.append(accepted)

    @property
    def peer(self) -> Peer:
        return self.far.peer

    def hear(self, message: ProofMessage | bytes, now: float = 0.0) -> list[ProofMessage]:
        out = Output()
        event = message if isinstance(message, bytes) else encode_proof(message)
        self.proofs.receive(self.peer, memoryview(event), now, out)
        return self.read(out)

    def read(self, out: Output) -> list[ProofMessage]:
        heard = self.far.read(out)
        assert {subprotocol_id for subprotocol_id, _ in heard} <= {Subprotocol.IDENTITY_PROOF}
        return [decode_proof(event) for _, event in heard]

    def challenge(self, now: float = 0.0) -> ProofChallenge:
        [answer] = self.hear(ProofRequest(request_id=REQUEST), now)
        assert isinstance(answer, ProofChallenge)
        assert answer.request_id == REQUEST
        return answer

    def proof(self, challenge: ProofChallenge, who: Identity = OTHER) -> Proof:
        signed = signed_bytes(
            verifier=challenge.verifier,
            prover=who.entity_id,
            node_id=who.node_id,
            session_id=self.peer.link.session_id,
            challenge=challenge.challenge,
        )
        return Proof(
            request_id=bytes(8), prover=who.entity_id, challenge=challenge.challenge, signature=who.sign(signed)
        )

    def count(self, why: str) -> int:
        return self.engine.counters.get("drop", why)


def test_a_peer_that_has_the_key_is_believed_for_its_session() -> None:
    scene = Scene()
    [verdict] = scene.hear(scene.proof(scene.challenge()))
    assert verdict == ProofVerdict(request_id=bytes(8), accepted=True)
    assert scene.peer.claims.holder == OTHER.entity_id
    assert scene.peer.claims.entity_id is None, "it announced nothing"
    assert scene.peer.dialect.level is Level.C
    scene.proofs.peer_up(scene.peer, 1.0, Output())
    assert scene.peer.claims.holder is None


def test_a_repeated_request_gets_the_same_challenge_and_a_proof_counts_once() -> None:
    scene = Scene()
    first = scene.challenge()
    assert scene.challenge(1.0) == first
    proof = scene.proof(first)
    scene.hear(proof)
    assert scene.hear(proof) == [ProofVerdict(request_id=bytes(8), accepted=False, reason=1)]
    assert scene.count("proof_unexpected") == 1
    assert scene.challenge(CHALLENGE_S).challenge != first.challenge


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"challenge": bytes(32)}, "proof_unexpected"),
        ({"prover": bytes(32)}, "proof_wrong_entity"),
        ({"signature": bytes(64)}, "proof_bad_signature"),
    ],
)
def test_a_wrong_proof_is_refused_and_counted(change: dict[str, bytes], why: str) -> None:
    scene = Scene()
    wrong = msgspec.structs.replace(scene.proof(scene.challenge()), **change)
    assert scene.hear(wrong) == [ProofVerdict(request_id=bytes(8), accepted=False, reason=1)]
    assert scene.count(why) == 1
    assert scene.peer.claims.holder is None


def test_an_entity_of_another_node_or_other_than_announced_is_refused() -> None:
    scene = Scene()
    stranger = Identity.from_seed(bytes([8]) * 32)
    scene.hear(scene.proof(scene.challenge(), stranger))
    scene.peer.claims = msgspec.structs.replace(scene.peer.claims, entity_id=stranger.entity_id)
    scene.hear(scene.proof(scene.challenge()))
    assert scene.count("proof_wrong_entity") == 2


def test_an_old_challenge_is_no_longer_answered() -> None:
    scene = Scene()
    proof = scene.proof(scene.challenge())
    scene.hear(proof, CHALLENGE_S)
    assert scene.count("proof_unexpected") == 1


def test_this_node_proves_itself() -> None:
    scene, out = Scene(), Output()
    scene.proofs.prove(scene.peer, 0.0, out)
    scene.proofs.prove(scene.peer, 0.0, out)
    [request] = scene.read(out)
    challenge = ProofChallenge(request_id=request.request_id, verifier=OTHER.entity_id, challenge=bytes(32))
    [proof] = scene.hear(challenge)
    assert isinstance(proof, Proof)
    assert proof.request_id != request.request_id
    assert scene.hear(challenge) == [], "it was answered"
    assert scene.hear(ProofVerdict(request_id=bytes(8), accepted=True)) == [], "not about this proof"
    assert scene.verdicts == []
    scene.hear(ProofVerdict(request_id=proof.request_id, accepted=True))
    assert scene.verdicts == [True]
    assert scene.proofs.next_timer() is None


def test_nothing_is_signed_for_a_verifier_that_is_someone_else() -> None:
    scene, out = Scene(), Output()
    scene.proofs.prove(scene.peer, 0.0, out)
    [request] = scene.read(out)
    wrong = ProofChallenge(request_id=request.request_id, verifier=bytes(32), challenge=bytes(32))
    assert scene.hear(wrong) == []
    assert scene.count("proof_wrong_entity") == 1


def test_a_verifier_that_does_not_answer_is_given_up() -> None:
    scene, now, sent = Scene(), 0.0, Output()
    scene.proofs.prove(scene.peer, now, sent)
    while (due := scene.proofs.next_timer()) is not None:
        now = due
        scene.proofs.tick(now, sent)
    assert len(scene.read(sent)) == TRIES
    assert now == pytest.approx(TRIES * RETRY_S)
    assert scene.verdicts == [False]


def test_unreadable_messages_are_counted() -> None:
    scene = Scene()
    scene.hear(b"\x07")
    assert scene.count("proof_malformed") == 1
    assert scene.peer.dialect.level is None
