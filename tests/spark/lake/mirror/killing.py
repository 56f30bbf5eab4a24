"""A process that changes a table and its copy, and kills itself: `python -m … <root> <uri> <format> <step>`.

It dies before the n-th of its changes, of the disk or of storage, or ends if there are fewer.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake

from meshbus.spark.lake.mirror import icebergcatalog, ledger, tablemirror
from tests.spark.lake.dying import die_at
from tests.spark.lake.formats.made import START, commit, event, write_events
from tests.spark.lake.mirror.copies import Copied, with_copy

CHANGES: list[tuple[Any, str]] = [
    (os, "rename"),
    (os, "replace"),
    (os, "link"),
    (tablemirror, "put_object"),
    (tablemirror, "verify_object"),
    (icebergcatalog, "write_object"),
    (deltalake.DeltaTable, "create_write_transaction"),
    (ledger, "_write"),
]
OLD = [9_000, 9_001]
BEFORE = [*range(40), *OLD]
COMMITTED = [*range(50), *OLD]
REPLACED = [*range(12), *range(23, 50), 1_000, *OLD]
STATES = [sorted(state) for state in (BEFORE, COMMITTED, REPLACED)]
"""What a reader of the copy may find; what expires in the table stays in the copy."""
LEFT = [*range(12), *range(23, 50), 1_000]
"""What the table has in the end."""


def prepare(both: Copied) -> None:
    for batch in range(4):
        commit(both.table, batch, range(batch * 10, batch * 10 + 10))
    staged = both.table.stage()
    write_events(staged, [event(number, second=-5_000) for number in OLD])
    both.table.commit("old", 0, 0, staged)
    both.sync()


def work(both: Copied) -> None:
    """Do one of everything; doing it again changes nothing."""
    both.settle()
    both.sync()
    commit(both.table, 4, range(40, 50))
    both.sync()
    both.table.compact("events", fewest=2, keep=0)
    both.sync()
    staged = both.table.stage()
    write_events(staged, [event(1_000, second=12)])
    both.table.replace(START + timedelta(seconds=12), START + timedelta(seconds=23), staged)
    both.sync()
    both.expire(START)
    both.table.compact("events", fewest=2, keep=0)
    both.sync()
    both.mirror.clean()


def main(root: str, uri: str, kind: str, step: str) -> None:
    die_at(int(step), CHANGES)
    work(with_copy(Path(root), uri, kind))


if __name__ == "__main__":
    main(*sys.argv[1:])
