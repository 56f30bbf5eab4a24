"""A warning that is due many times a second is logged once a minute."""

import logging

import pytest

from meshbus.seldom import EVERY_S, SeldomWarning


def test_a_warning_is_logged_once_a_minute_and_says_what_was_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    warn = SeldomWarning(logging.getLogger("meshbus.test"), lambda: now[0])
    for place in range(500):
        warn("the disk %s is full", place)
        now[0] += 0.1
    assert caplog.messages == ["the disk 0 is full"]
    now[0] = 100.0 + EVERY_S
    warn("the disk %s is full", "b")
    assert caplog.messages[1:] == ["the disk b is full (and 499 times since the last warning)"]
    now[0] += EVERY_S
    warn("the disk %s is full", "c")
    assert caplog.messages[2:] == ["the disk c is full"]


def test_two_things_do_not_silence_each_other(caplog: pytest.LogCaptureFixture) -> None:
    one, other = (SeldomWarning(logging.getLogger("meshbus.test"), lambda: 5.0) for _ in range(2))
    one("one")
    other("other")
    assert caplog.messages == ["one", "other"]
