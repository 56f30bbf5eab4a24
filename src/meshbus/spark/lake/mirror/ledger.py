"""What the owner of a copy remembers beside the tables: where the copy is, and which files only the copy has by now.

    <root>/_mirror/mirror.json           the place of the copy, and an id that the copy has too
    <root>/_mirror/silver.events.json    the ledger of one table

A file that left a table was either replaced, and has to leave the copy too, or it expired, and stays there. The table does
not tell which. So its name is written down before it expires (`expiring`), and moved to `kept` afterwards if it is really
gone. After a crash in between, `settle` decides by looking at the table, before anything else may change it.

A copy whose id is another belongs to other tables, or these have lost their ledger. It is not touched: what only the
copy has would be removed.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from meshbus.errors import UNDECODABLE, PipelineError, PipelineFault
from meshbus.log.objectstore import show_uri

if TYPE_CHECKING:
    from meshbus.spark.lake.tablestore import Store

FOLDER = "_mirror"
_HOME = "mirror.json"
_T = TypeVar("_T")


class Kept(msgspec.Struct, frozen=True):
    """A file that has expired in the table."""

    name: str
    """Its name in the copy."""
    last: datetime
    """Time of its last row."""


class Record(msgspec.Struct, frozen=True):
    """The content of a ledger."""

    aliases: dict[str, str] = {}
    """Names in the copy, by present names in the table, of files that have different ones."""
    expiring: dict[str, Kept] = {}
    """Files that are about to leave the table, by their names in it."""
    kept: dict[str, datetime] = {}
    """Files that only the copy has, with the time of their last rows."""
    unused: dict[str, datetime] = {}
    """Objects that nothing refers to, with the time at which that was noticed."""


class Ledger:
    """The ledger of one table; methods may be called from several threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._record = _read(path, Record) or Record()

    @property
    def aliases(self) -> Mapping[str, str]:
        """Names in the copy of files that were linked into new directories."""
        return self._record.aliases

    @property
    def unused(self) -> Mapping[str, datetime]:
        """Objects that nothing refers to."""
        return self._record.unused

    @property
    def kept(self) -> frozenset[str]:
        """Names of files that only the copy has, or may have soon."""
        record = self._record
        return frozenset(record.kept) | {kept.name for kept in record.expiring.values()}

    def kept_before(self, time: datetime) -> frozenset[str]:
        """Return the names of files that only the copy has, and whose rows are all older."""
        return frozenset(name for name, last in self._record.kept.items() if last < time)

    def rename(self, aliases: Mapping[str, str]) -> None:
        """Replace the aliases."""
        self._change(lambda record: replace(record, aliases=dict(aliases)))

    def note_unused(self, unused: Mapping[str, datetime]) -> None:
        """Replace the objects that nothing refers to."""
        self._change(lambda record: replace(record, unused=dict(unused)))

    def begin(self, expiring: Mapping[str, datetime]) -> None:
        """Write down which files are about to leave the table, by their names in it, with the time of their last rows."""

        def begun(record: Record) -> Record:
            found = {name: Kept(record.aliases.get(name, name), last) for name, last in expiring.items()}
            return replace(record, expiring=found)

        self._change(begun)

    def settle(self, present: frozenset[str]) -> None:
        """Keep what has left the table, which has the files `present` now; the rest has not expired."""

        def settled(record: Record) -> Record:
            gone = {kept.name: kept.last for name, kept in record.expiring.items() if name not in present}
            return replace(record, kept=record.kept | gone, expiring={})

        if self._record.expiring:
            self._change(settled)

    def forget(self, names: Collection[str]) -> None:
        """Remove files that have left the copy."""
        if not self._record.kept.keys().isdisjoint(names):
            self._change(lambda record: replace(record, kept={n: t for n, t in record.kept.items() if n not in names}))

    def _change(self, change: Callable[[Record], Record]) -> None:
        with self._lock:
            record = change(self._record)
            if record != self._record:
                _write(self._path, record)
                self._record = record


class _Home(msgspec.Struct, frozen=True):
    place: str
    """Without the address of the server, which may change."""
    id: str


class Ledgers:
    """The ledgers of the tables in one directory."""

    def __init__(self, root: Path, uri: str) -> None:
        """Begin to keep a copy at a place, or go on; raises PipelineError if the tables have one at another place."""
        place = show_uri(uri).partition(" at ")[0].rstrip("/")
        check_place(root, place)
        self._folder = root / FOLDER
        self._folder.mkdir(exist_ok=True)
        home = _read(self._folder / _HOME, _Home)
        if home is None:
            home = _Home(place, uuid.uuid4().hex)
            _write(self._folder / _HOME, home)
        self.id = home.id
        self._ledgers: dict[str, Ledger] = {}

    def __getitem__(self, table: str) -> Ledger:
        if table not in self._ledgers:
            self._ledgers[table] = Ledger(self._folder / f"{table}.json")
        return self._ledgers[table]


def check_place(root: Path, place: str | None) -> None:
    """Raise PipelineError if the tables in a directory have a copy at another place, or no longer have one."""
    home = _read(root / FOLDER / _HOME, _Home)
    if home is not None and home.place != place:
        raise PipelineError(
            PipelineFault.SETTINGS,
            f"the tables in {root} have their copy at {home.place}, not at {place}; set mirror to that, or remove"
            f" {root / FOLDER} to leave that copy as it is",
        )


def settle_all(store: Store) -> None:
    """Decide what an interrupted expiry has removed; to be called before anything changes the tables."""
    for name in store.catalog:
        path = store.root / FOLDER / f"{name}.json"
        if path.exists():
            folder = store.folder(name)
            Ledger(path).settle(frozenset(name_below(folder, file.path) for file in store.table(name).files()))


def name_below(folder: Path, path: str) -> str:
    """Return the path of a file as its name below the directory of its table."""
    return str(Path(path).relative_to(folder))


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except UNDECODABLE:
        raise PipelineError(
            PipelineFault.BAD_TABLE, f"{path} cannot be read; restore it, or remove {path.parent} and begin a new copy"
        ) from None


def _write(path: Path, content: msgspec.Struct) -> None:
    aside = path.with_suffix(".new")
    with aside.open("wb") as file:
        file.write(msgspec.json.encode(content))
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
