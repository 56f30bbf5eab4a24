"""Polling: datagrams are found without the loop, which gets its turns, until the time is over."""

import asyncio
import select
from collections.abc import Callable, Iterator

import pytest

from meshbus.engine.base.packets import Train
from meshbus.node.driving import polling as module
from meshbus.node.driving.polling import Polling
from meshbus.node.driving.udp import UdpSocket
from tests.patience import PATIENCE_S


class Clock:
    """Time that passes with every look."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 0.00001
        return self.now


@pytest.fixture
def sockets() -> Iterator[tuple[UdpSocket, UdpSocket]]:
    with UdpSocket.bind("127.0.0.1", 0) as receiver, UdpSocket.bind("127.0.0.1", 0) as sender:
        yield receiver, sender


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the test looks at counts
            await asyncio.sleep(0)


async def test_datagrams_are_found_as_long_as_it_is_awake(sockets: tuple[UdpSocket, UdpSocket]) -> None:
    receiver, sender = sockets
    clock, found = Clock(), list[int]()

    def readable(socket: UdpSocket) -> None:
        batch = socket.drain()
        found.append(0 if batch is None else len(batch))

    polling = Polling(1000.0, readable, clock)
    polling.add(receiver)
    polling.stay_awake(clock())
    for number in range(1, 4):
        sender.send([Train(receiver.address, b"x", 1)])
        await until(lambda number=number: len(found) == number)  # type: ignore[misc]
    assert found == [1, 1, 1]
    clock.now += 2000
    await until(lambda: polling._until is None)
    sender.send([Train(receiver.address, b"x", 1)])
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(found) == 3
    polling.stay_awake(clock())
    await until(lambda: len(found) == 4)
    polling.remove(receiver)
    polling.remove(receiver)  # a second time changes nothing
    sender.send([Train(receiver.address, b"x", 1)])
    for _ in range(5):
        await asyncio.sleep(0)
    polling.stop()
    await asyncio.sleep(0)
    assert (len(found), polling._until) == (4, None)


async def test_the_loop_has_its_turn_while_nothing_comes() -> None:
    clock = Clock()
    polling = Polling(1000.0, lambda _: None, clock)
    polling.stay_awake(clock())
    await asyncio.sleep(0)
    began = clock.now
    await asyncio.sleep(0)
    assert clock.now - began < 2 * module.TURN_S
    polling.stop()


async def test_without_a_poller_the_loop_itself_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(select, "poll", raising=False)
    clock = Clock()
    with UdpSocket.bind("127.0.0.1", 0) as receiver:
        polling = Polling(1000.0, lambda _: pytest.fail("nothing came"), clock)
        polling.add(receiver)
        polling.stay_awake(clock())
        for _ in range(5):
            await asyncio.sleep(0)
        assert polling._until is not None
        polling.remove(receiver)
        polling.stop()
