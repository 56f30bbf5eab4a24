"""The records of daemons in files: the disk of a node, as compute/store.py asks for it.

    DIRECTORY/lock                      held while a node uses the directory
    DIRECTORY/0123456789abcdef/         one daemon, by its origin hash
        checkpoint                      replaced as a whole: written beside it, synced, renamed
        mark                            replaces the mark in the checkpoint of the same number
        events                          added to, a group at a time
    DIRECTORY/decisions/0123…           what this node has decided about the move of a daemon

Every call returns when its change survives a loss of power. Of a change that was interrupted nothing is seen. A record that
is damaged concerns its daemon alone: that one is refused until someone has repaired or removed the files. Everything here
blocks, and belongs to one thread. The bytes are compute/records.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from meshbus.compute.records import (
    NUMBER_BYTES,
    decode_checkpoint_file,
    decode_decision_file,
    decode_event_groups,
    decode_mark_file,
    encode_checkpoint_file,
    encode_decision_file,
    encode_event_group,
    encode_mark_file,
)
from meshbus.compute.store import Decision, Mark, Stored
from meshbus.errors import ConfigError, MalformedPacket
from meshbus.log.files import Files, translated
from meshbus.names.identity import Entropy
from meshbus.wire.messages.migration import BufferedEvent

_CHECKPOINT, _MARK, _EVENTS, _DECISIONS, _LOCK = "checkpoint", "mark", "events", "decisions", "lock"
_ASIDE = ".new"
_NAME_DIGITS = 16

_logger = logging.getLogger("meshbus.node")


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
        """Where the next group of events begins; what a crash has cut off lies beyond."""
        with translated(root, "opening"):
            self._files.make_folder(root / _DECISIONS)
            self._files.fsync_folder(root)
            try:
                self._lock: int | None = self._files.lock(root / _LOCK)
            except BlockingIOError:
                problem = f"{root} is used by another node; give each node a directory of its own"
                raise ConfigError("daemons_dir", problem) from None
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
        folder = self._folder(origin)
        number = self._entropy(NUMBER_BYTES)
        with translated(folder, "writing"):
            if origin not in self._numbers:
                self._files.make_folder(folder)
                self._files.fsync_folder(self._root)
            self._replace(folder / _CHECKPOINT, encode_checkpoint_file(number, stored))
            self._numbers[origin], self._marks[origin] = number, stored.mark
            # They name another number, so they are ignored if this does not become durable.
            self._files.remove(folder / _MARK)
            self._files.remove(folder / _EVENTS)
        self._ends[origin] = 0

    def append(self, origin: int, events: Sequence[BufferedEvent]) -> None:
        """Add to `replayed`, without writing the snapshot again."""
        path = self._folder(origin) / _EVENTS
        group = encode_event_group(self._numbers[origin], events)
        with translated(path, "writing"):
            is_new = not path.exists()
            handle = self._files.create(path) if is_new else self._files.reopen(path)
            try:
                # A group that was cut off must not stand between two whole ones.
                self._files.truncate(handle, self._ends[origin])
                end = self._files.write(handle, [group], self._ends[origin])
                self._files.fsync(handle)
            finally:
                self._files.close(handle)
            if is_new:
                self._files.fsync_folder(path.parent)
        self._ends[origin] = end

    def mark(self, origin: int, mark: Mark) -> None:
        """Replace the mark of a record, without writing the snapshot again."""
        path = self._folder(origin) / _MARK
        with translated(path, "writing"):
            self._replace(path, encode_mark_file(self._numbers[origin], mark))
        self._marks[origin] = mark

    def marked(self, origin: int) -> Mark | None:
        """Return the mark of a daemon's record, or None if there is no record."""
        return self._marks.get(origin)

    def load(self, origin: int) -> Stored | None:
        """Return the record of a daemon, or None. Raises MalformedPacket if it is damaged."""
        if origin not in self._marks:
            return None
        folder = self._folder(origin)
        number, stored = decode_checkpoint_file((folder / _CHECKPOINT).read_bytes())
        events = _content(folder / _EVENTS)
        added, _ = ((), 0) if events is None else decode_event_groups(events, number)
        return msgspec.structs.replace(stored, mark=self._marks[origin], replayed=(*stored.replayed, *added))

    def remove(self, origin: int) -> None:
        """Delete the record of a daemon; nothing happens if there is none."""
        folder = self._folder(origin)
        with translated(folder, "removing"):
            if folder.is_dir():
                # The checkpoint first: without it the rest is nothing.
                for name in (_CHECKPOINT, _CHECKPOINT + _ASIDE, _MARK, _MARK + _ASIDE, _EVENTS):
                    self._files.remove(folder / name)
                self._files.fsync_folder(folder)
        self._marks.pop(origin, None)

    def origins(self) -> list[int]:
        """Return the daemons that have a record."""
        return sorted(self._marks)

    # ── decisions ───────────────────────────────────────────────────────────────────────────

    def decide(self, decision: Decision) -> None:
        """Keep a decision; there is at most one for each daemon."""
        path = self._decision(decision.origin)
        with translated(path, "writing"):
            self._replace(path, encode_decision_file(decision))

    def settle(self, origin: int) -> None:
        """Delete the decision about a daemon; nothing happens if there is none."""
        path = self._decision(origin)
        with translated(path, "removing"):
            self._files.remove(path)
            self._files.fsync_folder(path.parent)

    def decisions(self) -> list[Decision]:
        """Return all decisions that are kept; one that is damaged makes its daemon damaged."""
        found: list[Decision] = []
        for origin in self._found(self._root / _DECISIONS):
            self._read(origin, lambda origin: found.append(decode_decision_file(self._decision(origin).read_bytes())))
        return found

    # ── files ───────────────────────────────────────────────────────────────────────────────

    def _recall(self, origin: int) -> None:
        """Check the whole record of a daemon once, and remember its mark."""
        folder = self._folder(origin)
        raw = _content(folder / _CHECKPOINT)
        if raw is None:
            return
        number, stored = decode_checkpoint_file(raw)
        newer = _content(folder / _MARK)
        mark = stored.mark
        if newer is not None:
            mark_number, replaced = decode_mark_file(newer)
            mark = replaced if mark_number == number else mark
        events = _content(folder / _EVENTS)
        self._ends[origin] = 0 if events is None else decode_event_groups(events, number)[1]
        self._numbers[origin], self._marks[origin] = number, mark

    def _read(self, origin: int, read: Callable[[int], None]) -> None:
        try:
            read(origin)
        except (MalformedPacket, OSError) as error:
            where = self._folder(origin)
            self.damaged[origin] = (
                f"{where} cannot be read: {error}; restore it from a copy, or remove it to begin anew"
            )
            _logger.warning("daemon %016x is refused: %s", origin, self.damaged[origin])

    def _replace(self, path: Path, parts: Sequence[bytes]) -> None:
        self._files.write_aside(path, path.with_name(path.name + _ASIDE), parts)

    def _found(self, folder: Path) -> Iterator[int]:
        for path in sorted(folder.iterdir()):
            if len(path.name) == _NAME_DIGITS:
                with suppress(ValueError):
                    yield int(path.name, 16)

    def _folder(self, origin: int) -> Path:
        return self._root / f"{origin:016x}"

    def _decision(self, origin: int) -> Path:
        return self._root / _DECISIONS / f"{origin:016x}"


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
