"""A receiver of level B as it was observed, behind a bad network, at a virtual time.

It hands every packet to the application, repeats included, in the order of arrival; it acknowledges and grants what is
new to it, and asks for gaps at once and every 25 ms (dialects.md §1, §2.2). The network loses packets and stops for a
while in either direction, as on a busy machine, but keeps the order.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from functools import partial

from meshbus.engine.base.packets import Output
from meshbus.wire.constants import PACKET_COST, Subprotocol
from meshbus.wire.frames import unpack_frames
from meshbus.wire.messages.streamrepair import StreamNack
from meshbus.wire.messages.window import Grant, encode_grant
from tests.engine.ends import Ends
from tests.engine.streams.plainnet import USER_STREAM

NACK_S = 0.025
DELAY_S = 0.001
STALL_S = 0.4
"""The longest time for which a direction stops: many of our timeouts."""


class LevelB:
    """Our sender, the network, and the receiver."""

    def __init__(self, *, loss: float, stall: float, seed: int) -> None:
        """Lose a share of the packets, and stop before a share of them, in either direction."""
        self.ends = Ends(profile=False)
        self.left = self.ends.left
        self.delivered: list[bytes] = []
        self.now = 0.0
        self._loss, self._stall = loss, stall
        self._chance = random.Random(seed)
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._free = {True: 0.0, False: 0.0}
        """When the last packet of each direction arrives: nothing overtakes it."""
        self._next = self._total = 0
        self._ahead: set[int] = set()
        self._asks_at: float | None = None

    def run(self, out: Output, *, until: float) -> None:
        """Carry the output of the sender and all that follows from it, until nothing is due any more."""
        self._send(out)
        while True:
            timer = self.left.streams.next_timer()
            first = self._due[0][0] if self._due else None
            if first is None and timer is None:
                return
            if first is None or (timer is not None and timer < first):
                assert timer is not None
                self.now = max(self.now + 1e-4, timer)
                self._send(self.left.tick(self.now))
            else:
                self.now, _, happen = heapq.heappop(self._due)
                happen()
            assert self.now < until, "it never ends"

    def _later(self, outgoing: bool, happen: Callable[[], None]) -> None:
        """Carry a packet in a direction, if it is not lost."""
        stall = self._chance.uniform(0, STALL_S) if self._chance.random() < self._stall else 0.0
        arrives = self._free[outgoing] = max(self._free[outgoing], self.now + DELAY_S + stall)
        if self._chance.random() >= self._loss:
            heapq.heappush(self._due, (arrives, next(self._numbers), happen))

    def _send(self, out: Output) -> None:
        for datagram in (datagram for train in out.trains for datagram in train.datagrams()):
            header, plain = self.ends.right.peer.link.opener.open(datagram)
            if header.subprotocol_id != Subprotocol.EVENTS:
                continue
            events = [bytes(event) for event in unpack_frames(plain, header.event_count)]
            self._later(True, partial(self._take, header.sequence, len(plain), events))

    def _take(self, sequence: int, size: int, events: list[bytes]) -> None:
        self.delivered += events
        if sequence < self._next or sequence in self._ahead:
            return  # a repeat is granted to nobody
        self._total += size + PACKET_COST
        self._ahead.add(sequence)
        while self._next in self._ahead:
            self._ahead.remove(self._next)
            self._next += 1
        message = encode_grant(Grant(stream_id=USER_STREAM, total_consumed=self._total, ack_seq=self._next))
        self._answer(lambda out: self.left.traffic.on_grant(message, self.now, out))
        if self._ahead:
            self._ask()

    def _ask(self) -> None:
        nack = StreamNack.of(USER_STREAM, self._next, self._ahead)
        self._answer(lambda out: self.left.traffic.on_nack(nack, self.now, out))
        if self._asks_at is None or self._asks_at <= self.now:
            self._asks_at = self.now + NACK_S
            heapq.heappush(self._due, (self._asks_at, next(self._numbers), self._ask_again))

    def _ask_again(self) -> None:
        self._asks_at = None
        if self._ahead:
            self._ask()

    def _answer(self, hear: Callable[[Output], None]) -> None:
        def arrive() -> None:
            out = Output()
            hear(out)
            self._send(out)

        self._later(False, arrive)
