"""Rows: their content, and the names of streams."""

from __future__ import annotations

from meshbus.log.packets import fill
from meshbus.log.packets.row import ROW, ROW_BYTES, ROW_WORDS, Names
from meshbus.names.channel import ChannelName
from meshbus.policy.fate import Fate
from tests.log.packets.making import CHANNELS


def test_a_row_has_its_declared_size() -> None:
    assert ROW.itemsize == ROW_BYTES
    assert ROW.fields is not None
    assert ROW.fields["route"][1] == fill._ROUTE_AT
    assert ROW.fields["ts_ns"][1] == fill._TS_AT
    assert ROW_BYTES == 8 * ROW_WORDS
    assert [int(fate) for fate in (Fate.FORWARDED, Fate.DELIVERED, Fate.DROPPED)] == [0, 1, 2]


def test_names_that_share_a_stream_count_as_unknown() -> None:
    class Twin(ChannelName):
        @property
        def hash(self) -> int:
            return CHANNELS[0].hash ^ 1 << 48

    names = Names.of([CHANNELS[0], Twin("twin"), CHANNELS[0], CHANNELS[1]])
    assert dict(zip(*(column.tolist() for column in names), strict=True)) == {
        0: 0,
        CHANNELS[0].stream_id: 0,
        CHANNELS[1].stream_id: CHANNELS[1].hash,
    }
