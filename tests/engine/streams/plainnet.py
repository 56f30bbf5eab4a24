"""Two nodes without the profile and a bad network between them, at a virtual time: what a net-mesh peer would see."""

from __future__ import annotations

import random
from collections.abc import Callable

from meshbus.engine.base.packets import Output
from tests.engine.ends import End, Ends

USER_STREAM = 77
"""A stream that is no channel's, so that its reliable packets are put in order."""


class PlainNet:
    """Carries what both ends send until nothing is under way and no timer is due."""

    def __init__(self, *, loss: float = 0.0, seed: int = 0) -> None:
        self.ends = Ends(profile=False)
        self.left, self.right = self.ends.left, self.ends.right
        self.now = 0.0
        self.delivered: list[bytes] = []
        self.control: list[object] = []
        self.sent: list[tuple[str, int, int]] = []
        """Sender, subprotocol and flags of every packet."""
        self.judge: Callable[[], bool] = lambda: self._chance.random() >= loss
        """Whether the next datagram gets through."""
        self._chance = random.Random(seed)

    def run(self, out: Output, sender: End, *, until: float) -> None:
        """Carry the output of an end and all that follows from it."""
        waiting = [(sender, out)]
        while self.now < until:
            while waiting:
                origin, output = waiting.pop(0)
                answer = self._carry(origin, output)
                if answer is not None:
                    waiting.append(answer)
            timers = [time for end in (self.left, self.right) if (time := end.streams.next_timer()) is not None]
            if not timers or min(timers) > until:
                return
            self.now = max(self.now + 1e-4, min(timers))
            for end in (self.left, self.right):
                output = end.tick(self.now)
                end.delivery.tick(self.now, output)
                self._keep(output, end)
                waiting.append((end, output))

    def _carry(self, sender: End, out: Output) -> tuple[End, Output] | None:
        receiver = self.right if sender is self.left else self.left
        self.control += out.control
        datagrams = [datagram for train in out.trains for datagram in train.datagrams()]
        if not datagrams:
            return None
        lost = [place for place in range(len(datagrams)) if not self.judge()]
        answer, headers = self.ends.carry(out, receiver, self.now, lost=lost)
        receiver.delivery.received(self.now, answer)
        self.sent += [(sender.name, header.subprotocol_id, int(header.flags)) for header in headers]
        self._keep(answer, receiver)
        return receiver, answer

    def _keep(self, out: Output, end: End) -> None:
        if end is self.right:
            self.delivered += [payload for batch in out.events for payload in batch.payloads()]
