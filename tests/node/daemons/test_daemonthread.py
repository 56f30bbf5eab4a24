"""The thread of daemons: one call after the other, errors to the caller, and an end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from meshbus.node.daemons.daemonthread import DaemonThread


async def test_calls_run_one_after_the_other_in_another_thread() -> None:
    thread, order = DaemonThread(), list[int]()
    futures = [thread.call(lambda number=number: order.append(number)) for number in range(50)]  # type: ignore[misc]
    await asyncio.gather(*futures)
    assert order == list(range(50))
    assert await thread.call(threading.current_thread) is not threading.current_thread()
    assert await thread.close(5.0)


async def test_an_error_goes_to_the_caller_and_the_thread_goes_on() -> None:
    thread = DaemonThread()

    def fail() -> None:
        raise ValueError("no")

    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(ValueError, match="no"):
        await thread.call(fail)
    with pytest.raises(RuntimeError, match="SystemExit"):
        await thread.call(leave)
    assert await thread.call(lambda: 7) == 7
    await thread.close(5.0)


async def test_a_call_whose_future_was_cancelled_is_made_all_the_same() -> None:
    thread, done, go = DaemonThread(), threading.Event(), threading.Event()
    first = thread.call(go.wait)
    future = thread.call(done.set)
    future.cancel()
    go.set()
    await first
    assert await thread.close(5.0)
    assert done.is_set()


async def test_code_that_never_returns_is_given_up() -> None:
    thread, go = DaemonThread(), threading.Event()
    blocked = thread.call(go.wait)
    assert not await thread.close(0.05)
    go.set()
    await blocked
