from __future__ import annotations

import random

import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.session.dialect import Level
from meshbus.engine.streams.repeating import MAX_KEPT
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Header
from meshbus.wire.messages.streamrepair import StreamNack, StreamReset, encode_nack, encode_reset
from meshbus.wire.messages.window import Grant, encode_grant
from tests.engine.ends import Ends
from tests.engine.streams.plainnet import USER_STREAM
from tests.seeds import for_each_seed

IDS = (Subprotocol.STREAM_NACK, Subprotocol.STREAM_RESET, Subprotocol.STREAM_RANGES)


@pytest.mark.parametrize("subprotocol_id", IDS)
@pytest.mark.parametrize("message", [b"", bytes(7), bytes(23), bytes(25), bytes(300)])
def test_what_cannot_be_read_is_counted_and_teaches_nothing(subprotocol_id: int, message: bytes) -> None:
    end = Ends(profile=False).left
    end.engine.reception.handlers[subprotocol_id](end.peer, memoryview(message), 0.0, Output())
    assert end.counters.get("drop", "repair_malformed") == 1
    assert end.peer.dialect.level is None


def test_whoever_sends_one_is_not_of_level_a() -> None:
    end = Ends(profile=False).left
    nack = encode_nack(StreamNack(stream_id=1, next_expected=0))
    end.engine.reception.handlers[Subprotocol.STREAM_NACK](end.peer, memoryview(nack), 0.0, Output())
    assert end.peer.dialect.level is Level.B
    assert end.counters.get("drop", "repair_unknown_stream") == 1


def test_none_of_them_is_announced_or_negotiated() -> None:
    registry = Ends().left.engine.registry
    assert not any(registry.is_registered(subprotocol_id) for subprotocol_id in IDS)


@for_each_seed(range(20))
def test_no_storm_of_messages_breaks_a_stream(seed: int) -> None:
    """A peer that sends whatever it likes gets a bounded number of packets, and numbers stay in step."""
    chance = random.Random(seed)
    ends = Ends(profile=False)
    left = ends.left
    handlers, stream_ids = left.engine.reception.handlers, (USER_STREAM, USER_STREAM + 1)
    now, sent = 0.0, 0

    def number() -> int:
        return chance.choice([0, 1, chance.randrange(70), chance.randrange(1 << 64), (1 << 64) - 1])

    def message(subprotocol_id: int) -> bytes:
        stream_id = chance.choice([*stream_ids, 5])
        match subprotocol_id:
            case Subprotocol.STREAM_NACK:
                bitmap = chance.getrandbits(64) >> chance.randrange(64)
                return encode_nack(StreamNack(stream_id=stream_id, next_expected=number(), bitmap=bitmap))
            case Subprotocol.STREAM_RESET:
                return encode_reset(StreamReset(stream_id=stream_id))
            case Subprotocol.STREAM_RANGES:
                return b"".join(value.to_bytes(8, "little") for value in (stream_id, *(number() for _ in range(3))))
            case _:
                return encode_grant(Grant(stream_id=stream_id, total_consumed=number(), ack_seq=number()))

    for _ in range(400):
        now += chance.choice([0.0, 0.001, 0.06, 0.5])
        if chance.random() < 0.1:
            left.send([b"x"] * chance.randrange(1, 30), now, reliable=True, stream_id=chance.choice(stream_ids))
        out = left.tick(now)
        subprotocol_id = chance.choice([*IDS, Subprotocol.STREAM_WINDOW])
        handlers[subprotocol_id](left.peer, memoryview(message(subprotocol_id)), now, out)
        sent += sum(len(list(train.datagrams())) for train in out.trains)
        for stream_id in stream_ids:
            stream = left.traffic.repeating.stream(Header(stream_id=stream_id), now)
            if stream is not None:
                assert stream.outstanding <= MAX_KEPT
                assert stream.next_sequence == left.peer.tx_stream(stream_id).next_sequence
    assert sent <= 400 * 10
