"""History of a policy: who changed what, when, and what was refused. A file that only grows, beside the policy.

    policy.toml.history        the newest rows, one JSON object per line
    policy.toml.history.1      older ones, up to .4; the oldest go

Each row holds the hash of the line before it, also across files. A line that is edited, removed or inserted later breaks
the chain at that place, and `read_history` reports it. No other line vouches for the last one: who can write the file
can cut lines off its end. Keep its hash (`meshbus policy history` shows it) elsewhere if that matters.

A row is on the disk before the change takes effect: no change without its row.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from getpass import getuser
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec

from meshbus.errors import ConfigError
from meshbus.log.files import Files
from meshbus.policy.bound import Bound, By

MAX_HISTORY_BYTES = 1 << 20
"""Of one file. Our choice: some thousand changes."""
OLDER_FILES = 4
"""Files that are kept beside the newest one."""
MOST_CHANGES = 200
"""Sentences of one row; the rest is counted."""
LOCK_S = 5.0
"""How long an append waits for another process that appends to the same history, which takes some milliseconds."""
FIRST = "0" * 64
"""What the first row of all has in place of a hash."""

BOUNDS = (
    Bound(
        name="policy_history",
        what="history of the changes of the policy, on disk",
        by=By.USER,
        per_node=(OLDER_FILES + 1) * MAX_HISTORY_BYTES,
        unit="bytes",
        full="the oldest file goes",
        counter="none: the hash in the first row shows that there were earlier ones",
    ),
)


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a policy, or one that was refused."""

    at: str
    """When, in UTC."""
    by: str
    """Who: the user of a command, or the issuer of a signed policy."""
    via: str
    """How: `start`, `apply`, `sighup` or `fleet`."""
    node_id: str
    result: str
    """`applied` or `refused`."""
    policy: str
    """SHA-256 of the content of the policy file."""
    version: int | None = None
    """The version of a signed policy."""
    changes: tuple[str, ...] = ()
    """What changed, in words."""
    problem: str | None = None
    """Why it was refused."""
    before: str = FIRST
    """SHA-256 of the line before this one."""


class History(NamedTuple):
    """What the files of a history contain."""

    rows: list[HistoryRow]
    problems: list[str]
    """Places at which the chain is broken; none if nobody changed the files."""
    last: str
    """Hash of the last line."""


def history_of(policy_file: Path) -> Path:
    """Return where the history of a policy is."""
    return policy_file.with_name(policy_file.name + ".history")


def this_user() -> str:
    """Return the user of this process, by name if the system knows one."""
    try:
        return getuser()
    except (ImportError, KeyError, OSError):  # a container may run under an id that has no name
        return f"user {os.getuid()}"


class PolicyHistory:
    """Appends to the history of one policy."""

    def __init__(self, policy_file: Path, files: Files | None = None) -> None:
        self._path = history_of(policy_file)
        self._files = Files() if files is None else files

    def append(self, row: HistoryRow) -> None:
        """Append a row, and wait until it is on the disk. Raises ConfigError if that fails."""
        if len(row.changes) > MOST_CHANGES:
            rest = len(row.changes) - MOST_CHANGES
            row = msgspec.structs.replace(row, changes=(*row.changes[:MOST_CHANGES], f"and {rest} more"))
        try:
            with self._locked():
                self._append(row)
        except OSError as error:
            raise ConfigError(
                "policy_file",
                f"the history of its changes cannot be written: {error.strerror or error}; a change without a row is refused",
                source=str(self._path),
            ) from None

    def _append(self, row: HistoryRow) -> None:
        lines, whole = _split(_content(self._path))
        before = sha256(lines[-1]).hexdigest() if lines else self._last_of_older()
        line = msgspec.json.encode(msgspec.structs.replace(row, before=before)) + b"\n"
        if whole and whole + len(line) > MAX_HISTORY_BYTES:
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

    def last_applied(self) -> HistoryRow | None:
        """Return the newest row of a policy that was applied, or None."""
        return next((row for row in reversed(read_history(self._path).rows) if row.result == "applied"), None)

    def _last_of_older(self) -> str:
        lines, _ = _split(_content(_older(self._path, 1)))
        return sha256(lines[-1]).hexdigest() if lines else FIRST

    def _rotate(self) -> None:
        for number in range(OLDER_FILES, 0, -1):
            newer = self._path if number == 1 else _older(self._path, number - 1)
            if newer.exists():
                self._files.rename(newer, _older(self._path, number))


def read_history(path: Path) -> History:
    """Read a history with its older files, the oldest rows first. A file that does not exist has no rows."""
    rows, problems, before = [], [], None
    for file in [*(_older(path, number) for number in range(OLDER_FILES, 0, -1)), path]:
        for number, line in enumerate(_split(_content(file))[0], 1):
            row = _row(line)
            if row is None:
                problems.append(f"{file}, line {number}: is not a row of a history")
            else:
                rows.append(row)
                if before is not None and row.before != before:
                    problems.append(
                        f"{file}, line {number}: the line before it was changed, removed or inserted after it was written"
                    )
            before = sha256(line).hexdigest()
    return History(rows, problems, FIRST if before is None else before)


def _row(line: bytes) -> HistoryRow | None:
    try:
        return msgspec.json.decode(line, type=HistoryRow)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(2 * MAX_HISTORY_BYTES)  # one row can make a file longer than the limit
    except FileNotFoundError:
        return b""


def _split(content: bytes) -> tuple[list[bytes], int]:
    """Return the complete lines, and their size together."""
    whole = content.rfind(b"\n") + 1
    return content[:whole].split(b"\n")[:-1], whole


def _older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
