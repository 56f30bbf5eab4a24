from typing import Any

import pytest
import zmq
from nacl import bindings as sodium

from meshbus.edge.zmtp.closereason import CloseReason, Violation
from meshbus.edge.zmtp.curve import CurveCipher, CurveClientHandshake, CurveServerHandshake, public_key_of
from meshbus.edge.zmtp.framing import FrameReader, encode_command, encode_message
from meshbus.edge.zmtp.greeting import GREETING_BYTES
from meshbus.edge.zmtp.mechanism import Credentials, Verdict
from meshbus.edge.zmtp.metadata import SocketType
from meshbus.edge.zmtp.protocol import Interest
from meshbus.edge.zmtp.z85 import decode_z85
from tests.edge.zmtp.talk import CAPTURES, CLIENT_SECRET, SERVER_SECRET, entropy, pair, pump, session, stream

SUB, PUB = SocketType.SUB, SocketType.PUB


def frames(capture: str, side: str) -> list[tuple[int, bytes]]:
    reader = FrameReader()
    reader.feed(stream(capture, side)[GREETING_BYTES:])
    return reader.frames(1 << 16)


def scripted(*answers: bytes) -> Any:
    """Entropy that returns what a captured side used."""
    left = list(answers)
    return lambda count: left.pop(0) if left else bytes(count)


def client_of_the_capture() -> CurveClientHandshake:
    capture = CAPTURES["curve_libzmq_pub"]
    return CurveClientHandshake(
        SUB,
        server_key=public_key_of(bytes.fromhex(capture["server_secret"])),
        secret_key=bytes.fromhex(capture["client_secret"]),
        entropy=scripted(bytes.fromhex(capture["client_transient_secret"])),
    )


def test_a_client_reads_what_a_libzmq_server_sent() -> None:
    client = client_of_the_capture()
    hello = client.begin().send
    assert hello == stream("curve_libzmq_pub", "client")[GREETING_BYTES:][: len(hello)], "HELLO, byte by byte"
    sent = frames("curve_libzmq_pub", "server")
    assert len(client.receive(sent[0][1]).send) == 276 + 9
    assert client.receive(sent[1][1]).properties == {"socket-type": b"PUB"}
    assert client.cipher is not None
    opened = [client.cipher.open(body) for _, body in sent[2:]]
    golden = [bytes.fromhex(text) for side, _, text in CAPTURES["curve_libzmq_pub"]["plaintexts"] if side == "S"][1:]
    assert [bytes(({4: 2}.get(flags, flags),)) + body for flags, body in opened] == golden


def test_a_client_seals_what_the_capture_holds() -> None:
    client = client_of_the_capture()
    client.begin()
    for _, body in frames("curve_libzmq_pub", "server")[:2]:
        client.receive(body)
    assert client.cipher is not None
    sealed = client.cipher.seal(encode_command(b"SUBSCRIBE", b"A") + encode_command(b"PING", b"\x00\x0actx"))
    assert stream("curve_libzmq_pub", "client").endswith(sealed)


def test_a_server_reads_what_a_libzmq_client_sent() -> None:
    capture = CAPTURES["curve_libzmq_sub"]
    sent, answered = frames("curve_libzmq_sub", "client"), frames("curve_libzmq_sub", "server")
    welcome_nonce = answered[0][1][8:24]
    secret = bytes.fromhex(capture["server_secret"])
    transient = bytes.fromhex(capture["server_transient_secret"])
    cookie = sent[1][1][9:105]
    server = CurveServerHandshake(PUB, secret_key=secret, entropy=scripted(transient, cookie, welcome_nonce))
    welcome = server.receive(sent[0][1]).send
    assert welcome[2:] == answered[0][1], "WELCOME, byte by byte"
    client_key = public_key_of(bytes.fromhex(capture["client_secret"]))
    assert server.receive(sent[1][1]).ask == Credentials("CURVE", public_key=client_key)
    assert server.decide(Verdict.ALLOW).send[2:] == answered[1][1], "READY, byte by byte"
    assert server.cipher is not None
    assert server.cipher.open(sent[2][1]) == (4, b"\x09SUBSCRIBEA")


def test_keys_are_those_of_libzmq() -> None:
    public, secret = zmq.curve_keypair()
    assert public_key_of(decode_z85(secret.decode())) == decode_z85(public.decode())


def test_a_connection_between_ourselves() -> None:
    server, client = pair("CURVE")
    assert sum(out.ready is not None for out in pump(server, client)) == 2
    out = server.receive(client.encode_interest(Interest(b"A", subscribe=True)), 0.0)
    assert out.requests == [Interest(b"A", subscribe=True)]
    sealed = server.seal(encode_message([b"A", bytes(300), b""]) + encode_message([b"A"]))
    assert client.receive(sealed, 0.0).messages == [(b"A", bytes(300), b""), (b"A",)]


def test_the_command_bit_outside_of_a_box_is_taken_too() -> None:
    server, client = pair("CURVE")
    pump(server, client)
    sealed = bytearray(server.seal(encode_message([b"A"])))
    sealed[0] |= 4
    assert client.receive(bytes(sealed), 0.0).messages == [(b"A",)]


def test_more_outside_of_a_box_is_not() -> None:
    server, client = pair("CURVE")
    pump(server, client)
    sealed = bytearray(server.seal(encode_message([b"A"])))
    sealed[0] |= 1
    closed = client.receive(bytes(sealed), 0.0).closed
    assert closed is not None
    assert closed.reason is CloseReason.BAD_FLAGS


def test_what_came_before_a_broken_box_is_still_delivered() -> None:
    server, client = pair("CURVE")
    pump(server, client)
    good, bad = server.seal(encode_message([b"good"])), bytearray(server.seal(encode_message([b"bad"])))
    bad[-1] ^= 1
    out = client.receive(good + bytes(bad), 0.0)
    assert out.messages == [(b"good",)]
    assert out.closed is not None
    assert out.closed.reason is CloseReason.BAD_BOX


def test_a_replayed_box() -> None:
    server, client = pair("CURVE")
    pump(server, client)
    sealed = server.seal(encode_message([b"once"]))
    out = client.receive(sealed + sealed, 0.0)
    assert out.messages == [(b"once",)]
    assert out.closed is not None
    assert out.closed.reason is CloseReason.REPLAYED


def test_a_client_with_a_wrong_server_key_is_recognized_by_its_hello() -> None:
    server = CurveServerHandshake(PUB, secret_key=SERVER_SECRET, entropy=entropy(1))
    client = CurveClientHandshake(
        SUB, server_key=public_key_of(CLIENT_SECRET), secret_key=CLIENT_SECRET, entropy=entropy(2)
    )
    outputs = pump(session(PUB, server), session(SUB, client))
    reasons = [out.closed.reason for out in outputs if out.closed is not None]
    assert reasons == [CloseReason.BAD_BOX]


def test_a_refused_client_gets_an_error() -> None:
    outputs = pump(*pair("CURVE"), Verdict.DENY)
    reasons = {out.closed.reason for out in outputs if out.closed is not None}
    assert reasons == {CloseReason.DENIED, CloseReason.REFUSED}


def handshaken() -> tuple[CurveServerHandshake, bytearray]:
    """A server that waits for INITIATE, and the right one."""
    server = CurveServerHandshake(PUB, secret_key=SERVER_SECRET, entropy=entropy(1))
    client = CurveClientHandshake(
        SUB, server_key=public_key_of(SERVER_SECRET), secret_key=CLIENT_SECRET, entropy=entropy(2)
    )
    welcome = server.receive(client.begin().send[2:]).send
    return server, bytearray(client.receive(welcome[2:]).send[9:])


@pytest.mark.parametrize("place", [9, 104, 112, 113, 275])
def test_a_damaged_initiate(place: int) -> None:
    server, initiate = handshaken()
    initiate[place] ^= 1
    with pytest.raises(Violation) as caught:
        server.receive(bytes(initiate))
    assert caught.value.reason is CloseReason.BAD_BOX


def test_a_vouch_for_another_server() -> None:
    """A client whose vouch was made for another server is refused here."""
    server, _ = handshaken()
    middle = public_key_of(bytes(range(50, 82)))
    transient, server_transient = entropy(2)(32), entropy(1)(32)
    cookie = (generator := entropy(1))(32) and generator(96)
    key = sodium.crypto_box_beforenm(public_key_of(server_transient), transient)
    vouch = sodium.crypto_box_easy(
        public_key_of(transient) + middle, b"VOUCH---" + bytes(16), public_key_of(server_transient), CLIENT_SECRET
    )
    inner = public_key_of(CLIENT_SECRET) + bytes(16) + vouch
    number = (2).to_bytes(8, "big")
    box = sodium.crypto_box_easy_afternm(inner, b"CurveZMQINITIATE" + number, key)
    with pytest.raises(Violation, match="the vouch in INITIATE is for other keys"):
        server.receive(b"\x08INITIATE" + cookie + number + box)


def test_a_key_without_a_shared_secret() -> None:
    server = CurveServerHandshake(PUB, secret_key=SERVER_SECRET, entropy=entropy(1))
    hello = bytearray(200)
    hello[:8] = b"\x05HELLO\x01\x00"
    with pytest.raises(Violation) as caught:
        server.receive(bytes(hello))
    assert caught.value.reason is CloseReason.BAD_BOX


@pytest.mark.parametrize("body", [b"\x05HELLO", b"\x05HELLO" + bytes(193), b"\x05HELLO\x02" + bytes(193)])
def test_a_malformed_hello(body: bytes) -> None:
    with pytest.raises(Violation) as caught:
        CurveServerHandshake(PUB, secret_key=SERVER_SECRET, entropy=entropy(1)).receive(body)
    assert caught.value.reason in {CloseReason.MALFORMED, CloseReason.OLD_VERSION}


def test_short_commands_are_malformed() -> None:
    server, _ = handshaken()
    client = client_of_the_capture()
    client.begin()
    for handshake, body in ((server, b"\x08INITIATE" + bytes(200)), (client, b"\x07WELCOME" + bytes(100))):
        with pytest.raises(Violation) as caught:
            handshake.receive(body)
        assert caught.value.reason is CloseReason.MALFORMED
    client.receive(frames("curve_libzmq_pub", "server")[0][1])
    with pytest.raises(Violation) as caught:
        client.receive(b"\x05READY" + bytes(20))
    assert caught.value.reason is CloseReason.MALFORMED


@pytest.mark.parametrize("flags", [3, 4, 0x80])
def test_flags_inside_of_a_box(flags: int) -> None:
    server, client = pair("CURVE")
    pump(server, client)
    cipher = server._handshake.cipher
    assert isinstance(cipher, CurveCipher)
    number = cipher._counter.next()
    box = sodium.crypto_box_easy_afternm(bytes((flags,)), b"CurveZMQMESSAGES" + number, cipher._key)
    closed = client.receive(encode_message([b"\x07MESSAGE" + number + box]), 0.0).closed
    assert closed is not None
    assert closed.reason is CloseReason.BAD_FLAGS


def test_plain_frames_after_the_handshake() -> None:
    server, client = pair("CURVE")
    pump(server, client)
    closed = client.receive(encode_message([b"in clear text"]), 0.0).closed
    assert closed is not None
    assert closed.reason is CloseReason.UNEXPECTED
