"""Test that notices are plain values, which compare and match."""

from typing import get_args

import msgspec

from meshbus.engine.base import notices
from meshbus.engine.base.notices import Acked, Control, SessionUp
from meshbus.names.channel import ChannelName


def test_every_control_event_is_an_immutable_value() -> None:
    for kind in get_args(Control):
        assert issubclass(kind, msgspec.Struct)
        assert kind.__struct_config__.frozen
        assert kind.__name__ in vars(notices)


def test_events_match() -> None:
    match SessionUp(1, 2, initiated=True):
        case SessionUp(node_id=node_id):
            assert node_id == 1
    assert Acked(1, 2, ChannelName("a"), accepted=True) == Acked(1, 2, ChannelName("a"), accepted=True)
