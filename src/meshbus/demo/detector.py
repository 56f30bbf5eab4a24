"""The demo's daemon: finds jumps in the poses of a rover, and moves away from it when its battery fails.

A step is an anomaly if its square is more than `FACTOR` times the mean square of all steps before it. Everything is in
whole millimeters, so that two computations agree to the last bit. `anomalies` computes the same from all poses at once, in
another way: the demo compares both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from meshbus.compute.daemon import DaemonEvent

FACTOR = 4


class Pose(msgspec.Struct, frozen=True):
    """What the detector reads of a pose."""

    n: int
    x: float
    y: float


class State(msgspec.Struct):
    """What the detector remembers."""

    last: tuple[int, int] | None = None
    """The pose before, in millimeters."""
    steps: int = 0
    squares: int = 0
    """Sum of the squares of all steps."""
    found: int = 0


_POSE = msgspec.json.Decoder(Pose)
_STATE = msgspec.json.Decoder(State)


class Detector:
    """Turns poses into anomalies; a daemon (compute/daemon.py)."""

    deterministic = True

    def __init__(self) -> None:
        self._state = State()

    def process(self, event: DaemonEvent) -> list[bytes]:
        """Return an anomaly if the rover has jumped."""
        state, pose = self._state, _POSE.decode(event.payload)
        here, before = _millimeters(pose), state.last
        state.last = here
        if before is None:
            return []
        square = (here[0] - before[0]) ** 2 + (here[1] - before[1]) ** 2
        jumped = square * state.steps > FACTOR * state.squares > 0
        state.steps += 1
        state.squares += square
        if not jumped:
            return []
        state.found += 1
        return [anomaly(pose.n, state.found, math.isqrt(square))]

    def snapshot(self) -> bytes:
        """Return the state."""
        return msgspec.json.encode(self._state)

    def restore(self, state: bytes) -> None:
        """Take over a state."""
        self._state = _STATE.decode(state)


def anomaly(n: int, number: int, step_mm: int) -> bytes:
    """Return the payload of an anomaly: the number of the pose, how many there were so far, and the length of the step."""
    return b'{"n":%d,"anomaly":%d,"step_mm":%d}' % (n, number, step_mm)


def anomalies(poses: Sequence[bytes]) -> list[bytes]:
    """Return what a detector must find in poses, from sums over all of them."""
    import numpy as np

    rows = [_POSE.decode(pose) for pose in poses]
    places = np.array([_millimeters(row) for row in rows], np.int64).reshape(-1, 2)
    squares = (np.diff(places, axis=0) ** 2).sum(axis=1)
    sums, counts = np.cumsum(squares) - squares, np.arange(len(squares))
    jumps = np.flatnonzero((squares * counts > FACTOR * sums) & (sums > 0))
    return [
        anomaly(rows[jump + 1].n, number, math.isqrt(int(squares[jump])))
        for number, jump in enumerate(jumps.tolist(), 1)
    ]


def _millimeters(pose: Pose) -> tuple[int, int]:
    return round(pose.x * 1000), round(pose.y * 1000)
