"""Membership (0x0A00): requests and answers on both sides, valid and invalid Acks, and observed packets."""

import pytest

from meshbus.engine.base.notices import Acked, DownReason, PeerGone, Subscribed, Unsubscribed
from meshbus.engine.base.packets import Output
from meshbus.engine.channels.membership import MAX_PENDING
from meshbus.engine.session.dialect import Level
from meshbus.engine.session.peer import Peer
from meshbus.errors import LocalProtocolError
from meshbus.names.channel import ChannelName
from meshbus.wire.messages.membership import (
    Ack,
    AckReason,
    MembershipMessage,
    Subscribe,
    Unsubscribe,
    decode_membership,
    encode_membership,
)
from meshbus.wire.messages.token import TOKEN_BYTES, Scope
from tests.engine.stage import NODE, STRANGER, Stage, channel_config, configs, entity, token
from tests.vectors import load

BATCH = load("policy")["membership_batch"]
TIMEOUT = load("policy")["ack_timeout"]
THROTTLE = load("policy")["auth_throttle"]
CAP = load("policy")["max_channels_per_peer"]
PROMOTION = load("policy")["token_promotion_and_expiry"]["rows"]
CAPTURED = load("policy")["membership_captured_from_reference"]

A, B, SECRET = ChannelName("a"), ChannelName("b"), ChannelName("lab/secret")


def acked(ack: Ack) -> dict[str, object]:
    return {"accepted": ack.accepted, "reason": ack.reason.name.lower()}


def hear(scene: Stage, peer: Peer, message: MembershipMessage, now: float = 0.0) -> Output:
    out = Output()
    scene.membership.receive(peer, encode_membership(message), now, out)
    return out


# ── answering ───────────────────────────────────────────────────────────────────────────────


def test_a_subscribe_is_answered_and_reported() -> None:
    scene = Stage()
    alice = scene.peer(1)
    out = hear(scene, alice, Subscribe(nonce=7, channel=A, queue_group="g"))
    assert out.control == [Subscribed(alice.node_id, A, "g")]
    assert [decode_membership(m) for _, m in scene.messages(out)] == [Ack(nonce=7, accepted=True)]
    out = hear(scene, alice, Unsubscribe(nonce=8, channel=A))
    assert out.control == [Unsubscribed(alice.node_id, A, "asked")]
    assert [decode_membership(m) for _, m in scene.messages(out)] == [Ack(nonce=8, accepted=True)]
    assert len(scene.roster) == 0


def test_unsubscribing_always_succeeds() -> None:
    scene = Stage(configs())
    alice = scene.peer(1)
    assert scene.tell(alice, Unsubscribe(nonce=1, channel=A)) == Ack(nonce=1, accepted=True)
    for _ in range(20):
        scene.tell(alice, Subscribe(nonce=1, channel=A))
    assert scene.tell(alice, Subscribe(nonce=2, channel=A)).reason is AckReason.RATE_LIMITED
    assert scene.tell(alice, Unsubscribe(nonce=3, channel=A)).accepted, "even when throttled"


def test_each_message_of_a_packet_gets_an_ack_in_a_packet_of_its_own() -> None:
    scene, out = Stage(), Output()
    alice = scene.peer(1)
    for nonce, channel in ((1, A), (2, B)):
        scene.membership.receive(alice, encode_membership(Subscribe(nonce=nonce, channel=channel)), 0.0, out)
    assert BATCH["events_in_one_packet"] == 2
    packets = scene.sent(out)
    assert len(packets) == BATCH["ack_packets"]
    assert sum(len(events) for _, _, events in packets) == BATCH["acks_received"]
    assert [header.sequence for _, header, _ in packets] == [0, 1]


def test_captured_requests_are_answered_with_the_header_fields_of_the_reference() -> None:
    scene = Stage()
    alice = scene.peer(1)
    asked = [row for row in CAPTURED["rows"] if row["type"] in {"subscribe", "unsubscribe"}]
    assert len(asked) > 2
    for row in asked:
        out = Output()
        scene.membership.receive(alice, bytes.fromhex(row["hex"]), 0.0, out)
        ((_, header, (answer,)),) = scene.sent(out)
        assert decode_membership(answer) == Ack(nonce=int(row["nonce"], 16), accepted=True)
        assert header.subprotocol_id == int(row["header"]["subprotocol"], 16)
        for field in row["header"].keys() - {"subprotocol"}:
            assert getattr(header, field) == row["header"][field], field


def test_malformed_messages_are_counted_and_get_no_answer() -> None:
    scene, out = Stage(), Output()
    alice = scene.peer(1)
    for bad in (b"", b"\x09", encode_membership(Subscribe(nonce=1, channel=A))[:-1], bytes(11)):
        scene.membership.receive(alice, bad, 0.0, out)
    assert out.trains == []
    assert scene.counters.get("drop", "membership_malformed") == 4


def test_refusals_carry_their_reasons_as_observed() -> None:
    scene = Stage(configs(channel_config(A)))
    alice = scene.peer(1)
    answers = [scene.tell(alice, Subscribe(nonce=n, channel=B)) for n in range(18)]
    assert [ack.reason.name.lower() for ack in answers] == THROTTLE["reasons_for_18_unknown_channel_subscribes"]
    assert not any(ack.accepted for ack in answers)
    assert acked(scene.tell(alice, Subscribe(nonce=99, channel=A))) == THROTTLE["then_open_channel"]


def test_one_channel_too_many_is_refused_as_observed() -> None:
    scene = Stage()
    alice = scene.peer(1)
    answers = [scene.tell(alice, Subscribe(nonce=n, channel=ChannelName(f"c/{n}"))) for n in range(CAP["sent"])]
    assert len(answers) == CAP["replies"]
    assert sum(ack.accepted for ack in answers) == CAP["accepted"]
    assert {(0, int(ack.reason)) for ack in answers if not ack.accepted} == {tuple(row) for row in CAP["reject_bytes"]}
    existing = scene.tell(alice, Subscribe(nonce=1, channel=ChannelName("c/0")))
    assert acked(existing) == CAP["resubscribe_existing_at_cap"]
    scene.tell(alice, Unsubscribe(nonce=2, channel=ChannelName("c/0")))
    assert acked(scene.tell(alice, Subscribe(nonce=3, channel=ChannelName("new")))) == CAP["new_after_one_unsubscribe"]


def test_a_failed_peer_is_removed_from_the_roster() -> None:
    scene, out = Stage(), Output()
    alice = scene.peer(1)
    scene.tell(alice, Subscribe(nonce=1, channel=A))
    scene.fail(alice, out)
    assert out.control == [Unsubscribed(alice.node_id, A, "silent")]
    assert scene.roster.channels_of(alice.node_id) == []


# ── tokens over time ────────────────────────────────────────────────────────────────────────

PRESENTED = {
    "subscribe with own valid token": token(entity(1), SECRET, issuer=STRANGER),
    "re-subscribe presenting a token whose subject is the publisher, scope PUBLISH, signed by a stranger": token(
        NODE, SECRET, Scope.PUBLISH, issuer=STRANGER
    ),
    "re-subscribe presenting an expired token with the same scope bits as the valid one": token(
        entity(1), SECRET, issuer=STRANGER, now=-1000
    ),
    "re-subscribe with no token": b"",
    "re-subscribe with a token valid for 2 s": token(entity(1), SECRET, issuer=STRANGER, ttl_s=2),
}


def attempted(scene: Stage, now: float) -> int | str:
    """Publish, as far as the plan: how many peers would get it, or the refusal."""
    if not scene.authorizer.can_publish_locally(SECRET, now):
        return "denied"
    config = scene.authorizer.config_of(SECRET)
    return len(
        scene.roster.dispatch(
            SECRET, lambda peer: scene.admission.filter(peer, SECRET, SECRET.hash, config, now) is None
        )
    )


def test_with_the_switch_tokens_are_planted_and_expire_as_observed() -> None:
    scene = Stage(configs(channel_config(SECRET, require_token=True)), any_issuer=True)
    alice = scene.peer(1)
    for nonce, row in enumerate(PROMOTION):
        now = 2.0 if "after expiry" in row["step"] else 0.0
        if "ack" in row:
            ack = scene.tell(alice, Subscribe(nonce=nonce, channel=SECRET, token=PRESENTED[row["step"]]), now)
            assert acked(ack) == row["ack"], row["step"]
        else:
            expected = row["publish"]["attempted"] if isinstance(row["publish"], dict) else "denied"
            assert attempted(scene, now) == expected, row["step"]


def test_by_default_only_tokens_of_trusted_issuers_are_accepted_and_kept() -> None:
    scene = Stage(configs(channel_config(SECRET, require_token=True)))
    alice = scene.peer(1)
    for nonce, presented in enumerate(PRESENTED.values()):
        ack = scene.tell(alice, Subscribe(nonce=nonce, channel=SECRET, token=presented))
        assert ack.reason is AckReason.UNAUTHORIZED
    assert attempted(scene, 0.0) == "denied"
    good = token(entity(1), SECRET)
    assert scene.tell(alice, Subscribe(nonce=9, channel=SECRET, token=good)).accepted
    for presented in PRESENTED.values():
        assert scene.tell(alice, Subscribe(nonce=9, channel=SECRET, token=presented)).accepted, "by the kept one"
    assert attempted(scene, 0.0) == "denied", "no publish token was planted"
    assert len(scene.tokens) == 1


# ── asking ──────────────────────────────────────────────────────────────────────────────────


def test_a_subscribe_and_its_answer() -> None:
    scene, out = Stage(), Output()
    publisher = scene.peer(1)
    request = scene.membership.subscribe(publisher, A, 0.0, out, token=b"t", queue_group="g")
    ((number, sent),) = scene.messages(out)
    assert number == 1
    assert decode_membership(sent) == Subscribe(nonce=request, channel=A, token=b"t", queue_group="g")
    assert scene.joined.channel_of(publisher.node_id, A.stream_id) == A, "an event may overtake the answer"
    out = hear(scene, publisher, Ack(nonce=request, accepted=True, reason=AckReason.RATE_LIMITED))
    assert out.control == [Acked(request, publisher.node_id, A, accepted=True)], "accepted, whatever the reason says"
    assert scene.membership.next_timer() is None
    request = scene.membership.unsubscribe(publisher, A, 1.0, out)
    assert scene.joined.channel_of(publisher.node_id, A.stream_id) is None
    out = hear(scene, publisher, Ack(nonce=request, accepted=True))
    assert out.control == [Acked(request, publisher.node_id, A, accepted=True, leaving=True)]


@pytest.mark.parametrize("reason", AckReason)
def test_a_refusal_keeps_the_publishers_reason(reason: AckReason) -> None:
    scene = Stage()
    publisher = scene.peer(1)
    request = scene.membership.subscribe(publisher, A, 0.0, Output())
    out = hear(scene, publisher, Ack(nonce=request, accepted=False, reason=reason))
    assert out.control == [Acked(request, publisher.node_id, A, accepted=False, reason=reason)]
    assert scene.joined.channels_of(publisher.node_id) == []


def test_a_timeout_is_reported_after_five_seconds_as_observed() -> None:
    scene, out = Stage(), Output()
    publisher = scene.peer(1)
    first = scene.membership.subscribe(publisher, A, 1.0, out)
    second = scene.membership.unsubscribe(publisher, B, 2.0, out)
    out = Output()
    assert scene.membership.next_timer() == 1.0 + TIMEOUT["seconds"]
    scene.membership.tick(5.99, out)
    assert out.control == []
    scene.membership.tick(6.0, out)
    assert out.control == [Acked(first, publisher.node_id, A, accepted=False, timed_out=True)]
    assert out.trains == [], "requests are sent once"
    assert scene.joined.channels_of(publisher.node_id) == []
    assert scene.membership.next_timer() == 7.0
    scene.membership.tick(100.0, out)
    assert out.control[1:] == [Acked(second, publisher.node_id, B, accepted=False, timed_out=True)]
    assert scene.counters.get("timeout", "membership_ack") == 2
    assert hear(scene, publisher, Ack(nonce=first, accepted=True)).control == [], "too late"
    assert scene.counters.get("drop", "membership_unexpected_ack") == 1


def test_an_answer_counts_only_from_the_requested_peer() -> None:
    scene, out = Stage(), Output()
    publisher, mallory = scene.peer(1), scene.peer(2)
    request = scene.membership.subscribe(publisher, A, 0.0, out)
    assert hear(scene, mallory, Ack(nonce=request, accepted=False)).control == []
    assert scene.counters.get("drop", "membership_foreign_ack") == 1
    assert hear(scene, publisher, Ack(nonce=request, accepted=True)).control != []
    assert hear(scene, publisher, Ack(nonce=request, accepted=True)).control == [], "once"


def test_a_refused_second_subscribe_leaves_what_was_granted() -> None:
    scene, out = Stage(), Output()
    publisher = scene.peer(1)
    hear(scene, publisher, Ack(nonce=scene.membership.subscribe(publisher, A, 0.0, out), accepted=True))
    request = scene.membership.subscribe(publisher, A, 1.0, out)
    hear(scene, publisher, Ack(nonce=request, accepted=False, reason=AckReason.RATE_LIMITED))
    assert scene.joined.channels_of(publisher.node_id) == [A]


def test_of_two_requests_for_one_channel_either_may_succeed() -> None:
    scene, out = Stage(), Output()
    publisher = scene.peer(1)
    first, second = (scene.membership.subscribe(publisher, A, 0.0, out) for _ in range(2))
    hear(scene, publisher, Ack(nonce=first, accepted=False))
    assert scene.joined.channels_of(publisher.node_id) == [A]
    hear(scene, publisher, Ack(nonce=second, accepted=True))
    assert scene.joined.channels_of(publisher.node_id) == [A]


def test_an_unsubscribe_cancels_a_subscribe_in_flight() -> None:
    scene, out = Stage(), Output()
    publisher = scene.peer(1)
    request = scene.membership.subscribe(publisher, A, 0.0, out)
    scene.membership.unsubscribe(publisher, A, 0.0, out)
    assert hear(scene, publisher, Ack(nonce=request, accepted=True)).control != []
    assert scene.joined.channels_of(publisher.node_id) == []
    scene.sent(out)
    scene.membership.peer_up(publisher, 1.0, out)
    assert out.trains == []


def test_rejoining_asks_again_for_what_was_granted() -> None:
    scene, out = Stage(), Output()
    publisher = scene.peer(1)
    granted = scene.membership.subscribe(publisher, A, 0.0, out, token=b"t", queue_group="g")
    refused = scene.membership.subscribe(publisher, B, 0.0, out)
    hear(scene, publisher, Ack(nonce=granted, accepted=True))
    hear(scene, publisher, Ack(nonce=refused, accepted=False))
    scene.sent(out)
    for rejoin in (scene.membership.peer_up, scene.membership.recovered):
        rejoin(publisher, 9.0, out)
        ((_, sent),) = scene.messages(out)
        again = decode_membership(sent)
        assert again == Subscribe(nonce=again.nonce, channel=A, token=b"t", queue_group="g")
        assert again.nonce != granted


def test_a_request_that_does_not_fit_leaves_no_trace() -> None:
    scene, out = Stage(), Output()
    publisher = scene.peer(1)
    for options in ({"token": bytes(9000)}, {"token": bytes(70_000)}, {"queue_group": "g" * 256}):
        with pytest.raises(LocalProtocolError):
            scene.membership.subscribe(publisher, A, 0.0, out, **options)
    assert out.trains == []
    assert scene.membership.next_timer() is None
    assert scene.joined.channels_of(publisher.node_id) == []


def test_numbers_are_not_used_twice_at_a_time_and_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, out = Stage(), Output()
    publisher = scene.peer(1)
    monkeypatch.setattr(scene.membership, "_entropy", lambda size: b"\xff" * size)
    assert [scene.membership.subscribe(publisher, A, 0.0, out) for _ in range(3)] == [2**64 - 1, 0, 1]
    monkeypatch.setattr("meshbus.engine.channels.membership.MAX_PENDING", 3)
    assert MAX_PENDING > 1024
    with pytest.raises(LocalProtocolError, match="wait for some of them"):
        scene.membership.subscribe(publisher, A, 0.0, out)


# ── tokens and proofs of later versions ─────────────────────────────────────────────────────


def asked(scene: Stage, publisher: Peer, out: Output) -> Subscribe:
    ((_, sent),) = scene.messages(out)
    message = decode_membership(sent)
    assert isinstance(message, Subscribe)
    return message


def test_a_refused_token_is_presented_again_in_the_other_form() -> None:
    scene, out = Stage(), Output()
    publisher, plain = scene.peer(1), bytes(TOKEN_BYTES)
    request = scene.membership.subscribe(publisher, A, 0.0, out, token=plain)
    assert asked(scene, publisher, out).token == plain, "as a 0.23 node reads it"
    out = hear(scene, publisher, Ack(nonce=request, accepted=False, reason=AckReason.UNAUTHORIZED))
    again = asked(scene, publisher, out)
    assert again.token == b"\x01" + plain
    assert out.control == []
    out = hear(scene, publisher, Ack(nonce=again.nonce, accepted=True))
    assert out.control == [Acked(request, publisher.node_id, A, accepted=True)]
    assert publisher.dialect.level is Level.B
    scene.membership.peer_up(publisher, 1.0, out := Output())
    assert asked(scene, publisher, out).token == b"\x01" + plain, "the level is known now"


def test_a_publisher_of_level_a_is_asked_once() -> None:
    scene = Stage()
    publisher = scene.peer(1)
    publisher.dialect.learn(Level.A)
    request = scene.membership.subscribe(publisher, A, 0.0, Output(), token=bytes(TOKEN_BYTES))
    out = hear(scene, publisher, Ack(nonce=request, accepted=False, reason=AckReason.UNAUTHORIZED))
    assert out.trains == []
    assert [notice.reason for notice in out.control if isinstance(notice, Acked)] == [AckReason.UNAUTHORIZED]


@pytest.mark.parametrize("accepted", [True, False])
def test_a_publisher_that_wants_a_proof_gets_it_before_the_request_is_repeated(accepted: bool) -> None:
    scene = Stage()
    publisher = scene.peer(1)
    proving: list[int] = []
    proofs = scene.membership._proofs
    proofs.prove = lambda peer, _now, _out: proving.append(peer.node_id)  # type: ignore[method-assign,assignment]
    request = scene.membership.subscribe(publisher, A, 0.0, Output(), token=bytes(TOKEN_BYTES))
    hear(scene, publisher, Ack(nonce=request, accepted=False, reason=AckReason.IDENTITY_NOT_PROVED))
    assert proving == [publisher.node_id]
    assert publisher.dialect.level is Level.C
    proofs.settled(publisher, accepted, 1.0, out := Output())
    if not accepted:
        assert out.control == [
            Acked(request, publisher.node_id, A, accepted=False, reason=AckReason.IDENTITY_NOT_PROVED)
        ]
        return
    again = asked(scene, publisher, out)
    out = hear(scene, publisher, Ack(nonce=again.nonce, accepted=False, reason=AckReason.IDENTITY_NOT_PROVED))
    assert len(proving) == 1, "once is enough"
    assert [notice.request for notice in out.control if isinstance(notice, Acked)] == [request]


def test_a_publisher_that_leaves_ends_what_waits_for_a_proof() -> None:
    scene = Stage()
    publisher = scene.peer(1)
    request = scene.membership.subscribe(publisher, A, 0.0, Output(), token=bytes(TOKEN_BYTES))
    hear(scene, publisher, Ack(nonce=request, accepted=False, reason=AckReason.IDENTITY_NOT_PROVED))
    out = Output()
    scene.membership.peer_down(PeerGone(publisher.node_id, DownReason.CLOSED), 0.0, out)
    assert out.control == [Acked(request, publisher.node_id, A, accepted=False, gone=True)]
