"""The asynchronous log: the same results, and a loop that is not blocked while the disk is slow."""

import asyncio
import threading
from pathlib import Path

from meshbus.log.aio import AsyncRedexFile
from meshbus.log.durability import NEVER, every_n
from meshbus.log.files import Files
from tests.log.making import numbered, open_log, payloads, writer_of


async def test_it_does_what_the_blocking_one_does(tmp_path: Path) -> None:
    log = AsyncRedexFile(open_log(tmp_path, fsync=every_n(1)))
    assert await log.append(numbered(0, 1)[0]) == 0
    assert await log.append_batch(numbered(1, 4)) == range(1, 5)
    assert log.log.durable_seq == 5
    assert await log.seal() == 5
    await log.append_batch(numbered(5, 5))
    assert [event.payload async for event in log.read_range(2, 9)] == numbered(2, 7)
    assert [len(batch) async for batch in log.read_batches(0, 99, ["seq"])] == [5, 5]
    assert await log.verify() == []
    await log.sync()
    await log.close()


async def test_a_range_that_ends_early_ends(tmp_path: Path) -> None:
    log = AsyncRedexFile(open_log(tmp_path))
    await log.append_batch(numbered(0, 3))
    assert len([event async for event in log.read_range(1, 99)]) == 2
    await log.close()


async def test_history_then_live_until_it_is_closed(tmp_path: Path) -> None:
    log = AsyncRedexFile(open_log(tmp_path, fsync=NEVER))
    await log.append_batch(numbered(0, 10))

    async def follow() -> list[bytes]:
        return [event.payload async for event in log.tail(3, max_events=4)]

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        for turn in range(30):
            await log.append_batch(numbered(log.log.next_seq, 3))
            if turn % 10 == 0:
                await log.seal()
        other = threading.Thread(target=lambda: log.log.append(numbered(log.log.next_seq, 1)[0]))
        other.start()
        await asyncio.to_thread(other.join)
        await log.close()
    assert task.result() == numbered(3, 98)
    assert payloads(log.log.read_range(0, 200)) == numbered(0, 101)


async def test_a_tail_that_is_left_listens_no_more(tmp_path: Path) -> None:
    log = AsyncRedexFile(open_log(tmp_path))
    await log.append(b"x")
    tail = log.tail()
    assert (await anext(tail)).payload == b"x"
    await tail.aclose()  # type: ignore[attr-defined]
    assert writer_of(log.log).grown == []
    await log.close()


async def test_the_loop_runs_while_the_disk_is_slow_and_waiting_appends_share_a_sync(tmp_path: Path) -> None:
    loop, started, go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    class Slow(Files):
        armed = False
        syncs = 0

        def fsync(self, handle: int) -> None:
            if self.armed:
                self.syncs += 1
                loop.call_soon_threadsafe(started.set)
                assert go.wait(10)
            super().fsync(handle)

    files = Slow()
    log = AsyncRedexFile(open_log(tmp_path, files=files, fsync=every_n(1)))
    files.armed = True
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(log.append(b"x"))]
        await started.wait()
        tasks += [group.create_task(log.append(b"y")) for _ in range(5)]
        await asyncio.sleep(0)
        assert log.log.next_seq == 6, "they are written while the first sync is under way"
        assert not any(task.done() for task in tasks)
        go.set()
    assert sorted(task.result() for task in tasks) == list(range(6))
    assert files.syncs <= 3
    assert log.log.durable_seq == 6
    await log.close()
