"""Audit log of a node: who changed what about its trust, when, and what was refused. A file that only grows.

    policy.toml.history        the newest rows, one JSON object per line
    policy.toml.history.1      older ones, up to .4; the oldest go
    .policy.toml.history.head  the hash of the last row

Changes of the policy, joins and everything else that is worth a row share one file and one chain; `kind` tells them apart. The
setting `audit_log` says where it is, by default beside the policy file, or beside the identity if the node has no policy file
(NodeConfig.audit_path).

Each row holds the hash of the line before it, also across files. A line that is edited, removed or inserted later breaks
the chain at that place, and `read_audit` reports it. The head vouches for the last line: it is written after the row, so it may
be one row behind after a crash, and never ahead. If the row that it names is not there, rows were cut off, and the next row is
chained to the head instead of the line before it, so that this stays visible. Nothing here is secret: who can write all of
these files can make them consistent again. Keep the hash (`meshbus audit` shows it) elsewhere if that matters.

A row is on the disk before the change takes effect: no change without its row. Only a revocation does not wait for it
(node/policies/revocationkeeper.py).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from getpass import getuser
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec

from meshbus.errors import UNDECODABLE, ConfigError
from meshbus.formats import Format
from meshbus.log.files import Files
from meshbus.policy.bound import Bound, By

MAX_AUDIT_BYTES = 1 << 20
"""Of one file. Our choice: some thousand changes."""
OLDER_FILES = 4
"""Files that are kept beside the newest one."""
MOST_CHANGES = 200
"""Sentences of one row; the rest is counted."""
LOCK_S = 5.0
"""How long an append waits for another process that appends to the same log, which takes some milliseconds."""
FIRST = "0" * 64
"""What the first row of all has in place of a hash."""
APPLIED = "applied"
REFUSED = "refused"

BOUNDS = (
    Bound(
        name="audit_log",
        what="audit log, on disk",
        by=By.USER,
        per_node=(OLDER_FILES + 1) * MAX_AUDIT_BYTES,
        unit="bytes",
        full="the oldest file goes",
        counter="none: the hash in the first row shows that there were earlier ones",
    ),
)


ON_DISK = (
    Format(
        name="audit log",
        where="`audit_log`; beside it `.1` to `.4`, and the hidden `.head` with the hash of the last row",
        what="who changed what about the trust of a node",
        version=1,
        mark='`"format"` in each row; 1 if it is missing',
        refused="reading that row, which `meshbus audit` reports; new rows are appended",
    ),
)


_logger = logging.getLogger("meshbus.node")


class AuditKind(StrEnum):
    """What a row is about."""

    POLICY = "policy"
    """The policy of the node or the fleet."""
    JOIN = "join"
    """An invite, or a node that used one."""
    ROTATION = "rotation"
    """A secret that was replaced: the mesh key, an identity, an issuer."""
    REVOCATION = "revocation"
    """A key or an issuer whose rights ended."""


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """One change, or one that was refused."""

    kind: str = AuditKind.POLICY
    """One of AuditKind, or a kind of a newer meshbus. Rows of earlier versions have none: all were about the policy."""
    at: str
    """When, in UTC."""
    by: str
    """Who: the user of a command, or the issuer of what arrived from another node."""
    via: str
    """How it came: the command, the signal or the message."""
    node_id: str
    """The node that writes the row."""
    result: str
    """`applied` or `refused`."""
    subject: str | None = None
    """Whom it is about: a public key in hex; None if it is about the node itself, or the key is not known."""
    policy: str | None = None
    """SHA-256 of the content of the policy file."""
    version: int | None = None
    """The version of a signed policy."""
    changes: tuple[str, ...] = ()
    """What changed, in words."""
    problem: str | None = None
    """Why it was refused."""
    before: str = FIRST
    """SHA-256 of the line before this one."""
    format: int = ON_DISK[0].version
    """Version of the form of the row."""


def rotation_row(
    node_id: int,
    by: str,
    via: str,
    *,
    changes: tuple[str, ...] = (),
    subject: str | None = None,
    problem: str | None = None,
) -> AuditRow:
    """Return the row of a secret that was replaced now, or with a problem of one that was refused."""
    return AuditRow(
        kind=AuditKind.ROTATION,
        at=now_text(),
        by=by,
        via=via,
        node_id=f"{node_id:016x}",
        result=APPLIED if problem is None else REFUSED,
        subject=subject,
        changes=changes,
        problem=problem,
    )


class _Head(msgspec.Struct, frozen=True):
    """What the head of a log says about its last row."""

    last: str
    """Hash of its line."""
    at: str
    """When it was written, as it says itself."""


class Audit(NamedTuple):
    """What the files of an audit log contain."""

    rows: list[AuditRow]
    problems: list[str]
    """Places at which the chain is broken; none if nobody changed the files."""
    last: str
    """Hash of the last line."""


def now_text() -> str:
    """Return the present time as rows have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def this_user() -> str:
    """Return the user of this process, by name if the system knows one."""
    try:
        return getuser()
    except (ImportError, KeyError, OSError):  # a container may run under an id that has no name
        return f"user {os.getuid()}"


class AuditLog:
    """Appends to one audit log."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self._path = path
        self._files = Files() if files is None else files

    def append(self, row: AuditRow) -> None:
        """Append a row, and wait until it is on the disk. Raises ConfigError if that fails."""
        if len(row.changes) > MOST_CHANGES:
            rest = len(row.changes) - MOST_CHANGES
            row = msgspec.structs.replace(row, changes=(*row.changes[:MOST_CHANGES], f"and {rest} more"))
        try:
            with self._locked():
                self._append(row)
        except OSError as error:
            raise ConfigError(
                "audit_log",
                f"cannot be written: {error.strerror or error}; a change without a row is refused",
                source=str(self._path),
            ) from None

    def _append(self, row: AuditRow) -> None:
        lines, whole = _split(_content(self._path))
        before, head = self._last(lines), _read_head(self._path)
        if head is not None and head.last not in {before, *map(_hash, lines)}:
            before = head.last  # its row was cut off: the chain shows it from now on
        line = msgspec.json.encode(msgspec.structs.replace(row, before=before)) + b"\n"
        if whole and whole + len(line) > MAX_AUDIT_BYTES:
            self._rotate()
            whole = 0
        handle = self._files.reopen(self._path) if self._path.exists() else self._files.create(self._path)
        try:
            # A line that was cut off by a crash was never confirmed: it goes.
            self._files.truncate(handle, whole)
            self._files.write(handle, [line], whole)
            self._files.fsync(handle)
        finally:
            self._files.close(handle)
        self._files.fsync_folder(self._path.parent)
        self._write_head(_Head(_hash(line[:-1]), row.at))

    def _write_head(self, head: _Head) -> None:
        place = _head_of(self._path)
        try:
            self._files.write_aside(place, place.with_name(f"{place.name}.new"), [msgspec.json.encode(head)])
        except OSError as error:
            # The row is there, so the change is not refused: a head that is behind says nothing wrong.
            _logger.warning("%s cannot be written, so a cut of the newest rows would not be noticed: %s", place, error)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes out: several nodes of one machine may share a policy file."""
        place, deadline = self._path.with_name(f".{self._path.name}.lock"), time.monotonic() + LOCK_S
        while (handle := self._lock(place)) is None:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"another process has locked {place}")
            time.sleep(0.01)
        try:
            yield
        finally:
            self._files.close(handle)

    def _lock(self, place: Path) -> int | None:
        try:
            return self._files.lock(place)
        except BlockingIOError:
            return None

    def last_applied(self, kind: AuditKind) -> AuditRow | None:
        """Return the newest row of a kind that was applied, or None."""
        rows = reversed(read_audit(self._path).rows)
        return next((row for row in rows if (row.kind, row.result) == (kind, APPLIED)), None)

    def _last(self, lines: list[bytes]) -> str:
        """Return the hash of the last line, which is in an older file if the newest one has none."""
        lines = lines or _split(_content(_older(self._path, 1)))[0]
        return _hash(lines[-1]) if lines else FIRST

    def _rotate(self) -> None:
        for number in range(OLDER_FILES, 0, -1):
            newer = self._path if number == 1 else _older(self._path, number - 1)
            if newer.exists():
                self._files.rename(newer, _older(self._path, number))


def read_audit(path: Path) -> Audit:
    """Read an audit log with its older files, the oldest rows first. A file that does not exist has no rows."""
    head = _read_head(path)  # before the rows: one that is written meanwhile is not missing
    rows, problems, hashes = [], [], [] if _older(path, OLDER_FILES).exists() else [FIRST]
    for file in [*(_older(path, number) for number in range(OLDER_FILES, 0, -1)), path]:
        for number, line in enumerate(_split(_content(file))[0], 1):
            row = _row(line)
            if isinstance(row, str):
                problems.append(f"{file}, line {number}: {row}")
            else:
                rows.append(row)
                if hashes and row.before != hashes[-1]:
                    what = "the line before it was changed, removed or inserted after it was written"
                    problems.append(
                        f"{file}, line {number}: {'rows before it were removed' if hashes == [FIRST] else what}"
                    )
            hashes.append(_hash(line))
    if head is not None and head.last not in hashes:
        problems.append(
            f"{path}: rows were cut off at its end: the last one was of {head.at}; look who can write the file"
        )
    elif head is None and rows:
        problems.append(
            f"{_head_of(path)} is missing or damaged: rows may have been cut off at the end of the log; the next row writes it again"
        )
    return Audit(rows, problems, hashes[-1] if hashes else FIRST)


def _head_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.head")


def _read_head(path: Path) -> _Head | None:
    """Return what the head of a log says, or None if there is none that can be read."""
    try:
        return msgspec.json.decode(_content(_head_of(path)), type=_Head)
    except UNDECODABLE:
        return None


def _hash(line: bytes) -> str:
    return sha256(line).hexdigest()


class _Versioned(msgspec.Struct, frozen=True):
    format: int = 1


def _row(line: bytes) -> AuditRow | str:
    """Return a row, or why the line is none."""
    try:
        problem = ON_DISK[0].problem(msgspec.json.decode(line, type=_Versioned).format)
        return msgspec.json.decode(line, type=AuditRow) if problem is None else problem
    except UNDECODABLE:
        return "is not a row of an audit log"


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(2 * MAX_AUDIT_BYTES)  # one row can make a file longer than the limit
    except FileNotFoundError:
        return b""


def _split(content: bytes) -> tuple[list[bytes], int]:
    """Return the complete lines, and their size together."""
    whole = content.rfind(b"\n") + 1
    return content[:whole].split(b"\n")[:-1], whole


def _older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
