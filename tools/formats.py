"""Write docs/formats.md: every format on disk with its version, from the tuples `ON_DISK` in the source.

    python -m tools.formats

A test holds the page to this program, and every module that writes files to its row.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import meshbus
from meshbus.formats import Format

PAGE = Path(__file__).parent.parent / "docs" / "formats.md"
TUPLE = "ON_DISK"

_HEAD = """\
# Formats on disk

Written from the tuples `ON_DISK` in `src/meshbus` by `python -m tools.formats`.

Every file that one build of meshbus writes and another one reads has a version. A build reads its own version and the older
ones that the table names. A file of a newer version is refused with one sentence: which file, which version, what this build
reads, what to do. Nothing of it is changed, so the newer build can go on with it. [Upgrade a fleet](guide/upgrade-a-fleet.md)
says in which order to replace nodes, and what a downgrade finds.

A version grows when an older build would misread the file. What an older build may ignore, such as another field, changes no
version: these files are read by the builds before as well.

| format | files | holds | version | reads | where the version stands | with a newer one, what is refused | where |
|---|---|---|---|---|---|---|---|
"""

_TAIL = """
## Without a version of meshbus

| files | why |
|---|---|
| tokens | the bytes of net-mesh 0.23, in base64; what they mean cannot change |
| a file of passwords, a CURVE key, the token of the web server | one value, in the form of other programs |
| `_census/` | a log, with its versions; its rows are JSON objects, and rows of a kind that a build does not know are left out |
| checkpoints of daemons on a replicated channel | events, in a log with its versions; entries of a kind that a build does not know are left out, so a later form needs a channel of its own |
| the metadata of Delta and Iceberg | their own versions |
| `_lock`, `_spare`, `_waits`, `_status.json`, `progress.ndjson` | what happens now, for people and processes of the same moment; never read to go on |
"""


class Row(NamedTuple):
    """A format, and the module that reads and writes it."""

    module: str
    format: Format


def rows() -> list[Row]:
    """Return every format in the source, in the order of the modules."""
    names = sorted(
        found.name for found in pkgutil.walk_packages(meshbus.__path__, "meshbus.") if _has_tuple(found.name)
    )
    return [Row(name, form) for name in names for form in vars(import_module(name))[TUPLE]]


def _has_tuple(module: str) -> bool:
    # By its text: importing everything takes seconds, and some modules need packages that are not installed everywhere.
    path = Path(meshbus.__path__[0], *module.split(".")[1:]).with_suffix(".py")
    return path.is_file() and f"\n{TUPLE} = (" in path.read_text("utf-8")


def page() -> str:
    """Return the text of docs/formats.md."""
    return _HEAD + "".join(map(_line, rows())) + _TAIL


def _line(row: Row) -> str:
    form, where = row.format, row.module.removeprefix("meshbus.").replace(".", "/")
    cells = (
        form.name, form.where, form.what, str(form.version), form.readable, form.mark, form.refused, f"`{where}.py`",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
