"""The background thread: keeps every log, as often as asked, and ends."""

import threading

import pytest

from meshbus.log import keeper as module
from meshbus.log.keeper import Keeper


class Kept:
    def __init__(self, wanted: int) -> None:
        self.calls = 0
        self.enough = threading.Event()
        self._wanted = wanted

    def keep(self) -> None:
        self.calls += 1
        if self.calls >= self._wanted:
            self.enough.set()


def test_every_log_is_kept_until_the_end() -> None:
    logs = [Kept(3), Kept(3)]
    keeper = Keeper(lambda: [log.keep for log in logs])
    keeper.watch(None)
    keeper.watch(0.001)
    assert all(log.enough.wait(10) for log in logs)
    keeper.stop()
    calls = [log.calls for log in logs]
    assert not any(thread.name == "meshbus-log-keeper" for thread in threading.enumerate())
    assert calls == [log.calls for log in logs]


def test_a_log_that_has_something_to_do_is_not_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PERIOD_S", 3600.0)
    first, second = Kept(1), Kept(2)
    keeper = Keeper(lambda: [first.keep, second.keep])
    keeper.watch(None)
    assert first.enough.wait(10)
    keeper.wake()
    assert second.enough.wait(10)
    keeper.stop()


def test_stopping_waits_a_bounded_time_for_a_call_that_does_not_end() -> None:
    begun, end = threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        end.wait()

    keeper = Keeper(lambda: [call], "slow")
    keeper.watch(0.001)
    assert begun.wait(10)
    keeper.stop(0.01)
    assert any(thread.name == "slow" for thread in threading.enumerate())
    end.set()
    keeper.stop()
    assert not any(thread.name == "slow" for thread in threading.enumerate())


def test_stopping_before_starting_is_allowed() -> None:
    keeper = Keeper(list)
    keeper.stop()
    keeper.stop()
