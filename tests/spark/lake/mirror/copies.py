"""Tables with copies, and what a reader finds who knows only the place of a copy and the library of its format."""

from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import deltalake
import pyarrow as pa
from pyiceberg.table import StaticTable

from meshbus.log.objectstore import join_uri
from meshbus.spark.lake.formats.parttable import PartTable
from meshbus.spark.lake.mirror.ledger import Ledgers, name_below
from meshbus.spark.lake.mirror.tablemirror import TableMirror
from meshbus.spark.lake.mirror.target import target_type
from tests.spark.lake.formats.made import EVENTS, open_table

KINDS = ["delta", "iceberg"]


class Access(NamedTuple):
    """How readers reach a copy: its location, and the options of the two libraries; none for a directory."""

    location: str
    delta: dict[str, str]
    iceberg: dict[str, str]


def access(uri: str) -> Access:
    place, _, query = uri.partition("?")
    if not query:
        return Access(place, {}, {})
    server = query.removeprefix("endpoint_override=").partition("&")[0]
    return Access(
        place,
        {"endpoint_url": server, "region": "us-east-1", "allow_http": "true"},
        {"s3.endpoint": server, "s3.region": "us-east-1"},
    )


def below(uri: str, name: str) -> str:
    """Return the URI of the copy of a table."""
    return join_uri(uri, *name.split("."))


def read_copy(uri: str, kind: str) -> pa.Table:
    """Return all rows of a copy."""
    found = access(uri)
    if kind == "delta":
        return pa.table(deltalake.DeltaTable(found.location, storage_options=found.delta).to_pyarrow_table())
    return StaticTable.from_metadata(found.location, found.iceberg).scan().to_arrow()


def copied(uri: str, kind: str, name: str = EVENTS) -> list[int]:
    """Return the numbers of all events of a copy."""
    return sorted(read_copy(below(uri, name), kind).column("seq").to_pylist())


def commits(uri: str, kind: str, name: str = EVENTS) -> int:
    """Return how many commits a copy has."""
    found = access(below(uri, name))
    if kind == "delta":
        return int(deltalake.DeltaTable(found.location, storage_options=found.delta).version())
    return len(StaticTable.from_metadata(found.location, found.iceberg).history())


class Copied(NamedTuple):
    """A table, and what keeps its copy."""

    table: PartTable
    mirror: TableMirror
    ledgers: Ledgers

    def sync(self, **options: Any) -> bool:
        self.mirror.look()
        return self.mirror.sync(**options)

    def expire(self, before: datetime) -> int:
        """Expire rows of the table as a pipeline does, with the ledger."""
        ledger = self.ledgers[self.table.spec.name]
        old = {path: last for path, last in self.table.older(before).items() if path in self.mirror.copied}
        ledger.begin({name_below(self.table.folder, path): last for path, last in old.items()})
        gone = self.table.expire(before, old)
        self.settle()
        return gone

    def settle(self) -> None:
        present = frozenset(name_below(self.table.folder, file.path) for file in self.table.files())
        self.ledgers[self.table.spec.name].settle(present)


def with_copy(root: Path, uri: str, kind: str, name: str = EVENTS) -> Copied:
    """Return a table and its mirror, as a process that has just started has them."""
    table, own = open_table(name, root, kind), open_table(name, root, kind)
    root.mkdir(exist_ok=True)
    ledgers = Ledgers(root, uri)
    target = target_type(kind)(below(uri, name), table.spec, ledgers.id)
    return Copied(table, TableMirror(own, own.folder, below(uri, name), target, ledgers[name]), ledgers)
