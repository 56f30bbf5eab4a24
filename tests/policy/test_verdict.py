"""Tables of the gateway kernel: every entry is found, also when keys collide."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshbus.policy.reason import DropReason
from meshbus.policy.verdict import (
    FORWARD,
    LOCAL,
    ChannelRule,
    Drop,
    ForwardDecision,
    build_policy,
    canonical_of,
)

streams = st.sets(st.one_of(st.integers(1, 2**64 - 1), st.integers(1, 40).map(lambda n: n << 20)), max_size=60)


@given(streams, st.sets(st.integers(0, 2**32 - 1), max_size=60))
def test_a_policy_finds_every_stream_it_has_a_rule_for(chosen: set[int], subnets: set[int]) -> None:
    policy = build_policy({key: ChannelRule(key ^ 5, LOCAL) for key in chosen}, subnets, unknown_verdict=1)
    found = canonical_of(np.array(sorted(chosen), np.uint64), policy)
    assert found.tolist() == [key ^ 5 for key in sorted(chosen)]


def test_decisions_compare_and_match() -> None:
    assert ForwardDecision() == FORWARD
    assert Drop(DropReason.TTL_EXPIRED) == Drop(DropReason.TTL_EXPIRED)
    assert Drop(DropReason.TTL_EXPIRED) != Drop(DropReason.NOT_EXPORTED)
    assert Drop(DropReason.TTL_EXPIRED) != FORWARD
    match Drop(DropReason.NOT_ANCESTOR):
        case Drop(reason):
            assert reason is DropReason.NOT_ANCESTOR
