"""Write the hot files of a replicated log: events with their epochs, ballots, and turns (log/embedded/controls.py).

All writes go to the same files in their order, so one sync serves them all, and a loss of power leaves the state after a
prefix of them. Events become visible to readers when they are committed and synced here (log/embedded/marks.py).

Setting events aside does not change what is written: a new hot file begins at an earlier sequence, and contains the
events that it replaces. After the next sync they get a side file of their own, and files of which nothing is left are
removed. Until then, nothing is sealed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.asides import aside_path, store_aside
from meshbus.log.embedded.block import pack_control, unpack_block
from meshbus.log.embedded.controls import (
    NewBallot,
    NewEpoch,
    Opening,
    Record,
    SetAside,
    State,
    encode_record,
    opening_of,
)
from meshbus.log.embedded.hot import HotIndex
from meshbus.log.embedded.logmanifest import Manifest, Replica
from meshbus.log.embedded.marks import MarkFile, committed_end, end_of
from meshbus.log.embedded.recovery import Opened, Recovered, create_hot
from meshbus.log.embedded.replicarecovery import Place, recover_replica
from meshbus.log.embedded.snapshot import Snapshot
from meshbus.log.embedded.writer import Writer, Written
from meshbus.log.files import is_full, log_error, translated
from meshbus.log.folder import HOT, turn_of
from meshbus.seldom import SeldomWarning

if TYPE_CHECKING:
    from meshbus.log.backend import Given, OpenOptions

_log = logging.getLogger("meshbus.log")


class Turned(NamedTuple):
    """A turn that has begun and whose consequences are not on the disk yet."""

    turn: int
    hot: HotIndex
    asides: tuple[SetAside, ...]
    replaced: list[Path]


class ReplicaWriter(Writer):
    """Appends to one replica, as its only writer."""

    def __init__(self, folder: Path, options: OpenOptions, log_id: bytes) -> None:
        """Lock the folder and recover its contents; raises LogError if that fails."""
        self._log_id = log_id
        self.state = State()
        """Ballot, epochs and gaps as they are written."""
        self.turn = 0
        self.damage = ""
        """What opening found to be damaged; empty if nothing was."""
        self._todo: list[Turned] = []
        self._skipped_to = 0
        self._warn_mark, self._warn_aside = (SeldomWarning(_log, options.monotonic) for _ in range(2))
        super().__init__(folder, options)
        try:
            self._marks = MarkFile(self.files, folder)
        except OSError as error:
            super().close()
            raise log_error(error, folder, "cannot open") from error
        self._committed = self._visible = committed_end(self._marks.newest, self.hot, self.manifest.hot_from)
        self._synced_to = end_of(self.hot)
        self._todo = [
            Turned(turn_of(hot.path), hot, opening.asides, [])
            for hot in self.hot
            if (opening := opening_of(hot.controls)) and opening.asides
        ]
        with self._lock:
            self._mark()
        self._finish_turns(self.turn)

    @property
    def shown(self) -> int:
        """Readers see the events below this sequence: committed, and on this disk."""
        return max(self._visible, self._skipped_to, self.manifest.hot_from)

    @property
    def complete(self) -> list[HotIndex]:
        """The hot files that are no longer appended to and committed as a whole."""
        last = self.hot[-1]
        # The ballot is in the last file, and in those before it, which must stay until that one is on the disk. What was
        # skipped expires first.
        unsettled = self._todo or self._synced_to < (turn_of(last.path), last.header.first)
        if unsettled or self._skipped_to > self.manifest.first:
            return []
        return [hot for hot in self.hot[:-1] if hot.end <= self._visible]

    @property
    def floor(self) -> int:
        """Everything below this sequence is to expire: the log goes on there."""
        return self.manifest.first if self._todo else self.first

    @property
    def first(self) -> int:
        """The first sequence that is part of the log."""
        return max(self.manifest.first, self._skipped_to)

    def described(self) -> Manifest:
        """Return the manifest for a segment to be added to, with the epochs as they are known now."""
        state = self.state.trimmed(self.manifest.first)
        return replace(self.manifest, replica=Replica(state.runs, state.gaps))

    def roll(self, now_ns: int, due: Callable[[HotIndex], bool]) -> None:
        """Begin a new hot file if the last one holds events and is due, and sync that."""
        before = self.hot[-1]
        super().roll(now_ns, due)
        if self.hot[-1] is not before:
            self.sync()

    # ── writes ──────────────────────────────────────────────────────────────────────────────

    def append(self, *_append: object) -> int:
        """Refuse: what is appended is decided by the leader."""
        raise LogError(
            LogFault.READ_ONLY, f"the log of {self.channel} is replicated: publish to the channel, through its leader"
        )

    def append_in(
        self,
        epoch: int,
        first_seq: int,
        count: int,
        offsets: bytes | memoryview,
        data: bytes | memoryview,
        given: Given | None,
        now_ns: int,
    ) -> None:
        """Append events of an epoch at the end of the log; without events, record that the epoch starts there."""  # hot
        with self._lock:
            self.check_open()
            if first_seq != self.end:
                raise ValueError(f"events are appended at {self.end}, the end of the log, got {first_seq}")
            last = self._make_room(now_ns)
            control, state = b"", self.state
            if epoch != state.epoch:
                state = state.started(epoch, first_seq)
                control = self._control(NewEpoch(epoch, first_seq, joined=count > 0), now_ns)
            elif not count:
                return
            block = self._pack(last, count, offsets, data, given, now_ns) if count else []
            size = self._put([control, *block] if control else block) - len(control)
            last.size += len(control)
            self.state = state
            if count:
                last.add(size, count, now_ns)
            self.stats.appended += count
            self.stats.appended_bytes += size
            self.full = False

    def persist(self, ballot: bytes, now_ns: int) -> None:
        """Replace the ballot."""
        with self._lock:
            self.check_open()
            control = self._control(NewBallot(ballot), now_ns)
            self._put([control])
            self.hot[-1].size += len(control)
            self.state = replace(self.state, ballot=ballot, damaged=False)

    def set_aside(self, first_seq: int, now_ns: int) -> None:
        """Move the events from a sequence on out of the log."""
        with self._lock:
            self.check_open()
            if first_seq == self.end:
                return
            if not self.shown <= first_seq < self.end:
                raise LogError(
                    LogFault.FAILED,
                    f"cannot set aside the events of {self.channel} from {first_seq} on: those below {self.shown} are"
                    f" committed, and the log ends at {self.end}",
                )
            kept = [hot for hot in self.hot if hot.header.first < first_seq]
            after = turn_of(kept[-1].path) if kept else -1
            with translated(self.folder, "cannot read"):
                asides = (*self._unfinished(kept), self._collect(first_seq))
            # The file that it replaces may be the one that skipped, and the manifest may not know of that yet.
            skips = not kept and self._skipped_to > self.manifest.first
            opening = Opening(self.state.cut(first_seq), after, skips, asides)
            self._turn(first_seq, opening, kept, now_ns)
            if kept:
                kept[-1].cut(first_seq)
            self.durable = min(self.durable, first_seq)

    def skip_to(self, first_seq: int, epoch: int, now_ns: int) -> None:
        """Continue at a later sequence; everything before it is no longer part of the log."""
        with self._lock:
            self.check_open()
            end = self.end
            if first_seq <= end:
                raise ValueError(f"a gap leads forward from {end}, the end of the log, got {first_seq}")
            state = replace(self.state, runs=((epoch, end),), gaps=(*self.state.gaps, (end, first_seq)))
            self._turn(first_seq, Opening(state, skips=True, asides=self._unfinished([])), [], now_ns)
            self._skipped_to = first_seq

    # ── commits ─────────────────────────────────────────────────────────────────────────────

    def commit_to(self, tail: int) -> None:
        """Record that the events below a sequence are committed; readers see those that are synced."""
        with self._lock:
            self._committed = max(self._committed, tail)
            grown = self._show()
        if grown:
            self._tell()

    def sync(self) -> None:
        """Wait until everything written so far is on the disk; raises LogError if the disk refuses."""
        before = self.shown
        super().sync()
        if self._todo:
            with self._syncing:
                self._finish_turns(self._synced_to.turn)
        if self.shown > before:
            self._tell()

    def close(self) -> None:
        """Sync, wake waiting threads and release the lock; does nothing if already closed."""
        try:
            super().close()
        finally:
            with self._lock:
                self._marks.close()

    # ── reading ─────────────────────────────────────────────────────────────────────────────

    def snapshot(self) -> Snapshot:
        """Return the committed part of the log as it is now."""
        with self._lock:
            return self._seen(self.shown, self.snapshot)

    def written(self) -> Snapshot:
        """Return the log as it is now, committed or not."""
        with self._lock:
            return self._seen(self.end, self.written)

    def _seen(self, limit: int, again: Callable[[], Snapshot]) -> Snapshot:
        manifest = self.manifest
        if self._skipped_to > manifest.first:
            manifest = replace(manifest, first=self._skipped_to, segments=())
        views = tuple(hot.view(limit) for hot in self.hot if hot.header.first < limit)
        return Snapshot(self.folder, manifest, views, again)

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    def _recover(self, now_ns: int) -> Recovered:
        found = recover_replica(Place(self.files, self.folder, self.channel, self._log_id), now_ns)
        self.state, self.damage = found.state, found.damage
        self.turn = turn_of(found.log.hot[-1].path) if found.log.hot else 0
        return found.log

    def _create(self, first: int, now_ns: int) -> tuple[HotIndex, int]:
        return self._opened(first, self.turn, Opening(self.state.trimmed(self.manifest.first)), now_ns)

    def _opened(self, first: int, turn: int, opening: Opening, now_ns: int) -> tuple[HotIndex, int]:
        opened = Opened(turn, encode_record(opening), min(self.durable, first))
        return create_hot(self.files, self.folder, self.manifest, first, now_ns, opened)

    def _turn(self, first: int, opening: Opening, kept: list[HotIndex], now_ns: int) -> None:
        """Go on in a file of a new turn."""
        try:
            index, handle = self._opened(first, self.turn + 1, opening, now_ns)
        except OSError as error:
            self.stats.refused += 1
            self.full = is_full(error)
            raise log_error(error, self.folder, "cannot append to") from error
        replaced = [hot.path for hot in self.hot if hot not in kept]
        self._go_on_in(index, handle, kept)
        self.turn, self.state = self.turn + 1, opening.state
        self._todo.append(Turned(self.turn, index, opening.asides, replaced))

    def _unfinished(self, kept: list[HotIndex]) -> tuple[SetAside, ...]:
        """Return what was set aside, has no side file yet, and is in none of the files that are kept."""
        safe = {aside.turn for turned in self._todo if turned.hot in kept for aside in turned.asides}
        found = {aside.turn: aside for turned in self._todo for aside in turned.asides if aside.turn not in safe}
        return tuple(found.values())

    def _collect(self, first_seq: int) -> SetAside:
        """Return the blocks of the events from a sequence on, which are views of the hot files."""
        blocks: list[memoryview] = []
        blocks_first = first_seq
        for hot in self.hot:
            if hot.end <= first_seq:
                continue
            view = hot.view()
            buffer = view.mapped()
            begin = max(view.block_of(first_seq), 0)
            if not blocks:
                blocks_first = view.first_of(begin)
            for number in range(begin, view.blocks):
                at = view.place_of(number)
                blocks.append(buffer[at : at + unpack_block(buffer, at, hot.key, check=False).size])
        runs = self.state.runs
        before = [run for run in runs if run[1] <= first_seq][-1:]
        within = (*before, *(run for run in runs if first_seq < run[1]))
        return SetAside(self.turn + 1, first_seq, self.end, within, blocks_first, b"".join(blocks))

    def _control(self, record: Record, now_ns: int) -> bytes:
        last = self.hot[-1]
        return pack_control(last.end, encode_record(record), key=last.key, written_ns=now_ns, durable=self.durable)

    def _settle(self, written: Written) -> None:
        # A turn that began during the sync may have replaced what was synced.
        replaced = [turned.hot.header.first for turned in self._todo if turned.turn > written.point.turn]
        super()._settle(written._replace(end=min([written.end, *replaced])))
        self._synced_to = written.point
        if not self._show():
            self._mark()

    def _show(self) -> bool:
        """Let readers see what is committed and synced by now, and return whether that is more than before."""
        visible = min(self._committed, self.durable, self.end)
        # What was skipped is committed elsewhere; the events before it here may be others.
        if visible <= self._visible or visible < self._skipped_to:
            return False
        self._visible = visible
        self._mark()
        if self._waiting:
            self._more.notify_all()
        return True

    def _mark(self) -> None:
        try:
            self._marks.put(self._visible, self._synced_to)
        except OSError as error:
            # It may lag: other processes see less, and the next one is written.
            self._warn_mark(
                "log of %s: %s", self.channel, log_error(error, self.folder, "cannot mark what is committed in")
            )

    def _finish_turns(self, until: int) -> None:
        """Write the side files of turns that are synced, and remove the files that they replaced."""
        try:
            for turned in self._todo:
                if turned.turn > until:
                    return
                for aside in turned.asides:
                    path = aside_path(self.folder, aside)
                    if not path.exists():
                        store_aside(self.files, path, turned.hot.header, aside)
                for path in turned.replaced:
                    self.files.remove(path)
                if turned.replaced:
                    self.files.fsync_folder(self.folder / HOT)
                with self._lock:
                    self._todo = [other for other in self._todo if other is not turned]
        except OSError as error:
            # Nothing is sealed until it succeeds, at one of the next syncs.
            self.stats.upkeep_failures += 1
            self._warn_aside("log of %s: %s", self.channel, log_error(error, self.folder, "cannot set events aside in"))
