import asyncio
import os
import threading
from concurrent.futures import CancelledError, Future

import pytest

from meshbus import background
from meshbus.background import BackgroundLoop, Intake, LoopStopped


def test_work_is_done_in_another_thread() -> None:
    loop = BackgroundLoop()
    try:
        assert loop.call(threading.get_ident) != threading.get_ident()
        assert loop.run(asyncio.sleep(0, "done")) == "done"
    finally:
        loop.stop()


def test_waiting_ends_in_time_and_ends_the_work() -> None:
    loop = BackgroundLoop()
    try:
        with pytest.raises(TimeoutError):
            loop.run(asyncio.sleep(60), timeout_s=0.01)
        assert len(loop.call(asyncio.all_tasks)) <= 1
    finally:
        loop.stop()


def test_an_interrupted_wait_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, begun, ended = BackgroundLoop(), threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    def interrupted(*_: object) -> None:
        assert begun.wait(10)
        raise KeyboardInterrupt

    try:
        with monkeypatch.context() as patched:
            patched.setattr(Future, "result", interrupted)
            with pytest.raises(KeyboardInterrupt):
                loop.run(work())
        assert ended.wait(10)
    finally:
        loop.stop()


def test_who_waits_when_the_loop_stops_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "FINISH_S", 0.05)
    loop, ended = BackgroundLoop(), []

    def wait() -> None:
        with pytest.raises(CancelledError):
            loop.run(asyncio.sleep(60))
        ended.append(True)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while len(loop.call(asyncio.all_tasks)) < 2:
        pass
    loop.stop()
    waiting.join(10)
    assert ended
    with pytest.raises(LoopStopped):
        loop.call(threading.get_ident)


class Source:
    """Items that wait on a loop."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[int] = asyncio.Queue()

    async def take(self) -> list[int]:
        return [await self.queue.get()]


def test_no_item_is_lost_when_waits_time_out_at_once() -> None:
    loop, got = BackgroundLoop(), list[int | None]()
    try:
        source = loop.call(Source)
        intake = Intake(loop, source.take)

        def fill() -> None:
            for number in range(500):
                loop.call(lambda item=number: source.queue.put_nowait(item))  # type: ignore[misc]

        filling = threading.Thread(target=fill)
        filling.start()
        while len(got) < 500 and (filling.is_alive() or loop.call(source.queue.qsize) or list(intake)):
            try:
                got.append(intake.next(timeout_s=0))
            except TimeoutError:
                continue
        filling.join()
        assert got == list(range(500))
    finally:
        loop.stop()


def test_an_item_that_came_with_an_interrupt_is_left_to_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = BackgroundLoop()
    result = Future.result

    def interrupted(future: Future[object], timeout: float | None = None) -> None:
        result(future, timeout)  # the item was taken on the loop when Ctrl-C ended the wait
        raise KeyboardInterrupt

    try:
        source = loop.call(Source)
        loop.call(lambda: source.queue.put_nowait(7))
        intake = Intake(loop, source.take)
        with monkeypatch.context() as patched:
            patched.setattr(Future, "result", interrupted)
            with pytest.raises(KeyboardInterrupt):
                intake.next()
        assert list(intake) == [7]
        assert intake.next(timeout_s=0) == 7
        assert list(intake.rest()) == []
    finally:
        loop.stop()
    assert intake.next() is None


def test_a_call_on_the_thread_of_the_loop_raises_instead_of_hanging() -> None:
    loop = BackgroundLoop()
    try:
        with pytest.raises(RuntimeError, match="call it from another thread"):
            loop.call(lambda: loop.call(threading.get_ident))
        with pytest.raises(RuntimeError, match="call it from another thread"):
            loop.call(loop.stop)
    finally:
        loop.stop()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_call_in_a_forked_process_raises_instead_of_hanging() -> None:
    loop = BackgroundLoop()
    try:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                loop.call(threading.get_ident)
            except RuntimeError as error:
                status = 0 if "forked" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        loop.stop()
