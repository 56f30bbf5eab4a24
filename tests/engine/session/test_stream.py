"""Test streams: credit is counted as the 0.23 wire counts it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.session.stream import GRANT_DELAY_S, MAX_PROBE_S, PROBE_S, RxStream, TxStream
from meshbus.wire.constants import PACKET_COST, STREAM_WINDOW
from tests.vectors import load

SCENARIO = load("transport")["credit_scenario"]


def number(value: Any) -> int:
    return int(value, 16) if isinstance(value, str) else int(value)


def test_golden_credit_scenario() -> None:
    stream = TxStream(7, SCENARIO["window_bytes"])
    cost, payload = SCENARIO["packet_cost"], SCENARIO["packet_cost"] - PACKET_COST
    for step in SCENARIO["steps"]:
        if step["op"] == "send":
            admitted = 0
            while stream.admits(cost):
                stream.take(1, payload)
                admitted += 1
            assert admitted == step["admitted"]
        else:
            stream.grant(number(step["total_consumed"]))
        assert stream.credit == step["remaining"]


def test_sequences_and_credit_start_again_with_a_session() -> None:
    """From 0.27 on, a net-mesh peer expects the first packet of a reliable stream to have sequence 0 (dialects.md §3.2)."""
    stream = TxStream(7)
    assert stream.take(3, 300) == 0
    stream.restart()
    assert stream.credit == STREAM_WINDOW
    assert stream.take(1, 100) == 0


def test_no_window_is_no_limit() -> None:
    stream = TxStream(7, 0)
    for _ in range(100):
        assert stream.admits(10**9)
        stream.take(1, 10**9)


@given(st.lists(st.one_of(st.integers(0, 3000), st.integers(-(2**63), -1)), max_size=200))
def test_credit_never_exceeds_the_window_nor_what_is_on_the_way(steps: list[int]) -> None:
    """Positive numbers are sends of that many bytes, negative ones are grants, honest or not."""
    stream, receiver = TxStream(1, 4096), RxStream(1, 4096)
    for step in steps:
        if step >= 0 and stream.admits(step + PACKET_COST):
            stream.take(1, step)
            receiver.consume(1, step, 0.0)
        elif step < 0:
            stream.grant(-step)
        assert stream.credit <= 4096
        assert stream.credit >= 0
        assert stream.best_seen <= stream.sent
    stream.grant(receiver.granting())
    assert stream.credit == 4096


def test_widening_keeps_what_is_on_the_way() -> None:
    stream = TxStream(1, 1000)
    stream.take(1, 500)
    stream.widen(5000)
    assert stream.credit == 5000 - 500 - PACKET_COST
    stream.grant(10**9)
    assert stream.credit == 5000


def test_grants_are_due_by_bytes_or_by_time() -> None:
    stream = RxStream(1, 4000)
    stream.consume(1, 100, now=1.0)
    assert stream.grant_due == 1.0 + GRANT_DELAY_S
    stream.consume(1, 100, now=1.002)
    assert stream.grant_due == 1.0 + GRANT_DELAY_S
    stream.consume(1, 900, now=1.003)
    assert stream.grant_due == 1.003
    assert stream.granting() == 1100 + 3 * PACKET_COST


def test_an_unlimited_sender_is_granted_by_time_alone() -> None:
    stream = RxStream(1, 0)
    stream.consume(100, 10**6, now=1.0)
    assert stream.grant_due == 1.0 + GRANT_DELAY_S


def test_a_grant_is_due_once_and_a_new_session_starts_from_zero() -> None:
    stream = RxStream(1, 4000)
    stream.consume(1, 900, now=1.0)
    stream.granting()
    assert stream.grant_due is None
    stream.restart()
    assert stream.consumed == 0


def test_a_grant_for_a_probe_gives_the_credit_of_lost_packets_back() -> None:
    stream = TxStream(1, 4096)
    while stream.admits(1024):
        stream.take(1, 1024 - PACKET_COST)
    stream.grant(1024)  # three of four packets were lost
    stream.take(1, 1024 - PACKET_COST)
    assert not stream.may_probe(0.0), "nothing had to wait yet"
    stream.stalled_at = 0.0
    assert not stream.may_probe(0.9 * PROBE_S)
    assert stream.may_probe(PROBE_S)
    stream.take(1, 1024 - PACKET_COST)
    stream.probed(PROBE_S)
    assert not stream.may_probe(2 * PROBE_S), "one packet at a time"
    assert stream.grant(2048)
    assert stream.credit == 4096, "everything before the probe arrived or is lost"
    stream.take(1, 1024 - PACKET_COST)
    assert stream.grant(3072), "totals go on where they were"
    assert stream.credit == 4096
    assert not stream.grant(5000), "what was thought lost came late"
    assert stream.credit == 4096


def test_unanswered_probes_become_rare() -> None:
    stream, now, probes = TxStream(1, 100), 0.0, 0
    stream.stalled_at = now
    while now < 86_400:
        now += 1.0
        if stream.may_probe(now):
            stream.take(1, 100)
            stream.probed(now)
            probes += 1
    assert 86_400 / MAX_PROBE_S <= probes < 86_400 / MAX_PROBE_S + 14
    stream.restart()
    assert not stream.may_probe(now)
    assert stream.credit == 100
