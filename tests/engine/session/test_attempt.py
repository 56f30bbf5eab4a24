from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.session.attempt import ANSWER_BURST, OTHER_KEY_S, QUIET_S, Attempt, Phase, Target
from meshbus.engine.session.link import Link
from meshbus.errors import HandshakeError, HandshakeFault, LocalProtocolError
from meshbus.testing.rig import PSK
from meshbus.wire.handshake import pack_initiator_id
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.noise import Responder, derive_public_key, prologue
from tests.engine.sides import message_of
from tests.vectors import load

TIMINGS: dict[str, Any] = load("transport")["timings"]

HERE, THERE = 0x1111_0000_AAAA, 0x2222_0000_BBBB
STATIC = bytes([7]) * 32
ADDRESS = ("10.0.0.9", 9000)
ELSEWHERE = ("10.6.6.6", 666)


class Entropy:
    """A counter instead of randomness: keys differ, and the test sets the jitter."""

    def __init__(self, jitter: float = 0.0) -> None:
        self.jitter = jitter
        self.keys = 0

    def __call__(self, size: int) -> bytes:
        if size == 4:
            return int(self.jitter * 0xFFFFFFFF).to_bytes(4, "little")
        self.keys += 1
        return bytes([self.keys]) * size


def attempt(*, routed: bool = True, jitter: float = 0.0, tries: int = 3, timeout_s: float = 5.0) -> Attempt:
    target = Target(THERE, ADDRESS, derive_public_key(STATIC), routed)
    return Attempt(target, node_id=HERE, psks=(PSK,), entropy=Entropy(jitter), tries=tries, timeout_s=timeout_s)


def answer(datagram: bytes, ephemeral: int = 0x55) -> tuple[bytes, bytes]:
    """Return the payload of message 1, and message 2."""
    responder = Responder(psk=PSK, prologue=prologue(HERE, THERE), static_private_key=STATIC)
    payload = responder.read(message_of(datagram))
    return payload, responder.write(bytes([ephemeral]) * 32)


def run(trying: Attempt, until: float = 100.0) -> tuple[list[float], float | None, list[bytes]]:
    """Advance the time; return when message 1 was sent, when the attempt gave up, and the datagrams."""
    out = Output()
    trying.send(0.0, out)
    times = [0.0]
    while trying.due <= until:
        now = trying.due
        sent = len(out.trains)
        if not trying.advance(now, out):
            return times, now, [bytes(train.data) for train in out.trains]
        times += [now] * (len(out.trains) - sent)
    return times, None, [bytes(train.data) for train in out.trains]


def test_tries_come_when_a_real_node_makes_them() -> None:
    times, gave_up, _ = run(attempt())
    assert times == pytest.approx(TIMINGS["handshake_attempt_times_s"], abs=0.05)
    assert gave_up == pytest.approx(TIMINGS["handshake_total_failure_s"], abs=0.05)


def test_every_try_has_its_own_ephemeral_key() -> None:
    _, _, datagrams = run(attempt())
    assert len({message_of(datagram)[:32] for datagram in datagrams}) == 3


def test_jitter_keeps_two_nodes_out_of_step() -> None:
    early, _, _ = run(attempt(jitter=0.0))
    late, _, _ = run(attempt(jitter=1.0))
    assert [b - a for a, b in zip(early, late, strict=True)] == pytest.approx([0.0, 0.5, 1.0])


def test_tries_and_time_are_what_was_asked_for() -> None:
    times, gave_up, _ = run(attempt(tries=2, timeout_s=0.5))
    assert times == pytest.approx([0.0, 0.6])
    assert gave_up == pytest.approx(1.1)


@pytest.mark.parametrize("routed", [True, False])
def test_message_2_gives_the_keys(routed: bool) -> None:
    out = Output()
    trying = attempt(routed=routed)
    trying.send(0.0, out)
    (train,) = out.trains
    assert train.address == ADDRESS
    payload, message = answer(bytes(train.data))
    assert payload == (pack_initiator_id(HERE) if routed else b"")
    keys = trying.read(message, ADDRESS, 1.0)
    assert keys is not None
    assert keys.session_id != 0


def test_an_answer_in_the_pause_still_counts_but_not_one_to_an_older_try() -> None:
    out = Output()
    trying = attempt()
    trying.send(0.0, out)
    assert trying.advance(5.0, out)
    assert trying.phase is Phase.PAUSING
    _, late = answer(bytes(out.trains[0].data))
    assert trying.advance(trying.due, out)
    assert trying.read(late, ADDRESS, 5.2) is None
    _, fresh = answer(bytes(out.trains[1].data))
    assert trying.advance(trying.due, out)
    assert trying.read(fresh, ADDRESS, 10.15) is not None


def test_junk_changes_nothing() -> None:
    out = Output()
    trying = attempt()
    trying.send(0.0, out)
    _, message = answer(bytes(out.trains[0].data))
    for junk in (b"", bytes(48), b"\xff" * 48, message[:-1], message[:-1] + bytes([message[-1] ^ 1]), message + b"\0"):
        assert trying.read(junk, ADDRESS, 0.0) is None
    assert trying.read(message, ADDRESS, 0.1) is not None


def test_a_flood_from_elsewhere_does_not_keep_the_answer_out() -> None:
    out = Output()
    trying = attempt()
    trying.send(0.0, out)
    _, message = answer(bytes(out.trains[0].data))
    for _ in range(int(ANSWER_BURST)):
        assert trying.read(bytes(48), ELSEWHERE, 0.0) is None
    assert trying.read(message, ELSEWHERE, 0.0) is None  # not even tried
    assert trying.read(message, ADDRESS, 0.0) is not None


def test_what_yields_reads_no_more_answers() -> None:
    out = Output()
    trying = attempt()
    trying.send(0.0, out)
    _, message = answer(bytes(out.trains[0].data))
    link = Link(derive_keys(bytes(32), Role.INITIATOR), Role.INITIATOR, ADDRESS, 0.0)
    trying.hold(link, until=1.5)
    assert (trying.phase, trying.due, trying.link) == (Phase.YIELDING, 1.5, link)
    assert trying.read(message, ADDRESS, 0.1) is None


def test_a_failure_names_what_to_check() -> None:
    silence = attempt().failure()
    assert (silence.node_id, silence.fault) == (THERE, HandshakeFault.TIMEOUT)
    key = derive_public_key(STATIC).hex()
    for word in ("10.0.0.9:9000", "3 tries of 5 s", "address", "psk", key, f"{THERE:016x}", "old session"):
        assert word in silence.problem
    assert f"accepting node {HERE:016x}" in attempt(routed=False).failure().problem

    trying = attempt(routed=False)
    trying.unverified = 2
    noise = trying.failure()
    assert noise.fault is HandshakeFault.WRONG_KEY
    assert "2 answers that did not verify" in noise.problem
    assert "the same mesh key" in noise.problem


@pytest.mark.parametrize(
    ("address", "shown"), [(("::1", 9, 0, 0), "[::1]:9"), (("h", 9), "h:9"), ("anything", "anything")]
)
def test_addresses_are_shown_as_people_write_them(address: Any, shown: str) -> None:
    target = Target(THERE, address, bytes([9]) + bytes(31), True)
    trying = Attempt(target, node_id=HERE, psks=(PSK,), entropy=Entropy(), tries=1, timeout_s=1.0)
    assert f"no answer from {shown} in" in trying.failure().problem


def test_a_public_key_that_cannot_be_one_is_our_error() -> None:
    with pytest.raises(LocalProtocolError):
        Attempt(
            Target(THERE, ADDRESS, b"short", True), node_id=HERE, psks=(PSK,), entropy=Entropy(), tries=1, timeout_s=1
        )
    low_order = Attempt(
        Target(THERE, ADDRESS, bytes(32), True), node_id=HERE, psks=(PSK,), entropy=Entropy(), tries=1, timeout_s=1
    )
    with pytest.raises(HandshakeError) as caught:
        low_order.send(0.0, Output())
    assert caught.value.fault is HandshakeFault.WRONG_KEY


def test_the_error_of_no_answer_names_the_counters_of_each_wrong_key() -> None:
    problem = attempt().failure().problem
    assert "drop.handshake_unverified means another mesh key" in problem
    assert "drop.transit_stranger another public key" in problem
    assert "neither that no packet arrives, so check the address and the firewall" in problem


def test_the_key_that_is_shown_is_the_one_that_was_typed() -> None:
    typed = bytes([0xAB]) * 32
    target = Target(THERE, ADDRESS, derive_public_key(STATIC), True, given_key=typed)
    trying = Attempt(target, node_id=HERE, psks=(PSK,), entropy=Entropy(), tries=1, timeout_s=1.0)
    problem = trying.failure().problem
    assert f"its public key is {typed.hex()}" in problem
    assert derive_public_key(STATIC).hex() not in problem
    assert "1 try of 1 s" in problem


def test_a_closed_port_is_reported_instead_of_the_keys() -> None:
    trying = attempt()
    trying.refused = True
    failure = trying.failure()
    assert failure.fault is HandshakeFault.TIMEOUT
    assert failure.problem == (
        "no program listens at 10.0.0.9:9000, the machine there reports; start the node, or correct the port"
    )


def test_a_missing_answer_is_reported_long_before_the_last_try() -> None:
    trying = attempt()
    trying.send(0.0, Output())
    due = [trying.due_quiet]
    told = trying.unanswered()
    assert (told.node_id, told.problem) == (THERE, "no answer yet from 10.0.0.9:9000; trying again")
    due.append(trying.due_quiet)
    trying.advance(5.0, Output())
    trying.send(6.0, Output())
    due.append(trying.due_quiet)
    assert due == [QUIET_S, None, None], "once is enough"
    single = attempt(tries=1)
    single.send(0.0, Output())
    assert single.due_quiet is None, "its failure is the report"


def test_tries_take_two_mesh_keys_in_turn_and_the_first_one_does_not_wait_long() -> None:
    other = bytes([3]) * 32
    target = Target(THERE, ADDRESS, derive_public_key(STATIC), True)
    trying = Attempt(target, node_id=HERE, psks=(other, PSK), entropy=Entropy(), tries=2, timeout_s=5.0)
    times, ended, sent = run(trying)
    read_under = []
    for datagram in sent:
        responder = Responder(psk=PSK, also=(other,), prologue=prologue(HERE, THERE), static_private_key=STATIC)
        responder.read(message_of(datagram))
        read_under.append(responder.psk)
    assert read_under == [other, PSK, other, PSK]
    waits = [later - earlier for earlier, later in pairwise([*times, ended or 0.0])]
    assert [wait < OTHER_KEY_S + 1 for wait in waits] == [True, False, True, False]
    assert "4 tries" in trying.failure().problem


def test_an_answer_to_the_second_key_counts() -> None:
    other = bytes([3]) * 32
    target = Target(THERE, ADDRESS, derive_public_key(STATIC), True)
    trying, out = Attempt(target, node_id=HERE, psks=(other, PSK), entropy=Entropy(), tries=1, timeout_s=5.0), Output()
    trying.send(0.0, out)
    assert trying.advance(trying.due, out)
    assert trying.advance(trying.due, out)
    assert trying.psk == PSK
    _, message = answer(bytes(out.trains[-1].data))
    assert trying.read(message, ADDRESS, 2.0) is not None
