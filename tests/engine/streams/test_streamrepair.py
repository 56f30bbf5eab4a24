from __future__ import annotations

import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.session.dialect import Level
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.streamrepair import StreamNack, encode_nack
from tests.engine.ends import Ends

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
