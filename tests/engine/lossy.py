"""A reliable stream over a network that loses, repeats and reorders, on virtual time and from a seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from itertools import count

import numpy as np
from msgspec import structs

from meshbus.engine.base.counters import Counters
from meshbus.engine.streams.reorder import Budget, Payloads, ReliableRx
from meshbus.engine.streams.retransmit import ReliableTx, Resend, draw_start
from meshbus.engine.streams.scoreboard import Outstanding
from meshbus.wire.frames import Packed
from meshbus.wire.messages.reliable import (
    Ack,
    Base,
    Fin,
    FinAck,
    ReliableMessage,
    Reset,
    decode_reliable,
    encode_reliable,
)

STREAM, NODE = 7, 0xABC
TICK_S = 0.001
"""A receiver drains its socket this often, so packets come in batches."""
PATIENCE_S = 60.0
"""Longest time without a delivery."""

Item = bytes | tuple[int, bytes, int]
"""A message as it is on the wire, or a data packet: sequence, payload, events."""
Loses = Callable[[float], bool]


class Lossy:
    """Both halves of a stream, and the network between them."""

    def __init__(
        self,
        seed: int,
        packets: int,
        *,
        loss: float = 0.0,
        duplication: float = 0.0,
        jitter_s: float = 0.0,
        delay_s: float = 0.002,
        capacity: int = 1024,
        window: int = 10,
        skips: float = 0.0,
        loses_data: Loses | None = None,
        loses_answer: Loses | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.counters = Counters()
        self.packets = packets
        self.now = 0.0
        self.tx = self.make_tx(window)
        self.budget = Budget(8 << 20)
        self.rx = ReliableRx(STREAM, counters=self.counters, capacity=capacity, budget=self.budget)
        self.delivered: list[tuple[int, int | None]] = []
        """Index of each packet that was delivered, and the number of its first event."""
        self.numbers: list[int | None] = []
        """The number of the first event of each packet that was sent."""
        self.acks = 0
        self.held = False
        """Whether the receiving application takes no more; acknowledgements then leave no room, as in reliable.py."""
        self._window = window
        self._loss, self._duplication, self._jitter_s, self._delay_s = loss, duplication, jitter_s, delay_s
        self._skips = skips
        self._loses_data, self._loses_answer = loses_data, loses_answer
        self._next_number = 1000
        self._heap: list[tuple[float, int, bool, Item]] = []
        self._order = count()
        self._finishing = False
        self.restarted_at = 0
        """Index of the first packet of the present sender."""

    def make_tx(self, window: int) -> ReliableTx:
        start = draw_start(self.rng.randbytes)
        return ReliableTx(STREAM, NODE, first_sequence=start, counters=self.counters, window=window)

    def replace_sender(self) -> None:
        """Continue sending as a new process, without the state of the old one."""
        self.tx = self.make_tx(self._window)
        self.restarted_at = len(self.numbers)
        self._finishing = False

    def run(self, *, until_delivered: int | None = None, for_s: float | None = None) -> None:
        """Continue until the stream is closed or failed, has delivered enough, or the time is over."""
        began = last = self.now
        while not self.tx.done and self.tx.failed is None:
            before = len(self.delivered)
            self._fill()
            self._step()
            self._check_bounds()
            if len(self.delivered) > before:
                last = self.now
            assert for_s is not None or self.now - last < PATIENCE_S, "no progress"
            if until_delivered is not None and len(self.delivered) >= until_delivered:
                return
            if for_s is not None and self.now - began >= for_s:
                return

    def _fill(self) -> None:
        """Send as much as there is room for, in batches of all sizes."""
        while len(self.numbers) < self.packets and (room := self.tx.room()) > 0:
            if self.rng.random() < self._skips:
                self._next_number += self.rng.randrange(1, 100)
            base = self.tx.number(self._next_number, self.now)
            self._send(Resend([base] if base else []))
            size = min(room, self.packets - len(self.numbers), self.rng.randint(1, 40))
            self._send_batch(size)
        if len(self.numbers) == self.packets and not self._finishing:
            self._finishing = True
            self._send(self.tx.finish(self.now))

    def _send_batch(self, size: int) -> None:
        first = self.tx.next_sequence
        indexes = range(len(self.numbers), len(self.numbers) + size)
        payloads = [index.to_bytes(8, "little") * self.rng.randint(1, 4) for index in indexes]
        counts = [self.rng.randint(1, 5) for _ in indexes]
        bounds = np.cumsum([0, *map(len, payloads)])
        packed = Packed(np.frombuffer(b"".join(payloads), np.uint8), bounds, np.array(counts))
        self.tx.sent(first, packed, self.now)
        for offset, (payload, events) in enumerate(zip(payloads, counts, strict=True)):
            self.numbers.append(self._next_number)
            self._next_number += events
            self._transmit((first + offset, payload, events), to_receiver=True)

    def _send(self, resend: Resend) -> None:
        for message in resend.messages:
            self._transmit(encode_reliable(message), to_receiver=True)
        for packet in resend.packets:
            self._transmit(_item(packet), to_receiver=True)

    def _transmit(self, item: Item, *, to_receiver: bool) -> None:
        loses = self._loses_data if to_receiver else self._loses_answer
        if loses is not None and loses(self.now):
            return
        for _ in range(2 if self.rng.random() < self._duplication else 1):
            if self.rng.random() < self._loss:
                continue
            at = self.now + self._delay_s + self.rng.random() * self._jitter_s
            tick = (int(at / TICK_S) + 1) * TICK_S
            heapq.heappush(self._heap, (tick, next(self._order), to_receiver, item))

    def _step(self) -> None:
        """Advance the time to the next event, and handle it."""
        timers = [at for at in (self.tx.next_timer(), self.rx.next_timer()) if at is not None]
        if self._heap:
            timers.append(self._heap[0][0])
        assert timers, "nothing will ever happen again"
        self.now = max(self.now, min(timers))
        arrived = []
        while self._heap and self._heap[0][0] <= self.now:
            arrived.append(heapq.heappop(self._heap))
        self._drain_sender([item for _, _, to_receiver, item in arrived if not to_receiver])
        self._send(self.tx.due(self.now))
        self._drain_receiver([item for _, _, to_receiver, item in arrived if to_receiver])

    def _drain_sender(self, items: Iterable[Item]) -> None:
        for item in items:
            assert isinstance(item, bytes)
            message = decode_reliable(item)
            if isinstance(message, Ack):
                self._send(self.tx.on_ack(message, self.now))
            elif isinstance(message, FinAck):
                self.tx.on_fin_ack(message)

    def _drain_receiver(self, items: Iterable[Item]) -> None:
        waiting: list[tuple[int, bytes, int]] = []
        for item in items:
            if isinstance(item, tuple):
                waiting.append(item)
                continue
            # Data packets of one batch go in together; a message ends the batch.
            self._take(self.rx.accept(columns(waiting), self.now))
            waiting = []
            self._take_message(decode_reliable(item))
        self._take(self.rx.accept(columns(waiting), self.now))
        due = self.rx.next_timer()
        if due is not None and self.now >= due:
            self._acknowledge()

    def release(self) -> None:
        """Make the application take events again, and notify the sender at once."""
        self.held = False
        self._acknowledge()

    def _acknowledge(self) -> None:
        self.acks += 1
        ack = self.rx.make_ack()
        self._transmit(encode_reliable(structs.replace(ack, free=0) if self.held else ack), to_receiver=False)

    def _take_message(self, message: ReliableMessage) -> None:
        match message:
            case Base():
                self._take(self.rx.on_base(message, self.now))
            case Fin():
                answer = self.rx.on_fin(message)
                assert answer is not None
                self._transmit(encode_reliable(answer), to_receiver=False)
            case Reset():
                self.rx.close()
            case _:
                raise AssertionError(message)

    def _take(self, runs: list[Payloads]) -> None:
        for run in runs:
            number = run.pub_seq
            for start, length, events in zip(
                run.starts.tolist(), run.lengths.tolist(), run.counts.tolist(), strict=True
            ):
                payload = run.data[start : start + length].tobytes()
                index = int.from_bytes(payload[:8], "little")
                assert payload == payload[:8] * (length // 8)
                self.delivered.append((index, number))
                number = None if number is None else number + events

    def _check_bounds(self) -> None:
        assert self.rx.waiting <= self.rx.capacity
        assert 0 <= self.budget.left <= self.budget.limit
        assert self.tx.outstanding <= 4096
        assert self.tx.unacked_bytes >= 0


def columns(packets: list[tuple[int, bytes, int]]) -> Payloads:
    """Return packets in the layout of a drained batch."""
    lengths = np.array([len(payload) for _, payload, _ in packets], np.int64)
    return Payloads(
        np.array([sequence for sequence, _, _ in packets], np.uint64),
        np.frombuffer(bytearray().join(payload for _, payload, _ in packets), np.uint8),
        np.cumsum(lengths) - lengths,
        lengths,
        np.array([events for _, _, events in packets], np.int64),
    )


def _item(packet: Outstanding) -> Item:
    return packet.sequence, bytes(packet.payload), packet.event_count
