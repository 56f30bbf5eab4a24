"""A real replica's log in place of `MemoryDisk`: files that lose what was not synced, checked against the model.

Every step of the files is recorded. A loss of power lays out what a disk may have left (tests/log/crash.py) and opens
that: what is found must be the state after a prefix of the writes that has all synced ones, and the model goes on from
there. Damage changes bytes of a hot file.
"""

from __future__ import annotations

import copy
import random
import shutil
from pathlib import Path
from typing import Any

import msgspec

from meshbus.engine.replicas.journal import Recovered
from meshbus.engine.replicas.leadership import Leadership
from meshbus.engine.replicas.records import Ballot, Committed, PersistBallot, Write
from meshbus.log.folder import turn_of
from meshbus.log.replicated import ReplicatedLog
from tests.engine.replicas.memorydisk import Content, MemoryDisk
from tests.engine.replicas.story import play
from tests.engine.replicas.world import Host, World
from tests.log.crash import Disk, Loss, Recorder, lay_out
from tests.log.replicas import carry_out, epochs_of, expected_of, found_in, kill_replica, open_replica

_HEADER = 80
"""Bytes at the start of a hot file that are not changed: they say which version wrote it."""


class RealDisk(MemoryDisk):
    """The disk of one member, below a folder of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._lives = folder, 0
        folder.mkdir(parents=True)
        self._open(folder / "0")

    def write(self, write: Write) -> None:
        carry_out(self.log, _encoded(write))
        super().write(write)

    def sync(self, number: int) -> None:
        """Make everything written so far survive, of which the core is told a part."""
        self.log.sync()
        super().sync(number)

    def commit_to(self, tail: int) -> None:
        """Pass on what the core says is committed, and now and then do the upkeep."""
        self.log.commit_to(tail)
        if tail % 16 == 0:
            self.log.keep()
            assert not self.log.committed.stats.upkeep_failures

    def read(self, first_seq: int, max_events: int, max_bytes: int) -> tuple[bytes, ...]:
        expected = super().read(first_seq, max_events, max_bytes)
        found = self.log.read(first_seq, len(expected), 1 << 30)
        assert found == expected
        return found

    def lose_power(self, rng: random.Random) -> None:
        """Undo what was not synced, as files do it."""
        image = self._disk().left(rng.choice(list(Loss)), rng)
        kill_replica(self.log)
        shutil.rmtree(self._place)
        self._lives += 1
        place = self._folder / str(self._lives)
        lay_out(image, place)
        self._open(place)
        self._take_over()

    def damage(self, count: int) -> None:
        """Change a byte of the last hot file, as far from its end as `count` says, and take what is found then."""
        self.log.close()
        (folder,) = [path for path in (self._place / "root").iterdir() if path.is_dir()]
        hot = max(folder.glob("_hot/*.hot"), key=lambda path: (turn_of(path), path.name))
        content = bytearray(hot.read_bytes())
        content[max(len(content) - 40 * count, _HEADER)] ^= 1
        hot.write_bytes(content)
        self._open(self._place)
        assert self.log.recovered.damaged, "everything was synced"
        self.content = self._found()
        self._synced, self._unsynced = copy.deepcopy(self.content), []

    def recovered(self) -> Recovered:
        """Return what the core is told at its start."""
        found = self.log.recovered
        return msgspec.structs.replace(self.content.recovered(), damaged=found.damaged, committed=found.committed)

    def close(self) -> None:
        self.log.close()
        shutil.rmtree(self._folder)

    def _found(self) -> Content:
        """Return what the files hold, whatever the model says."""
        log = self.log
        found, first = log.recovered, log.first_retained
        before, *epochs, last = epochs_of(found.tail, first, found.runs)
        events = log.read(first, 1 << 20, 1 << 30) if found.tail > first else ()
        ends = epochs[-1] if epochs else before
        ballot = None if found.ballot is None else msgspec.msgpack.decode(found.ballot, type=Ballot)
        return Content(
            ballot, first, list(zip(epochs, events, strict=True)), before, None if last == ends else last,
            list(self.content.aside), list(log.gaps),
        )  # fmt: skip

    def _take_over(self) -> None:
        """Go on from what was found, which must be a state that the writes allow."""
        state = copy.deepcopy(self._synced)
        states = [copy.deepcopy(state)]
        for write in self._unsynced:
            state.apply(write)
            states.append(copy.deepcopy(state))
        first = max(self.log.first_retained, self._synced.first)
        found = found_in(self.log, first)
        possible = [state for state in states if state.first <= first and _same(found, state, first)]
        assert possible, "what the loss of power left is not the state after a prefix of the writes"
        self.content, self._synced, self._unsynced = possible[-1], copy.deepcopy(possible[-1]), []

    def _open(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        self._place = place
        self._before = Disk(place)
        self._files = Recorder(place)
        self.log: ReplicatedLog = open_replica(place / "root", files=self._files, seal_bytes=3_000)

    def _disk(self) -> Disk:
        for step in self._files.steps:
            self._before.take(step)
        self._files.steps.clear()
        return self._before


class RealWorld(World):
    """A world whose members have real files below a folder."""

    folder: Path

    def new_disk(self, node: int) -> RealDisk:
        self._disks = getattr(self, "_disks", 0) + 1
        return RealDisk(self.folder / f"{node}-{self._disks}")

    def wipe(self, node: int) -> None:
        lost = self.hosts[node].disk
        super().wipe(node)
        assert isinstance(lost, RealDisk)
        lost.close()

    def damage(self, node: int, count: int) -> None:
        self.crash(node)
        if self.hosts[node].disk.content.ballot is not None:
            self.hosts[node].disk.damage(count)
            self.wiped = True

    def _recovered(self, host: Host) -> Recovered:
        assert isinstance(host.disk, RealDisk)
        return host.disk.recovered()

    def _hear(self, host: Host, core: Leadership, notice: object) -> None:
        if isinstance(notice, Committed):
            assert isinstance(host.disk, RealDisk)
            host.disk.commit_to(notice.tail)
        super()._hear(host, core, notice)


def play_real(seed: int, folder: Path) -> World:
    """Play one seed with real files."""

    def make_world(*args: Any, **options: Any) -> World:
        kind = type("RealWorldHere", (RealWorld,), {"folder": folder})
        world = kind(*args, **options)
        assert isinstance(world, World)
        return world

    world = play(seed, make_world=make_world)
    for host in world.hosts.values():
        assert isinstance(host.disk, RealDisk)
        host.disk.close()
    return world


def _encoded(write: Write) -> Write:
    if isinstance(write, PersistBallot):
        return PersistBallot(write.number, msgspec.msgpack.encode(write.ballot))  # type: ignore[arg-type]
    return write


def _same(found: dict[str, Any], state: Content, first: int) -> bool:
    expected = expected_of(state, first)
    expected["ballot"] = None if state.ballot is None else msgspec.msgpack.encode(state.ballot)
    return found == expected
