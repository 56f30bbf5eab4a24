"""Test reception; most of it is tested with whole engines in test_core and test_mesh."""

from __future__ import annotations

from meshbus.engine.routes.tap import InColumns, Passed
from meshbus.policy.fate import Fate
from tests.engine.fleet import CHANNEL, numbered, pair, subscribed


def test_a_recorder_gets_what_was_delivered_here() -> None:
    net, left, right = pair()
    subscribed(right, left)
    told: list[Passed] = []
    right.engine.mesh.tap.recorder = InColumns(told.append)
    left.publish(CHANNEL, numbered(2000, 100))
    net.run(for_s=0.1)
    left.publish(CHANNEL, [b"one alone"])
    net.run(for_s=0.1)
    assert len(right.payloads()) == 2001
    events = sum(int(passed.headers["event_count"][passed.headers["subprotocol_id"] == 0].sum()) for passed in told)
    assert events == 2001
    assert {passed.previous_hops.item(0) for passed in told} == {left.node_id}
    assert {passed.fates.item(0) for passed in told} == {Fate.DELIVERED}
    assert all(passed.routes is None and not passed.reasons.any() for passed in told)


def test_recording_changes_nothing_that_is_delivered() -> None:
    received = []
    for recorded in (False, True):
        net, left, right = pair()
        if recorded:
            right.engine.mesh.tap.recorder = InColumns(lambda _passed: None)
        subscribed(right, left)
        for size in (1, 2, 3, 50):
            left.publish(CHANNEL, numbered(size, 1000), reliable=bool(size % 2))
        net.run(for_s=1)
        received.append((right.payloads(), net.digest))
    assert received[0] == received[1]
