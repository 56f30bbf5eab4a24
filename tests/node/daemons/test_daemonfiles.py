"""Records of daemons in files: durable when a call returns, whole or not there after a crash at any step."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshbus.compute.store import Decision, Mark, Outcome, Status, Stored
from meshbus.errors import ConfigError, LogError, LogFault
from meshbus.log.files import Files
from meshbus.node.daemons.daemonfiles import DaemonFiles
from meshbus.wire.messages.causal import CausalLink
from meshbus.wire.messages.migration import BufferedEvent
from tests.compute.memorystore import MemoryStore

ONE, TWO = 0x0123456789ABCDEF, 2**64 - 1


def stored(status: Status, state: bytes = b"state", moves: int = 0) -> Stored:
    return Stored(mark=Mark(status=status, moves=moves), snapshot=state, seed=bytes(32))


def event(number: int) -> BufferedEvent:
    return BufferedEvent(CausalLink(1, 0, number, 0), b"%d" % number, number)


def opened(folder: Path, files: Files | None = None) -> DaemonFiles:
    return DaemonFiles(folder, os.urandom, files)


def content(store: DaemonFiles | MemoryStore) -> dict[int, Stored | None]:
    return {origin: store.load(origin) for origin in store.origins()}


def test_records_survive_and_are_for_this_user_only(tmp_path: Path) -> None:
    store = opened(tmp_path / "daemons")
    store.save(ONE, stored(Status.STAGED))
    store.append(ONE, [event(1), event(2)])
    store.append(ONE, [event(3)])
    store.mark(ONE, Mark(status=Status.ACTIVE, moves=4))
    store.save(TWO, stored(Status.MOVED))
    decision = Decision(origin=ONE, source=1, target=2, attempt=3, outcome=Outcome.BEGIN)
    store.decide(decision)
    store.decide(msgspec.structs.replace(decision, origin=TWO))
    store.settle(TWO)
    before = content(store)
    store.close()
    again = opened(tmp_path / "daemons")
    assert content(again) == before
    assert before[ONE] == Stored(
        mark=Mark(status=Status.ACTIVE, moves=4),
        snapshot=b"state",
        seed=bytes(32),
        replayed=tuple(map(event, (1, 2, 3))),
    )
    assert again.decisions() == [decision]
    assert again.damaged == {}
    for path in (tmp_path / "daemons").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    again.remove(ONE)
    again.remove(0)
    assert again.origins() == [TWO]
    again.close()
    assert opened(tmp_path / "daemons").origins() == [TWO]


def test_two_nodes_cannot_share_a_directory(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(ConfigError, match="used by another node"):
        opened(tmp_path)
    store.close()
    opened(tmp_path).close()


def test_a_damaged_record_refuses_its_daemon_and_no_other(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save(ONE, stored(Status.ACTIVE))
    store.save(TWO, stored(Status.ACTIVE))
    store.decide(Decision(origin=7, source=1, target=2, attempt=3, outcome=Outcome.BEGIN))
    store.close()
    path = tmp_path / f"{ONE:016x}" / "checkpoint"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    decided = tmp_path / "decisions" / f"{7:016x}"
    decided.write_bytes(decided.read_bytes()[:-1] + b"?")
    again = opened(tmp_path)
    assert again.origins() == [TWO]
    assert again.decisions() == []
    assert again.damaged.keys() == {ONE, 7}
    assert "remove it to begin anew" in again.damaged[ONE]


class Crash(Exception):
    """The process ends here."""


class Mortal(Files):
    """Ends after so many operations that change something."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _spend(self) -> None:
        if self.left == 0:
            raise Crash
        self.left -= 1

    def create(self, path: Path) -> int:
        self._spend()
        return super().create(path)

    def write(self, handle: int, parts: Sequence[Any], at: int) -> int:
        self._spend()
        whole = b"".join(parts)
        if self.left == 0:  # dies in the middle of it
            super().write(handle, [whole[: len(whole) // 2]], at)
            raise Crash
        return super().write(handle, parts, at)

    def truncate(self, handle: int, size: int) -> None:
        self._spend()
        super().truncate(handle, size)

    def fsync(self, handle: int) -> None:
        self._spend()
        super().fsync(handle)

    def fsync_folder(self, path: Path) -> None:
        self._spend()
        super().fsync_folder(path)

    def rename(self, old: Path, new: Path) -> None:
        self._spend()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self._spend()
        super().remove(path)


def steps(chance: random.Random) -> list[Callable[[Any], None]]:
    """Return a story of calls that a node could make."""
    story: list[Callable[[Any], None]] = [lambda store: store.save(ONE, stored(Status.ACTIVE, b"first"))]
    for number in range(6):
        choices: list[Callable[[Any], None]] = [
            lambda store, n=number: store.save(ONE, stored(Status.ACTIVE, b"state %d" % n)),  # type: ignore[misc]
            lambda store, n=number: store.mark(ONE, Mark(status=Status.MOVED, moves=n)),  # type: ignore[misc]
            lambda store, n=number: store.append(ONE, [event(n)]),  # type: ignore[misc]
        ]
        story += [chance.choice(choices)]
    story.append(lambda store: store.remove(ONE))
    story.append(lambda store: store.save(ONE, stored(Status.STAGED, b"again")))
    return story


def test_after_a_crash_at_any_step_there_is_what_was_before_the_call_or_after_it(tmp_path: Path) -> None:
    for seed in range(4):
        story = steps(random.Random(seed))
        for left in range(90):
            folder = tmp_path / f"{seed}-{left}"
            opened(folder).close()
            mortal = Mortal(left + 1)  # opening syncs the folder
            store, memory = opened(folder, mortal), MemoryStore()
            crashed = False
            for step in story:
                before = content(memory)
                try:
                    step(store)
                except Crash:
                    step(memory)
                    store.close()
                    after = content(memory)
                    survivor = opened(folder)
                    found = content(survivor)
                    assert survivor.damaged == {}, f"seed {seed}, crash after {left} operations"
                    assert found in (before, after), f"seed {seed}, crash after {left} operations"
                    # Life goes on: what was cut off does not stand in the way.
                    survivor.save(ONE, stored(Status.ACTIVE, b"next"))
                    survivor.append(ONE, [event(9)])
                    survivor.close()
                    last = opened(folder)
                    assert last.load(ONE) == msgspec.structs.replace(
                        stored(Status.ACTIVE, b"next"), replayed=(event(9),)
                    )
                    last.close()
                    crashed = True
                    break
                step(memory)
            if not crashed:
                store.close()
                break


def test_a_large_state_of_which_little_changes_is_not_written_again(tmp_path: Path) -> None:
    class Counting(Files):
        written = 0
        syncs = 0

        def write(self, handle: int, parts: Sequence[Any], at: int) -> int:
            self.written += sum(map(len, parts))
            return super().write(handle, parts, at)

        def fsync(self, handle: int) -> None:
            self.syncs += 1
            super().fsync(handle)

        def fsync_folder(self, path: Path) -> None:
            self.syncs += 1
            super().fsync_folder(path)

    files = Counting()
    store = opened(tmp_path, files)
    state = bytearray(random.Random(1).randbytes(4 << 20))
    store.save(ONE, stored(Status.ACTIVE, bytes(state)))
    store.mark(ONE, Mark(status=Status.ACTIVE))
    files.written = files.syncs = 0
    for number in range(50):
        state[number * 80_000] ^= 1
        store.save(ONE, stored(Status.ACTIVE, bytes(state), moves=number))
        store.mark(ONE, Mark(status=Status.ACTIVE, moves=number + 1))
    assert files.syncs == 100
    assert files.written < 50 * 20_000
    store.close()
    again = opened(tmp_path)
    assert again.load(ONE) == stored(Status.ACTIVE, bytes(state), moves=50)
    again.close()


def test_a_journal_does_not_grow_beyond_its_checkpoint(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(40):
        store.save(ONE, stored(Status.ACTIVE, random.Random(number).randbytes(200_000)))
        assert sum(path.stat().st_size for path in (tmp_path / f"{ONE:016x}").iterdir()) < 1_400_000
    store.close()
    again = opened(tmp_path)
    found = again.load(ONE)
    assert found is not None
    assert found.snapshot == random.Random(39).randbytes(200_000)
    again.close()


def test_the_state_of_a_daemon_that_left_does_not_stay_in_memory(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save(ONE, stored(Status.ACTIVE, bytes(2 << 20)))
    store.mark(ONE, Mark(status=Status.MOVED, target=7))
    assert not store._snapshots
    store.save(ONE, stored(Status.STAGED, b"back"))
    assert store.load(ONE) == stored(Status.STAGED, b"back")
    store.close()


def test_decisions_follow_each_other_and_survive_a_crash_at_any_step(tmp_path: Path) -> None:
    decision = Decision(origin=ONE, source=1, target=2, attempt=3, outcome=Outcome.HAND_OVER)
    story: list[Callable[[Any], None]] = [
        lambda store: store.decide(decision),
        lambda store: store.decide(msgspec.structs.replace(decision, outcome=Outcome.BEGIN)),
        lambda store: store.settle(ONE),
        lambda store: store.settle(ONE),
        lambda store: store.decide(msgspec.structs.replace(decision, attempt=4)),
    ]
    for left in range(30):
        folder = tmp_path / str(left)
        opened(folder).close()
        store, memory = opened(folder, Mortal(left + 1)), MemoryStore()
        for step in story:
            before = memory.decisions()
            step(memory)
            try:
                step(store)
            except Crash:
                store.close()
                survivor = opened(folder)
                assert survivor.decisions() in (before, memory.decisions()), f"crash after {left} operations"
                survivor.decide(msgspec.structs.replace(decision, attempt=9))
                survivor.close()
                last = opened(folder)
                assert last.decisions() == [msgspec.structs.replace(decision, attempt=9)]
                assert not last.damaged
                last.close()
                break
        else:
            store.close()
            return
    raise AssertionError("the story never came to its end")


def test_an_append_after_a_group_that_was_cut_off_keeps_both_sides_whole(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.save(ONE, stored(Status.STAGED))
    store.append(ONE, [event(1)])
    store.close()
    path = tmp_path / f"{ONE:016x}" / "journal"
    path.write_bytes(path.read_bytes() + b"\x40\0\0\0half a group")
    again = opened(tmp_path)
    again.append(ONE, [event(2)])
    again.close()
    last = opened(tmp_path)
    found = last.load(ONE)
    assert found is not None
    assert found.replayed == (event(1), event(2))
    assert last.damaged == {}


def test_a_disk_that_refuses_is_a_log_error(tmp_path: Path) -> None:
    class Full(Files):
        def fsync(self, handle: int) -> None:
            raise OSError(28, f"No space left on device for {handle}")

    store = opened(tmp_path, Full())
    with pytest.raises(LogError, match="free some space"):
        store.save(ONE, stored(Status.ACTIVE))


def test_a_directory_of_a_newer_build_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    opened(tmp_path).close()
    version = tmp_path / "version"
    assert version.read_bytes() == b'{"version":1}\n'
    version.write_bytes(b'{"version":2}')
    for child in ("decisions", "lock"):
        assert (tmp_path / child).exists()
    with pytest.raises(LogError, match="records of daemons, version 2, was written by a newer meshbus") as caught:
        opened(tmp_path)
    assert caught.value.fault is LogFault.NEWER
    version.write_bytes(b"2")
    with pytest.raises(LogError, match="version is damaged; restore it"):
        opened(tmp_path)
    version.unlink()
    opened(tmp_path).close()
    assert version.read_bytes() == b'{"version":1}\n'
