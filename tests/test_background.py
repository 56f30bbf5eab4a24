import asyncio
import threading

import pytest

from meshbus.background import BackgroundLoop


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
