"""Waiters: a task goes on at once, or in the next iteration of the loop."""

import asyncio
from contextvars import ContextVar

import pytest

from meshbus.node.driving.waiter import Waiter

WHO: ContextVar[str] = ContextVar("who")


async def read(waiter: Waiter, steps: list[str]) -> None:
    WHO.set("reader")
    await waiter
    steps.append(WHO.get())


async def test_a_resumed_task_goes_on_within_the_callback_and_in_its_own_context() -> None:
    waiter, steps = Waiter(), list[str]()
    task = asyncio.ensure_future(read(waiter, steps))
    await asyncio.sleep(0)
    WHO.set("somebody else")

    def callback() -> None:
        waiter.resume()
        steps.append(f"callback of {WHO.get()}")

    asyncio.get_running_loop().call_soon(callback)
    await task
    assert steps == ["reader", "callback of somebody else"]
    waiter.resume()  # once more changes nothing
    waiter.wake()


async def test_a_woken_task_goes_on_in_the_next_iteration() -> None:
    waiter, steps = Waiter(), list[str]()
    task = asyncio.ensure_future(read(waiter, steps))
    await asyncio.sleep(0)
    waiter.wake()
    steps.append("first")
    await task
    assert steps == ["first", "reader"]


async def test_what_is_resumed_before_anybody_waits_is_not_lost() -> None:
    waiter, steps = Waiter(), list[str]()
    waiter.resume()
    await read(waiter, steps)
    assert steps == ["reader"]


async def test_a_cancelled_task_is_not_resumed() -> None:
    waiter, steps = Waiter(), list[str]()
    task = asyncio.ensure_future(read(waiter, steps))
    await asyncio.sleep(0)
    task.cancel()
    waiter.resume()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not steps


async def test_an_error_of_the_task_stays_in_the_task() -> None:
    waiter = Waiter()

    async def fail() -> None:
        await waiter
        raise ValueError("of the task")

    task = asyncio.ensure_future(fail())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(waiter.resume)
    with pytest.raises(ValueError, match="of the task"):
        await task
