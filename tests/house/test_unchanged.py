"""What other programs rely on stays as it was written down (tests/house/unchanged.py)."""

import json
from collections.abc import Callable
from typing import Any

import pytest

import meshbus
from tests.house import unchanged

WRITTEN: dict[str, Any] = json.loads(unchanged.WRITTEN.read_text("utf-8"))


@pytest.mark.slow
def test_fleets_put_the_same_bytes_on_the_wire() -> None:
    assert unchanged.digests() == WRITTEN["digests"]


@pytest.mark.parametrize(
    ("what", "now"),
    [("reason codes", unchanged.reason_codes), ("counters", unchanged.counter_names)],
)
def test_names_and_codes_are_kept(what: str, now: Callable[[], Any]) -> None:
    assert now() == WRITTEN[what]


def test_the_public_names_are_kept() -> None:
    assert set(WRITTEN["public names"]) <= set(meshbus.__all__)
