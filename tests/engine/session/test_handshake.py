from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from meshbus.engine.base.notices import DownReason, HandshakeFailed, HandshakeUnanswered, PeerGone, SessionUp
from meshbus.engine.base.packets import Output
from meshbus.engine.session import peer as peers
from meshbus.engine.session import unproved
from meshbus.engine.session.budget import HOST_BURST, TOTAL_BURST
from meshbus.engine.session.candidate import AMPLIFICATION
from meshbus.engine.session.handshake import MAX_TRIES, RELAYED_S
from meshbus.engine.session.peer import Health
from meshbus.engine.session.service import Established
from meshbus.engine.settings import HandshakeConfig, LivenessConfig
from meshbus.errors import HandshakeError, HandshakeFault, LocalProtocolError
from meshbus.policy.reason import Reason
from meshbus.wire.constants import HANDSHAKE_TTL, ROUTE_BYTES, ROUTED_TTL, Subprotocol
from meshbus.wire.handshake import encode_handshake, encode_routed_handshake
from meshbus.wire.header import unpack_header
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.noise import Initiator, derive_public_key, prologue
from meshbus.wire.route import RouteHeader, pack_route, unpack_route
from meshbus.wire.seal import Opener, Sealer
from tests.engine.sides import OTHER_PSK, Net, Reference, Side, is_handshake, message_of
from tests.seeds import for_each_seed
from tests.vectors import load

GOLDEN: list[dict[str, Any]] = load("transport")["handshakes"]
OURS_FIRST = [row for row in GOLDEN if "initiator_ephemeral_priv" in row]
THEIRS_FIRST = [row for row in GOLDEN if "responder_static_priv" in row]

ELSEWHERE = ("10.6.6.6", 666)


def is_routed(row: dict[str, Any]) -> bool:
    return str(row["msg1_datagram"]).startswith("5254")


def golden_side(row: dict[str, Any], role: Role) -> Side:
    """Build the side of a recorded handshake whose secrets are known."""
    mine = role.value

    def entropy(size: int) -> bytes:
        key = bytes.fromhex(row[f"{mine}_ephemeral_priv"])
        return key if size == len(key) else bytes(size)  # what is shorter is of no handshake

    static = bytes.fromhex(row["responder_static_priv"]) if role is Role.RESPONDER else bytes([1]) * 32
    return Side(
        1,
        node_id=int(row[f"{mine}_node_id"], 16),
        psk=bytes.fromhex(row["psk"]),
        entropy=entropy,
        static_private_key=static,
    )


def assert_golden_session(row: dict[str, Any], up: Established, role: Role) -> None:
    assert up.link.session_id == int(row["session_id"], 16)
    assert up.initiated is (role is Role.INITIATOR)
    far = derive_keys(
        bytes.fromhex(row["handshake_hash"]), Role.RESPONDER if role is Role.INITIATOR else Role.INITIATOR
    )
    Opener(far).open(up.link.sealer.heartbeat())


# ── golden handshakes ───────────────────────────────────────────────────────────────────────


def test_both_roles_are_among_the_golden_handshakes() -> None:
    for rows in (OURS_FIRST, THEIRS_FIRST):
        assert {is_routed(row) for row in rows} == {True, False}


@pytest.mark.parametrize("row", OURS_FIRST, ids=lambda row: row["name"])
def test_we_begin_with_golden_bytes(row: dict[str, Any]) -> None:
    side = golden_side(row, Role.INITIATOR)
    there, out = int(row["responder_node_id"], 16), Output()
    key = bytes.fromhex(row["responder_static_pub"])
    side.handshakes.connect(there, ELSEWHERE, key, 0.0, out, routed=is_routed(row))
    assert [bytes(train.data).hex() for train in out.trains] == [row["msg1_datagram"]]
    receive = side.handshakes.receive_routed if is_routed(row) else side.handshakes.receive_direct
    (up,) = receive(ELSEWHERE, bytes.fromhex(row["msg2_datagram"]), 0.1, out)
    assert up.node_id == there
    assert_golden_session(row, up, Role.INITIATOR)


@pytest.mark.parametrize("row", THEIRS_FIRST, ids=lambda row: row["name"])
def test_we_answer_with_golden_bytes(row: dict[str, Any]) -> None:
    side = golden_side(row, Role.RESPONDER)
    there, out = int(row["initiator_node_id"], 16), Output()
    if is_routed(row):
        assert side.handshakes.receive_routed(ELSEWHERE, bytes.fromhex(row["msg1_datagram"]), 0.1, out) == []
    else:
        side.handshakes.accept(there)
        assert side.handshakes.receive_direct(ELSEWHERE, bytes.fromhex(row["msg1_datagram"]), 0.1, out) == []
    answer, question = out.trains
    assert (answer.address, bytes(answer.data).hex()) == (ELSEWHERE, row["msg2_datagram"])
    assert unpack_header(question.data).subprotocol_id == Subprotocol.REFLEX
    first = Sealer(derive_keys(bytes.fromhex(row["handshake_hash"]), Role.INITIATOR)).heartbeat()
    (up,) = side.handshakes.claim(ELSEWHERE, first, 0.2, out)
    assert up.node_id == there
    assert_golden_session(row, up, Role.RESPONDER)


# ── the plain course ────────────────────────────────────────────────────────────────────────


def joined(
    *,
    routed: bool = True,
    config: HandshakeConfig = HandshakeConfig(),  # noqa: B008  frozen
    **options: Any,
) -> tuple[Net, Side, Side]:
    """Return two nodes with a session that the first one began."""
    client, hub = Side(1, **options), Side(9, handshake=config)
    net = Net(client, hub)
    hub.handshakes.accept(client.node_id)
    net.emit(client.address, client.connect(hub, 0.0, routed=routed))
    net.run(1.0)
    assert client.session_with(hub) == hub.session_with(client) is not None
    return net, client, hub


def exchange(net: Net, one: Side, other: Side) -> None:
    """Check that messages pass in both directions now."""
    net.emit(one.address, one.say(other, b"there"))
    net.emit(other.address, other.say(one, b"back"))
    net.run(net.now + 1.0)
    assert other.got.pop() == (one.node_id, b"there")
    assert one.got.pop() == (other.node_id, b"back")


@pytest.mark.parametrize("routed", [True, False])
def test_a_session_comes_up_on_both_sides_and_carries_messages(routed: bool) -> None:
    net, client, hub = joined(routed=routed)
    session_id = client.session_with(hub)
    assert client.happened(SessionUp) == [SessionUp(hub.node_id, session_id or 0, True)]
    assert hub.happened(SessionUp) == [SessionUp(client.node_id, session_id or 0, False)]
    assert client.handshakes.next_timer() is None
    exchange(net, client, hub)
    assert client.counters.snapshot() == hub.counters.snapshot() == {}


def test_message_2_of_a_routed_handshake_travels_by_full_node_id() -> None:
    client, hub = Side(1), Side(9)
    (first,) = client.connect(hub, 0.0).trains
    (second, *_) = hub.receive(client.address, bytes(first.data), 0.0).trains
    assert unpack_route(second.data) == RouteHeader(
        ttl=HANDSHAKE_TTL, src_id=hub.node_id & 0xFFFFFFFF, dest_id=client.node_id
    )


@pytest.mark.parametrize("hops", [1, 3])
def test_behind_a_relay_every_packet_carries_the_routing_header(hops: int) -> None:
    client, hub = Side(1), Side(9)
    relays = [Side(2 + number, open_relay=True) for number in range(hops)]
    path = [client, *relays, hub]
    for near, relay, far in zip(path, path[1:], path[2:], strict=False):
        for end, way in ((client, near), (hub, far)):
            relay.engine.mesh.table.install(end.node_id, way.address, 0.0)
    net = Net(*path)
    net.emit(client.address, client.connect(hub, 0.0, via=relays[0].address))
    net.run(1.0)
    assert client.session_with(hub) == hub.session_with(client) is not None
    for side, other, via in ((client, hub, relays[0]), (hub, client, relays[-1])):
        link = side.peers.require(other.node_id).link
        assert link.address == via.address
        assert link.route == pack_route(
            RouteHeader(ttl=ROUTED_TTL, src_id=side.node_id & 0xFFFFFFFF, dest_id=other.node_id)
        )
    exchange(net, client, hub)


def test_an_ipv6_socket_adds_fields_to_the_address() -> None:
    client, hub = Side(1), Side(9)
    for routed in (True, False):
        hub.handshakes.accept(client.node_id)
        (first,) = client.connect(hub, 0.0, routed=routed).trains
        (second, *_) = hub.receive(client.address, bytes(first.data), 0.0).trains
        receive = client.handshakes.receive_routed if routed else client.handshakes.receive_direct
        (up,) = receive((*hub.address, 0, 0), bytes(second.data), 0.1, Output())  # type: ignore[misc]
        assert (up.link.address, up.link.route) == (hub.address, b"")


def test_an_answer_that_takes_another_way_means_a_relay() -> None:
    client, hub = Side(1), Side(9)
    (first,) = client.connect(hub, 0.0, via=ELSEWHERE).trains
    (second, *_) = hub.receive(ELSEWHERE, bytes(first.data), 0.0).trains
    (up,) = client.handshakes.receive_routed(hub.address, bytes(second.data), 0.1, Output())
    assert up.link.address == ELSEWHERE
    assert up.link.route


def test_an_answer_that_takes_another_way_means_nothing_where_the_address_is_known_to_be_the_peer_s() -> None:
    """A real node answers through its routing table, whatever way the question took."""
    client, hub = Side(1), Side(9)
    (first,) = client.connect(hub, 0.0, straight=True).trains
    (second, *_) = hub.receive(client.address, bytes(first.data), 0.0).trains
    relayed = bytearray(second.data)
    relayed[3] = 1  # one hop
    (up,) = client.handshakes.receive_routed(ELSEWHERE, bytes(relayed), 0.1, Output())
    assert (up.link.address, up.link.route) == (hub.address, b"")


# ── asking ──────────────────────────────────────────────────────────────────────────────────


def test_without_an_answer_the_failure_names_what_to_check() -> None:
    client, hub = Side(1), Side(9)
    net = Net(client)
    net.emit(client.address, client.connect(hub, 0.0))
    net.run(20.0)
    assert len([1 for *_, datagram in net.sent if is_handshake(datagram)]) == 3
    (early, quiet), (when, failed) = client.log
    assert (early, quiet) == (2.0, HandshakeUnanswered(hub.node_id, "no answer yet from 10.0.0.9:9000; trying again"))
    assert isinstance(failed, HandshakeFailed)
    assert failed.fault is HandshakeFault.TIMEOUT
    assert "10.0.0.9:9000" in failed.problem
    assert 15.3 <= when <= 16.3
    assert client.handshakes.connecting == frozenset()


def test_a_handshake_may_be_less_patient_than_the_others() -> None:
    client, hub = Side(1), Side(9)
    net = Net(client)
    net.emit(client.address, client.connect(hub, 0.0, config=HandshakeConfig(tries=2, timeout_s=0.5)))
    net.run(20.0)
    assert len([1 for *_, datagram in net.sent if is_handshake(datagram)]) == 2
    _, (when, failed) = client.log
    assert isinstance(failed, HandshakeFailed)
    assert "2 tries of 0.5 s" in failed.problem
    assert when < 2


def test_asking_again_for_the_same_changes_nothing() -> None:
    client, hub = Side(1), Side(9)
    assert len(client.connect(hub, 0.0).trains) == 1
    assert client.connect(hub, 1.0).trains == []
    assert client.handshakes.connecting == {hub.node_id}


def test_one_attempt_for_each_routing_id() -> None:
    client, hub = Side(1), Side(9)
    namesake = Side(8, node_id=hub.node_id ^ 1 << 63)
    client.connect(hub, 0.0)
    for other, via in ((namesake, None), (hub, ELSEWHERE)):
        with pytest.raises(HandshakeError) as caught:
            client.connect(other, 1.0, via=via)
        assert caught.value.fault is HandshakeFault.REFUSED
    assert not client.handshakes.cancel_connect(namesake.node_id)
    assert client.handshakes.cancel_connect(hub.node_id)
    assert len(client.connect(namesake, 2.0).trains) == 1


@pytest.mark.parametrize("node_id", [0, Side(1).node_id])
def test_connecting_to_itself_or_to_id_0_is_refused(node_id: int) -> None:
    client = Side(1)
    with pytest.raises(HandshakeError):
        client.handshakes.connect(node_id, ELSEWHERE, Side(2).public_key, 0.0, Output())
    with pytest.raises(HandshakeError):
        client.handshakes.accept(node_id)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(32)], ids=["empty", "short", "low order"])
def test_a_bad_public_key_is_refused_at_once(key: bytes) -> None:
    client, hub, out = Side(1), Side(9), Output()
    with pytest.raises((HandshakeError, LocalProtocolError)):
        client.handshakes.connect(hub.node_id, hub.address, key, 0.0, out)
    assert (out.trains, client.handshakes.connecting) == ([], frozenset())


def test_a_canceled_attempt_ends_silently() -> None:
    client, hub = Side(1), Side(9)
    net = Net(client, hub)
    first = client.connect(hub, 0.0)
    assert client.handshakes.cancel_connect(hub.node_id)
    assert not client.handshakes.cancel_connect(hub.node_id)
    net.emit(client.address, first)
    net.run(30.0)
    assert client.log == []
    assert client.counters.get("drop", "handshake_unexpected") == 1


def test_a_lost_answer_costs_one_try() -> None:
    client, hub = Side(1), Side(9)
    net = Net(client, hub, loss=1.0)
    net.emit(client.address, client.connect(hub, 0.0))
    net.run(1.0)
    net.loss = 0.0
    net.run(8.0)
    assert client.session_with(hub) == hub.session_with(client) is not None


def test_a_lost_message_2_leaves_a_session_that_the_next_try_replaces() -> None:
    client, hub = Side(1), Side(9)
    net = Net(client, hub)
    (first,) = client.connect(hub, 0.0).trains
    hub.receive(client.address, bytes(first.data), 0.0)  # and what it sends is lost
    assert hub.session_with(client) is None
    net.run(8.0)
    assert client.session_with(hub) == hub.session_with(client) is not None
    exchange(net, client, hub)


# ── accepting ───────────────────────────────────────────────────────────────────────────────


def test_a_direct_handshake_needs_an_accept() -> None:
    client, hub = Side(1), Side(9)
    net = Net(client, hub)
    net.emit(client.address, client.connect(hub, 0.0, routed=False))
    net.run(1.0)
    assert hub.session_with(client) is None
    assert hub.counters.get("drop", "handshake_unexpected") == 1
    hub.handshakes.accept(Side(2).node_id)
    net.run(6.0)
    assert hub.counters.get("drop", "handshake_unverified") == 1
    hub.handshakes.accept(client.node_id)
    net.run(12.0)
    assert client.session_with(hub) == hub.session_with(client) is not None


def test_an_accept_is_used_once_and_only_by_a_proved_session() -> None:
    client, hub = Side(1), Side(9)
    hub.handshakes.accept(client.node_id)
    (first,) = client.connect(hub, 0.0, routed=False).trains
    assert hub.receive(client.address, bytes(first.data), 0.0).trains
    assert hub.handshakes.accepting == {client.node_id}  # whoever repeats a recorded message gets no further
    net = Net(client, hub)
    net.run(8.0)
    assert client.session_with(hub) == hub.session_with(client) is not None
    assert hub.handshakes.accepting == frozenset()
    assert not hub.handshakes.cancel_accept(client.node_id)
    net.emit(client.address, client.connect(hub, net.now, routed=False))
    net.run(9.0)
    assert hub.counters.get("drop", "handshake_unexpected") == 1
    hub.handshakes.accept(client.node_id)
    assert hub.handshakes.accepting == {client.node_id}


def test_an_accept_can_be_taken_back() -> None:
    client, hub = Side(1), Side(9)
    hub.handshakes.accept(client.node_id)
    hub.handshakes.accept(client.node_id)
    assert hub.handshakes.cancel_accept(client.node_id)
    (first,) = client.connect(hub, 0.0, routed=False).trains
    assert hub.receive(client.address, bytes(first.data), 0.0).trains == []


def test_any_number_of_nodes_can_be_expected_with_bounded_work_for_each_packet() -> None:
    client, hub = Side(1), Side(9)
    for number in range(MAX_TRIES):
        hub.handshakes.accept(0x7000 + number)
    hub.handshakes.accept(client.node_id)
    net = Net(client, hub)
    net.emit(client.address, client.connect(hub, 0.0, routed=False))
    net.run(1.0)
    assert hub.counters.get("drop", "handshake_unverified") == 1
    net.run(8.0)  # the next try begins where the last one stopped
    assert client.session_with(hub) == hub.session_with(client) is not None


def test_three_junk_packets_end_nothing() -> None:
    client, hub = Side(1), Side(9)
    hub.handshakes.accept(client.node_id)
    net = Net(client, hub)
    first = client.connect(hub, 0.0, routed=False)
    for junk in (bytes(48), b"\x05" * 48, b"\xff" * 56):
        hub.receive(client.address, encode_handshake(junk), 0.0)
        client.receive(hub.address, encode_handshake(junk), 0.0)
    net.emit(client.address, first)
    net.run(1.0)
    assert client.session_with(hub) == hub.session_with(client) is not None
    assert client.counters.get("drop", "handshake_unverified") == 3


@pytest.mark.parametrize("admitted", [True, False])
def test_the_policy_decides_which_nodes_may_begin_a_routed_handshake(admitted: bool) -> None:
    client = Side(1)
    hub = Side(9, admit=lambda node_id: admitted and node_id == client.node_id)
    net = Net(client, hub)
    net.emit(client.address, client.connect(hub, 0.0))
    net.run(1.0)
    assert (hub.session_with(client) is not None) is admitted
    assert hub.counters.get("refuse", "handshake_not_admitted") == (not admitted)
    hub.handshakes.accept(client.node_id)
    net.run(8.0)
    assert hub.session_with(client) is not None
    assert hub.handshakes.accepting == (frozenset({client.node_id}) if admitted else frozenset())


# ── both begin ──────────────────────────────────────────────────────────────────────────────


def both_begin(seed: int, spread: float, *, routed: bool) -> tuple[Net, Side, Side]:
    low, high = Side(1, seed=seed), Side(9, seed=seed)
    net = Net(low, high, seed=seed, spread=spread)
    for one, other in ((low, high), (high, low)):
        one.handshakes.accept(other.node_id)
        net.emit(one.address, one.connect(other, 0.0, routed=routed))
    net.run(3.0)
    assert low.handshakes.connecting == high.handshakes.connecting == frozenset()
    return net, low, high


@pytest.mark.parametrize("routed", [True, False])
def test_when_both_begin_the_lower_node_id_wins_and_each_side_comes_up_once(routed: bool) -> None:
    net, low, high = both_begin(0, 0.0, routed=routed)
    session_id = low.session_with(high)
    assert session_id is not None
    assert low.happened(SessionUp) == [SessionUp(high.node_id, session_id, True)]
    assert high.happened(SessionUp) == [SessionUp(low.node_id, session_id, False)]
    exchange(net, low, high)


@for_each_seed(range(20))
def test_when_both_begin_and_packets_overtake_each_other_there_is_one_session_at_last(seed: int) -> None:
    net, low, high = both_begin(seed, 0.1, routed=bool(seed % 2))
    assert low.session_with(high) == high.session_with(low) is not None
    exchange(net, low, high)


def test_a_node_that_comes_while_we_try_ends_the_attempt() -> None:
    low, high = Side(1), Side(9)
    net = Net(low)
    net.emit(low.address, low.connect(high, 0.0))  # nobody is there yet
    net.run(2.0)
    net.put(high)
    net.emit(high.address, high.connect(low, 2.0))
    net.run(3.0)
    assert low.session_with(high) == high.session_with(low) is not None
    assert low.handshakes.connecting == frozenset()


def test_the_higher_node_id_continues_if_the_lower_one_fails() -> None:
    low, high = Side(1), Side(9)
    (first,) = low.connect(high, 0.0).trains
    (other,) = high.connect(low, 0.0).trains
    high.receive(low.address, bytes(first.data), 0.01)  # its answer is lost
    (answer, *_) = low.receive(high.address, bytes(other.data), 0.01).trains
    high.receive(low.address, bytes(answer.data), 0.02)
    assert high.session_with(low) is None  # it yields
    net = Net(low, high)
    net.run(2.0)
    assert low.session_with(high) == high.session_with(low) is not None
    assert high.happened(SessionUp) == [SessionUp(low.node_id, high.session_with(low) or 0, True)]
    exchange(net, low, high)


@pytest.mark.parametrize("gives_up_early", [True, False])
@pytest.mark.parametrize(("ours", "theirs"), [(1, 9), (9, 1)])
def test_both_begin_with_a_node_that_misreads_our_message(ours: int, theirs: int, gives_up_early: bool) -> None:
    for seed in range(5):
        side, real = Side(ours, seed=seed), Reference(theirs, seed=seed, gives_up_early=gives_up_early)
        net = Net(side, real, seed=seed)
        net.emit(side.address, side.connect(real, 0.0))
        net.emit(real.address, real.connect(side, 0.0))
        net.run(12.0)
        assert side.session_with(real) == real.session_with(side) is not None
        assert side.happened(HandshakeFailed) == []
        net.emit(side.address, side.say(real, b"hello"))
        net.run(13.0)
        assert real.got == [b"hello"]


def test_a_stranger_who_begins_in_the_name_of_the_peer_we_try_does_not_end_the_attempt() -> None:
    client, hub = Side(9), Side(5)
    stranger = Side(6, node_id=hub.node_id)
    net = Net(client, stranger)
    net.emit(client.address, client.connect(hub, 0.0))
    net.emit(stranger.address, stranger.connect(client, 0.0))
    net.run(4.0)
    assert stranger.session_with(client) is not None
    assert client.session_with(hub) is None
    net.put(hub)
    net.run(8.0)
    assert client.session_with(hub) == hub.session_with(client) is not None
    net.run(12.0)
    assert client.session_with(hub) == hub.session_with(client)
    exchange(net, client, hub)


def test_a_proved_session_from_elsewhere_waits_until_ours_is_settled() -> None:
    low, high = Side(1), Side(9)
    liar = Side(6, node_id=low.node_id)
    (mine,) = high.connect(low, 0.0).trains
    (first,) = low.connect(high, 0.0).trains
    high.receive(low.address, bytes(first.data), 0.01)  # its answer is lost
    (lie,) = liar.connect(high, 0.0).trains
    answer, _ = high.receive(liar.address, bytes(lie.data), 0.01).trains
    (beat, *_) = liar.receive(high.address, bytes(answer.data), 0.02).trains
    assert high.handshakes.knows(liar.session_with(high) or 0)
    high.receive(liar.address, bytes(beat.data), 0.03)
    (answer, *_) = low.receive(high.address, bytes(mine.data), 0.04).trains
    high.receive(low.address, bytes(answer.data), 0.05)
    assert high.happened(SessionUp) == []
    high.tick(2.0)  # the end of yielding, and the liar's turn
    (up,) = high.happened(SessionUp)
    assert isinstance(up, SessionUp)
    assert up.initiated
    net = Net(low, high, liar)
    net.now = 2.0
    for train in low.tick(2.0).trains:
        net.inject(low.address, train.address, bytes(train.data))
    net.run(8.0)
    assert low.session_with(high) == high.session_with(low) is not None


def test_a_failed_attempt_leaves_the_session_there_was() -> None:
    net, client, hub = joined()
    session_id = client.session_with(hub)
    net.emit(client.address, client.connect(hub, net.now, via=ELSEWHERE))
    net.run(20.0)
    assert len(client.happened(HandshakeFailed)) == 1
    assert client.session_with(hub) == hub.session_with(client) == session_id
    exchange(net, client, hub)


def test_without_the_peer_the_session_that_was_begun_elsewhere_counts_after_our_failure() -> None:
    client, old_home = Side(9), Side(5)
    moved = Side(5, address=ELSEWHERE)
    net = Net(client, moved)
    net.emit(client.address, client.connect(old_home, 0.0))
    net.emit(moved.address, moved.connect(client, 0.0))
    net.run(20.0)
    assert len(client.happened(HandshakeFailed)) == 1
    assert client.session_with(moved) == moved.session_with(client) is not None


def one_hop_away(first: bytes) -> bytes:
    """Return a routed message as a relay forwards it."""
    route = unpack_route(first)
    return pack_route(msgspec.structs.replace(route, hop_count=1)) + first[ROUTE_BYTES:]


@pytest.mark.parametrize("trying", [False, True])
@pytest.mark.parametrize("trusted", [False, True])
def test_behind_a_proved_neighbor_a_session_is_believed_although_it_is_not_proved(trying: bool, trusted: bool) -> None:
    """A net-mesh 0.23 node cannot send through a relay. If we try to reach the node, our failure comes first."""
    low, relay, high = Side(1), Side(5, address=ELSEWHERE), Side(9)
    net = Net(low, relay)
    if trusted:
        net.emit(relay.address, relay.connect(low, 0.0))
        net.run(1.0)
    if trying:
        net.emit(low.address, low.connect(high, net.now))
    before = len(low.log)
    (first,) = high.connect(low, net.now).trains
    low.receive(relay.address, one_hop_away(bytes(first.data)), net.now)
    net.run(net.now + RELAYED_S - 0.1)
    assert low.session_with(high) is None
    net.run(net.now + 20.0)
    ups = [up for _, up in low.log[before:] if isinstance(up, SessionUp)]
    assert len(low.happened(HandshakeFailed)) == trying
    assert len(ups) == trusted
    assert low.engine.mesh.table.lookup(high.node_id, net.now) is None
    if trusted:
        peer = low.peers.require(high.node_id)
        assert peer.link.route
        assert peer.health is Health.SUSPECTED


def test_peers_that_were_never_proved_are_few_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder of the mesh key begins sessions in many names through a relay that forwards everything."""
    monkeypatch.setattr(unproved, "MAX_PER_RELAY", 4)
    hub, relay = Side(9), Side(5)
    net = Net(hub, relay)
    net.emit(relay.address, relay.connect(hub, 0.0))
    net.run(1.0)
    hostile = [Side(100 + number) for number in range(10)]
    for liar in hostile:
        (first,) = liar.connect(hub, net.now).trains
        hub.receive(relay.address, one_hop_away(bytes(first.data)), net.now)
        net.run(net.now + 0.2)
    net.run(net.now + 2.0)
    assert [peer.node_id for peer in hub.peers] == [relay.node_id, *(liar.node_id for liar in hostile[-4:])]
    assert hub.counters.get("evict", "unproved_peer") == 6
    assert hub.happened(PeerGone) == [PeerGone(liar.node_id, DownReason.EVICTED) for liar in hostile[:6]]


def test_a_host_that_proves_many_names_fills_its_own_room_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_PER_HOST", 3)
    hub = Side(9)
    crowd = [Side(100 + number, address=("10.6.6.6", 1000 + number)) for number in range(6)]
    honest = Side(1)
    net = Net(hub, honest, *crowd)
    for one in (*crowd, honest):
        net.emit(one.address, one.connect(hub, net.now))
        net.run(net.now + 1.0)
    assert len(hub.peers) == 4
    assert hub.session_with(honest) is not None
    assert hub.counters.get("refuse", "peers_full") > 0


# ── replays, restarts and strangers ─────────────────────────────────────────────────────────


def test_the_same_message_1_again_is_a_replay() -> None:
    net, client, hub = joined()
    session_id = hub.session_with(client)
    (first,) = [d for *_, dest, d in net.sent if is_handshake(d) and dest == hub.address]
    for source in (client.address, ELSEWHERE):
        assert hub.receive(source, first, 2.0).trains == []
    assert hub.counters.snapshot() == {"drop": {"handshake_replay": 2}}
    assert hub.session_with(client) == session_id


def test_the_current_session_knows_its_own_message_1_forever() -> None:
    net, _, hub = joined()
    (first,) = [d for *_, dest, d in net.sent if is_handshake(d) and dest == hub.address]
    hub.handshakes._ephemerals.pop(message_of(first)[:32])
    assert hub.receive(ELSEWHERE, first, 2.0).trains == []
    assert hub.counters.snapshot() == {"drop": {"handshake_replay": 1}}


def test_an_old_message_1_from_before_a_restart_has_no_effect() -> None:
    """A recorded message 1 verifies at a restarted node with the same static key, but its replayer cannot continue."""
    old_net, _, old_hub = joined()
    (recorded,) = [d for *_, dest, d in old_net.sent if is_handshake(d) and dest == old_hub.address]
    net, client, hub = joined(seed=77)
    session_id = hub.session_with(client)
    assert hub.receive(ELSEWHERE, recorded, net.now).trains  # answered, to no avail
    net.run(40.0)
    assert hub.session_with(client) == session_id
    assert hub.counters.snapshot() == {"drop": {"handshake_unconfirmed": 1}}
    exchange(net, client, hub)


@pytest.mark.parametrize("hops", [0, 1, 9])
def test_a_recorded_message_1_makes_no_absent_node_alive_and_amplifies_little(hops: int) -> None:
    """Whoever recorded the handshake of a node sends it to the restarted hub, from the address of a victim.

    The routing header is not authenticated, so it may claim that the message came through a relay.
    """
    net, client, hub = joined()
    (recorded,) = [d for *_, dest, d in net.sent if is_handshake(d) and dest == hub.address]
    if hops:
        route = msgspec.structs.replace(unpack_route(recorded), hop_count=hops)
        recorded = pack_route(route) + recorded[ROUTE_BYTES:]
    again = Side(9, seed=4)
    net = Net(again)
    net.emit(again.address, again.receive(ELSEWHERE, recorded, 0.0))
    net.run(60.0)
    assert again.session_with(client) is None
    assert again.log == []
    assert again.engine.mesh.table.lookup(client.node_id, net.now) is None
    sent = [datagram for *_, dest, datagram in net.sent if dest == ELSEWHERE]
    assert is_handshake(sent[0])
    assert sum(map(len, sent)) <= AMPLIFICATION * len(recorded)
    assert again.counters.snapshot() == {"drop": {"handshake_unconfirmed": 1}}


def test_a_recorded_direct_message_1_amplifies_little_and_is_answered_once() -> None:
    client, hub = Side(1), Side(9, seed=4)
    hub.handshakes.accept(client.node_id)
    (first,) = client.connect(hub, 0.0, routed=False).trains
    recorded, net = bytes(first.data), Net(hub)
    for _ in range(20):
        net.emit(hub.address, hub.receive(ELSEWHERE, recorded, net.now))
        net.run(net.now + 3.0)
    sent = [datagram for *_, dest, datagram in net.sent if dest == ELSEWHERE]
    assert len(sent) > 1, "it is asked for its proof"
    assert sum(map(len, sent)) <= AMPLIFICATION * len(recorded)
    assert hub.counters.get("drop", "handshake_replay") == 19
    assert hub.session_with(client) is None
    assert hub.log == []


@pytest.mark.parametrize("moved", [False, True])
def test_a_restarted_peer_is_back_within_seconds(moved: bool) -> None:
    net, client, hub = joined()
    again = Side(1, seed=5, now=1.0, address=("10.0.0.1", 9001) if moved else None)
    del net.stations[client.address]
    net.put(again)
    net.emit(again.address, again.connect(hub, 1.0))
    net.run(1.1)
    assert again.session_with(hub) is not None
    net.emit(again.address, again.say(hub, b"early"))
    net.run(4.0 if moved else 1.3)
    assert again.session_with(hub) == hub.session_with(again)
    assert hub.got == [(again.node_id, b"early")]  # nothing was lost in the meantime
    assert len(hub.happened(SessionUp)) == 2
    exchange(net, again, hub)
    assert hub.counters.total("refuse") == 0


def test_a_peer_that_connects_again_moves_to_the_new_session_at_once() -> None:
    net, client, hub = joined()
    old = client.session_with(hub)
    net.emit(client.address, client.connect(hub, 1.0))
    net.run(1.1)
    assert client.session_with(hub) == hub.session_with(client) != old
    exchange(net, client, hub)


def test_one_message_1_in_a_connected_nodes_name_ends_nothing() -> None:
    net, client, hub = joined()
    session_id = hub.session_with(client)
    for number in range(20):
        liar = Side(3, node_id=client.node_id, seed=number, address=(f"10.6.6.{number}", 1))
        (first,) = liar.connect(hub, 1.0).trains
        assert hub.receive(liar.address, bytes(first.data), 1.0).trains
    assert hub.session_with(client) == session_id
    exchange(net, client, hub)


def take_over(net: Net, client: Side, hub: Side, *, until: float) -> Side:
    """Do everything that a peer would do, with the mesh key and in the name of a connected node."""
    liar = Side(3, node_id=client.node_id, now=net.now)
    net.put(liar)
    net.emit(liar.address, liar.connect(hub, net.now))
    net.run(until)
    return liar


def test_a_stranger_cannot_take_over_a_peer_that_is_there() -> None:
    net, client, hub = joined()
    session_id = hub.session_with(client)
    liar = take_over(net, client, hub, until=60.0)
    assert liar.session_with(hub) is not None
    assert hub.session_with(client) == session_id
    assert hub.counters.get("refuse", "live_session") == 1
    assert len(hub.happened(SessionUp)) == 1
    exchange(net, client, hub)


def test_heartbeats_are_enough_with_a_long_contest_time() -> None:
    net, client, hub = joined(config=HandshakeConfig(contest_s=6.0), answers_reflex=False)
    session_id = hub.session_with(client)
    take_over(net, client, hub, until=60.0)
    assert hub.session_with(client) == session_id


def test_a_peer_that_left_can_be_replaced_from_elsewhere() -> None:
    net, client, hub = joined()
    del net.stations[client.address]
    liar = take_over(net, client, hub, until=5.0)
    assert hub.session_with(client) == liar.session_with(hub)


def test_a_claimed_node_id_must_fit_its_source() -> None:
    hub = Side(9)
    for claimed, src_id in ((0x5_0000_0001, 0x5_0000_0002), (0, 0x8_0000_0000), (hub.node_id, hub.node_id)):
        initiator = Initiator(
            psk=bytes(range(32)),
            prologue=prologue(src_id, hub.node_id),
            responder_public_key=hub.public_key,
            ephemeral_private_key=bytes([claimed % 251 + 1]) * 32,
        )
        message = initiator.write(claimed.to_bytes(8, "little"))
        datagram = encode_routed_handshake(message, sender=src_id, receiver=hub.node_id)
        assert hub.receive(ELSEWHERE, datagram, 0.0).trains == []
    assert hub.counters.snapshot() == {"drop": {"handshake_source": 3}}
    assert len(hub.peers) == 0


@pytest.mark.parametrize("routed", [True, False])
@pytest.mark.parametrize("wrong", ["psk", "key", "node id"])
def test_a_wrong_key_or_id_gets_no_answer(wrong: str, routed: bool) -> None:
    hub = Side(9)
    client = Side(1, psk=OTHER_PSK) if wrong == "psk" else Side(1)
    hub.handshakes.accept(client.node_id if wrong != "node id" else Side(2).node_id)
    key = derive_public_key(bytes([99]) * 32) if wrong == "key" else b""
    net = Net(client, hub)
    if wrong == "node id" and routed:
        namesake = Side(9, node_id=hub.node_id ^ 1)
        net.emit(client.address, client.connect(namesake, 0.0))
        # The node sees that the packet is for another one, and does not forward for strangers.
        expected = {"handshake_misrouted": 1, "transit_stranger": 1}
        first = net.sent[0][-1]
        hub.handshakes.receive_routed(client.address, first, 0.0, Output())
    else:
        net.emit(client.address, client.connect(hub, 0.0, key=key, routed=routed))
        expected = {"handshake_unverified": 1}
    net.run(1.0)
    assert len(client.peers) == len(hub.peers) == 0
    assert hub.counters.snapshot() == {"drop": expected}


# ── junk ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("routed", [True, False])
@pytest.mark.parametrize(
    ("reason", "at", "junk"),
    [
        (Reason.HANDSHAKE_BAD_MAGIC, 0, b"??"),
        (Reason.HANDSHAKE_UNKNOWN_VERSION, 2, b"\x02"),
        (Reason.HANDSHAKE_UNKNOWN_KIND, 3, b"\x00"),
        (Reason.HANDSHAKE_BAD_LENGTH, 64, b"\xff\xff"),
    ],
)
def test_a_header_that_is_wrong_has_its_own_reason(reason: Reason, at: int, junk: bytes, routed: bool) -> None:
    hub = Side(9)
    packet = encode_handshake(bytes(48))
    packet = packet[:at] + junk + packet[at + len(junk) :]
    if routed:
        packet = pack_route(RouteHeader(src_id=1, dest_id=hub.node_id)) + packet
    receive = hub.handshakes.receive_routed if routed else hub.handshakes.receive_direct
    assert receive(ELSEWHERE, packet, 0.0, Output()) == []
    assert hub.counters.snapshot() == {"drop": {reason.why: 1}}


@pytest.mark.parametrize("size", [0, 47])
def test_a_message_that_is_too_short_is_not_read(size: int) -> None:
    hub = Side(9)
    assert hub.handshakes.receive_direct(ELSEWHERE, encode_handshake(bytes(size)), 0.0, Output()) == []
    assert hub.handshakes.receive_direct(ELSEWHERE, encode_handshake(b"")[:67], 0.0, Output()) == []
    assert hub.counters.snapshot() == {"drop": {Reason.HANDSHAKE_TRUNCATED.why: 2}}


def junk_for(hub: Side, rng: random.Random) -> bytes:
    body = rng.randbytes(rng.choice([0, 10, 47, 48, 56, 57, 200]))
    routed = encode_routed_handshake(body, sender=rng.randrange(1 << 64), receiver=hub.node_id)
    datagram = bytearray(rng.choice([routed, encode_handshake(body)]))
    if rng.random() < 0.5:
        datagram[rng.randrange(len(datagram))] = rng.randrange(256)
    return bytes(datagram[: rng.choice([len(datagram), rng.randrange(len(datagram))])])


def test_noise_never_raises_and_every_piece_is_counted() -> None:
    rng = random.Random(3)
    hub = Side(9)
    hub.handshakes.accept(Side(1).node_id)
    hub.connect(Side(2), 0.0)
    pieces = 1000
    for number in range(pieces):
        datagram, out = junk_for(hub, rng), Output()
        receive = rng.choice([hub.handshakes.receive_direct, hub.handshakes.receive_routed, hub.handshakes.claim])
        assert receive((f"10.9.{number % 250}.1", 1), datagram, number * 0.1, out) == []
        assert out.trains == []
    assert hub.counters.total("drop") == pieces
    assert hub.handshakes.connecting


def test_every_bit_of_message_1_matters() -> None:
    client, hub = Side(1), Side(9)
    (first,) = client.connect(hub, 0.0).trains
    sound = bytes(first.data)
    message_at = len(sound) - len(message_of(sound))
    for index in range(message_at, len(sound)):
        damaged = sound[:index] + bytes([sound[index] ^ 0x10]) + sound[index + 1 :]
        assert hub.receive(ELSEWHERE, damaged, index).trains == []
    assert hub.receive(client.address, sound, 1000.0).trains


def flood(hub: Side, count: int, source: Callable[[int], tuple[str, int]], now: float) -> None:
    for number in range(count):
        sender = 0x1234_5678 + number
        junk = encode_routed_handshake(number.to_bytes(4, "big") * 14, sender=sender, receiver=hub.node_id)
        hub.receive(source(number), junk, now)


def junk_source(turn: int, number: int) -> tuple[str, int]:
    return f"10.{turn}.{number}", 1


def test_a_host_has_a_limit_and_others_are_not_hurt() -> None:
    client, hub = Side(1), Side(9)
    burst = int(HOST_BURST)
    flood(hub, burst + 5, lambda number: (ELSEWHERE[0], number), 0.0)
    assert hub.counters.snapshot() == {"drop": {"handshake_rate": 5, "handshake_unverified": burst}}
    (first,) = client.connect(hub, 0.0).trains
    assert hub.receive(ELSEWHERE, bytes(first.data), 0.0).trains == []
    assert hub.receive(client.address, bytes(first.data), 0.0).trains
    flood(hub, 1, lambda _: ELSEWHERE, 1.0)
    assert hub.counters.get("drop", "handshake_unverified") == burst + 1


@pytest.mark.parametrize("after_s", [2.0, 60.0, 3600.0], ids=["alive", "failed", "forgotten"])
def test_peers_that_were_there_come_back_through_a_flood(after_s: float) -> None:
    clients = [Side(number, address=("10.0.0.1", 9000 + number)) for number in range(1, 31)]
    hub = Side(99)
    net = Net(*clients, hub)
    for client in clients:
        net.emit(client.address, client.connect(hub, 0.0))
    net.run(1.0)
    for client in clients:
        net.emit(client.address, client.say(hub, b"here"))
    for client in clients:
        del net.stations[client.address]
    net.run(after_s)
    assert len(hub.peers) == (0 if after_s > 1000 else 30)
    now = net.now
    back = 0
    for number, client in enumerate(clients, 1):
        flood(hub, 700, partial(junk_source, number), now + number / 30)
        again = Side(number, seed=5, now=now, address=client.address)
        (first,) = again.connect(hub, now).trains
        back += bool(hub.receive(client.address, bytes(first.data), now + number / 30).trains)
    assert hub.counters.get("drop", "handshake_rate") > 15_000
    assert back == 30


def test_all_sources_together_have_a_limit_that_spares_our_own_attempts() -> None:
    client, hub = Side(1), Side(9)
    (first,) = hub.connect(client, 0.0).trains
    burst = int(TOTAL_BURST)
    flood(hub, burst + 5, lambda number: (f"10.{number}", 1), 0.0)
    assert hub.counters.get("drop", "handshake_rate") == 5
    (answer, *_) = client.receive(hub.address, bytes(first.data), 0.0).trains
    for train in hub.receive(client.address, bytes(answer.data), 0.0).trains:
        client.receive(hub.address, bytes(train.data), 0.0)
    assert hub.session_with(client) == client.session_with(hub) is not None


def test_a_direct_flood_leaves_routed_handshakes_alone() -> None:
    client, hub = Side(1), Side(9)
    for number in range(MAX_TRIES):
        hub.handshakes.accept(0x7000 + number)
    for number in range(int(TOTAL_BURST) // MAX_TRIES + 1):
        hub.receive((f"10.{number}", 1), encode_handshake(bytes([number + 1]) * 48), 0.0)
    assert hub.counters.get("drop", "handshake_rate") == 1
    (first,) = client.connect(hub, 0.0).trains
    assert hub.receive(client.address, bytes(first.data), 0.0).trains


# ── loss, duplication, reordering ───────────────────────────────────────────────────────────


def persist(net: Net, sides: list[tuple[Side, Side]], until: float) -> None:
    """Advance the time; a side whose attempt failed connects again, as an application would."""
    while net.now < until:
        net.run(min(net.now + 0.5, until))
        for side, other in sides:
            if side.log and isinstance(side.log[-1][1], HandshakeFailed) and side.session_with(other) is None:
                net.emit(side.address, side.connect(other, net.now))


@for_each_seed(range(25))
def test_two_nodes_find_each_other_on_a_bad_network(seed: int) -> None:
    rng = random.Random(seed)
    one, other = Side(1, seed=seed), Side(9, seed=seed)
    net = Net(one, other, seed=seed, loss=0.3, duplicate=0.3, spread=rng.choice([0.0, 0.05, 1.0]))
    both = seed % 3 != 0
    net.emit(one.address, one.connect(other, 0.0))
    net.run(rng.choice([0.0, 0.01, rng.random() * 3]))
    if both:
        net.emit(other.address, other.connect(one, net.now))
    persist(net, [(one, other), (other, one)] if both else [(one, other)], 60.0)
    assert one.session_with(other) == other.session_with(one) is not None
    net.loss = net.duplicate = net.spread = 0.0
    net.run(65.0)
    exchange(net, one, other)


@for_each_seed(range(12))
def test_restarts_on_a_bad_network_end_in_one_session(seed: int) -> None:
    rng = random.Random(seed)
    quick = LivenessConfig(heartbeat_s=1.0, session_timeout_s=6.0)
    hub = Side(5, seed=seed, liveness=quick)
    net = Net(hub, seed=seed, loss=0.2, duplicate=0.2, spread=0.1)
    number = rng.choice([1, 9])
    client = Side(number, seed=0, liveness=quick)
    for life in range(4):
        net.stations = {hub.address: hub}
        port = 9000 if rng.random() < 0.5 else 9000 + life
        address = (f"10.0.0.{number}", port)
        client = Side(number, seed=seed * 100 + life, now=net.now, liveness=quick, address=address)
        net.put(client)
        net.emit(client.address, client.connect(hub, net.now))
        persist(net, [(client, hub)], net.now + rng.random() * 10)
    persist(net, [(client, hub)], net.now + 40.0)
    assert client.session_with(hub) == hub.session_with(client) is not None
    net.loss = net.duplicate = net.spread = 0.0
    net.run(net.now + 5.0)
    exchange(net, client, hub)


def test_a_refused_address_is_told_at_once_and_the_tries_go_on() -> None:
    client, hub = Side(1), Side(9)
    net = Net(client)
    net.emit(client.address, client.connect(hub, 0.0))
    out = Output()
    client.handshakes.refused(("10.6.6.6", 666), out)
    assert out.control == []
    for _ in range(2):
        client.handshakes.refused(hub.address, out)
    (told,) = out.control
    assert isinstance(told, HandshakeUnanswered)
    assert told.problem.startswith("no program listens at 10.0.0.9:9000")
    net.run(20.0)
    assert len([1 for *_, datagram in net.sent if is_handshake(datagram)]) == 3
    ((_, failed),) = client.log
    assert isinstance(failed, HandshakeFailed)
    assert failed.problem.startswith("no program listens at 10.0.0.9:9000")


def test_who_began_a_session_in_the_last_second_is_expected() -> None:
    client, hub = Side(1), Side(9)
    (first,) = client.connect(hub, 0.0).trains
    hub.receive(client.address, bytes(first.data), 5.0)
    assert hub.handshakes.expected_up(5.0) == [client.node_id]
    assert hub.handshakes.expected_up(5.1) == []
    net, client, hub = joined()
    net.emit(client.address, client.connect(hub, 1.0))
    assert hub.handshakes.expected_up(0.0) == [], "a node that has a session is not waited for"
