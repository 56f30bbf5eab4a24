import asyncio

import pytest

from meshbus.edge.mailbox import Mailbox


async def test_items_come_in_order_one_by_one_or_all() -> None:
    box: Mailbox[int] = Mailbox()
    box.put([1, 2, 3])
    assert len(box) == 3
    assert await box.take() == 1
    assert await box.take_all() == [2, 3]
    assert len(box) == 0


async def test_waiting_ends_when_something_comes() -> None:
    box: Mailbox[int] = Mailbox()
    waiting = [asyncio.ensure_future(box.take()) for _ in range(2)]
    await asyncio.sleep(0)
    box.put([1])
    await asyncio.sleep(0.001)
    assert [task.done() for task in waiting] == [True, False]
    box.put([2])
    assert await asyncio.gather(*waiting) == [1, 2]


async def test_after_the_end_what_is_left_can_be_taken() -> None:
    box: Mailbox[int] = Mailbox()
    waiting = asyncio.ensure_future(box.take())
    await asyncio.sleep(0)
    box.close()
    with pytest.raises(RuntimeError, match="closed"):
        await waiting
    box.put([7])
    assert await box.take() == 7
    assert await box.take_all() == []
