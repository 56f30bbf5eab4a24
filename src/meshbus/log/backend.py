"""The seam between the log and its storage: what a backend provides, and the table of backends.

`Redex` (log/log.py), `LogReader` (log/reader.py), tails, the node, Spark and the command line use logs through the
protocols below and never import a backend. log/embedded/ is the reference backend. To add one, write a module with a
`Factory` and add its row to BACKENDS; tests/log/memory.py is a worked example, and tests/log/test_backend.py checks
every row against this contract:

**Sequences.** The events of a log are numbered from 0 in the order of their appends, without gaps between `first` and
`end`. An append stores all of its events or none, and an append that fails uses no sequence. Only retention moves
`first`. A number is used a second time only if a machine crash lost the event that had it.

**Durability.** When `append` returns, readers see the events, and the death of the process cannot lose them. Events
below `durable` survive a crash of the machine; `sync` makes everything that was appended before the call durable. What
a crash leaves is a prefix of what was appended. After a failed sync, `append` and `sync` raise that error until the log
is opened again, because only a new look at the disk tells what is stored.

**Reading.** A `Reader` takes no lock, needs no writer and never slows one down. A `Snapshot` shows each row exactly
once and stays readable while the log is appended to, sealed, compacted and closed. Reading rows that have expired
raises LogError `range_gone` with the first available sequence; it never skips them silently.

**Tail.** `wait_beyond` and the callbacks of `listen` report an append after `snapshot` shows it. `close` wakes all
waiting threads and calls the callbacks once more.

**Opening.** One writer at a time: a second `open` raises LogError `locked`. Opening repairs what a crash left and says
so in `report`. Damage to events that were acknowledged as durable raises LogError `corrupt`; it is never repaired away.

**Threads.** Any number of threads may use an open log. `append` never waits for a disk to sync; `sync`, `seal`,
`retain`, `compact`, `tier`, `keep`, `verify` and `close` may.

Errors of the operating system become LogError inside the backend.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from meshbus.errors import ConfigError, LogError
from meshbus.log.columns import Defaults
from meshbus.log.durability import LogConfig
from meshbus.log.event import LogEvent
from meshbus.log.files import Files
from meshbus.log.headers import Headers
from meshbus.log.rows import Cells
from meshbus.log.sequences import SPLIT_ROWS
from meshbus.log.status import ChannelEntry, Finding, LogStats, ReplicaStatus, Report, SegmentFile
from meshbus.names.channel import ChannelName

DEFAULT: Final = "embedded"

Given: TypeAlias = tuple[list[Cells], Headers | None]
"""The columns and headers of one append, as `Defaults.cells` returns them."""
Split: TypeAlias = dict[str, Any]
"""Part of a snapshot as plain data: `first` and `end` (excluded), `backend` (the embedded one may leave that out), and
whatever the backend needs to find the rows again in another process."""


class Snapshot(Protocol):
    """A log at one moment: every sequence from `first` up to `end`, which is excluded."""

    @property
    def channel(self) -> str:
        """The channel's name."""

    @property
    def log_id(self) -> bytes:
        """16 bytes, drawn when the log was created."""

    @property
    def first(self) -> int:
        """The first available sequence."""

    @property
    def end(self) -> int:
        """One past the last sequence."""

    @property
    def segments(self) -> Sequence[SegmentFile]:
        """The sealed files in order, for readers that read Parquet themselves; the rest is `splits(sealed_end)`.

        A file that is only on object storage has no path that exists: `uri` says where it is.
        """

    @property
    def sealed_end(self) -> int:
        """One past the last sealed sequence; `first` if nothing is sealed."""

    @property
    def stored_bytes(self) -> int:
        """Bytes that the rows take in storage, the part that is not sealed included."""

    @property
    def waits(self) -> str:
        """Why the writer waits for object storage, in one sentence; empty if it does not."""

    @property
    def replica(self) -> ReplicaStatus | None:
        """What a replicated log has beside these events, which are the committed ones; None for other logs."""

    @property
    def damage(self) -> str:
        """What is wrong after `end`, if durable events are damaged there; else empty."""

    def batches(
        self,
        start: int | None = None,
        stop: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        dictionaries: bool = True,
    ) -> Iterator[Any]:
        """Yield the rows from `start` to `stop` (excluded) in order, as `pyarrow.RecordBatch`es; all by default.

        A range that extends beyond the end yields what is available.
        """

    def events(self, start: int | None = None, stop: int | None = None) -> Iterator[LogEvent]:
        """Yield the same rows as objects; needs no pyarrow for rows that are not sealed."""

    def splits(self, start: int | None = None, stop: int | None = None, *, rows: int = SPLIT_ROWS) -> list[Split]:
        """Divide a range into parts of about `rows` rows, which `Factory.read_split` reads in any process."""


class Reader(Protocol):
    """Read access to one log, without a lock."""

    def snapshot(self) -> Snapshot:
        """Return the log as it is now; raises LogError if there is none or it cannot be read."""

    def verify(self) -> list[Finding]:
        """Read everything, check it, and return the problems."""


class Backend(Reader, Protocol):
    """One log, open for appending."""

    @property
    def log_id(self) -> bytes:
        """16 bytes, drawn when the log was created."""

    @property
    def first(self) -> int:
        """The first available sequence."""

    @property
    def end(self) -> int:
        """The sequence of the next event."""

    @property
    def durable(self) -> int:
        """Every event below this sequence survives a crash of the machine."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""

    @property
    def failed(self) -> bool:
        """Whether a failed disk has ended writing: close the log and open it again."""

    @property
    def report(self) -> Report:
        """What opening found and repaired."""

    @property
    def stats(self) -> LogStats:
        """Counts since opening; the caller must not change them."""

    def append(
        self, count: int, offsets: bytes | memoryview, data: bytes | memoryview, given: Given | None, now_ns: int
    ) -> int:
        """Append `count` events and return the sequence of the first; for none, only check that the log is open.

        Payload `i` is `data[offsets[i] : offsets[i + 1]]`, with 32-bit little-endian offsets from 0; both are the
        caller's and must be copied or written before this returns. `given` is None if every column has its default;
        otherwise pass it through `columns.number` with the first sequence.
        """

    def sync(self) -> None:
        """Wait until everything appended so far is durable."""

    def wait_beyond(self, seq: int, timeout_s: float | None = None) -> bool:
        """Wait until there is an event at a sequence; return False on timeout or if the log was closed first."""

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after each append, in the appending thread, and at close; return a function that stops this."""

    def seal(self) -> int:
        """Move everything appended so far into segments and return the number of events moved.

        A backend that has no segments returns 0.
        """

    def compact(self) -> int:
        """Merge small neighboring segments and return how many were merged."""

    def retain(self) -> int:
        """Apply the retention limits of the configuration now and return the number of events that expired.

        Whole segments expire, so more may remain than the limits ask for.
        """

    @property
    def tiers(self) -> bool:
        """Whether `keep_tier` has anything to do, now or later."""

    def tier(self) -> int:
        """Move everything that is due to object storage and return the number of segments copied.

        A backend without object storage returns 0. Raises LogError `unreachable` if storage does not answer.
        """

    def keep_tier(self, cancelled: Callable[[], bool]) -> None:
        """Copy the next segments that are due to object storage, and remove what is due there and locally.

        Called in a background thread of its own, about once a second, because it may take long; returns soon after
        `cancelled` returns True. Must not raise: failures are counted, logged and retried.
        """

    def keep(self) -> None:
        """Do the maintenance that is due: sync by interval, seal by size and age, retain, compact.

        Called in the background about once a second. Must not raise: failures are counted, logged and retried.
        """

    def close(self) -> None:
        """Make everything durable, wake waiting threads and release the lock; does nothing if already closed."""


def _nothing() -> None:
    """Do nothing: whoever opens the log calls `keep` by itself."""


class OpenOptions(msgspec.Struct, frozen=True):
    """How to open a log for appending."""

    channel: ChannelName
    config: LogConfig
    defaults: Defaults
    """The values of columns that an append does not give."""
    clock: Callable[[], int]
    """Nanoseconds since 1970."""
    files: Files
    """File operations; tests replace them. Of no use to a backend without files."""
    monotonic: Callable[[], float] = time.monotonic
    """Seconds for durations; a change of the wall clock does not change them."""
    due: Callable[[], None] = _nothing
    """To be called when `keep` has something to do before its next turn; returns at once."""


class Factory(Protocol):
    """Access to the logs of one backend below a root folder."""

    def open(self, root: Path, options: OpenOptions) -> Backend:
        """Open a log for appending, and create it if there is none.

        Raises LogError if it cannot be used, another process writes it, or durable events are damaged.
        """

    def reader(self, root: Path, channel: ChannelName) -> Reader:
        """Return a reader; the log need not exist yet."""

    def exists(self, root: Path, channel: ChannelName) -> bool:
        """Return whether the log of a channel was ever opened for appending here."""

    def find(self, root: Path) -> tuple[list[ChannelEntry], list[LogError]]:
        """Return the logs below a root by name, and an error for each that cannot be read.

        Raises LogError if the root is not a folder of logs.
        """

    def read_split(
        self, split: Mapping[str, Any], columns: Sequence[str] | None, *, dictionaries: bool
    ) -> Iterator[Any]:
        """Yield the rows of a split as record batches, even if they were sealed or compacted since.

        Raises LogError if they have expired, or another log took the place of this one.
        """


def _embedded() -> Factory:
    # Imported when needed: a backend may itself import this module.
    from meshbus.log.embedded.factory import Embedded

    return Embedded()


BACKENDS: Final[dict[str, Callable[[], Factory]]] = {DEFAULT: _embedded}
"""Each backend by name. A row is called when it is first needed, so that it may import its module then."""


def find_backend(name: str) -> Factory:
    """Return the factory of a backend; raises ConfigError for an unknown name."""
    if name not in BACKENDS:
        raise ConfigError("backend", f"unknown backend {name!r}; choose from {', '.join(sorted(BACKENDS))}")
    return BACKENDS[name]()
