import asyncio
import threading
from concurrent.futures import CancelledError, Future

import pytest

from meshbus import background
from meshbus.background import BackgroundLoop, LoopStopped


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
