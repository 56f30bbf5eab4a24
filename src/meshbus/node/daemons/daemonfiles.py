"""The records of daemons in files: the disk of a node, as compute/store.py asks for it.

    DIRECTORY/lock                      held while a node uses the directory
    DIRECTORY/version                   of everything in the directory, as JSON; 1 if it is missing
    DIRECTORY/0123456789abcdef/         one daemon, by its origin hash
        checkpoint                      replaced as a whole: written beside it, synced, renamed
        journal                         what followed it, a group at a time: only what changes is written, with one sync
    DIRECTORY/decisions/0123…           what this node has decided about the move of a daemon; empty if that is over

A checkpoint is written as a whole when its journal would grow larger than it. Every call returns when its change survives a loss of power. Of a change that was interrupted nothing is seen. A record that
is damaged concerns its daemon alone: that one is refused until someone has repaired or removed the files. Everything here
blocks, and belongs to one thread. The bytes are compute/records.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from meshbus.compute.difference import difference
from meshbus.compute.records import (
    CONFIRMED_BYTES,
    NUMBER_BYTES,
    decode_checkpoint_file,
    decode_decisions,
    decode_journal,
    encode_change,
    encode_checkpoint_file,
    encode_confirmed,
    encode_decision,
    encode_events,
    encode_mark,
)
from meshbus.compute.store import Decision, Mark, Status, Stored
from meshbus.errors import ConfigError, LogError, LogFault, MalformedPacket
from meshbus.formats import Format
from meshbus.log.files import Files, translated
from meshbus.names.identity import Entropy
from meshbus.wire.messages.migration import BufferedEvent

JOURNAL_BYTES = 1 << 20
"""A journal may have this size, or that of its checkpoint. Our choice: read at a start in no time."""
_CHECKPOINT, _JOURNAL, _DECISIONS, _LOCK, _VERSION = "checkpoint", "journal", "decisions", "lock", "version"
_ASIDE = ".new"
_NAME_DIGITS = 16

ON_DISK = (
    Format(
        name="records of daemons",
        where="`daemons_dir/`: checkpoints, journals, decisions, `histories/`",
        what="the state of daemons, what was decided about their moves, and branches of histories that lost",
        version=1,
        mark="the file `version`, for the whole directory; 1 if it is missing",
        refused="the start of a node with this `daemons_dir`",
    ),
)

_logger = logging.getLogger("meshbus.node")


class _Version(msgspec.Struct, frozen=True):
    version: int


def check_version(root: Path) -> None:
    """Raise LogError if a newer meshbus wrote the records below a directory."""
    place = root / _VERSION
    if not place.exists():
        return
    try:
        found = msgspec.json.decode(place.read_bytes(), type=_Version).version
    except (msgspec.MsgspecError, UnicodeDecodeError):
        problem = "is damaged; restore it from a copy, or remove it if no newer meshbus used the directory"
        raise LogError(LogFault.CORRUPT, f"{place} {problem}") from None
    if newer := ON_DISK[0].problem(found):
        raise LogError(LogFault.NEWER, f"{place}: {newer}")


class DaemonFiles:
    """The records of the daemons of one node, below one directory."""

    def __init__(self, root: Path, entropy: Entropy, files: Files | None = None) -> None:
        """Open the directory, and create it if there is none. Raises ConfigError if another node uses it, LogError."""
        self._root = root
        self._entropy = entropy
        self._files = files or Files()
        self.damaged: dict[int, str] = {}
        """Daemons whose record cannot be read, and why."""
        self._marks: dict[int, Mark] = {}
        self._numbers: dict[int, bytes] = {}
        self._ends: dict[int, int] = {}
        """Where the next group of a journal begins; what a crash has cut off lies beyond."""
        self._decided: dict[int, int] = {}
        """The same for decisions."""
        self._sizes: dict[int, int] = {}
        """Bytes of a checkpoint that was written whole."""
        self._snapshots: dict[int, bytes] = {}
        """The last snapshots that were written, to compare the next ones with."""
        with translated(root, "opening"):
            self._files.make_folder(root)
            try:
                self._lock: int | None = self._files.lock(root / _LOCK)
            except BlockingIOError:
                problem = f"{root} is used by another node; give each node a directory of its own"
                raise ConfigError("daemons_dir", problem) from None
            try:
                check_version(root)
                self._say_version()
                self._files.make_folder(root / _DECISIONS)
                self._files.fsync_folder(root)
            except BaseException:
                self.close()
                raise
        for origin in self._found(root):
            self._read(origin, self._recall)

    def close(self) -> None:
        """Release the directory; closing twice is fine."""
        if self._lock is not None:
            self._files.close(self._lock)
            self._lock = None

    # ── records ─────────────────────────────────────────────────────────────────────────────

    def save(self, origin: int, stored: Stored) -> None:
        """Replace the record of a daemon."""
        number = self._entropy(NUMBER_BYTES)
        if not self._save_change(origin, number, stored):
            self._save_whole(origin, number, stored)
        self._numbers[origin], self._marks[origin] = number, stored.mark
        self._snapshots[origin] = stored.snapshot

    def append(self, origin: int, events: Sequence[BufferedEvent]) -> None:
        """Add to `replayed`, without writing the snapshot again."""
        self._add(origin, encode_events(self._numbers[origin], events))

    def mark(self, origin: int, mark: Mark) -> None:
        """Replace the mark of a record, without writing the snapshot again."""
        self._add(origin, encode_mark(self._numbers[origin], mark))
        self._marks[origin] = mark
        if mark.status is Status.MOVED and len(self._snapshots.get(origin, b"")) > JOURNAL_BYTES:
            del self._snapshots[origin]  # who comes back brings a new one

    def marked(self, origin: int) -> Mark | None:
        """Return the mark of a daemon's record, or None if there is no record."""
        return self._marks.get(origin)

    def load(self, origin: int) -> Stored | None:
        """Return the record of a daemon, or None. Raises MalformedPacket if it is damaged."""
        if origin not in self._marks:
            return None
        return self._decoded(origin)[1]

    def remove(self, origin: int) -> None:
        """Delete the record of a daemon; nothing happens if there is none."""
        folder = self._folder(origin)
        with translated(folder, "removing"):
            if folder.is_dir():
                # The checkpoint first: without it the rest is nothing.
                for name in (_CHECKPOINT, _CHECKPOINT + _ASIDE, _JOURNAL):
                    self._files.remove(folder / name)
                self._files.fsync_folder(folder)
        self._marks.pop(origin, None)
        self._snapshots.pop(origin, None)

    def origins(self) -> list[int]:
        """Return the daemons that have a record."""
        return sorted(self._marks)

    # ── decisions ───────────────────────────────────────────────────────────────────────────

    def decide(self, decision: Decision) -> None:
        """Keep a decision; there is at most one for each daemon."""
        end = self._decided.get(decision.origin, 0)
        self._decided[decision.origin] = self._write(self._decision(decision.origin), encode_decision(decision), end)

    def settle(self, origin: int) -> None:
        """Delete the decision about a daemon; nothing happens if there is none."""
        if self._decided.get(origin, 0):
            self._decided[origin] = self._write(self._decision(origin), b"", 0)

    def decisions(self) -> list[Decision]:
        """Return all decisions that are kept; one that is damaged makes its daemon damaged."""
        found: list[Decision] = []

        def read(origin: int) -> None:
            decision, self._decided[origin] = decode_decisions(self._decision(origin).read_bytes())
            if decision is not None:
                found.append(decision)

        for origin in self._found(self._root / _DECISIONS):
            self._read(origin, read)
        return found

    # ── files ───────────────────────────────────────────────────────────────────────────────

    def _say_version(self) -> None:
        """Write down the version, if nobody has."""
        place = self._root / _VERSION
        if not place.exists():
            content = msgspec.json.encode(_Version(ON_DISK[0].version)) + b"\n"
            # A missing one means 1 too, so a disk that is full does not keep a node from starting.
            with suppress(OSError):
                self._files.write_aside(place, place.with_name(_VERSION + _ASIDE), [content])

    def _recall(self, origin: int) -> None:
        """Check the whole record of a daemon once, and remember its mark."""
        if (self._folder(origin) / _CHECKPOINT).exists():
            number, stored, end = self._decoded(origin)
            self._numbers[origin], self._marks[origin], self._ends[origin] = number, stored.mark, end

    def _decoded(self, origin: int) -> tuple[bytes, Stored, int]:
        folder = self._folder(origin)
        number, stored = decode_checkpoint_file((folder / _CHECKPOINT).read_bytes())
        journal = folder / _JOURNAL
        return decode_journal(journal.read_bytes() if journal.exists() else b"", number, stored)

    def _save_change(self, origin: int, number: bytes, stored: Stored) -> bool:
        """Write what changed since the last checkpoint; return False if it is time to write a whole one."""
        before = self._snapshots.get(origin)
        if before is None:
            return False
        group = encode_change(self._numbers[origin], number, stored, difference(before, stored.snapshot))
        if self._ends[origin] + len(group) > max(self._sizes[origin], JOURNAL_BYTES):
            return False
        self._add(origin, group)
        return True

    def _save_whole(self, origin: int, number: bytes, stored: Stored) -> None:
        folder = self._folder(origin)
        with translated(folder, "writing"):
            if origin not in self._numbers:
                self._files.make_folder(folder)
                self._files.fsync_folder(self._root)
            parts = encode_checkpoint_file(number, stored)
            self._files.write_aside(folder / _CHECKPOINT, folder / (_CHECKPOINT + _ASIDE), parts)
            # It names another number, so it is ignored if this does not become durable.
            self._files.remove(folder / _JOURNAL)
        self._sizes[origin], self._ends[origin] = sum(map(len, parts)), 0

    def _add(self, origin: int, group: bytes) -> None:
        """Add a group to the journal of a daemon."""
        self._ends[origin] = self._write(self._folder(origin) / _JOURNAL, group, self._ends[origin])

    def _write(self, path: Path, group: bytes, at: int) -> int:
        """Write a group at the end of a journal, and return where the next one begins."""
        with translated(path, "writing"):
            is_new = not path.exists()
            handle = self._files.create(path) if is_new else self._files.reopen(path)
            try:
                # A group that was cut off must not stand between two whole ones.
                self._files.truncate(handle, at)
                if not group:
                    self._files.fsync(handle)
                    return at
                parts = [group] if at else [encode_confirmed(CONFIRMED_BYTES), group]
                end = self._files.write(handle, parts, at)
                self._files.fsync(handle)
                self._files.write(handle, [encode_confirmed(end)], 0)
            finally:
                self._files.close(handle)
            if is_new:
                self._files.fsync_folder(path.parent)
            return end

    def _read(self, origin: int, read: Callable[[int], None]) -> None:
        try:
            read(origin)
        except (MalformedPacket, OSError) as error:
            where = self._folder(origin)
            self.damaged[origin] = (
                f"{where} cannot be read: {error}; restore it from a copy, or remove it to begin anew"
            )
            _logger.warning("daemon %016x is refused: %s", origin, self.damaged[origin])

    def _found(self, folder: Path) -> Iterator[int]:
        for path in sorted(folder.iterdir()):
            if len(path.name) == _NAME_DIGITS:
                with suppress(ValueError):
                    yield int(path.name, 16)

    def _folder(self, origin: int) -> Path:
        return self._root / f"{origin:016x}"

    def _decision(self, origin: int) -> Path:
        return self._root / _DECISIONS / f"{origin:016x}"
