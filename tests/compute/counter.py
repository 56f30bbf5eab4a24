"""A daemon for tests: counts events and remembers their order, so that a lost, repeated or swapped one shows."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import xxhash

from meshbus.compute.daemon import DaemonEvent

_STATE = struct.Struct("<QQ")


class Counter:
    """Its outputs depend on all events so far: none, one or two for each event."""

    deterministic = True

    def __init__(self) -> None:
        self.count = 0
        self.digest = 0

    def process(self, event: DaemonEvent) -> list[bytes]:
        self.count += 1
        self.digest = xxhash.xxh3_64_intdigest(self.digest.to_bytes(8, "little") + event.payload)
        return [b"%d.%d:%016x" % (self.count, place, self.digest) for place in range(self.digest % 3)]

    def snapshot(self) -> bytes:
        return _STATE.pack(self.count, self.digest)

    def restore(self, state: bytes) -> None:
        self.count, self.digest = _STATE.unpack(state[: _STATE.size])


class OneEach(Counter):
    """One output for each event, as the recorded daemon has."""

    def process(self, _event: DaemonEvent) -> list[bytes]:
        self.count += 1
        return [self.count.to_bytes(4, "little")]


class Stubborn(Counter):
    """The same, but it is stopped while its state is copied."""

    deterministic = False


class Bulky(Counter):
    """The same, with a state of several parts."""

    def snapshot(self) -> bytes:
        return super().snapshot() + bytes(20_000)


def run_alone(payloads: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    """Return the state and the outputs of a counter that never moves."""
    counter = Counter()
    outputs = [
        output for number, payload in enumerate(payloads) for output in counter.process(DaemonEvent(0, number, payload))
    ]
    return counter.snapshot(), outputs
