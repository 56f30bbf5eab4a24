"""A large event in the outbox: what it costs, and which parts there is credit for."""

from __future__ import annotations

import numpy as np
import pytest

from meshbus.engine.streams.largeload import LargeLoad
from meshbus.wire.constants import PACKET_COST, Subprotocol
from meshbus.wire.header import Header
from meshbus.wire.messages.large import PART_HEAD, decode_part

FULL = 100 + PART_HEAD + PACKET_COST
LOAD = LargeLoad(Header(stream_id=1), np.arange(250, dtype=np.uint8), 100, 40, 9)


def test_an_event_is_as_many_packets_as_parts() -> None:
    assert LOAD.packets == 3
    assert [LOAD.cost(n) for n in range(3)] == [FULL, FULL, 50 + PART_HEAD + PACKET_COST]
    assert [LOAD.number_at(n) for n in range(3)] == [40, 40, 40], "all parts are of one event"
    assert LOAD.needs == Subprotocol.LARGE


@pytest.mark.parametrize(
    ("start", "credit", "packets", "taken"),
    [
        (0, None, 9, 3),
        (0, None, 2, 2),
        (1, None, 9, 2),
        (0, FULL, 9, 1),
        (0, 2 * FULL, 9, 2),
        (0, FULL - 1, 9, 0),
        (0, -5, 9, 0),
        (2, FULL - 50, 9, 1),
        (2, FULL - 51, 9, 0),
    ],
)
def test_parts_are_cut_as_credit_allows(start: int, credit: int | None, packets: int, taken: int) -> None:
    packed = LOAD.take(start, credit, packets)
    assert (0 if packed is None else len(packed)) == taken
    if packed is not None:
        assert packed.stamp == 9
        first = decode_part(packed.data[: packed.bounds.item(1)].tobytes())
        assert (first.size, first.offset, first.body[0]) == (250, start * 100, start * 100)
