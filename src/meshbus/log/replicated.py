"""The log of one member of a replicated channel.

    log = ReplicatedLog.open(path, "alarms/fire", log_id)
    log.append(epoch, log.tail, payloads)
    log.sync()
    log.commit_to(tail)
    log.committed.read_range(0, 10)

The replication core (engine/replicas) decides what is written; this class stores it. Writes are carried out in their
order, into the page cache, and fit for an event loop. `sync` waits for the disk: everything written before it survives a
loss of power. Whatever happens, what is found afterwards is the state after a prefix of the writes, and at least of those
before the last sync (docs/decisions/0033).

`committed` is what all other readers see: an ordinary log, also for other processes, sealed to Parquet, retained and
read by Spark. It never shows an event that is not committed and on this disk.

A replica that finds damage opens nevertheless: it is cut before the damage, what was there is kept in `_aside`, and
`recovered.damaged` is true until a ballot is stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

import msgspec
import numpy as np
import xxhash

from meshbus.log.backend import OpenOptions
from meshbus.log.columns import OFFSET_BYTES, Columns, Defaults, Events, number, pack_events
from meshbus.log.durability import NEVER, LogConfig
from meshbus.log.embedded.asides import Aside, list_asides, read_aside
from meshbus.log.embedded.log import EmbeddedLog
from meshbus.log.embedded.replicawriter import ReplicaWriter
from meshbus.log.event import LogEvent
from meshbus.log.files import Files, translated
from meshbus.log.folder import folder_of
from meshbus.log.keeper import Keeper
from meshbus.log.log import RedexFile
from meshbus.log.rows import Rows
from meshbus.names.channel import ChannelName

__all__ = ["Aside", "RangeChecksum", "RecoveredReplica", "ReplicatedLog", "put_aside"]


class RecoveredReplica(msgspec.Struct, frozen=True):
    """What opening a replica found. Everything is durable."""

    ballot: bytes | None
    """None if the disk has no memory of this channel."""
    tail: int
    """The next sequence."""
    first_retained: int
    runs: tuple[tuple[int, int], ...]
    """Epochs with the sequence at which each starts."""
    committed: int
    """The events below were known to be committed."""
    damaged: bool
    """Whether events that were durable are missing or unreadable, so that the log was cut before them."""
    damage: str
    """What was wrong, if it was found by this opening."""


class RangeChecksum:
    """The checksum of a range of events, from their payloads in order."""

    def __init__(self) -> None:
        self._lengths, self._payloads = xxhash.xxh3_128(), xxhash.xxh3_128()

    def add(self, payload: bytes) -> None:
        """Add the next event."""
        self._lengths.update(len(payload).to_bytes(8, "little"))
        self._payloads.update(payload)

    def digest(self, first_seq: int, end: int) -> bytes:
        """Return the checksum of what was added, as the events of this range."""
        edges = first_seq.to_bytes(8, "little") + end.to_bytes(8, "little")
        return xxhash.xxh3_128_digest(edges + self._lengths.digest() + self._payloads.digest())


class ReplicatedLog:
    """One replica, open for appending. Use it as a context manager, or call `close`."""

    def __init__(self, options: OpenOptions, root: Path, log_id: bytes) -> None:
        self._clock, self._defaults = options.clock, options.defaults
        self._backend = EmbeddedLog(root, options, partial(ReplicaWriter, log_id=log_id))
        writer = self._backend.writer
        assert isinstance(writer, ReplicaWriter)
        self._writer = writer
        self._keeper: Keeper | None = None
        self.committed = RedexFile(options, self._backend)
        """The committed events, as every reader of logs sees them; nothing can be appended here."""
        self.recovered = RecoveredReplica(
            writer.state.ballot,
            writer.end,
            writer.first,
            writer.state.trimmed(writer.first).runs,
            writer.shown,
            writer.state.damaged,
            writer.damage,
        )
        self.commit_to = writer.commit_to
        self.sync = writer.sync
        self.keep = self._backend.keep

    @classmethod
    def open(
        cls,
        path: Path | str,
        channel: str,
        log_id: bytes,
        config: LogConfig | None = None,
        *,
        recorder: int = 0,
        files: Files | None = None,
        clock: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
        background: bool = True,
    ) -> Self:
        """Open the replica of a channel below a folder of logs, and create it if there is none.

        `log_id` (16 bytes) is that of a new replica, the same on all members, so that (log_id, seq) names an event on any of
        them; one that exists keeps its own. The fsync policy of `config` is not used: the caller syncs. `files`, `clock`,
        `monotonic` and `background=False` are for tests. Raises LogError if the folder holds another log, another process
        writes it, or it cannot be used.
        """
        config = msgspec.structs.replace(config or LogConfig(), fsync=NEVER)
        defaults = Defaults(recorder=recorder, origin=0)
        options = OpenOptions(ChannelName(channel), config, defaults, clock, files or Files(), monotonic)
        keeper: Keeper | None = None
        if background:
            keeper = Keeper(lambda: [log.keep])
            options = msgspec.structs.replace(options, due=keeper.wake)
        log = cls(options, Path(path), log_id)
        if keeper is not None:
            log._keeper = keeper
            keeper.watch(None)
        return log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def tail(self) -> int:
        """The next sequence."""
        return self._writer.end

    @property
    def first_retained(self) -> int:
        """The first sequence that retention, or a gap, has left."""
        return self._writer.first

    @property
    def committed_tail(self) -> int:
        """Readers see the events below: they are committed, and on this disk."""
        return self._writer.shown

    @property
    def quick_from(self) -> int:
        """Events from this sequence on are read quickly; those before are in segments, so read them in a thread."""
        return self._writer.manifest.hot_from

    # ── writes ──────────────────────────────────────────────────────────────────────────────

    def append(self, epoch: int, first_seq: int, payloads: Events, **columns: Unpack[Columns]) -> None:
        """Append events that an epoch made; without events, record that the epoch starts here.

        `payloads` and `columns` are those of `RedexFile.append_batch`. Raises LogError if the disk refuses; then nothing
        was appended.
        """
        now = self._clock()
        offsets, data = pack_events(payloads)
        count = len(offsets) // OFFSET_BYTES - 1
        given = self._defaults.cells(columns, count, now) if columns else None
        self._writer.append_in(epoch, first_seq, count, offsets, data, given, now)

    def persist(self, ballot: bytes) -> None:
        """Replace the ballot."""
        self._writer.persist(ballot, self._clock())

    def set_aside(self, first_seq: int) -> None:
        """Move the events from a sequence on, and the epochs that start behind it, out of the log to a side file."""
        self._writer.set_aside(first_seq, self._clock())

    def skip_to(self, first_seq: int, epoch: int) -> None:
        """Continue at a later sequence and record the gap; `epoch` is that of the last event before it.

        What the log had before the gap expires.
        """
        self._writer.skip_to(first_seq, epoch, self._clock())

    # ── reading ─────────────────────────────────────────────────────────────────────────────

    def read(self, first_seq: int, max_events: int, max_bytes: int) -> tuple[bytes, ...]:
        """Return payloads from a sequence on, committed or not: at least one if there is one, then up to `max_bytes`.

        Raises LogError `range_gone` if the first is not retained.
        """
        return tuple(event.payload for event in self.read_events(first_seq, max_events, max_bytes))

    def read_events(self, first_seq: int, max_events: int, max_bytes: int) -> list[LogEvent]:
        """Return the same events with their columns."""
        snapshot, taken = self._writer.written(), 0
        found: list[LogEvent] = []
        for event in snapshot.events(first_seq, min(first_seq + max_events, snapshot.end)):
            taken += len(event.payload)
            if found and taken > max_bytes:
                break
            found.append(event)
        return found

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Ranges that were skipped: the first missing sequence and one past the last."""
        return self._writer.state.gaps

    def asides(self) -> list[Aside]:
        """Return the side files: what was set aside and synced."""
        return list_asides(self._writer.folder)

    def read_aside(self, aside: Aside) -> Iterator[LogEvent]:
        """Yield the events of a side file."""
        return read_aside(aside.path)

    def checksum(self, first_seq: int, end: int) -> bytes:
        """Return a digest of the events of a range, `end` excluded: 16 bytes, equal on all replicas that have them.

        Reads the range, so call it in a thread. Raises LogError if a part of it is damaged or gone.
        """
        checksum = RangeChecksum()
        for event in self._writer.written().events(first_seq, end):
            checksum.add(event.payload)
        return checksum.digest(first_seq, end)

    def replace(self, first_seq: int, payloads: Events, **columns: Unpack[Columns]) -> int:
        """Write segments that are damaged again, with events that other members have; return how many were written.

        May take long, so call it in a thread. Raises LogError if events of the same segment that are not given cannot be
        read: `verify` of the committed log tells the range of each damaged file. Damage that is not in segments is found
        and cut off when the log is opened again.
        """
        offsets, data = pack_events(payloads)
        edges = np.frombuffer(offsets, np.int32)
        cells, headers = self._defaults.cells(columns, len(edges) - 1, self._clock())
        return self._backend.heal(Rows(first_seq, tuple(number(cells, first_seq)), edges, data, headers))

    def close(self) -> None:
        """Sync and release the lock; does nothing if already closed."""
        if self._keeper is not None:
            self._keeper.stop()
        self._backend.close()


def put_aside(root: Path, channel: str) -> Path | None:
    """Move the closed log of a replica to where nobody takes it for a log, and return its folder; None if there is none.

    The next opening finds an empty disk, so the replica counts for nothing until it has copied the log again. Raises
    LogError if it cannot be moved.
    """
    folder, number = folder_of(root, ChannelName(channel)), 0
    if not folder.exists():
        return None
    while (place := root / f"_replaced-{number}-{folder.name}").exists():
        number += 1
    with translated(folder, "cannot move away"):
        return folder.rename(place)
