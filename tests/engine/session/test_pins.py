from __future__ import annotations

import pytest

from meshbus.engine.session import pins as module
from meshbus.engine.session.pins import Pins


def test_a_full_table_takes_no_new_node_and_keeps_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PINS", 2)
    refused: list[bool] = []
    pins = Pins({1: b"one"}, lambda: refused.append(True))
    assert pins.add(2, b"two")
    assert not pins.add(2, b"another")
    assert not pins.add(3, b"three")
    assert refused == [True]
    assert list(pins) == [(1, b"one"), (2, b"two")]
    assert pins.get(3) is None
    assert pins.forget(1)
    assert not pins.forget(1)
    assert pins.add(3, b"three")
    assert len(pins) == 2
    assert 3 in pins


def test_more_known_pins_than_fit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PINS", 2)
    assert len(Pins(dict.fromkeys(range(5), b""), lambda: None)) == 2
