import pytest

from meshbus.edge.zmtp.closereason import CloseReason, Violation
from meshbus.edge.zmtp.greeting import GREETING_BYTES, Greeting, decode_greeting, encode_greeting
from tests.edge.zmtp.talk import CAPTURES, stream
from tests.fuzz import assert_survives


@pytest.mark.parametrize(
    ("capture", "side", "mechanism"),
    [
        ("null_pub_sub", "conn1_connect", b"NULL"),
        ("plain_ok", "conn1_bind", b"PLAIN"),
        ("curve_libzmq_sub", "client", b"CURVE"),
    ],
)
def test_the_greeting_of_libzmq(capture: str, side: str, mechanism: bytes) -> None:
    golden = stream(capture, side)[:GREETING_BYTES]
    assert encode_greeting(mechanism) == golden
    assert decode_greeting(golden) == Greeting(1, mechanism, as_server=False)


def test_a_server_sets_as_server() -> None:
    golden = stream("curve_libzmq_sub", "server")[:GREETING_BYTES]
    assert encode_greeting(b"CURVE", as_server=True) == golden
    assert decode_greeting(golden) == Greeting(1, b"CURVE", as_server=True)


@pytest.mark.parametrize(("version", "minor"), [((3, 0), 0), ((3, 1), 1), ((3, 2), 1), ((4, 0), 1), ((255, 0), 1)])
def test_later_versions_are_spoken_to_as_3_1(version: tuple[int, int], minor: int) -> None:
    greeting = bytearray(encode_greeting(b"NULL"))
    greeting[10:12] = version
    decoded = decode_greeting(greeting)
    assert decoded is not None
    assert decoded.minor == minor


def test_a_version_4_peer_as_captured() -> None:
    told = bytes.fromhex(CAPTURES["libzmq_sub_vs_major4_greeting"]["peer_sent"])
    assert decode_greeting(told) == Greeting(1, b"NULL", as_server=False)


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (b"G", CloseReason.BAD_SIGNATURE),
        (b"\x01\x00", CloseReason.BAD_SIGNATURE),
        (b"\xff" + bytes(8) + b"\x7e", CloseReason.OLD_VERSION),
        (b"\xff" + bytes(8) + b"\x7f\x01", CloseReason.OLD_VERSION),
        (b"\xff" + bytes(8) + b"\x7f\x02", CloseReason.OLD_VERSION),
    ],
)
def test_a_wrong_peer_is_recognized_by_its_first_bytes(start: bytes, reason: CloseReason) -> None:
    with pytest.raises(Violation) as caught:
        decode_greeting(start)
    assert caught.value.reason is reason


def test_what_stands_in_the_old_identity_length_is_ignored() -> None:
    greeting = encode_greeting(b"NULL")
    assert decode_greeting(greeting[:1] + b"\xaa" * 8 + greeting[9:]) == decode_greeting(greeting)


def test_every_part_of_a_greeting_waits_for_the_rest() -> None:
    greeting = encode_greeting(b"NULL")
    assert [decode_greeting(greeting[:length]) for length in range(GREETING_BYTES)] == [None] * GREETING_BYTES


def test_hostile_greetings() -> None:
    assert_survives(decode_greeting, [encode_greeting(b"NULL")], randoms=5_000)
