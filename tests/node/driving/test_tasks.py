"""The task owner: tasks are kept, reported if they fail, and cancelled on close."""

import asyncio
import gc
import logging
import re

import pytest

from meshbus.node.driving.tasks import TaskOwner
from tests.house.tree import modules, name_of
from tests.node.test_node import until

LOGGER = logging.getLogger("meshbus.test")


async def test_a_task_without_a_reference_completes_and_returns_its_result() -> None:
    owner, started, seen = TaskOwner("work", LOGGER), asyncio.Event(), []

    async def work() -> int:
        await started.wait()
        seen.append(1)
        return 7

    owner.start(work())
    gc.collect()
    assert len(owner) == 1
    started.set()
    await until(lambda: not len(owner))
    assert seen == [1]
    assert await owner.start(work()) == 7


async def test_a_failure_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[str] = []
    owner = TaskOwner("the work", LOGGER, on_failure=lambda: failures.append("failed"))

    async def fail() -> None:
        raise ValueError("broken")

    task = owner.start(fail())
    await until(lambda: task.done() and not len(owner))
    await owner.close()
    (record,) = caplog.records
    assert record.getMessage() == "the work failed unexpectedly; please report this as a bug"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "broken"
    assert failures == ["failed"]


async def test_closing_cancels_and_waits(caplog: pytest.LogCaptureFixture) -> None:
    owner, ended = TaskOwner("work", LOGGER), []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(1)

    tasks = [owner.start(work()) for _ in range(3)]
    await asyncio.sleep(0)
    await owner.close()
    assert ended == [1, 1, 1]
    assert all(task.cancelled() for task in tasks)
    await owner.close()
    assert caplog.records == []


def test_no_other_code_creates_tasks_without_an_owner() -> None:
    unowned = re.compile(r"\bensure_future\(|\basyncio\.create_task\(|loop(\(\))?\.create_task\(")
    found = [name_of(path) for path in modules() if unowned.search(path.read_text("utf-8"))]
    assert found == ["src/meshbus/node/driving/tasks.py"]
