"""Histories of a daemon that moves through a world of faults; `python -m tests.compute.migration.story <seed>` plays one."""

from __future__ import annotations

import random
import sys

from tests.compute.counter import Bulky, Counter, Stubborn
from tests.compute.migration.world import Net, Violation, World

EVENTS = 10_000
MOVES = 50
PATIENCE_S = 1500
"""Virtual seconds; the worst worlds need a fifth of it."""


def play(seed: int, *, events: int = EVENTS, moves: int = MOVES, kind: type[World] = World) -> World:
    """Feed a daemon numbered events while it moves, with everything going wrong, and check the end."""
    rng = random.Random(seed)
    world = kind(seed, events, create=rng.choice([Counter, Stubborn, Bulky]))
    world.net = Net(
        loss=rng.choice([0.0, 0.05, 0.2]),
        duplication=rng.choice([0.0, 0.2]),
        slow=rng.choice([0.0, 0.02, 0.1]),
    )
    world.crashes = rng.choice([0.0, 0.01, 0.03])
    while world.moved < moves:
        # Events come while the daemon is on its way, and the last ones only after the last move.
        world.available = min(world.available + rng.randrange(events // 40), events * (world.moved + 1) // (moves + 1))
        if not world.is_moving():
            world.move()
        elif rng.random() < 0.02:
            world.cancel()
        if rng.random() < 2 * world.crashes:
            world.crash(rng.choice(list(world.machines.values())))
        world.run(rng.uniform(0.05, 0.6))
        if world.now > PATIENCE_S:
            raise Violation("the daemon does not move any more")
    world.heal()
    world.check()
    return world


if __name__ == "__main__":
    played = play(int(sys.argv[1]))
    sys.stdout.write(f"{played.moved} moves, {played.failed} taken back, {played.now:.0f} s, {played.crashed}\n")
    sys.stdout.write(f"{played.counters.snapshot()}\n")
