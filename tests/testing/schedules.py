"""Fault schedules for simulated fleets: what goes wrong, when, all from a seed."""

from __future__ import annotations

import random

from meshbus.testing.fakenet import FakePath
from meshbus.testing.simulation import Simulation
from meshbus.testing.topology import Link, Links, grid, line, random_graph, ring, tree

SHAPES = (line(6), ring(7), grid(3, 3), tree(7), random_graph(8, 3))
PATIENCE_S = 60.0
"""Over four rough hops a third of all handshakes gets lost, and each is tried again after five seconds."""
ROUGH = FakePath(loss=0.05, duplication=0.05, jitter_s=0.01, reordering=0.05)


def single_failures(links: Links) -> list[tuple[str, Link | int]]:
    """Return every link and every node that may fail."""
    nodes = sorted({number for link in links for number in link})
    return [("link", link) for link in sorted(links)] + [("node", number) for number in nodes]


def play_schedule(seed: int, faults: int = 6) -> Simulation:
    """Run a small fleet through random faults, repair everything, and let every pair within reach exchange events again.

    Raises SimulationError when a rule is broken on the way, or when somebody stays out of reach.
    """
    chance = random.Random(f"schedule {seed}")
    links = SHAPES[seed % len(SHAPES)]
    rough = chance.random() < 0.5
    sim = Simulation(seed=seed, path=ROUGH if rough else FakePath(jitter_s=0.005))
    sim.build(links)
    sim.run(for_s=2 * sim.heartbeat_s)
    broken: set[Link] = set()
    for _ in range(faults):
        match chance.randrange(5):
            case 0 if len(sim.links) > 1:
                link = chance.choice(sorted(sim.links))
                broken.add(link)
                sim.unlink(*link)
            case 1:
                living = sorted({number for link in links for number in link} - sim.down)
                if len(living) > 2:
                    sim.crash(chance.choice(living))
            case 2 if sim.down:
                sim.restart(chance.choice(sorted(sim.down)), memory=chance.random() < 0.5)
            case 3 if broken:
                link = chance.choice(sorted(broken))
                broken.discard(link)
                sim.link(*link)
            case 4:
                numbers = sorted({number for link in links for number in link})
                cut = chance.randrange(1, len(numbers))
                sim.partition(numbers[:cut], numbers[cut:])
                sim.run(for_s=chance.uniform(0.1, 5.0))
                sim.heal()
        sim.run(for_s=chance.uniform(0.05, 8.0))
    for number in sorted(sim.down):
        sim.restart(number, memory=chance.random() < 0.5)
    for link in sorted(broken):
        sim.link(*link)
    sim.run(for_s=sim.healing_s)
    heard = sim.talk(sim.within_radius(), within_s=PATIENCE_S)
    out_of_reach = {pair: reason for pair, reason in heard.items() if reason}
    if out_of_reach:
        raise sim.fail(f"out of reach after everything was mended: {out_of_reach}")
    return sim


def play_failure(links: Links, kind: str, what: Link | int, seed: int = 0) -> Simulation:
    """Remove a link or a node from a fleet in which all near nodes know each other, and check that it heals in time.

    Raises SimulationError when a pair that is still near enough cannot talk at once when the documented time is over.
    """
    sim = Simulation(seed=seed)
    sim.build(links)
    sim.run(for_s=2 * sim.heartbeat_s)
    before = sim.talk(sim.within_radius(), within_s=1.0)
    if any(before.values()):
        raise sim.fail(f"could not talk in the first place: {before}")
    if isinstance(what, int):
        sim.crash(what)
    else:
        sim.unlink(*what)
    sim.run(for_s=sim.healing_s)
    left = {pair: reason for pair, reason in sim.talk(sim.within_radius(), within_s=0.5).items() if reason}
    if left:
        raise sim.fail(f"still apart {sim.healing_s:g} s after {kind} {what} failed: {left}")
    return sim
