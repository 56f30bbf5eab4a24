"""Stories: random faults and random clients for a world, from one seed; and deliberate bugs that a checker must find.

`python -m tests.engine.replicas.story 1234 5` plays one seed with five members and prints what happened.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

from meshbus.engine.replicas.records import Acks
from tests.engine.replicas.world import HEARTBEAT_S, World

FAULTY_S = 12.0
"""How long faults go on, in virtual seconds."""


def play(seed: int, members: int | None = None, make_world: Callable[..., World] = World) -> World:
    """Play one seed: faults and clients for a while, then everything is repaired and checked."""
    rng = random.Random(seed)
    count = members or rng.choice((3, 3, 3, 5))
    world = make_world(rng.randrange(1 << 32), count, extra=rng.choice((0, 0, 1)))
    for host in world.hosts.values():
        host.drift = rng.choice((1.0, rng.uniform(0.9, 1.1)))
        host.offset_s = rng.uniform(0, 1000)
        host.sync_s = rng.choice((0.001, 0.01, 0.1, 0.2))
    world.net.delay_s = rng.choice((0.001, 0.01, 0.05))
    world.net.loss = rng.choice((0, 0.02, 0.2))
    world.net.duplication = rng.choice((0, 0.1))
    world.net.slow = rng.choice((0, 0.02, 0.1, 0.3))
    world.duels = rng.random() < 0.3
    world.fragile = rng.choice((0, 0, 0.1, 0.4))
    world.start()
    world.run(rng.uniform(0, 2))
    _clients(world, rng)
    _faults(world, rng)
    world.run(FAULTY_S)
    world.heal()
    world.check()
    return world


def _clients(world: World, rng: random.Random) -> None:
    acks = rng.choice(((Acks.MAJORITY,), (Acks.MAJORITY, Acks.MAJORITY, Acks.LOCAL)))
    size = rng.choice((0, 0, 0, 3000))
    stop = world.now + FAULTY_S

    def act() -> None:
        # Clients try every node that believes it leads: the deposed ones too.
        for host, core in world.cores():
            if core.lead is not None and not core.halted:
                if rng.random() < 0.8:
                    world.append(host.node, rng.randint(1, 6), rng.choice(acks), size)
                if rng.random() < 0.3:
                    world.read(host.node)
        if world.now < stop:
            world.at(rng.expovariate(1 / 0.08), act)

    world.at(0, act)


def _faults(world: World, rng: random.Random) -> None:
    stop = world.now + FAULTY_S
    faults: list[Callable[[World, random.Random], None]] = [
        _crash, _crash, _crash_leader, _cut_off, _cut_one_way, _part, _part, _isolate_leader, _isolate_leader, _isolate_leader,
        _repair, _repair, _repair, _disk_fails, _jump, _trim, _slow_disk, _join,
    ]  # fmt: skip
    if rng.random() < 0.4:
        faults += [_wipe, _damage]
    rate_s = rng.choice((0.1, 0.3, 0.6, 1.5))

    def act() -> None:
        if world.now < stop:
            rng.choice(faults)(world, rng)
            world.at(rng.expovariate(1 / rate_s), act)

    world.at(0, act)


def _any(world: World, rng: random.Random) -> int:
    return rng.choice(list(world.hosts))


def _crash(world: World, rng: random.Random, node: int | None = None) -> None:
    node = node or _any(world, rng)
    if world.hosts[node].core is not None:
        world.crash(node)
        world.at(rng.expovariate(1 / rng.choice((0.02, 0.8))), lambda: _restart(world, node))


def _restart(world: World, node: int) -> None:
    if world.hosts[node].core is None:
        world.start(node)


def _crash_leader(world: World, rng: random.Random) -> None:
    leader = world.leader()
    if leader is not None:
        _crash(world, rng, leader.seat.own)


def _cut_off(world: World, rng: random.Random) -> None:
    group = set(rng.sample(list(world.hosts), rng.randint(1, len(world.hosts) - 1)))
    world.net.cut = {(a, b) for a in world.hosts for b in world.hosts if (a in group) != (b in group)}


def _isolate_leader(world: World, rng: random.Random) -> None:
    """Cut the leader off, from all others or in one direction, for about as long as it takes to be replaced."""
    leader = world.leader()
    if leader is not None:
        own = leader.seat.own
        links = {(own, other) for other in world.hosts} | {(other, own) for other in world.hosts if rng.random() < 0.7}
        world.net.cut |= links
        world.at(rng.uniform(2, 12) * HEARTBEAT_S, lambda: world.net.cut.difference_update(links))


def _cut_one_way(world: World, rng: random.Random) -> None:
    a, b = rng.sample(list(world.hosts), 2)
    world.net.cut.add((a, b))


def _part(world: World, rng: random.Random) -> None:
    """Cut the leader off from one other, and for a shorter time from a third: what that one promised, it must remember."""
    leader = world.leader()
    if leader is not None:
        own = leader.seat.own
        other, third = rng.sample([node for node in world.nodes if node != own], 2)
        longer, shorter = ({(own, node), (node, own)} for node in (other, third))
        world.net.cut |= longer | shorter
        world.at(rng.uniform(8, 15) * HEARTBEAT_S, lambda: world.net.cut.difference_update(longer))
        world.at(rng.uniform(3, 7) * HEARTBEAT_S, lambda: world.net.cut.difference_update(shorter))


def _repair(world: World, rng: random.Random) -> None:
    world.net.cut = set()


def _disk_fails(world: World, rng: random.Random) -> None:
    world.fail_disk(_any(world, rng))


def _jump(world: World, rng: random.Random) -> None:
    """A clock jumps forward, or back, by more than any patience."""
    host = world.hosts[_any(world, rng)]
    host.offset_s += rng.choice((-1, 1)) * rng.uniform(0, 20 * HEARTBEAT_S)


def _slow_disk(world: World, rng: random.Random) -> None:
    world.hosts[_any(world, rng)].sync_s = rng.choice((0.001, 0.05, 0.3))


def _trim(world: World, rng: random.Random) -> None:
    """Retention removes committed events."""
    host = world.hosts[_any(world, rng)]
    if host.core is not None:
        host.core.retained(rng.randint(0, host.core.committed))
        host.disk.trim(host.core.seat.journal.first_retained)


def _join(world: World, rng: random.Random) -> None:
    """A node that was not there before starts, and is made a member."""
    idle = [host.node for host in world.hosts.values() if not host.life]
    if idle:
        world.start(idle[0])


def _wipe(world: World, rng: random.Random) -> None:
    """A member loses its disk; once, because another loss before it is copied again may exceed a minority."""
    if not world.wiped:
        node = _any(world, rng)
        if world.hosts[node].core is not None:
            world.wipe(node)
            world.at(rng.expovariate(1 / 0.8), lambda: _restart(world, node))


def _damage(world: World, rng: random.Random) -> None:
    """The last events of a member become unreadable; once, for the same reason."""
    if not world.wiped:
        node = _any(world, rng)
        if world.hosts[node].core is not None:
            world.damage(node, rng.randint(1, 60))
            world.at(rng.expovariate(1 / 0.8), lambda: _restart(world, node))


if __name__ == "__main__":
    played = play(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
    found = played.checker
    sys.stdout.write(
        f"{len(found.acknowledged)} events acknowledged, {found.reads} reads, {len(found.leaders)} epochs, "
        f"{played.messages} messages\n"
    )
