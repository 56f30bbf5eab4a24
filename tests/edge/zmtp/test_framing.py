import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.edge.zmtp.closereason import CloseReason, Violation
from meshbus.edge.zmtp.framing import (
    COMMAND,
    LONG,
    MORE,
    Frame,
    FrameReader,
    encode_command,
    encode_frame,
    encode_message,
    message_buffers,
    split_command,
)
from meshbus.edge.zmtp.greeting import GREETING_BYTES
from tests.edge.zmtp.talk import stream

MESSAGES = st.lists(st.binary(max_size=300), min_size=1, max_size=5)


def read(data: bytes, limit: int = 1 << 20) -> list[Frame]:
    reader = FrameReader()
    reader.feed(data)
    return reader.frames(limit)


def test_the_messages_of_libzmq() -> None:
    golden = stream("null_pub_sub", "conn1_bind")[GREETING_BYTES + 27 :]
    messages = [[b"ABC", b"body"], [b""], [b"x" * 255], [b"y" * 256], [b"k", b"", b"z" * 300]]
    assert b"".join(encode_message(message) for message in messages) == golden
    assert [body for _, body in read(golden)] == [part for message in messages for part in message]


@pytest.mark.parametrize(("length", "head"), [(245, "04ff"), (246, "060000000000000100")])
def test_the_subscriptions_of_libzmq_around_the_longest_short_frame(length: int, head: str) -> None:
    letter = b"L" if length == 245 else b"M"
    command = encode_command(b"SUBSCRIBE", letter * length)
    assert command.startswith(bytes.fromhex(head))
    assert command in stream("sub_long_prefix", "conn1_connect")


@given(MESSAGES)
def test_a_message_reads_back(parts: list[bytes]) -> None:
    encoded = encode_message(parts)
    frames = read(encoded)
    assert [body for _, body in frames] == parts
    assert [flags & MORE for flags, _ in frames] == [MORE] * (len(parts) - 1) + [0]
    assert b"".join(message_buffers(parts)) == encoded


def test_no_body_is_copied() -> None:
    topic, body = bytes(5), bytes(100_000)
    for parts in ([body], [topic, body], [topic, topic, body]):
        assert [id(buffer) for buffer in message_buffers(parts)[1::2]] == [id(part) for part in parts]


@given(st.lists(MESSAGES, max_size=6), st.integers(0, 2**32))
def test_frames_do_not_depend_on_how_the_stream_was_cut(messages: list[list[bytes]], seed: int) -> None:
    data = b"".join(map(encode_message, messages))
    cuts = random.Random(seed)
    reader, frames = FrameReader(), list[Frame]()
    while data:
        count = cuts.randint(1, 40)
        reader.feed(data[:count])
        data = data[count:]
        frames += reader.frames(1 << 20, most=cuts.choice([sys.maxsize, 1, 2]))
    frames += reader.frames(1 << 20)
    assert [body for _, body in frames] == [part for message in messages for part in message]
    assert reader.held == 0


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"\x08\x00", CloseReason.BAD_FLAGS),
        (b"\x80\x00", CloseReason.BAD_FLAGS),
        (bytes((COMMAND | MORE, 0)), CloseReason.BAD_FLAGS),
        (bytes((LONG,)) + b"\x7f" + b"\xff" * 7, CloseReason.TOO_LONG),
        (bytes((LONG,)) + b"\xff" * 8, CloseReason.TOO_LONG),
        (encode_frame(bytes(101)), CloseReason.TOO_LONG),
    ],
)
def test_a_bad_frame_ends_the_stream_after_the_good_ones(bad: bytes, reason: CloseReason) -> None:
    reader = FrameReader()
    reader.feed(encode_frame(b"good") + bad + encode_frame(b"never"))
    assert reader.frames(100) == [(0, b"good")]
    assert reader.violation is not None
    assert reader.violation.reason is reason
    reader.feed(encode_frame(b"never"))
    assert reader.frames(100) == []


def test_a_giant_length_is_refused_by_its_head_alone() -> None:
    reader = FrameReader()
    reader.feed(bytes((LONG,)) + (1 << 62).to_bytes(8, "big"))
    assert reader.frames(1 << 20) == []
    assert reader.violation is not None


def test_a_command_comes_apart() -> None:
    assert split_command(b"\x04PING\x00\x0actx") == (b"PING", b"\x00\x0actx")
    for bad in (b"", b"\x05PING"):
        with pytest.raises(Violation):
            split_command(bad)
