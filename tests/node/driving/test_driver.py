"""The driver: drains, sends, holds what the kernel has no room for, and keeps the engine's time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from meshbus.engine.base.batch import EventBatch
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.notices import Control, PeerRecovered
from meshbus.engine.base.packets import Output, PacketBatch, Train
from meshbus.node.driving import driver as driver_module
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.turns import GUEST_DATAGRAMS
from meshbus.node.driving.udp import MAX_TRAINS, UdpSocket
from meshbus.node.driving.waiter import Waiter
from meshbus.policy.reason import Reason
from meshbus.wire.keys import Role
from tests.patience import PATIENCE_S


class ScriptedForwarder:
    """As much of a forwarder as a driver uses."""

    def __init__(self) -> None:
        self.held = False
        self.waiting: list[Train] = []

    def hold(self) -> None:
        self.held = True

    def release(self, out: Output) -> None:
        out.trains, self.waiting = self.waiting[:2], self.waiting[2:]
        self.held = bool(out.trains)


class ScriptedEngine:
    """As much of an engine as a driver uses."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.batches: list[int] = []
        self.ticks = 0
        self.timer: float | None = None
        self.mesh = SimpleNamespace(forwarder=ScriptedForwarder())
        self.neighbors: list[Any] = []
        self.peers = SimpleNamespace(version=0, neighbors=lambda: self.neighbors)
        self.events: set[Any] = set()
        """Sources whose packets are events."""
        self.parts: set[Any] = set()
        """Sources whose packets are parts of events."""
        self.sources: list[Any] = []

    def meet(self, address: Any, *, role: Role = Role.INITIATOR) -> None:
        """Get a neighbor."""
        self.neighbors.append(SimpleNamespace(link=SimpleNamespace(home=address, role=role)))
        self.peers.version += 1

    def receive(self, batch: PacketBatch, _now: float) -> Output:
        self.batches.append(len(batch))
        self.sources += [source for source, count in batch.runs for _ in range(count)]
        out = Output()
        if self.sources[-1] in self.parts:
            out.parts += len(batch)
            return out
        if self.sources[-1] in self.events:
            out.events.append(cast("EventBatch", "events"))
            return out
        self.counters.count(Reason.UNREADABLE, len(batch))
        out.control.append(PeerRecovered(1))
        return out

    def receive_one(self, source: Any, datagram: memoryview, now: float) -> Output:
        return self.receive(PacketBatch.of([(source, bytes(datagram))]), now)

    def next_timer(self) -> float | None:
        return self.timer

    def tick(self, _now: float) -> Output:
        self.ticks += 1
        self.timer = None
        return Output()


class StubbornSocket(UdpSocket):
    """A socket whose kernel is full until told otherwise."""

    full = False
    sent: list[Train]

    def send(self, trains: Sequence[Train]) -> Sequence[Train]:
        if self.full:
            return trains
        self.sent += trains
        return ()

    def send_one(self, train: Train) -> bool:
        del train
        return False  # so that `send` is asked


@pytest.fixture
async def desk() -> AsyncIterator[tuple[Driver, Any, StubbornSocket, list[Output]]]:
    engine: Any = ScriptedEngine()
    socket = StubbornSocket.bind("127.0.0.1", 0)
    socket.sent = []
    reported: list[Output] = []
    driver = Driver(engine, socket, reported.append)
    yield driver, engine, socket, reported
    driver.close()
    driver.close()


def train(number: int) -> Train:
    return Train(("127.0.0.1", 9), bytes([number]), 1)


async def test_datagrams_reach_the_engine_and_its_reports_come_back(
    desk: tuple[Driver, Any, StubbornSocket, list[Output]],
) -> None:
    _, engine, socket, reported = desk
    with UdpSocket.bind("127.0.0.1", 0) as other:
        other.send([Train(socket.address, b"hello", 5)])
        async with asyncio.timeout(PATIENCE_S):
            while not engine.batches:  # noqa: ASYNC110 - the kernel delivers
                await asyncio.sleep(0.001)
    assert engine.batches == [1]
    assert reported[0].control == [PeerRecovered(1)]


async def test_an_exception_behind_one_batch_or_notice_is_counted_by_its_class_and_ends_nothing_else(
    desk: tuple[Driver, Any, StubbornSocket, list[Output]], caplog: pytest.LogCaptureFixture
) -> None:
    _, engine, socket, _ = desk
    taken: list[Any] = []

    def take(out: Output) -> None:
        found: list[Any] = [*out.events, *out.control]
        for one in found:
            if one in {"bad", "worse"}:
                raise OverflowError(one)
            taken.append(one)

    driver = Driver(engine, socket, take)
    out = Output()
    out.events += cast("list[EventBatch]", ["bad", "first", "worse", "second"])
    out.control += cast("list[Control]", ["bad", "third"])
    driver.apply(out)
    assert taken == ["first", "second", "third"]
    assert engine.counters.get("exception", "OverflowError") == 3
    assert len(caplog.records) == 1, "one traceback per class"


async def test_an_exception_in_the_engine_stops_neither_packets_nor_timers(
    desk: tuple[Driver, Any, StubbornSocket, list[Output]], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, engine, socket, _ = desk

    def fails(*_: object) -> Output:
        raise ZeroDivisionError

    monkeypatch.setattr(engine, "receive", fails)
    monkeypatch.setattr(engine, "tick", fails)
    engine.timer = driver.now() + 0.001
    driver.apply(Output())
    with UdpSocket.bind("127.0.0.1", 0) as other:
        async with asyncio.timeout(PATIENCE_S):
            while engine.counters.get("exception", "ZeroDivisionError") < 4:
                other.send([Train(socket.address, b"hello", 5)])
                await asyncio.sleep(0.001)
        monkeypatch.undo()
        async with asyncio.timeout(PATIENCE_S):
            while not (engine.ticks and engine.batches):
                other.send([Train(socket.address, b"hello", 5)])
                await asyncio.sleep(0.001)


async def test_datagrams_that_the_kernel_refuses_are_sent_later_in_order(
    desk: tuple[Driver, Any, StubbornSocket, list[Output]],
) -> None:
    driver, _, socket, _ = desk
    socket.full = True
    for number in range(3):
        out = Output()
        out.trains = [train(number)]
        driver.apply(out)
    assert socket.sent == []
    socket.full = False
    async with asyncio.timeout(PATIENCE_S):
        while len(socket.sent) < 3:  # noqa: ASYNC110 - the loop tells the driver
            await asyncio.sleep(0.001)
    assert [bytes(sent.data) for sent in socket.sent] == [b"\0", b"\1", b"\2"]


async def test_packets_for_others_wait_while_the_kernel_is_full_and_follow(
    desk: tuple[Driver, Any, StubbornSocket, list[Output]],
) -> None:
    driver, engine, socket, _ = desk
    socket.full = True
    buffer = bytearray(b"\x07")
    out = Output()
    out.trains = [Train(("127.0.0.1", 9), memoryview(buffer), 1)]
    driver.apply(out)
    buffer[0] = 99  # the next drain overwrites it
    assert engine.mesh.forwarder.held
    engine.mesh.forwarder.waiting = [train(number) for number in range(5)]
    socket.full = False
    async with asyncio.timeout(PATIENCE_S):
        while engine.mesh.forwarder.held:  # noqa: ASYNC110 - the loop tells the driver
            await asyncio.sleep(0.001)
    assert contents(socket.sent) == [7, 0, 1, 2, 3, 4]


def single(number: int, port: int = 9) -> Output:
    out = Output()
    out.trains = [Train(("127.0.0.1", port), bytes([number]), 1)]
    return out


def contents(trains: list[Train]) -> list[int]:
    return [train.data[0] for train in trains]


async def test_the_first_event_of_a_burst_is_sent_at_once_and_the_others_together(
    desk: tuple[Driver, Any, StubbornSocket, list[Output]],
) -> None:
    driver, _, socket, _ = desk
    now = driver.now()
    for number in range(5):
        driver.apply_single(single(number, 9 + number % 2), now)
    assert contents(socket.sent) == [0]
    await asyncio.sleep(0)
    assert contents(socket.sent) == [0, 1, 3, 2, 4]  # for each address in order, and one address after the other


async def test_events_that_come_one_by_one_never_wait(desk: tuple[Driver, Any, StubbornSocket, list[Output]]) -> None:
    driver, _, socket, _ = desk
    for number in range(3):
        driver.apply_single(single(number), 1.0 + number / 1000)
    assert contents(socket.sent) == [0, 1, 2]


async def test_a_burst_ends_when_a_train_is_full_when_something_else_is_sent_and_at_the_close(
    desk: tuple[Driver, Any, StubbornSocket, list[Output]], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, _, socket, _ = desk
    monkeypatch.setattr(driver_module, "MAX_BURST", 3)
    now = driver.now()
    for number in range(5):
        driver.apply_single(single(number), now)
    assert contents(socket.sent) == [0, 1, 2, 3]
    driver.apply(single(5))
    assert contents(socket.sent) == [0, 1, 2, 3, 4, 5]
    driver.apply_single(single(6), now)
    driver.close()
    assert contents(socket.sent) == [0, 1, 2, 3, 4, 5, 6]


async def test_the_backlog_is_bounded_and_counted(
    desk: tuple[Driver, Any, StubbornSocket, list[Output]], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, engine, socket, _ = desk
    monkeypatch.setattr(driver_module, "MAX_BACKLOG", 2)
    socket.full = True
    out = Output()
    out.trains = [train(number) for number in range(5)]
    driver.apply(out)
    assert engine.counters.get("drop", "send_backlog") == 3


async def test_the_engine_is_ticked_when_it_asks(desk: tuple[Driver, Any, StubbornSocket, list[Output]]) -> None:
    driver, engine, _, _ = desk
    engine.timer = driver.now() + 0.01
    driver.apply(Output())
    async with asyncio.timeout(PATIENCE_S):
        while not engine.ticks:  # noqa: ASYNC110 - the loop ticks
            await asyncio.sleep(0.001)
    assert engine.ticks == 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the kernel delivers
            await asyncio.sleep(0.001)


async def test_a_flood_of_strangers_neither_crowds_out_nor_outruns_a_neighbor(
    desk: tuple[Driver, Any, StubbornSocket, list[Output]],
) -> None:
    driver, engine, socket, _ = desk
    with UdpSocket.bind("127.0.0.1", 0) as friend, UdpSocket.bind("127.0.0.1", 0) as stranger:
        engine.meet(friend.address)
        engine.events.add(friend.address)
        driver.apply(Output())
        await until(lambda: len(driver._lanes) == 1)
        flood = [Train(socket.address, bytes(8000), 8000)] * (socket.receive_buffer // 8000)
        stranger.send(flood)
        stranger.send(flood)  # more than the buffer of strangers can hold
        friend.send([Train(socket.address, b"event", 5)] * 50)
        await until(lambda: engine.sources.count(friend.address) == 50)
        # While the neighbor brings events, a stranger's drains are short.
        friend.send([Train(socket.address, b"event", 5)])
        await until(lambda: engine.sources.count(friend.address) == 51)
        engine.batches.clear()
        stranger.send(flood[:GUEST_DATAGRAMS])
        friend.send([Train(socket.address, b"event", 5)])
        await until(lambda: engine.sources.count(friend.address) == 52)
        assert max(engine.batches) <= GUEST_DATAGRAMS


async def test_a_neighbor_that_leaves_gives_its_buffer_back_and_nothing_is_lost(
    desk: tuple[Driver, Any, StubbornSocket, list[Output]],
) -> None:
    driver, engine, socket, _ = desk
    with UdpSocket.bind("127.0.0.1", 0) as friend:
        engine.meet(friend.address)
        driver.apply(Output())
        await until(lambda: len(driver._lanes) == 1)
        friend.send([Train(socket.address, b"last", 4)])
        engine.neighbors.clear()
        engine.peers.version += 1
        driver._follow_peers()
        assert not len(driver._lanes)
        assert engine.sources == [friend.address]
        friend.send([Train(socket.address, b"more", 4)])
        await until(lambda: len(engine.sources) == 2)


async def test_a_closed_port_of_a_neighbor_is_reported(
    desk: tuple[Driver, Any, StubbornSocket, list[Output]],
) -> None:
    driver, engine, socket, _ = desk
    refused: list[Any] = []
    engine.handshakes = SimpleNamespace(refused=lambda address, _out: refused.append(address))
    with UdpSocket.bind("127.0.0.1", 0) as friend:
        address = friend.address
        engine.meet(address)
        driver.apply(Output())
        await until(lambda: len(driver._lanes) == 1)
    UdpSocket.send(socket, [Train(address, b"anybody?", 8)])
    await until(lambda: refused == [address])


async def test_a_driver_that_polls_reads_without_the_loop_and_rests_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = ScriptedEngine()
    socket = UdpSocket.bind("127.0.0.1", 0)
    moments = count()
    late = 0.0
    monkeypatch.setattr(Driver, "now", staticmethod(lambda: 100.0 + late + next(moments) * 1e-5))
    driver = Driver(engine, socket, lambda _: None, poll_s=1000.0)
    polling = driver._polling
    assert polling is not None
    with UdpSocket.bind("127.0.0.1", 0) as sender:
        engine.events.add(sender.address)
        sender.send([Train(socket.address, b"x", 1)])
        await until(lambda: polling._until is not None)
        asyncio.get_running_loop().remove_reader(socket.fileno())
        sender.send([Train(socket.address, b"y", 1)])
        await until(lambda: len(engine.sources) == 2)
        late = 2000.0
        await until(lambda: polling._until is None)
    driver.close()
    assert not polling._sockets


async def test_a_task_goes_on_in_the_callback_of_its_datagram(
    desk: tuple[Driver, Any, StubbornSocket, list[Output]],
) -> None:
    driver, _, socket, _ = desk
    steps: list[str] = []
    waiter, loop = Waiter(), asyncio.get_running_loop()

    async def read() -> None:
        await waiter
        steps.append("task")

    def on_output(_: Output) -> None:
        loop.call_soon(steps.append, "next iteration")
        driver.wake(waiter)
        steps.append("output")

    driver._on_output = on_output
    task = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    with UdpSocket.bind("127.0.0.1", 0) as sender:
        sender.send([Train(socket.address, b"x", 1)])
        await until(lambda: len(steps) == 3)
    assert steps == ["output", "task", "next iteration"]
    await task
    late = Waiter()
    driver.wake(late)
    assert late.done(), "outside of such a callback it is woken as any other future"


async def test_a_quiet_socket_is_read_once_and_a_busy_one_until_it_is_empty(
    desk: tuple[Driver, Any, StubbornSocket, list[Output]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, engine, socket, _ = desk
    now = 100.0
    monkeypatch.setattr(Driver, "now", staticmethod(lambda: now))
    with UdpSocket.bind("127.0.0.1", 0) as sender:
        for number in range(5):
            sender.send([Train(socket.address, bytes([number]), 1)])
        await until(lambda: sum(engine.batches) == 5)
    assert engine.batches == [1, 4]


@pytest.mark.parametrize("large", [False, True])
async def test_parts_of_large_events_take_one_drain_a_turn_and_are_no_guests(
    desk: tuple[Driver, Any, StubbornSocket, list[Output]], monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    driver, engine, socket, _ = desk
    now, turn, turns = 100.0, 0, []
    monkeypatch.setattr(Driver, "now", staticmethod(lambda: now))
    receive = engine.receive

    def noted(batch: PacketBatch, at: float) -> Output:
        turns.append(turn)
        out: Output = receive(batch, at)
        return out

    monkeypatch.setattr(engine, "receive", noted)
    with UdpSocket.bind("127.0.0.1", 0) as sender:
        (engine.parts if large else engine.events).add(sender.address)
        for _ in range(1 + 3 * MAX_TRAINS):
            sender.send([Train(socket.address, b"x", 1)])
        async with asyncio.timeout(PATIENCE_S):
            while sum(engine.batches) < 1 + 3 * MAX_TRAINS:
                await asyncio.sleep(0)
                turn += 1
    assert engine.batches == [1, *3 * [MAX_TRAINS]]
    drains = turns[1:]  # the first datagram of a quiet socket is read alone
    assert len(set(drains)) == (3 if large else 1), "beside parts, other sockets are read in between"
    driver._turns.note("stream", now, now, 1, events=True, refused=False)
    assert driver._turns.room(socket, now) is None


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside small events"])
async def test_parts_are_confirmed_after_the_small_events_that_have_come(
    desk: tuple[Driver, Any, StubbornSocket, list[Output]], monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    _, engine, socket, _ = desk
    times, done = count(100.0, 0.001), list[str]()  # so much later each time that a read takes one datagram
    monkeypatch.setattr(Driver, "now", staticmethod(lambda: next(times)))
    receive = engine.receive

    def send(_socket: StubbornSocket, _trains: Sequence[Train]) -> Sequence[Train]:
        done.append("confirmed")
        return ()

    def noted(batch: PacketBatch, at: float) -> Output:
        out: Output = receive(batch, at)
        done.append("part" if out.parts else "event")
        out.trains += [Train(("127.0.0.1", 9), b"ack", 3)] * bool(out.parts)
        return out

    monkeypatch.setattr(StubbornSocket, "send", send)
    monkeypatch.setattr(engine, "receive", noted)
    with UdpSocket.bind("127.0.0.1", 0) as camera, UdpSocket.bind("127.0.0.1", 0) as pose:
        engine.parts.add(camera.address)
        engine.events.add(pose.address)
        if beside:
            pose.send([Train(socket.address, b"x", 1)])
            await until(lambda: done == ["event"])
        camera.send([Train(socket.address, b"x", 1)])
        pose.send([Train(socket.address, b"x", 1)])
        await until(lambda: "confirmed" in done and done.count("event") == 1 + beside)
    expected = ["event", "part", "event", "confirmed"] if beside else ["part", "confirmed", "event"]
    assert done == expected
