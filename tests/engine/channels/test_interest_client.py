"""Following a prefix: repeated until answered, refreshed, and canceled reliably."""

import pytest

from meshbus.engine.base.notices import Matched
from meshbus.engine.base.packets import Output
from meshbus.engine.channels.interest_client import MAX_FOLLOWED, REFRESH_S
from meshbus.engine.session.peer import Peer
from meshbus.errors import LocalProtocolError
from meshbus.names.channel import ChannelName
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.interest import (
    Cancel,
    Interest,
    InterestMessage,
    Match,
    Matches,
    Verdict,
    decode_interest,
    encode_interest,
)
from meshbus.wire.messages.membership import AckReason
from tests.engine.stage import Stage

A, B, C = ChannelName("s/a"), ChannelName("s/b"), ChannelName("s/c")
PROFILE = [Subprotocol.INTEREST]


def setting() -> tuple[Stage, Peer]:
    scene = Stage()
    return scene, scene.peer(1, profile=PROFILE)


def sent(scene: Stage, out: Output) -> list[InterestMessage]:
    return [decode_interest(message) for _, message in scene.messages(out, Subprotocol.INTEREST)]


def answer(scene: Stage, peer: Peer, request: int, *verdicts: tuple[Verdict, ChannelName], now: float = 0.0) -> Output:
    out = Output()
    matches = Matches(req=request, matches=tuple(Match(*verdict) for verdict in verdicts))
    scene.interests.receive(peer, encode_interest(matches), now, out)
    return out


def test_following_a_prefix_and_the_answer() -> None:
    scene, peer = setting()
    out = Output()
    request = scene.following.follow(peer, "s/", 0.0, out, token=b"t", queue_group="g")
    assert sent(scene, out) == [Interest(req=request, prefix="s/", queue_group="g", token=b"t")]
    assert scene.following.followed(peer.node_id) == {request: "s/"}
    out = answer(scene, peer, request, (Verdict.ADDED, A), (Verdict.UNAUTHORIZED, B))
    assert out.control == [Matched(request, peer.node_id, (A,), (), ((B, AckReason.UNAUTHORIZED),))]
    assert scene.joined.channels_of(peer.node_id) == [A]


def test_an_answer_without_matches_is_an_answer() -> None:
    scene, peer = setting()
    request = scene.following.follow(peer, "s/", 0.0, Output())
    assert answer(scene, peer, request).control == [Matched(request, peer.node_id)]
    assert answer(scene, peer, request).control == [], "and nothing new is none"


def test_changes_are_reported_once() -> None:
    scene, peer = setting()
    request = scene.following.follow(peer, "s/", 0.0, Output())
    answer(scene, peer, request, (Verdict.ADDED, A), (Verdict.UNAUTHORIZED, B))
    assert answer(scene, peer, request, (Verdict.ADDED, A), (Verdict.UNAUTHORIZED, B)).control == []
    out = answer(scene, peer, request, (Verdict.REMOVED, A), (Verdict.ADDED, B), (Verdict.TOO_MANY_CHANNELS, C))
    assert out.control == [Matched(request, peer.node_id, (B,), (A,), ((C, AckReason.TOO_MANY_CHANNELS),))]
    out = answer(scene, peer, request, (Verdict.UNAUTHORIZED, B), (Verdict.REMOVED, C), (Verdict.REMOVED, A))
    assert out.control == [Matched(request, peer.node_id, (), (B,), ((B, AckReason.UNAUTHORIZED),))]
    assert scene.joined.channels_of(peer.node_id) == []


def test_an_interest_is_sent_every_second_and_fails_after_five() -> None:
    scene, peer = setting()
    out = Output()
    request = scene.following.follow(peer, "s/", 0.0, out)
    for second in (1.0, 2.0, 3.0, 4.0):
        assert scene.following.next_timer() == second
        scene.following.tick(second, out)
    assert sent(scene, out) == [Interest(req=request, prefix="s/")] * 5
    scene.following.tick(5.0, out)
    assert out.control == [Matched(request, peer.node_id, timed_out=True)]
    assert sent(scene, out) == [Cancel(req=request)], "it may have been taken, and only the answers were lost"
    assert scene.counters.get("timeout", "interest") == 1
    assert scene.following.followed(peer.node_id) == {}


def test_an_answered_interest_is_repeated_for_what_was_lost() -> None:
    scene, peer = setting()
    out = Output()
    request = scene.following.follow(peer, "s/", 0.0, out)
    answer(scene, peer, request, (Verdict.ADDED, A), now=0.5)
    scene.sent(out)
    assert scene.following.next_timer() == 0.5 + REFRESH_S
    scene.following.tick(30.5, out)
    assert sent(scene, out) == [Interest(req=request, prefix="s/")]
    scene.following.tick(31.5, out)
    assert len(sent(scene, out)) == 1, "no answer yet"
    answer(scene, peer, request, (Verdict.ADDED, A), now=31.6)
    assert scene.following.next_timer() == 31.6 + REFRESH_S
    for second in range(62, 200):
        scene.following.tick(float(second), out)
    assert len(sent(scene, out)) < 15, "a silent publisher is asked rarely, and never given up"
    assert out.control == []
    assert scene.following.followed(peer.node_id) == {request: "s/"}


def test_a_stream_without_a_name_repeats_the_interest_but_not_for_every_packet() -> None:
    scene, peer = setting()
    out = Output()
    assert not scene.following.unknown_stream(peer.node_id, 0.0), "nothing is followed, so no name will come"
    request = scene.following.follow(peer, "s/", 0.0, out)
    answer(scene, peer, request, now=0.1)
    for now in (0.2, 0.3):
        assert scene.following.unknown_stream(peer.node_id, now)
        assert scene.following.next_timer() == 1.0
    scene.following.tick(1.0, out)
    answer(scene, peer, request, (Verdict.ADDED, A), now=1.1)
    assert scene.joined.channel_of(peer.node_id, A.stream_id) == A
    assert scene.following.unknown_stream(peer.node_id, 9.0)
    assert scene.following.next_timer() == 9.0


def test_a_cancel_is_repeated_until_confirmed() -> None:
    scene, peer = setting()
    out = Output()
    request = scene.following.follow(peer, "s/", 0.0, out)
    answer(scene, peer, request, (Verdict.ADDED, A))
    scene.sent(out)
    assert scene.following.unfollow(peer.node_id, request, 1.0, out)
    assert not scene.following.unfollow(peer.node_id, request, 1.0, out)
    assert scene.joined.channels_of(peer.node_id) == []
    scene.following.tick(2.0, out)
    assert sent(scene, out) == [Cancel(req=request)] * 2
    late = answer(scene, peer, request, (Verdict.ADDED, B), now=2.1)
    assert (late.control, late.trains) == ([], []), "an answer from before"
    answer(scene, peer, request, now=2.2)
    assert scene.following.next_timer() is None


def test_a_cancel_without_confirmation_ends() -> None:
    scene, peer = setting()
    out = Output()
    request = scene.following.follow(peer, "s/", 0.0, Output())
    scene.following.unfollow(peer.node_id, request, 0.0, out)
    for second in range(1, 20):
        scene.following.tick(float(second), out)
    assert sent(scene, out) == [Cancel(req=request)] * 5
    assert scene.following.next_timer() is None


def test_a_publisher_with_an_old_interest_gets_a_cancel() -> None:
    scene, peer = setting()
    out = answer(scene, peer, 77, (Verdict.ADDED, A))
    assert sent(scene, out) == [Cancel(req=77)]
    assert out.control == []
    assert answer(scene, peer, 77).trains == [], "which ends it"
    assert answer(scene, peer, 78).trains == [], "an empty answer asks for nothing"
    assert scene.counters.get("drop", "interest_unexpected_matches") == 2


def test_another_peer_cannot_answer() -> None:
    scene, peer = setting()
    mallory = scene.peer(2, profile=PROFILE)
    request = scene.following.follow(peer, "s/", 0.0, Output())
    assert answer(scene, mallory, request, (Verdict.ADDED, A)).control == []
    assert scene.joined.channels_of(peer.node_id) == []
    assert scene.joined.channels_of(mallory.node_id) == []


def test_a_match_outside_the_prefix_is_dropped() -> None:
    scene, peer = setting()
    request = scene.following.follow(peer, "s/", 0.0, Output())
    out = answer(scene, peer, request, (Verdict.ADDED, ChannelName("t/a")))
    assert out.control == [Matched(request, peer.node_id)]
    assert scene.counters.get("drop", "interest_foreign_match") == 1


def test_what_a_publisher_can_make_a_node_store_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.engine.channels.interest_client.MAX_CHANNELS", 2)
    scene, peer = setting()
    request = scene.following.follow(peer, "s/", 0.0, Output())
    answer(scene, peer, request, (Verdict.ADDED, A), (Verdict.UNAUTHORIZED, B), (Verdict.ADDED, C))
    assert scene.joined.channels_of(peer.node_id) == [A]
    answer(scene, peer, request, (Verdict.UNAUTHORIZED, C))
    assert scene.counters.get("drop", "interest_too_many_matches") == 2
    monkeypatch.setattr("meshbus.engine.channels.interest_client.MAX_CANCELED", 1)
    assert answer(scene, peer, 77, (Verdict.ADDED, A)).trains != []
    assert answer(scene, peer, 78, (Verdict.ADDED, A)).trains == []


def test_two_requests_may_lead_to_one_channel() -> None:
    scene, peer = setting()
    out = Output()
    first, second = (scene.following.follow(peer, prefix, 0.0, out) for prefix in ("s/", "s/a"))
    for request in (first, second):
        answer(scene, peer, request, (Verdict.ADDED, A))
    scene.following.unfollow(peer.node_id, first, 1.0, out)
    assert scene.joined.channel_of(peer.node_id, A.stream_id) == A
    scene.following.unfollow(peer.node_id, second, 1.0, out)
    assert scene.joined.channel_of(peer.node_id, A.stream_id) is None


def test_a_plain_peer_gets_no_interest_messages() -> None:
    scene, peer = setting()
    plain = scene.peer(2)
    out = Output()
    with pytest.raises(LocalProtocolError, match="one by one"):
        scene.following.follow(plain, "s/", 0.0, out)
    request = scene.following.follow(peer, "s/", 0.0, Output())
    answer(scene, peer, request, (Verdict.ADDED, A))
    scene.peer(1)  # a new session, in which nothing is negotiated yet
    scene.following.agreed(peer, 1.0, out)
    scene.following.tick(40.0, out)
    scene.following.unfollow(peer.node_id, request, 41.0, out)
    assert out.trains == []


def test_all_interests_are_repeated_when_the_publisher_is_back() -> None:
    scene, peer = setting()
    out = Output()
    request = scene.following.follow(peer, "s/", 0.0, Output())
    answer(scene, peer, request, (Verdict.ADDED, A))
    scene.peer(1, profile=PROFILE)
    for again in (scene.following.agreed, scene.following.recovered):
        again(peer, 1.0, out)
        assert sent(scene, out) == [Interest(req=request, prefix="s/")]
    assert scene.joined.channels_of(peer.node_id) == [A]


def test_of_a_lost_publisher_answered_interests_wait_and_others_time_out() -> None:
    scene, peer = setting()
    out = Output()
    lasting = scene.following.follow(peer, "s/", 0.0, out)
    answer(scene, peer, lasting)
    fresh = scene.following.follow(peer, "t/", 0.0, out)
    scene.peers.remove(peer.node_id)
    out = Output()
    for second in range(1, 60):
        scene.following.tick(float(second), out)
    assert out.trains == []
    assert out.control == [Matched(fresh, peer.node_id, timed_out=True)]
    assert scene.following.followed(peer.node_id) == {lasting: "s/"}


def test_local_bounds_and_bad_prefixes_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, peer = setting()
    out = Output()
    for prefix in ("ü", "x" * 256):
        with pytest.raises(LocalProtocolError):
            scene.following.follow(peer, prefix, 0.0, out)
    assert (out.trains, scene.following.next_timer()) == ([], None)
    monkeypatch.setattr(scene.following, "_entropy", lambda size: b"\xff" * size)
    requests = [scene.following.follow(peer, "s/", 0.0, out) for _ in range(MAX_FOLLOWED)]
    assert requests[:3] == [2**64 - 1, 0, 1]
    with pytest.raises(LocalProtocolError, match="already"):
        scene.following.follow(peer, "s/", 0.0, out)
