"""Keep the copy of one table: look at the table, upload what is missing, verify it, and commit everything in one step.

    mirror.look()      list the files of the table
    mirror.sync(…)     bring the copy to that state

A kill at any point leaves objects that no commit names, or a commit that the next round finds done. Readers of the copy see
the state before or after. What may expire in the table is what `copied` has: these files were read back and compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from meshbus.errors import LogError, LogFault, MeshError
from meshbus.log.objectstore import Cancelled, explain, join_uri, put_object, show_uri, size_of, verify_object
from meshbus.spark.lake.mirror.ledger import Ledger
from meshbus.spark.lake.mirror.plan import Changes, Identity, LocalFile, Waiting, changes, kept_beside, name_files

if TYPE_CHECKING:
    from meshbus.spark.lake.mirror.target import Target
    from meshbus.spark.lake.tableformat import TableFile, TableFormat


_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST = 300
"""Characters of what a library says: delta-rs repeats whole answers of a server."""


class Replaced(Exception):
    """A file left the table, and was removed, while it was copied: look at the table again."""


class _State(NamedTuple):
    """A table as it was when it was looked at."""

    files: tuple[LocalFile, ...] = ()
    batches: tuple[tuple[str, int], ...] = ()
    """The last batch of each query."""


class TableMirror:
    """The copy of one table; used by one thread, except for `copied` and `behind`."""

    def __init__(self, table: TableFormat, folder: Path, uri: str, target: Target, ledger: Ledger) -> None:
        """`folder` is the directory of the table, and `uri` the place of the copy; `table` is used by nobody else."""
        self._table, self._folder, self._uri = table, folder, uri
        self._target, self._ledger = target, ledger
        self._state = _State()
        self._synced: _State | None = None
        """The state that the copy has; None if that is not known."""
        self._present: frozenset[str] | None = None
        """Names of the files that the copy had when it was read last."""
        self._known: dict[Identity, str] = {}
        """Names in the copy of the files that the table had last time."""
        self.copied: frozenset[str] = frozenset()
        """Paths of files that are in the copy, and were verified."""
        self.behind: Waiting | None = None
        """What the copy lacks; None if that is not known."""

    def look(self) -> bool:
        """List the files of the table, and return whether the copy may differ. Raises Replaced."""
        try:
            found = self._table.files()
            batches = self._batches(found)
            # The files and the batches belong together if no commit came between them.
            while (again := self._table.files()) != found:
                found, batches = again, self._batches(again)
            files = tuple(self._local(Path(file.path), file.bytes) for file in found)
        except FileNotFoundError:
            raise Replaced from None
        self._state = _State(files, batches)
        if self._present is not None:
            self._compare(self._present, self._ledger.kept)
        return self._state != self._synced

    def _batches(self, files: Iterable[TableFile]) -> tuple[tuple[str, int], ...]:
        queries = sorted({file.query for file in files} - {""})
        return tuple((query, last) for query in queries if (last := self._table.last(query)) >= 0)

    def _local(self, path: Path, size: int) -> LocalFile:
        found = path.stat()
        return LocalFile(path, str(path.relative_to(self._folder)), size, (found.st_ino, size, found.st_mtime_ns))

    def sync(self, *, expired: datetime | None = None, cancelled: Callable[[], bool] = lambda: False) -> bool:
        """Bring the copy to the state that `look` found, and return whether that took a commit.

        Rows that only the copy has are removed if they are older than `expired`. Raises LogError and other errors of
        storage, Cancelled soon after `cancelled` returns True, and Replaced.
        """
        gone = frozenset() if expired is None else self._ledger.kept_before(expired)
        if self._state == self._synced and not gone:
            return False
        try:
            return self._bring(gone, cancelled)
        except BaseException:
            self._synced = None
            self._target.forget()
            raise

    def _bring(self, gone: frozenset[str], cancelled: Callable[[], bool]) -> bool:
        # Storage that does not answer is explained better by its own client than by the library of a format.
        size_of(self._uri)
        with _reaching(self._uri, "read"):
            present = self._present = self._target.names()
        # Read after the table was looked at: what has left it by then is written down.
        held = self._ledger.kept
        named, kept, todo = self._compare(present, held - gone)
        left = todo.waiting
        for name, file in todo.missing.items():
            self._upload(name, file, cancelled)
            self.behind = left = left.without(file)
        if cancelled():
            raise Cancelled
        made = False
        if present or named:
            added = {name: file.path for name, file in todo.missing.items()}
            with _reaching(self._uri, "commit to", added.values()):
                made = self._target.commit(added, todo.surplus, dict(self._state.batches))
        self._known = {file.identity: name for name, file in named.items()}
        self._ledger.rename({file.name: name for name, file in named.items() if file.name != name})
        self._ledger.forget(held - kept)
        self.copied = frozenset(str(file.path) for file in named.values())
        self._present = frozenset(named) | (present & kept)
        self._synced, self.behind = self._state, Waiting(0, 0)
        return made

    def _compare(
        self, present: frozenset[str], held: frozenset[str]
    ) -> tuple[dict[str, LocalFile], frozenset[str], Changes]:
        """Return the files by their names in the copy, what only the copy should have, and what it lacks."""
        named = name_files(self._state.files, present, self._ledger.aliases, self._known)
        kept = kept_beside(held, named)
        todo = changes(named, present, kept)
        self.behind = todo.waiting
        return named, kept, todo

    def _upload(self, name: str, file: LocalFile, cancelled: Callable[[], bool]) -> None:
        uri = join_uri(self._uri, *name.split("/"))
        try:
            stored = put_object(file.path, uri, cancelled)
        except FileNotFoundError:
            if not file.path.exists():
                raise Replaced from None
            raise
        try:
            verify_object(stored, cancelled)
        except FileNotFoundError as error:
            raise LogError(LogFault.UNREACHABLE, f"{error}, although it was just written; check the storage") from None

    def clean(self) -> None:
        """Delete objects that nothing has referred to for a day. Raises errors of storage."""
        with _reaching(self._uri, "clean up"):
            self._ledger.note_unused(self._target.clean(self._ledger.unused, datetime.now(UTC)))


@contextmanager
def _reaching(uri: str, doing: str, needed: Iterable[Path] = ()) -> Iterator[None]:
    """Turn errors of a library into a LogError in one sentence, or into Replaced if a local file is gone."""
    try:
        yield
    except MeshError:
        raise
    except Exception as error:
        if not all(path.exists() for path in needed):
            raise Replaced from None
        text = f"cannot {doing} {show_uri(uri)}: {_plain(error)}; check the server and its free space"
        raise explain(uri, doing, error) or LogError(LogFault.UNREACHABLE, text) from error


def _plain(error: Exception) -> str:
    """Return what a library says on one line, without the colors and arrows of delta-rs."""
    steps = [" ".join(step.split()) for step in _COLOR.sub("", str(error)).split("↳")]
    return ": ".join(filter(None, steps))[:_LONGEST] or type(error).__name__
