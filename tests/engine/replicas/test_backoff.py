from __future__ import annotations

from meshbus.engine.replicas.backoff import CatchupBackoff
from tests.vectors import load

WINDOWS: list[tuple[int, int]] = load("subprotocols")["catchup_backoff"]["window_after_consecutive_empty"]


def test_the_windows_are_those_of_the_reference() -> None:
    backoff = CatchupBackoff()
    for count, window_s in WINDOWS:
        backoff.empty(now=100)
        assert backoff.window_s == window_s, f"after {count} empty answers"
        assert backoff.waiting(100) == (window_s > 0)
        assert not backoff.waiting(100 + window_s)


def test_progress_ends_the_wait() -> None:
    backoff = CatchupBackoff()
    for _ in range(9):
        backoff.empty(now=100)
    backoff.progress()
    assert not backoff.waiting(100)
    backoff.empty(now=100)
    assert backoff.window_s == 0
