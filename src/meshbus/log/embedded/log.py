"""The embedded log of one channel, open for appending: implements `Backend` of log/backend.py.

Appending is in embedded/writer.py. Here is decided when sealing, retention and compaction are due; their steps are in
embedded/upkeep.py. Moving segments to object storage is in embedded/tier.py.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from meshbus.errors import LogError, LogFault
from meshbus.log.arrow import has_arrow, release_memory, require_arrow
from meshbus.log.embedded.compaction import FEWEST, choose_run
from meshbus.log.embedded.healing import heal_segments
from meshbus.log.embedded.hot import HotIndex
from meshbus.log.embedded.logmanifest import Manifest, encode_manifest, store_manifest
from meshbus.log.embedded.snapshot import Snapshot
from meshbus.log.embedded.spare import Spare
from meshbus.log.embedded.tier import Tier
from meshbus.log.embedded.upkeep import compact, expire, move_retired, seal, sweep
from meshbus.log.embedded.verify import verify_log
from meshbus.log.embedded.writer import Writer
from meshbus.log.files import is_full, translated
from meshbus.log.folder import folder_of
from meshbus.log.retention import Unit, expired_until, swept_until
from meshbus.log.status import Finding, LogStats, Report
from meshbus.seldom import SeldomWarning

if TYPE_CHECKING:
    from meshbus.log.backend import OpenOptions
    from meshbus.log.rows import Rows

_NS = 1_000_000_000
_BEHIND = 2
"""Hot files that wait when sealing counts as behind. One is normal: it was filled while the one before it was sealed."""
_log = logging.getLogger("meshbus.log")


class EmbeddedLog:
    """A log in the files of one folder."""

    def __init__(
        self, root: Path, options: OpenOptions, make_writer: Callable[[Path, OpenOptions], Writer] = Writer
    ) -> None:
        self._channel, self._config = options.channel, options.config
        self._clock, self._monotonic = options.clock, options.monotonic
        # Reentrant: `_keep` holds it and calls `retain`.
        self._upkeep = threading.RLock()
        self._warned = False
        self._retired_at: dict[str, float] = {}
        """When each retired segment was retired, by the monotonic clock."""
        self._warn_behind, self._warn_failed = (SeldomWarning(_log, options.monotonic) for _ in range(2))
        self._writer = make_writer(folder_of(root, options.channel), options)
        self._spare = Spare(self._writer.files, self._writer.folder)
        self._tier = Tier(self._writer, options, self._change)
        self.keep_tier = self._tier.keep
        self.append = self._writer.append  # no layer in between: each would cost every append
        self.listen = self._writer.listen
        self.snapshot: Callable[[], Snapshot] = self._writer.snapshot
        self.sync = self._writer.sync
        self.wait_beyond = self._writer.wait_beyond

    @property
    def writer(self) -> Writer:
        """What appends."""
        return self._writer

    @property
    def log_id(self) -> bytes:
        """16 bytes, drawn when the log was created."""
        return self._writer.manifest.id_bytes

    @property
    def first(self) -> int:
        """The first available sequence."""
        return self._writer.first

    @property
    def end(self) -> int:
        """The sequence of the next event that readers will see."""
        return self._writer.shown

    @property
    def durable(self) -> int:
        """Every event below this sequence is on the disk."""
        return self._writer.durable

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._writer.closed

    @property
    def failed(self) -> bool:
        """Whether nothing can be appended until the log is opened again."""
        return self._writer.problem is not None

    @property
    def tiers(self) -> bool:
        """Whether `keep_tier` has anything to do, now or later."""
        return self._tier.active

    @property
    def report(self) -> Report:
        """What opening found and repaired."""
        return self._writer.report

    @property
    def stats(self) -> LogStats:
        """Counts since opening."""
        return self._writer.stats

    def verify(self) -> list[Finding]:
        """Check every file of the log and return the problems."""
        return verify_log(self.snapshot())

    def seal(self) -> int:
        """Write everything that is hot as Parquet and return the number of events sealed."""
        require_arrow()
        with self._upkeep:
            # A hot file is sealed as a whole, so a new one is begun first.
            self._writer.roll(self._clock(), lambda _: True)
            return self._seal_rolled()

    def compact(self) -> int:
        """Merge small neighboring segments and return how many were merged."""
        require_arrow()
        with self._upkeep:
            return self._compact(fewest=2)

    def retain(self) -> int:
        """Apply the retention limits now and return the number of events that expired."""
        writer, now = self._writer, self._clock()
        with self._upkeep, translated(writer.folder, "cannot expire"):
            writer.check_open()
            self._sweep(now)  # first, because on a full disk this makes the room that everything else needs
            # The file being appended to never expires; sealed segments and waiting hot files do, in order.
            before, rolled, last = writer.described(), writer.complete, writer.hot[-1]
            units = [Unit(part.end, part.bytes, part.written_ns) for part in before.segments]
            units += [Unit(hot.end, hot.size, hot.written_ns) for hot in rolled]
            until = max(expired_until(units, last.end, last.size, self._config.retention, now), writer.floor)
            gone = max(until - before.first, 0)
            if gone:
                self._adopt(lambda: expire(writer.files, writer.folder, before, until, now))
                writer.stats.expired += gone
                self._sweep(now)
            with suppress(OSError):  # tried again the next time
                self._spare.keep(len(encode_manifest(writer.manifest)))
            return gone

    def heal(self, rows: Rows) -> int:
        """Write damaged segments again with rows that others have, and return how many segments were written."""
        require_arrow()
        writer = self._writer
        with self._upkeep, translated(writer.folder, "cannot heal"):
            writer.check_open()
            before = writer.manifest
            self._adopt(lambda: heal_segments(writer.files, writer.folder, before, rows))
            return sum(old != new for old, new in zip(before.segments, writer.manifest.segments, strict=False))

    def tier(self) -> int:
        """Move everything that is due to object storage and return the number of segments copied."""
        self._writer.check_open()
        copied = 0
        while self._tier.turn():
            copied += 1
        self._tier.clean()
        return copied

    def keep(self) -> None:
        """Do the maintenance that is due; failures are counted, logged and retried."""
        try:
            self._keep()
        except LogError as error:
            if self.closed or error is self._writer.problem:
                return  # the next append raises it
            self._writer.stats.upkeep_failures += 1
            self._writer.full |= error.fault is LogFault.NO_SPACE
            self._warn_failed("log of %s: %s", self._channel, error)
        except Exception:  # noqa: BLE001 - the thread that calls this keeps all logs; one of them must not end it
            self._writer.stats.upkeep_failures += 1
            _log.exception("log of %s: upkeep failed unexpectedly and will be retried", self._channel)

    def close(self) -> None:
        """Sync, wake waiting threads and release the lock; does nothing if already closed."""
        with self._upkeep:
            self._writer.close()

    def _keep(self) -> None:
        writer, now = self._writer, self._clock()
        if len(writer.hot) == 1:
            self._sync_due()
        try:
            self._maintain(now)
        finally:
            # After sealing, which puts complete hot files on the disk without writing them twice.
            self._sync_due()

    def _sync_due(self) -> None:
        """Sync if the interval of the policy is over."""
        writer, period = self._writer, self._config.fsync.seconds
        if period is not None and writer.durable < writer.end and self._monotonic() - writer.synced_at >= period:
            writer.sync()

    def _maintain(self, now: int) -> None:
        writer = self._writer
        with self._upkeep:
            self.retain()  # first, because it frees the space that the other steps need
            writer.roll(now, self._is_due)
            if has_arrow():
                self._tell_backlog()
                if self._seal_rolled() + self._compact(fewest=FEWEST):
                    release_memory()
            elif writer.complete and not self._warned:
                self._warned = True
                _log.warning("log of %s: sealing needs pyarrow; run: pip install 'meshbus[arrow]'", self._channel)

    def _sweep(self, now: int) -> None:
        """Remove retired segments whose grace is over; on a full disk and above the size limit, earlier."""
        writer = self._writer
        move_retired(writer.files, writer.folder, writer.manifest.retired)  # those whose move failed
        ticks = self._monotonic()
        # The manifest has wall times, for the next process; in this one a change of the clock must not matter.
        known = self._retired_at
        self._retired_at = {
            old.name: known.get(old.name, ticks - max(now - old.at_ns, 0) / _NS) for old in writer.manifest.retired
        }
        retired = [Unit(0, old.bytes, round(self._retired_at[old.name] * _NS)) for old in writer.manifest.retired]
        until, limits = len(retired), self._config.retention
        if not writer.full:
            until = swept_until(retired, self._tier.local_bytes, limits, self._config.grace_s, round(ticks * _NS))
        if until:
            self._adopt(lambda: sweep(writer.files, writer.folder, writer.manifest, until))

    def _adopt(self, step: Callable[[], Manifest]) -> None:
        """Use the manifest that a step stores; on a full disk the spare file makes room for it."""
        try:
            manifest = step()
        except OSError as error:
            if not is_full(error) or not self._spare.release():
                raise
            manifest = step()
        self._writer.adopt(manifest)
        move_retired(self._writer.files, self._writer.folder, manifest.retired)

    def _change(self, step: Callable[[Manifest], Manifest]) -> None:
        """Replace the manifest by what a function makes of it, if that differs."""
        writer = self._writer
        with self._upkeep, translated(writer.folder, "cannot move segments of"):
            writer.check_open()
            changed = step(writer.manifest)
            if changed != writer.manifest:
                self._adopt(lambda: store_manifest(writer.files, writer.folder, changed))

    def _is_due(self, hot: HotIndex) -> bool:
        old = self._monotonic() - self._writer.begun_at >= self._config.seal_age_s
        return old or hot.size >= self._config.file_bytes

    def _seal_rolled(self) -> int:
        """Seal the hot files that are no longer appended to."""
        writer, sealed = self._writer, 0
        with translated(writer.folder, "cannot seal"):
            while waiting := writer.complete:
                hot, behind = waiting[0], len(waiting) >= _BEHIND
                writer.stats.unsealed = writer.hot[-1].header.first - hot.header.first
                # Compression takes most of the time of sealing, and a backlog on the disk more space than it saves.
                writer.adopt(seal(writer.files, writer.folder, writer.described(), hot, compress=not behind))
                writer.stats.seals += 1
                writer.stats.seals_behind += behind
                sealed += hot.end - hot.header.first
        writer.stats.unsealed = 0
        return sealed

    def _tell_backlog(self) -> None:
        """Warn when sealing falls behind."""
        waiting = self._writer.complete
        if len(waiting) >= _BEHIND:
            self._warn_behind(
                "log of %s: sealing is behind by %d events (%d MB); payloads are sealed without compression until it"
                " has caught up",
                self._channel,
                waiting[-1].end - waiting[0].header.first,
                sum(hot.size for hot in waiting) // 1_000_000,
            )

    def _compact(self, *, fewest: int) -> int:
        writer, merged = self._writer, 0
        writer.check_open()
        with translated(writer.folder, "cannot compact"):
            while run := choose_run(writer.manifest.segments, self._config.file_bytes, fewest=fewest):
                self._adopt(partial(compact, writer.files, writer.folder, writer.manifest, run, self._clock()))
                writer.stats.compactions += 1
                merged += len(run)
        return merged
