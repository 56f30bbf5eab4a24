"""The mesh key changes inside secure sessions: none of them ends, nothing is lost, and who was left out is."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from meshbus.engine.base.notices import DownReason, PeerGone, SessionUp
from meshbus.engine.settings import PreviousKey, SecureConfig, SecureMode
from meshbus.errors import Backpressure
from meshbus.policy.reason import Reason
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath
from meshbus.testing.rig import PSK
from meshbus.wire.constants import Subprotocol
from meshbus.wire.keyproof import prove_key
from meshbus.wire.messages.rotation import KeyProof, encode_rotation
from tests.engine.fleet import numbered, subscribed
from tests.seeds import for_each_seed

NEW = bytes([9]) * 32
WINDOW_S = 60.0
SECURE: dict[str, Any] = {
    "secure": SecureConfig(mode=SecureMode.AUTO),
    "carries": frozenset({Subprotocol.ROTATION}),
}


def fleet(net: FakeNet, count: int = 2, **settings: Any) -> list[FakeNode]:
    """Return nodes that all have secure sessions with each other."""
    nodes = [net.create(f"node {number}", **{**SECURE, **settings}) for number in range(count)]
    join(*nodes)
    return nodes


def join(*nodes: FakeNode) -> None:
    for one, other in combinations(nodes, 2):
        one.connect(other)
    nodes[0].net.run_until(lambda: all(agreed(one, other) for one, other in combinations(nodes, 2)))


def agreed(one: FakeNode, other: FakeNode) -> bool:
    ends = [node.engine.peers.get(peer.node_id) for node, peer in ((one, other), (other, one))]
    return all(peer is not None and peer.link.epoch > 0 and peer.uses(Subprotocol.RELIABLE) for peer in ends)


def rotate(node: FakeNode, key: bytes = NEW, before: bytes = PSK, for_s: float = WINDOW_S) -> None:
    until_ns = node.net.clock.wall(node.net.clock.now) + int(for_s * 1e9)
    with node.turn() as (engine, now, out):
        engine.set_mesh_keys(key, PreviousKey(before, until_ns), now, out)


def keys(one: FakeNode, other: FakeNode) -> set[bytes]:
    """Return the mesh keys that both ends count their session to."""
    ends = ((one, other), (other, one))
    return {node.engine.peers.require(peer.node_id).link.mesh_key for node, peer in ends}


def count(node: FakeNode, reason: Reason) -> int:
    return node.engine.counters.get(*reason.counter)


def say(sender: FakeNode, receiver: FakeNode, message: bytes) -> None:
    with sender.turn() as (engine, now, out):
        peer = engine.peers.require(receiver.node_id)
        engine.streams.send_reliable(peer, Subprotocol.ROTATION, message, now, out)
    sender.net.run(for_s=1)


@for_each_seed(range(2))
def test_five_nodes_change_the_key_under_load_and_lose_nothing(seed: int) -> None:
    """Every node publishes to all others on reliable streams, with loss and reordering, while they change one by one."""
    net = FakeNet(seed, path=FakePath(loss=0.05, reordering=0.1, jitter_s=0.01))
    nodes = fleet(net, 5)
    for subscriber in nodes:
        for publisher in nodes:
            if publisher is not subscriber:
                subscribed(subscriber, publisher, f"from/{publisher.name.replace(' ', '-')}")
    sessions = [(node.name, up.node_id, up.session_id) for node in nodes for up in node.happened(SessionUp)]
    sent = 0
    for second in range(int(WINDOW_S) + 20):
        if second % 5 == 2 and second // 5 < len(nodes):
            rotate(nodes[second // 5], for_s=WINDOW_S - second)
        for node in nodes:
            node.publish(f"from/{node.name.replace(' ', '-')}", numbered(2, first=sent), reliable=True)
        sent += 2
        net.run(for_s=1)
    net.run(for_s=30)
    for node in nodes:
        for publisher in nodes:
            if publisher is not node:
                assert node.payloads(f"from/{publisher.name.replace(' ', '-')}") == numbered(sent)
    assert sessions == [(node.name, up.node_id, up.session_id) for node in nodes for up in node.happened(SessionUp)]
    assert all(keys(one, other) == {NEW} for one, other in combinations(nodes, 2))
    assert not any(node.happened(PeerGone) for node in nodes)


def test_a_node_that_was_left_out_goes_when_the_window_ends_and_is_refused_after_it() -> None:
    net = FakeNet(3)
    one, other, left_out = fleet(net, 3)
    for node in (one, other):
        rotate(node)
    net.run(for_s=WINDOW_S + 1)
    assert one.happened(PeerGone) == [PeerGone(left_out.node_id, DownReason.RETIRED)]
    assert agreed(one, other)
    left_out.connect(one)
    net.run(for_s=20)
    assert one.engine.peers.get(left_out.node_id) is None
    assert count(one, Reason.HANDSHAKE_RETIRED_KEY) >= 1


def test_two_changes_in_a_row() -> None:
    net = FakeNet(4)
    nodes = fleet(net, 3)
    third = bytes([8]) * 32
    for node in nodes:
        rotate(node)
        net.run(for_s=1)
    for node in nodes:
        rotate(node, third, NEW)
        net.run(for_s=1)
    net.run(for_s=WINDOW_S)
    assert all(keys(one, other) == {third} for one, other in combinations(nodes, 2))
    assert not any(node.happened(PeerGone) for node in nodes)


def test_a_session_that_begins_with_the_old_key_in_the_window_is_proved_when_both_have_the_new_one() -> None:
    net = FakeNet(5)
    one, late = net.create("one", **SECURE), net.create("late", **SECURE)
    rotate(one)
    late.connect(one)
    net.run_until(lambda: agreed(one, late))
    net.run(for_s=1)
    assert keys(one, late) == {PSK}
    assert count(late, Reason.ROTATION_UNKNOWN_KEY) == 1
    rotate(late)
    net.run(for_s=1)
    assert keys(one, late) == {NEW}


def test_a_proof_is_worth_nothing_in_another_session_or_sent_back() -> None:
    net = FakeNet(6)
    one, other, cheat = fleet(net, 3)
    rotate(one)
    rotate(other)
    net.run(for_s=1)
    proofs = [
        prove_key(NEW, node.engine.peers.require(peer.node_id).link.handshake_hash, prover.node_id, verifier.node_id)
        for node, peer in ((one, cheat), (other, cheat), (one, other))
        for prover, verifier in ((one, cheat), (other, cheat), (one, other), (other, one))
    ]
    before = count(one, Reason.ROTATION_UNKNOWN_KEY)
    for proof in proofs:
        say(cheat, one, encode_rotation(KeyProof(proof)))
    assert keys(one, cheat) == {PSK}
    assert count(one, Reason.ROTATION_UNKNOWN_KEY) == before + len(proofs)


def test_messages_that_cannot_be_read_and_proofs_outside_secure_sessions_are_counted() -> None:
    net = FakeNet(7)
    one, other = fleet(net, 2)
    say(other, one, b"\xff")
    assert count(one, Reason.ROTATION_MALFORMED) == 1
    plain = [net.create(f"plain {number}", carries=SECURE["carries"]) for number in range(2)]
    plain[0].connect(plain[1])
    net.run_until(lambda: plain[0].speaks_profile_with(plain[1]))
    link = plain[1].engine.peers.require(plain[0].node_id).link
    proof = prove_key(PSK, link.handshake_hash, plain[1].node_id, plain[0].node_id)
    say(plain[1], plain[0], encode_rotation(KeyProof(proof)))
    assert count(plain[0], Reason.ROTATION_INSECURE) == 1
    rotate(plain[0])
    rotate(plain[1])
    net.run(for_s=WINDOW_S + 1)
    assert plain[0].happened(PeerGone) or plain[1].happened(PeerGone), "only secure sessions are kept"


def test_a_proof_for_which_there_is_no_room_is_counted() -> None:
    net = FakeNet(8)
    one, _ = fleet(net, 2)

    def full(*_: object) -> None:
        raise Backpressure(0, 1)

    service = one.engine.rotation
    assert service is not None
    service._streams.send_reliable = full  # type: ignore[method-assign]
    rotate(one)
    assert count(one, Reason.ROTATION_UNSENT) == 1


def test_no_tag_announces_it_and_a_peer_without_it_gets_no_message() -> None:
    net = FakeNet(9)
    one, other = net.create("one", **SECURE), net.create("other", secure=SECURE["secure"])
    join(one, other)
    assert "4d0d" not in " ".join(other.engine.peers.require(one.node_id).claims.capabilities.tags)
    rotate(one)
    net.run(for_s=1)
    assert not one.engine.peers.require(other.node_id).uses(Subprotocol.ROTATION)
    assert count(other, Reason.ROTATION_UNKNOWN_KEY) == count(other, Reason.UNKNOWN_SUBPROTOCOL) == 0
    assert other.engine.rotation is None
