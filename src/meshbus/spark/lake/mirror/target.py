"""What a format has to do for copies of its tables: say which files a copy has, and commit changes to it.

    target.names()                                   {"batch=events-000000000012/part.parquet", …}
    target.commit(added, removed, {"events": 12})    in one step, for every reader

The objects of added files are there and verified before the commit (spark/lake/mirror/tablemirror.py). A target caches what it
has read; after an error it is forgotten, because nobody knows whether a commit was made whose answer got lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from meshbus.errors import PipelineError, PipelineFault
from meshbus.log.objectstore import show_uri
from meshbus.spark.lake.formats.parttable import KEEP_HOURS

if TYPE_CHECKING:
    from meshbus.spark.lake.tableschema import TableSpec

KEEP: Final = timedelta(hours=KEEP_HOURS)
"""How long objects stay that are no longer part of a table, for readers that have listed them."""


class Target(Protocol):
    """The copy of one table."""

    def __init__(self, uri: str, spec: TableSpec, owner: str) -> None:
        """`uri` is the directory of the table on object storage, and `owner` the id of the tables that it is a copy of."""

    def names(self) -> frozenset[str]:
        """Return the names of the present files; empty if the copy does not exist.

        Raises PipelineError if the copy belongs to other tables.
        """
        ...

    def commit(self, added: Mapping[str, Path], removed: Collection[str], batches: Mapping[str, int]) -> bool:
        """Add and remove files by their names in one step, and return whether that was needed.

        `batches` has the last batch of each query that is in the copy then.
        """
        ...

    def clean(self, unused: Mapping[str, datetime], now: datetime) -> dict[str, datetime]:
        """Delete objects that nothing has referred to for a day.

        `unused` are objects that nothing referred to earlier, with the time at which that was noticed. Returns those
        that are left.
        """
        ...

    def forget(self) -> None:
        """Drop what was read, so that the next call reads it again."""
        ...


TARGETS: Final = {
    "delta": "meshbus.spark.lake.mirror.delta:DeltaTarget",
    "iceberg": "meshbus.spark.lake.mirror.iceberg:IcebergTarget",
}
"""The class of each format. The format `parquet` has none: on object storage, directories cannot be renamed in one step."""


def target_type(table_format: str) -> type[Target]:
    """Return the class for a format."""
    module, _, kind = TARGETS[table_format].partition(":")
    found: type[Target] = getattr(import_module(module), kind)
    return found


def check_owner(uri: str, found: str | None, owner: str) -> None:
    """Raise PipelineError unless a copy belongs to the tables with this id."""
    if found != owner:
        raise PipelineError(
            PipelineFault.BAD_TABLE,
            f"{show_uri(uri)} is not the copy of these tables, but of others; set mirror to an empty place",
        )
