import random
from typing import Any

import pytest

from meshbus.edge.zmtp.closereason import CloseReason
from meshbus.edge.zmtp.framing import encode_command, encode_frame, encode_message
from meshbus.edge.zmtp.greeting import encode_greeting
from meshbus.edge.zmtp.mechanism import Credentials, NullHandshake, PlainServerHandshake, Verdict
from meshbus.edge.zmtp.metadata import SocketType
from meshbus.edge.zmtp.protocol import (
    HANDSHAKE_BYTES,
    MAX_PONGS,
    Heartbeat,
    Interest,
    Limits,
    Output,
    Ready,
    Session,
    Upstream,
)
from tests.edge.zmtp.talk import CAPTURES, pair, pump, session, stream
from tests.seeds import for_each_seed

SUB, PUB, XPUB, XSUB = SocketType.SUB, SocketType.PUB, SocketType.XPUB, SocketType.XSUB
GREETING = encode_greeting(b"NULL")
READY = encode_command(b"READY")


def sub(prefix: bytes) -> Interest:
    return Interest(prefix, subscribe=True)


def cancel(prefix: bytes) -> Interest:
    return Interest(prefix, subscribe=False)


def reason_of(out: Output) -> CloseReason:
    assert out.closed is not None
    return out.closed.reason


def ready(socket_type: SocketType, **options: Any) -> Session:
    made = session(socket_type, **options)
    assert made.receive(GREETING + READY, 0.0).ready is not None
    return made


def test_the_subscriptions_of_a_libzmq_sub() -> None:
    publisher = session(PUB)
    out = publisher.receive(stream("null_pub_sub", "conn1_connect"), 0.0)
    assert publisher.greet() + out.send == stream("null_pub_sub", "conn1_bind")[: 64 + 27]
    assert out.ready == Ready(1, {"socket-type": b"SUB"})
    assert out.requests == [sub(b"A"), sub(b"AB"), sub(b"A"), sub(b""), cancel(b"A"), cancel(b"AB"), cancel(b"")]


def test_the_messages_of_a_libzmq_pub() -> None:
    out = session(SUB).receive(stream("null_pub_sub", "conn1_bind"), 0.0)
    expected = [(b"ABC", b"body"), (b"",), (b"x" * 255,), (b"y" * 256,), (b"k", b"", b"z" * 300)]
    assert out.messages == expected
    assert len(expected) == CAPTURES["null_pub_sub"]["received"]


def test_an_xsub_sends_subscriptions_and_messages_as_data() -> None:
    out = session(XPUB).receive(stream("null_xpub_xsub", "conn1_connect"), 0.0)
    long = [sub(b"L" * 245), sub(b"M" * 246)]
    assert out.requests == [sub(b"T"), sub(b"T"), cancel(b"T"), Upstream((b"hello upstream",)), *long]


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_subscriptions_take_the_form_that_the_peer_understands(minor: int) -> None:
    capture = CAPTURES[f"libzmq_sub_to_3_{minor}_publisher"]
    subscriber = session(SUB)
    greeting = bytearray(GREETING)
    greeting[11] = minor
    out = subscriber.receive(bytes(greeting) + READY, 0.0)
    interests = [sub(b""), sub(b"A"), cancel(b"A")]
    sent = subscriber.greet() + out.send + b"".join(map(subscriber.encode_interest, interests))
    assert sent.hex() == capture["streams"]["connect"]
    publisher = session(PUB)
    assert publisher.receive(sent, 0.0).requests == interests, "and a publisher understands it"


def test_the_streams_of_plain_and_of_a_unix_socket() -> None:
    publisher = session(PUB, PlainServerHandshake(PUB))
    out = publisher.receive(stream("plain_ok", "conn1_connect"), 0.0)
    assert out.ask == Credentials("PLAIN", "admin", "secret")
    out = publisher.decide(Verdict.ALLOW, 0.0)
    assert publisher.greet()[:32] + out.send == (s := stream("plain_ok", "conn1_bind"))[:32] + s[64 : 64 + 37]
    assert out.requests == [sub(b"A")], "what waited behind the verdict is taken"
    assert session(PUB).receive(stream("ipc_sub", "connect"), 0.0).requests == [sub(b"A")]


def test_the_second_connection_of_a_libzmq_sub() -> None:
    interests = [sub(b"A"), sub(b"AB"), sub(b"B"), sub(b"C")]
    assert session(PUB).receive(stream("reconnect", "conn2_connect"), 0.0).requests == interests


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("socket_type_mismatch_PUSH", CloseReason.INCOMPATIBLE_SOCKET),
        ("mechanism_mismatch_PLAIN", CloseReason.MECHANISM_MISMATCH),
        ("error_command", CloseReason.REFUSED),
        ("lowercase_property_name", None),
        ("no_socket_type", None),
        ("data_before_ready", CloseReason.UNEXPECTED),
        ("major4_greeting", None),
    ],
)
def test_we_close_where_libzmq_closes(name: str, reason: CloseReason | None) -> None:
    capture = CAPTURES[f"libzmq_sub_vs_{name}"]
    out = session(SUB).receive(bytes.fromhex(capture["peer_sent"]), 0.0)
    assert (out.closed and out.closed.reason) == reason
    assert capture["connection"] == ("open" if reason is None else "closed")


def test_stages_of_a_libzmq_peer_and_its_answers_to_ping() -> None:
    stages = dict(CAPTURES["staged_greeting"]["stages"])
    publisher = session(PUB)
    outputs = [publisher.receive(bytes.fromhex(stages[stage]), 0.0) for stage in list(stages)[:4]]
    assert [out.closed for out in outputs] == [None] * 4
    assert outputs[-1].ready is not None
    context = b"c" * 20
    ours = ready(SUB).receive(encode_command(b"FROB", b"?") + encode_command(b"PING", b"\x00\x0a" + context), 0.0)
    assert ours.send.hex() == stages["after an unknown command and a PING with 20-byte context"]
    assert ready(SUB).receive(encode_command(b"PING", b"\0\0"), 0.0).send.hex() == stages["PING ttl 0, no context"]


def test_heartbeats_as_libzmq_sends_and_answers_them() -> None:
    subscriber = ready(SUB, heartbeat=Heartbeat(interval_s=0.1, timeout_s=0.5, ttl_s=1.0))
    assert subscriber.next_timer() == 0.1
    ping = subscriber.tick(0.1).send
    assert ping in stream("heartbeat", "conn1_connect")
    pong = ready(PUB).receive(ping, 0.0).send
    assert pong in stream("heartbeat", "conn1_bind")


@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN", "CURVE"])
@pytest.mark.parametrize(("publisher", "subscriber"), [(PUB, SUB), (XPUB, SUB), (PUB, XSUB), (XPUB, XSUB)])
def test_a_conversation(mechanism: str, publisher: SocketType, subscriber: SocketType) -> None:
    server, client = pair(mechanism, publisher, subscriber)
    outputs = pump(server, client)
    told = {out.ready.properties["socket-type"] for out in outputs if out.ready is not None}
    assert told == {publisher.value.encode(), subscriber.value.encode()}
    assert server.is_ready
    assert client.is_ready
    out = server.receive(client.encode_interest(sub(b"a")) + client.seal(encode_message([b"up", b"stream"])), 1.0)
    assert out.requests == [sub(b"a"), Upstream((b"up", b"stream"))]
    message = (b"abc", b"", bytes(1000))
    assert client.receive(server.seal(encode_message(message)), 1.0).messages == [message]
    assert reason_of(client.end()) is CloseReason.EOF


@for_each_seed(range(20))
@pytest.mark.parametrize("mechanism", ["NULL", "CURVE"])
def test_the_outcome_does_not_depend_on_how_the_stream_was_cut(seed: int, mechanism: str) -> None:
    cuts = random.Random(seed)
    whole, pieces = Output(), Output()
    for gathered, in_pieces in ((whole, False), (pieces, True)):
        server, client = pair(mechanism)
        pump(server, client)
        data = b"".join(map(client.encode_interest, [sub(b"a"), sub(b"b" * 300), cancel(b"a")]))
        data += client.seal(encode_command(b"PING", b"\0\0x") + encode_message([b"\x01c", b"user", b"\x00d"]))
        data += b"\xff\x00 and the rest"
        while data:
            count = cuts.randint(1, 60) if in_pieces else len(data)
            out = server.receive(data[:count], 0.0)
            data = data[count:]
            gathered.send += out.send
            gathered.requests += out.requests
            gathered.closed = out.closed or gathered.closed
    assert whole == pieces
    assert whole.requests == [sub(b"a"), sub(b"b" * 300), cancel(b"a"), sub(b"c"), cancel(b"d"), Upstream((b"user",))]
    assert reason_of(whole) is CloseReason.BAD_FLAGS


def test_nothing_is_taken_after_the_end() -> None:
    publisher = ready(PUB)
    publisher.receive(b"\xff\xff", 0.0)
    assert publisher.receive(encode_command(b"SUBSCRIBE", b"A"), 0.0) == Output()
    assert publisher.end() == Output()
    assert publisher.tick(1e9) == Output()
    assert publisher.next_timer() is None


def test_a_handshake_has_a_deadline() -> None:
    publisher = session(PUB)
    publisher.receive(GREETING[:63], 9.0)
    assert publisher.next_timer() == 10.0
    assert publisher.tick(9.9).closed is None
    assert reason_of(publisher.tick(10.0)) is CloseReason.HANDSHAKE_TIMEOUT


def test_an_early_close_is_reported_with_what_was_due() -> None:
    server, client = pair("CURVE")
    client.receive(server.greet(), 0.0)
    out = client.end()
    assert reason_of(out) is CloseReason.CLOSED_IN_HANDSHAKE
    assert out.closed is not None
    assert "WELCOME" in out.closed.detail


@pytest.mark.parametrize("verdict", [Verdict.DENY, Verdict.LATER, Verdict.FAILED])
def test_a_refused_peer(verdict: Verdict) -> None:
    publisher = session(PUB, NullHandshake(PUB, judged=True))
    assert publisher.receive(GREETING + READY, 0.0).ask == Credentials("NULL")
    out = publisher.decide(verdict, 0.0)
    assert reason_of(out) is CloseReason.DENIED
    assert bool(out.send) == (verdict is not Verdict.LATER)
    assert publisher.decide(Verdict.ALLOW, 0.0) == Output(), "a second verdict comes too late"


def test_what_waits_for_a_verdict_is_bounded() -> None:
    publisher = session(PUB, NullHandshake(PUB, judged=True))
    publisher.receive(GREETING, 0.0)
    assert publisher.receive(bytes(HANDSHAKE_BYTES), 0.0).closed is None
    assert reason_of(publisher.receive(b"\0", 0.0)) is CloseReason.TOO_LONG


def test_a_handshake_command_is_bounded() -> None:
    assert reason_of(session(PUB).receive(GREETING + b"\x06" + (1 << 20).to_bytes(8, "big"), 0.0)) is (
        CloseReason.TOO_LONG
    )


def test_messages_are_bounded_with_all_their_parts() -> None:
    limits = Limits(max_message_bytes=1000)
    assert reason_of(ready(SUB, limits=limits).receive(encode_frame(bytes(1065)), 0.0)) is CloseReason.TOO_LONG
    assert ready(SUB, limits=limits).receive(encode_frame(bytes(1000)), 0.0).messages == [(bytes(1000),)]
    empty_parts = ready(SUB, limits=limits).receive(b"\x01\x00" * 20, 0.0)
    assert reason_of(empty_parts) is CloseReason.TOO_LONG


def test_messages_in_a_row_do_not_add_up() -> None:
    subscriber = ready(SUB, limits=Limits(max_message_bytes=1000))
    out = subscriber.receive(encode_message([bytes(400), bytes(400)]) * 10, 0.0)
    assert len(out.messages) == 10


def test_a_peer_may_close_with_a_reason() -> None:
    out = ready(SUB).receive(encode_command(b"ERROR", b"\x04busy"), 0.0)
    assert reason_of(out) is CloseReason.REFUSED
    assert out.closed is not None
    assert out.closed.detail == "the peer sent ERROR: busy"


def test_subscriptions_mean_nothing_to_a_subscriber() -> None:
    assert ready(SUB).receive(encode_command(b"SUBSCRIBE", b"A"), 0.0) == Output()


def test_a_silent_peer_is_given_up_after_a_ping() -> None:
    subscriber = ready(SUB, heartbeat=Heartbeat(interval_s=1.0))
    subscriber.tick(1.0)
    assert subscriber.receive(encode_command(b"PONG"), 1.5).closed is None
    assert subscriber.next_timer() == 2.0, "a sign of life: only the next PING is due"
    assert subscriber.tick(2.0).send
    assert reason_of(subscriber.tick(3.0)) is CloseReason.SILENT


def test_a_peer_that_is_silent_beyond_its_ttl_is_closed() -> None:
    publisher = ready(PUB)
    assert publisher.next_timer() is None
    publisher.receive(encode_command(b"PING", (25).to_bytes(2, "big")), 1.0)
    assert publisher.next_timer() == 3.5
    assert publisher.tick(3.4).closed is None
    assert reason_of(publisher.tick(3.5)) is CloseReason.SILENT


def test_the_time_to_live_fits_what_libzmq_can_count() -> None:
    subscriber = ready(SUB, heartbeat=Heartbeat(interval_s=1.0, ttl_s=3600))
    assert subscriber.tick(1.0).send == encode_command(b"PING", (655).to_bytes(2, "big"))


def test_a_flood_of_pings_gets_few_answers() -> None:
    flood = encode_command(b"PING", b"\0\0") * 10_000
    assert len(ready(PUB).receive(flood, 0.0).send) == 16 * 7


def test_a_ping_without_a_time_to_live() -> None:
    assert reason_of(ready(PUB).receive(encode_command(b"PING", b"\0"), 0.0)) is CloseReason.MALFORMED


def test_pings_are_answered_only_so_often() -> None:
    """A peer that only pings does not make a node write more than a few answers at once."""
    publisher = ready(PUB)
    out = publisher.receive(encode_command(b"PING", b"\0\x0acontext") * (MAX_PONGS + 20), 0.0)
    assert out.send.count(b"PONG") == MAX_PONGS
