"""The fake network: time, chance and batches are what was asked for, and the same seed gives the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import cast

import pytest

from meshbus.engine.base.notices import Acked, SessionUp
from meshbus.engine.base.packets import Output, PacketBatch
from meshbus.engine.core import Engine
from meshbus.errors import Timeout
from meshbus.testing.fakenet import FakeClock, FakeNet, FakeNode, FakePath, Outcome, Passage
from meshbus.wire.datagram import DatagramKind
from tests.house.tree import ROOT


class Parrot:
    """Stands in for an engine: notes when what came, and does what it is told when its timer fires."""

    node_id = 1

    def __init__(self, timer: float | None = None) -> None:
        self.timer = timer
        self.batches: list[tuple[float, list[bytes]]] = []
        self.sources: list[object] = []
        self.ticks: list[float] = []
        self.answer: Callable[[Output], None] = lambda _out: None

    def receive(self, batch: PacketBatch, now: float) -> Output:
        raw = batch.data.tobytes()
        starts, lengths = batch.starts.tolist(), batch.lengths.tolist()
        self.batches.append((now, [raw[s : s + n] for s, n in zip(starts, lengths, strict=True)]))
        self.sources += [source for source, _ in batch.runs]
        out = Output()
        self.answer(out)
        return out

    def tick(self, now: float) -> Output:
        self.ticks.append(now)
        self.timer = None
        return Output()

    def next_timer(self) -> float | None:
        return self.timer

    def received(self) -> list[bytes]:
        return [datagram for _, datagrams in self.batches for datagram in datagrams]


def put(net: FakeNet, name: str, parrot: Parrot) -> FakeNode:
    return net.add(name, cast("Engine", parrot))


def parrots(**path: float) -> tuple[FakeNet, Parrot, Parrot]:
    net = FakeNet(path=FakePath(**path), record=True)
    left, right = Parrot(), Parrot()
    put(net, "left", left)
    put(net, "right", right)
    return net, left, right


def test_the_clock_goes_forward_only() -> None:
    clock = FakeClock(unix_s=1000)
    clock.advance(2.5)
    clock.advance(1.0)
    assert clock.now == 2.5
    assert clock.wall(2.5) == 1_002_500_000_000


def test_a_datagram_takes_the_latency_of_its_path_and_arrives_at_a_tick() -> None:
    net, _, right = parrots(latency_s=0.0123)
    net.inject("left", "right", b"hello")
    net.run(until=0.0129)
    assert right.batches == []
    net.run(until=1.0)
    assert right.received() == [b"hello"]
    assert right.batches[0][0] == pytest.approx(0.013)
    assert right.sources == ["left"]
    assert net.clock.now == 1.0


def test_what_arrives_in_one_tick_is_one_batch_in_the_order_it_was_sent() -> None:
    net, _, right = parrots(latency_s=0.01)
    for n in range(5):
        net.inject("left", "right", bytes([n]))
    net.run(for_s=0.0095)
    net.inject("left", "right", b"later")
    net.run(for_s=1)
    assert [len(datagrams) for _, datagrams in right.batches] == [5, 1]
    assert right.received() == [b"\0", b"\1", b"\2", b"\3", b"\4", b"later"]


def test_an_answer_travels_back() -> None:
    net, left, right = parrots(latency_s=0.01)
    right.answer = lambda out: out.send("left", b"pong")
    net.inject("left", "right", b"ping")
    net.run(for_s=1)
    assert left.received() == [b"pong"]
    assert left.batches[0][0] == pytest.approx(0.02)


def test_timers_fire_exactly_and_in_order() -> None:
    net = FakeNet()
    early, late = Parrot(timer=0.123456), Parrot(timer=2.0)
    put(net, "late", late)
    put(net, "early", early)
    net.run(until=1.0)
    assert (early.ticks, late.ticks) == ([0.123456], [])
    net.run(until=2.0)
    assert late.ticks == [2.0]


def test_a_timer_of_the_past_fires_now() -> None:
    net = FakeNet()
    net.run(until=5.0)
    parrot = Parrot(timer=1.0)
    put(net, "late", parrot)
    net.run(for_s=0)
    assert parrot.ticks == [5.0]


def test_an_engine_whose_timer_never_moves_is_found_out() -> None:
    class Stuck(Parrot):
        def tick(self, now: float) -> Output:
            self.ticks.append(now)
            return Output()

    net = FakeNet()
    put(net, "stuck", Stuck(timer=1.0))
    with pytest.raises(AssertionError, match="stuck"):
        net.run(until=2.0)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.9])
def test_loss_and_duplication_hit_the_share_that_was_asked_for(share: float) -> None:
    net, _, right = parrots(loss=share)
    for n in range(2000):
        net.inject("left", "right", n.to_bytes(2, "big"))
    net.run(for_s=1)
    assert len(right.received()) == pytest.approx(2000 * (1 - share), abs=100)
    assert Counter(p.outcome for p in net.passages)[Outcome.LOST] == 2000 - len(right.received())

    net, _, right = parrots(duplication=share)
    for n in range(2000):
        net.inject("left", "right", n.to_bytes(2, "big"))
    net.run(for_s=1)
    assert len(right.received()) == pytest.approx(2000 * (1 + share), abs=100)
    assert len(set(right.received())) == 2000


def test_without_chance_nothing_is_lost_repeated_or_overtaken() -> None:
    net, _, right = parrots()
    sent = [n.to_bytes(2, "big") for n in range(500)]
    for datagram in sent:
        net.inject("left", "right", datagram)
        net.run(for_s=0.0001)
    net.run(for_s=1)
    assert right.received() == sent


@pytest.mark.parametrize("path", [{"jitter_s": 0.05}, {"reordering": 0.2, "holdback_s": 0.05}])
def test_jitter_and_holdback_let_datagrams_overtake_each_other(path: dict[str, float]) -> None:
    net, _, right = parrots(**path)
    sent = [n.to_bytes(2, "big") for n in range(200)]
    for datagram in sent:
        net.inject("left", "right", datagram)
        net.run(for_s=0.001)
    net.run(for_s=1)
    assert right.received() != sent
    assert sorted(right.received()) == sent


def test_bandwidth_spreads_a_burst_and_a_full_queue_loses_its_end() -> None:
    net, _, right = parrots(bandwidth=10_000, queue_s=0.505, latency_s=0.0)
    for n in range(100):
        net.inject("left", "right", bytes([n]) * 100)
    net.run(for_s=2)
    # 100 bytes take 10 ms, so 50 of them fit the queue.
    assert right.received() == [bytes([n]) * 100 for n in range(50)]
    times = [now for now, _ in right.batches]
    assert times == pytest.approx([0.01 * (n + 1) for n in range(50)])
    assert Counter(p.outcome for p in net.passages) == {Outcome.ARRIVES: 50, Outcome.CONGESTED: 50}


def test_a_path_of_its_own_holds_in_one_direction_or_in_both() -> None:
    net, left, right = parrots()
    net.set_path("left", "right", FakePath(loss=1.0), both=False)
    net.inject("left", "right", b"x")
    net.inject("right", "left", b"y")
    net.run(for_s=1)
    assert (left.received(), right.received()) == ([b"y"], [])
    net.set_path("left", "right", FakePath(loss=1.0))
    net.inject("right", "left", b"z")
    net.run(for_s=1)
    assert left.received() == [b"y"]


def test_a_partition_cuts_its_sides_apart_until_it_heals() -> None:
    net, left, right = parrots()
    bystander = Parrot()
    put(net, "bystander", bystander)
    net.partition(["left"], ["right"])
    for source, dest in [("left", "right"), ("right", "left"), ("left", "bystander"), ("bystander", "right")]:
        net.inject(source, dest, f"{source}→{dest}".encode())
    net.run(for_s=1)
    assert left.received() == []
    assert right.received() == ["bystander→right".encode()]
    assert bystander.received() == ["left→bystander".encode()]
    assert [p.outcome for p in net.passages] == [Outcome.CUT, Outcome.CUT, Outcome.ARRIVES, Outcome.ARRIVES]
    net.heal()
    net.inject("left", "right", b"again")
    net.run(for_s=1)
    assert right.received()[-1] == b"again"


def test_what_flies_to_a_node_that_left_is_lost() -> None:
    net, _, right = parrots()
    net.inject("left", "right", b"x")
    net.remove("right")
    net.inject("left", "right", b"y")
    net.run(for_s=1)
    assert right.received() == []
    assert [p.outcome for p in net.passages] == [Outcome.ARRIVES, Outcome.NOWHERE]


def test_taps_see_everything_that_is_sent() -> None:
    net = FakeNet(path=FakePath(loss=1.0))
    put(net, "right", Parrot())
    seen: list[Passage] = []
    net.taps.append(seen.append)
    net.inject("left", "right", b"gone")
    assert [(p.source, p.dest, p.datagram, p.kind, p.outcome) for p in seen] == [
        ("left", "right", b"gone", DatagramKind.DROP, Outcome.LOST)
    ]
    assert net.passages == []


def test_run_until_stops_when_the_condition_holds_or_time_is_up() -> None:
    net, _, right = parrots(latency_s=0.25)
    net.inject("left", "right", b"x")
    net.run_until(lambda: bool(right.batches))
    assert net.clock.now == pytest.approx(0.25)
    with pytest.raises(Timeout):
        net.run_until(lambda: False, timeout_s=3.0)
    assert net.clock.now == pytest.approx(3.25)


# ── with engines ────────────────────────────────────────────────────────────────────────────


def story(seed: int) -> FakeNet:
    """Two nodes meet, one subscribes, the other publishes, over a bad network."""
    net = FakeNet(seed, path=FakePath(loss=0.2, duplication=0.1, jitter_s=0.005), record=True)
    lidar, planner = net.create("lidar"), net.create("planner")
    planner.connect(lidar)
    net.run_until(lambda: planner.speaks_profile_with(lidar))
    while not any(acked.accepted for acked in planner.happened(Acked)):
        planner.subscribe(lidar, "sensors/lidar")
        net.run(for_s=5.5)
    publication = lidar.publish("sensors/lidar", [b"one", b"two", b"three"], reliable=True)
    assert publication.report().delivered == 1
    net.run_until(lambda: len(planner.payloads()) == 3)
    assert planner.payloads("sensors/lidar") == [b"one", b"two", b"three"]
    assert planner.payloads("sensors/radar") == []
    return net


def test_engines_meet_and_exchange_events() -> None:
    net = story(1)
    lidar, planner = net.nodes["lidar"], net.nodes["planner"]
    assert planner.has_session_with(lidar)
    assert [up.initiated for up in planner.happened(SessionUp)] == [True]
    kinds = {p.kind for p in net.passages}
    assert {DatagramKind.NET, DatagramKind.ROUTED, DatagramKind.PINGWAVE} <= kinds
    planner.forget()
    assert (planner.control, planner.events) == ([], [])


def test_the_same_seed_gives_the_same_bytes_and_another_seed_gives_others() -> None:
    first, again, other = story(1), story(1), story(2)
    assert first.digest == again.digest
    assert first.passages == again.passages
    assert first.digest != other.digest
    assert not {p.datagram for p in first.passages} & {p.datagram for p in other.passages}


def test_the_bytes_do_not_depend_on_the_process() -> None:
    program = "from tests.testing.test_fakenet import story; print(story(1).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert digests == {story(1).digest}
