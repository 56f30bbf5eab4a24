from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noise.connection import Keypair, NoiseConnection

from meshbus.errors import BadTag, Fault, LocalProtocolError, MalformedPacket
from meshbus.wire import noise as subject
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.noise import Initiator, Responder, _Symmetric, derive_public_key, prologue
from tests.fuzz import assert_survives
from tests.vectors import load
from tests.wire.strategies import keys

VECTORS: list[dict[str, Any]] = load("transport")["handshakes"]

PSK = bytes(range(32))
STATIC = b"\xb2" * 32
EPHEMERAL = b"\xa1" * 32
ANSWER = b"\xc3" * 32
PROLOGUE = prologue(0xCF18DBA3F555C035, 0x117699D6945A4BEA)

LOW_ORDER = [
    bytes(32),
    b"\x01" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    bytes.fromhex("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
]


def unhex(row: dict[str, Any], name: str) -> bytes:
    return bytes.fromhex(row[name])


def initiator(ephemeral: bytes = EPHEMERAL, **changes: bytes) -> Initiator:
    known = {"psk": PSK, "prologue": PROLOGUE, "responder_public_key": derive_public_key(STATIC)} | changes
    return Initiator(**known, ephemeral_private_key=ephemeral)


def responder(**changes: bytes) -> Responder:
    given: dict[str, Any] = {"psk": PSK, "prologue": PROLOGUE, "static_private_key": STATIC}
    return Responder(**(given | changes))


def golden_initiator(row: dict[str, Any]) -> Initiator:
    return Initiator(
        psk=unhex(row, "psk"),
        prologue=prologue(int(row["initiator_node_id"], 16), int(row["responder_node_id"], 16)),
        responder_public_key=unhex(row, "responder_static_pub"),
        ephemeral_private_key=unhex(row, "initiator_ephemeral_priv"),
    )


def golden_responder(row: dict[str, Any]) -> Responder:
    return Responder(
        psk=unhex(row, "psk"),
        prologue=prologue(int(row["initiator_node_id"], 16), int(row["responder_node_id"], 16)),
        static_private_key=unhex(row, "responder_static_priv"),
    )


def check_keys(row: dict[str, Any], handshake_hash: bytes, role: Role) -> None:
    session = derive_keys(handshake_hash, role)
    to_responder, to_initiator = unhex(row, "initiator_to_responder_key"), unhex(row, "responder_to_initiator_key")
    expected = (to_responder, to_initiator) if role is Role.INITIATOR else (to_initiator, to_responder)
    assert session.session_id == int(row["session_id"], 16)
    assert (session.tx_key, session.rx_key) == expected
    if "nonce_prefix" in row:
        assert session.nonce_prefix.hex() == row["nonce_prefix"]


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows]


INITIATED = [row for row in VECTORS if "initiator_ephemeral_priv" in row]
ANSWERED = [row for row in VECTORS if "responder_static_priv" in row]


def test_every_golden_handshake_is_played_from_at_least_one_side() -> None:
    assert len(VECTORS) == 6
    assert set(names(INITIATED)) | set(names(ANSWERED)) == set(names(VECTORS))


@pytest.mark.parametrize("row", VECTORS, ids=names(VECTORS))
def test_golden_prologues_and_public_keys(row: dict[str, Any]) -> None:
    built = prologue(int(row["initiator_node_id"], 16), int(row["responder_node_id"], 16))
    assert built.hex() == row["prologue"]
    for key in ("responder_static", "initiator_ephemeral", "responder_ephemeral"):
        if f"{key}_priv" in row and f"{key}_pub" in row:
            assert derive_public_key(unhex(row, f"{key}_priv")).hex() == row[f"{key}_pub"]
    if "h0_after_prologue_and_rs" in row:
        started = _Symmetric.begin(built, unhex(row, "responder_static_pub"))
        assert started.hash.hex() == row["h0_after_prologue_and_rs"]


@pytest.mark.parametrize("row", INITIATED, ids=names(INITIATED))
def test_golden_handshakes_from_the_initiator(row: dict[str, Any]) -> None:
    side = golden_initiator(row)
    assert side.write(unhex(row, "msg1_payload")).hex() == row["msg1"]
    if "h1_after_msg1" in row:
        assert side._symmetric.hash.hex() == row["h1_after_msg1"]
    assert side.read(unhex(row, "msg2")) == b""
    assert side.handshake_hash.hex() == row["handshake_hash"]
    check_keys(row, side.handshake_hash, Role.INITIATOR)


@pytest.mark.parametrize("row", ANSWERED, ids=names(ANSWERED))
def test_golden_handshakes_from_the_responder(row: dict[str, Any]) -> None:
    side = golden_responder(row)
    assert side.read(unhex(row, "msg1")) == unhex(row, "msg1_payload")
    assert side.initiator_ephemeral == unhex(row, "msg1")[:32]
    if "h1_after_msg1" in row:
        assert side._symmetric.hash.hex() == row["h1_after_msg1"]
    assert side.write(unhex(row, "responder_ephemeral_priv")).hex() == row["msg2"]
    assert side.handshake_hash.hex() == row["handshake_hash"]
    check_keys(row, side.handshake_hash, Role.RESPONDER)


def oracle(*, psk: bytes, bound: bytes) -> NoiseConnection:
    connection = NoiseConnection.from_name(b"Noise_NKpsk0_25519_ChaChaPoly_BLAKE2s")
    connection.set_psks(psk)
    connection.set_prologue(bound)
    return connection


@settings(max_examples=25, deadline=None)
@given(psk=keys, static=keys, ephemeral=keys, bound=st.binary(max_size=40), payload=st.binary(max_size=64))
def test_our_initiator_agrees_with_another_implementation(
    psk: bytes, static: bytes, ephemeral: bytes, bound: bytes, payload: bytes
) -> None:
    theirs = oracle(psk=psk, bound=bound)
    theirs.set_as_responder()
    theirs.set_keypair_from_private_bytes(Keypair.STATIC, static)
    theirs.start_handshake()
    ours = Initiator(
        psk=psk, prologue=bound, responder_public_key=derive_public_key(static), ephemeral_private_key=ephemeral
    )
    assert theirs.read_message(ours.write(payload)) == payload
    assert ours.read(bytes(theirs.write_message(payload[::-1]))) == payload[::-1]
    assert ours.handshake_hash == theirs.get_handshake_hash()


@settings(max_examples=25, deadline=None)
@given(psk=keys, static=keys, ephemeral=keys, bound=st.binary(max_size=40), payload=st.binary(max_size=64))
def test_our_responder_agrees_with_another_implementation(
    psk: bytes, static: bytes, ephemeral: bytes, bound: bytes, payload: bytes
) -> None:
    theirs = oracle(psk=psk, bound=bound)
    theirs.set_as_initiator()
    theirs.set_keypair_from_public_bytes(Keypair.REMOTE_STATIC, derive_public_key(static))
    theirs.start_handshake()
    ours = Responder(psk=psk, prologue=bound, static_private_key=static)
    assert ours.read(bytes(theirs.write_message(payload))) == payload
    assert theirs.read_message(ours.write(ephemeral, payload[::-1])) == payload[::-1]
    assert ours.handshake_hash == theirs.get_handshake_hash()


@pytest.mark.parametrize(
    "changes",
    [{"psk": bytes(32)}, {"prologue": prologue(1, 2)}, {"static_private_key": b"\x07" * 32}],
    ids=["psk", "prologue", "key"],
)
def test_a_wrong_secret_on_either_side_is_a_bad_tag(changes: dict[str, bytes]) -> None:
    with pytest.raises(BadTag, match="handshake"):
        responder(**changes).read(initiator().write())


def test_a_forged_message_leaves_both_sides_waiting() -> None:
    first, second = initiator(), responder()
    message = first.write(b"hello")
    damaged = message[:-1] + bytes((message[-1] ^ 1,))
    with pytest.raises(BadTag):
        second.read(damaged)
    assert second.read(message) == b"hello"
    answer = second.write(ANSWER)
    for forged in (answer[:-1] + b"\0", bytes(32) + answer[32:], answer[:47], derive_public_key(PSK) + answer[32:]):
        with pytest.raises((BadTag, MalformedPacket)):
            first.read(forged)
    assert first.read(answer) == b""
    assert first.handshake_hash == second.handshake_hash


@pytest.mark.parametrize("size", [0, 1, 31, 32, 47])
def test_a_short_message_is_truncated(size: int) -> None:
    with pytest.raises(MalformedPacket) as caught:
        responder().read(bytes(size))
    assert caught.value.fault is Fault.TRUNCATED


@pytest.mark.parametrize("point", LOW_ORDER)
def test_keys_of_low_order_are_refused(point: bytes) -> None:
    with pytest.raises(MalformedPacket) as caught:
        responder().read(point + bytes(16))
    assert caught.value.fault is Fault.BAD_VALUE
    waiting = initiator()
    waiting.write()
    with pytest.raises(MalformedPacket) as caught:
        waiting.read(point + bytes(16))
    assert caught.value.fault is Fault.BAD_VALUE
    with pytest.raises(MalformedPacket) as caught:
        initiator(responder_public_key=point).write()
    assert caught.value.fault is Fault.BAD_VALUE


def test_steps_out_of_order_are_our_error() -> None:
    first, second = initiator(), responder()

    def refused(*steps: Callable[[], object]) -> None:
        for step in steps:
            with pytest.raises(LocalProtocolError):
                step()

    refused(lambda: first.read(bytes(48)), lambda: second.write(ANSWER), lambda: second.initiator_ephemeral)
    message = first.write()
    second.read(message)
    refused(first.write, lambda: second.read(message), lambda: first.handshake_hash, lambda: second.handshake_hash)
    answer = second.write(ANSWER)
    first.read(answer)
    refused(first.write, lambda: first.read(answer), lambda: second.read(message), lambda: second.write(ANSWER))


@pytest.mark.parametrize("size", [0, 31, 33])
def test_keys_of_another_size_are_our_error(size: int) -> None:
    for build in (
        lambda: initiator(psk=bytes(size)),
        lambda: initiator(responder_public_key=bytes(size)),
        lambda: initiator(ephemeral=bytes(size)),
        lambda: responder(psk=bytes(size)),
        lambda: responder(static_private_key=bytes(size)),
        lambda: derive_public_key(bytes(size)),
    ):
        with pytest.raises(LocalProtocolError, match=f"32 bytes, got {size}"):
            build()


def test_the_prologue_holds_the_low_halves_of_the_node_ids() -> None:
    assert prologue(0xAAAAAAAA_00000001, 0xBBBBBBBB_00000002) == prologue(1, 2)
    assert prologue(1, 2) != prologue(2, 1)


def test_damaged_messages_never_crash() -> None:
    # Every attempt costs curve operations, so there are fewer of them: behind one length check all bytes are opaque.
    message = initiator().write(bytes(32))
    assert_survives(lambda buffer: responder().read(buffer), [message], randoms=1000)
    side = responder()
    side.read(message)

    def read_answer(buffer: bytes) -> bytes:
        waiting = initiator()
        waiting.write(bytes(32))
        return waiting.read(buffer)

    assert_survives(read_answer, [side.write(ANSWER, bytes(32))], randoms=1000)


def test_a_responder_reads_message_1_under_any_of_its_keys_with_one_curve_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other, third, curve = bytes([4]) * 32, bytes([5]) * 32, []
    exchange = subject.exchange

    def counted(*arguments: Any) -> bytes:
        curve.append(arguments)
        return exchange(*arguments)

    monkeypatch.setattr(subject, "exchange", counted)
    for key in (PSK, other, third):
        asking = initiator(psk=key)
        message = asking.write(b"payload")
        answering = Responder(psk=PSK, also=(other, third), prologue=PROLOGUE, static_private_key=STATIC)
        curve.clear()
        assert answering.read(message) == b"payload"
        assert len(curve) == 1
        assert answering.psk == key
        asking.read(answering.write(bytes([6]) * 32))
        assert asking.handshake_hash == answering.handshake_hash
    curve.clear()
    answering = Responder(psk=PSK, also=(other,), prologue=PROLOGUE, static_private_key=STATIC)
    with pytest.raises(BadTag):
        answering.read(initiator(psk=third).write())
    assert len(curve) == 2, "one of the initiator, and one for both keys of the responder"
    assert answering.read(initiator(psk=other).write()) == b"", "it still waits"
