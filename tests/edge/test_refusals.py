"""Every refusal is counted; reports are rate limited per topic and reason, and in total."""

import logging

import pytest

from meshbus.edge import refusals as subject
from meshbus.edge.refusals import Direction, Refusal, Refusals, reason_of
from meshbus.engine.base.counters import Counters
from meshbus.errors import AuthError, AuthFault, Backpressure, ChannelError, ChannelFault
from meshbus.policy.reason import Reason


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [1000.0]
    monkeypatch.setattr("meshbus.edge.refusals.time.monotonic", lambda: clock[0])
    return clock


def test_the_same_refusal_is_reported_again_after_a_while(now: list[float], caplog: pytest.LogCaptureFixture) -> None:
    told: list[Refusal] = []
    counters = Counters()
    refusals = Refusals(counters, told.append)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            refusals.add(b"a\xff", Reason.REFUSE_PUBLISH_PARTS, "three parts", 2)
        refusals.pass_on(Direction.SUBSCRIBE, b"a\xff", "parts", "another direction")
        now[0] += subject.TELL_EVERY_S
        refusals.add(b"a\xff", Reason.REFUSE_PUBLISH_PARTS, "three parts")
    assert [(one.direction, one.count) for one in told] == [("publish", 2), ("subscribe", 1), ("publish", 7)]
    assert told[0] == Refusal(Direction.PUBLISH, "a\\xff", "parts", "three parts", 2)
    assert counters.snapshot() == {"refuse_publish": {"parts": 7}, "refuse_subscribe": {"parts": 1}}
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "three parts (7 so far)" in caplog.records[-1].getMessage()


def test_invented_topics_do_not_flood_the_log(now: list[float]) -> None:
    told: list[Refusal] = []
    counters = Counters()
    refusals = Refusals(counters, told.append)
    for number in range(2 * subject.MAX_TOLD_PER_S):
        refusals.add(b"%d" % number, Reason.REFUSE_PUBLISH_BAD_TOPIC, "")
    assert len(told) == subject.MAX_TOLD_PER_S
    assert counters.get("refuse_publish", "bad_topic") == 2 * subject.MAX_TOLD_PER_S
    assert counters.get("drop", "telling") == subject.MAX_TOLD_PER_S
    now[0] += 1.0
    refusals.add(b"new", Reason.REFUSE_PUBLISH_BAD_TOPIC, "")
    assert len(told) == subject.MAX_TOLD_PER_S + 1


def test_errors_have_a_short_reason() -> None:
    assert reason_of(AuthError(AuthFault.DENIED, "")) == "denied"
    assert reason_of(ChannelError(ChannelFault.RATE_LIMITED, "a", "")) == "rate_limited"
    assert reason_of(ChannelError(ChannelFault.REJECTED, "a", "", reason="unauthorized")) == "unauthorized"
    assert reason_of(Backpressure(0, 1)) == "backpressure"
