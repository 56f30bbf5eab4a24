import pytest

from meshbus.edge.zmtp.closereason import CloseReason, Violation
from meshbus.edge.zmtp.framing import COMMAND, FrameReader, encode_frame
from meshbus.edge.zmtp.greeting import GREETING_BYTES
from meshbus.edge.zmtp.mechanism import (
    Credentials,
    Handshake,
    NullHandshake,
    PlainClientHandshake,
    PlainServerHandshake,
    Step,
    Verdict,
)
from meshbus.edge.zmtp.metadata import SocketType
from tests.edge.zmtp.talk import stream

SUB, PUB = SocketType.SUB, SocketType.PUB


def commands(capture: str, side: str) -> list[bytes]:
    """The frames of a captured handshake, without the greeting."""
    reader = FrameReader()
    reader.feed(stream(capture, side)[GREETING_BYTES:])
    return [encode_frame(body, flags & COMMAND) for flags, body in reader.frames(1000)]


def body_of(frame: bytes) -> bytes:
    return frame[2:]


def refusal(handshake: Handshake, body: bytes) -> Violation:
    with pytest.raises(Violation) as caught:
        handshake.receive(body)
    return caught.value


def test_null_as_libzmq_does_it() -> None:
    handshake = NullHandshake(SUB)
    assert handshake.begin() == Step(commands("null_pub_sub", "conn1_connect")[0])
    assert handshake.receive(body_of(commands("null_pub_sub", "conn1_bind")[0])) == Step(
        properties={"socket-type": b"PUB"}
    )


def test_null_with_a_verdict_sends_nothing_before_it() -> None:
    handshake = NullHandshake(PUB, judged=True)
    assert handshake.begin() == Step(ask=Credentials("NULL"))
    assert handshake.decide(Verdict.ALLOW) == NullHandshake(PUB).begin()


def test_plain_client_as_libzmq_does_it() -> None:
    hello, initiate, _ = commands("plain_ok", "conn1_connect")
    welcome, ready = commands("plain_ok", "conn1_bind")[:2]
    client = PlainClientHandshake(SUB, b"admin", b"secret")
    assert client.begin() == Step(hello)
    assert client.receive(body_of(welcome)) == Step(initiate)
    assert client.receive(body_of(ready)) == Step(properties={"socket-type": b"PUB"})


def test_plain_server_as_libzmq_does_it() -> None:
    hello, initiate, _ = commands("plain_ok", "conn1_connect")
    welcome, ready = commands("plain_ok", "conn1_bind")[:2]
    server = PlainServerHandshake(PUB)
    assert server.begin() == Step()
    assert server.receive(body_of(hello)) == Step(ask=Credentials("PLAIN", "admin", "secret"))
    assert server.decide(Verdict.ALLOW) == Step(welcome)
    assert server.receive(body_of(initiate)) == Step(ready, properties={"socket-type": b"SUB"})


def test_both_spellings_of_error_are_a_refusal() -> None:
    misspelt = body_of(commands("plain_denied", "conn1_bind")[0])
    assert misspelt == b"^RROR\x03400"
    for body in (misspelt, b"\x05ERROR\x03400"):
        violation = refusal(PlainClientHandshake(SUB, b"admin", b"wrong"), body)
        assert violation.reason is CloseReason.REFUSED
        assert "400" in violation.detail


@pytest.mark.parametrize(
    ("verdict", "sent"),
    [(Verdict.DENY, b"\x04\x0a\x05ERROR\x03400"), (Verdict.FAILED, b"\x04\x0a\x05ERROR\x03500"), (Verdict.LATER, b"")],
)
def test_a_refusal_is_an_error_or_for_a_temporary_one_silence(verdict: Verdict, sent: bytes) -> None:
    server = PlainServerHandshake(PUB)
    server.receive(b"\x05HELLO\x01a\x01b")
    assert server.decide(verdict) == Step(sent, denied=verdict)
    assert NullHandshake(PUB, judged=True).decide(verdict) == Step(sent, denied=verdict)


@pytest.mark.parametrize("hello", [b"", b"\x05", b"\x01a", b"\x01a\x05bc", b"\x01a\x01bc", b"\xff" * 4])
def test_a_hello_without_exactly_a_name_and_a_password(hello: bytes) -> None:
    assert refusal(PlainServerHandshake(PUB), b"\x05HELLO" + hello).reason is CloseReason.MALFORMED


def test_a_welcome_has_no_data() -> None:
    assert refusal(PlainClientHandshake(SUB, b"", b""), b"\x07WELCOME!").reason is CloseReason.MALFORMED


def test_commands_out_of_order() -> None:
    for handshake in (PlainServerHandshake(PUB), PlainClientHandshake(SUB, b"a", b"b"), NullHandshake(SUB)):
        assert refusal(handshake, b"\x08INITIATE").reason is CloseReason.UNEXPECTED


def test_a_password_is_not_printed() -> None:
    assert "secret" not in repr(Credentials("PLAIN", "admin", "secret"))
