"""The thread beside the loop: runs work in order, ends without work, and starts again."""

import asyncio
import threading

from meshbus import beside
from tests.patience import PATIENCE_S


def test_work_runs_in_order_in_another_thread_and_the_thread_ends() -> None:
    assert beside.wait(PATIENCE_S)
    go, seen = threading.Event(), list[tuple[int, str]]()

    def work(number: int) -> None:
        assert go.wait(PATIENCE_S)
        seen.append((number, threading.current_thread().name))

    for number in range(3):
        beside.run(lambda number=number: work(number))  # type: ignore[misc]
    assert not beside.wait(0.0)
    go.set()
    assert beside.wait(PATIENCE_S)
    assert seen == [(number, "meshbus-beside") for number in range(3)]
    beside.run(lambda: work(3))
    assert beside.wait(PATIENCE_S)
    assert seen[-1] == (3, "meshbus-beside")


def test_only_the_thread_of_a_loop_must_not_wait() -> None:
    async def inside() -> tuple[bool, bool]:
        return beside.on_loop(), await asyncio.to_thread(beside.on_loop)

    assert not beside.on_loop()
    assert asyncio.run(inside()) == (True, False)
