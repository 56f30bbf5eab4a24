"""A writer that dies at every n-th of its steps: `python -m tests.spark.lake.formats.killing <folder> <format> <n>`.

Each time, a process commits, compacts, replaces and expires, and kills itself before a change of the file system. Another
one then checks what readers find, does the work again, and checks the result. Prints how many times it died.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import deltalake

from meshbus.spark.lake.formats.parttable import PartTable
from tests.spark.lake.dying import die_at
from tests.spark.lake.formats.made import EVENTS, START, commit, event, numbers, open_table, seen, write_events

CHANGES = ((os, "rename"), (os, "replace"), (os, "link"), (os, "unlink"), (os, "utime"), (os, "mkdir"),
           (shutil, "rmtree"), (deltalake.DeltaTable, "create_write_transaction"))  # fmt: skip
IMPORTED = [
    import_module(name)
    for name in ("pandas", "pyarrow.compute", "pyarrow.dataset", "meshbus.spark.lake.formats.icebergfolder")
]
"""What every process needs; it takes longer to import than to use."""
OLD = [9_000, 9_001]
BEFORE = [*range(40), *OLD]
COMMITTED = [*range(50), *OLD]
REPLACED = [*range(12), *range(23, 50), 1_000, *OLD]
EXPIRED = [*range(12), *range(23, 50), 1_000]
STATES = [sorted(state) for state in (BEFORE, COMMITTED, REPLACED, EXPIRED)]


def prepare(table: PartTable) -> None:
    for batch in range(4):
        commit(table, batch, range(batch * 10, batch * 10 + 10))
    staged = table.stage()
    write_events(staged, [event(number, second=-5_000) for number in OLD])
    table.commit("old", 0, 0, staged)


def work(table: PartTable) -> None:
    """Do one of everything; doing it again changes nothing."""
    commit(table, 4, range(40, 50))
    table.compact("events", fewest=2, keep=0)
    staged = table.stage()
    write_events(staged, [event(1_000, second=12)])
    table.replace(START + timedelta(seconds=12), START + timedelta(seconds=23), staged)
    table.expire(START)
    table.sweep()


def check(table: PartTable, kind: str) -> None:
    """Compare what readers find after the death with every state that was whole, and finish the work."""
    assert numbers(table) in STATES, numbers(table)
    assert seen(table, kind) in STATES, seen(table, kind)
    work(table)
    again = type(table)(table.folder, table.spec)
    assert numbers(again) == seen(again, kind) == sorted(EXPIRED), numbers(again)
    assert not (table.folder / "_aside").exists()


def forked(task: Callable[[], None]) -> int:
    """Run a task in a process of its own, and return how that ended; this one has started no threads that it needs."""
    child = os.fork()
    if not child:
        try:
            task()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - it must not return from here
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder: Path, kind: str, stride: int) -> int:
    root, copy = folder / "tables", folder / "copy"
    assert forked(lambda: prepare(open_table(EVENTS, root, kind))) == 0
    shutil.copytree(root, copy)
    step, died, ended = 0, 0, -signal.SIGKILL
    while ended == -signal.SIGKILL:

        def dying(step: int = step) -> None:
            die_at(step, CHANGES)
            work(open_table(EVENTS, root, kind))

        ended = forked(dying)
        if ended not in {0, -signal.SIGKILL} or forked(lambda: check(open_table(EVENTS, root, kind), kind)):
            sys.stderr.write(f"step {step} of {kind} failed\n")
            return 1
        shutil.rmtree(root)
        shutil.copytree(copy, root)
        step += stride
        died += ended == -signal.SIGKILL
    sys.stdout.write(f"{died}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
