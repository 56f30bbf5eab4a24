from __future__ import annotations

from meshbus.compute.horizon import Horizon
from meshbus.wire.messages.causal import encode_horizon
from meshbus.wire.messages.checkpoint import MAX_OBSERVED


def test_the_highest_sequence_of_each_origin_is_kept() -> None:
    horizon = Horizon([(7, 3)])
    horizon.observe(9, 0)
    horizon.observe(7, 2)
    horizon.observe(7, 5)
    assert horizon.pairs() == ((7, 5), (9, 0))
    assert horizon.seen(7) == 5
    assert horizon.seen(9) == 0
    assert horizon.seen(8) is None
    assert horizon.encoded == encode_horizon([7, 9])


def test_the_number_of_origins_is_bounded() -> None:
    horizon = Horizon((origin, 1) for origin in range(MAX_OBSERVED + 1))
    assert len(horizon.pairs()) == MAX_OBSERVED
    assert horizon.seen(0) is None
