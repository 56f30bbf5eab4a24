"""Readers see whole commits only: while a table is written and compacted, and wherever its writer is killed."""

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from meshbus.spark.lake.readers import reading
from tests.house.tree import ROOT
from tests.spark.lake.formats.made import EVENTS, FORMATS, commit, numbers, open_table, seen


def die(folder: Path, kind: str, *, stride: int) -> int:
    """Return how often the writer was killed, at every n-th of its steps."""
    command = [sys.executable, "-m", "tests.spark.lake.formats.killing", str(folder), kind, str(stride)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return int(answer.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_a_killed_writer_leaves_a_whole_table_that_its_successor_completes(kind: str, tmp_path: Path) -> None:
    assert die(tmp_path, kind, stride=4) >= 3


@pytest.mark.soak
@pytest.mark.parametrize("kind", FORMATS)
def test_a_writer_may_be_killed_at_every_step(kind: str, tmp_path: Path) -> None:
    assert die(tmp_path, kind, stride=1) >= 15


@pytest.mark.parametrize("kind", FORMATS)
def test_a_reader_that_counts_all_the_time_finds_every_row_once(kind: str, tmp_path: Path) -> None:
    table = open_table(EVENTS, tmp_path, kind)
    commit(table, 0, range(10))
    done = threading.Event()
    wrong: list[object] = []
    reads: list[int] = []

    def count(read: Callable[[], list[int]]) -> None:
        while not done.is_set():
            with reading(tmp_path) if kind == "parquet" else nullcontext():
                try:
                    found = read()
                except Exception as error:  # noqa: BLE001 - the test must see it
                    wrong.append(error)
                    return
            reads.append(len(found))
            if found != list(range(len(found))) or len(found) % 10:
                wrong.append(found)

    readers = [
        threading.Thread(target=count, args=(lambda: seen(table, kind),)),
        threading.Thread(target=count, args=(lambda: numbers(type(table)(table.folder, table.spec)),)),
    ]
    for reader in readers:
        reader.start()
    try:
        for batch in range(1, 25):
            commit(table, batch, range(batch * 10, batch * 10 + 10))
            table.compact("events", fewest=2, keep=0)
            if batch % 8 == 0:
                table.sweep()
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert not wrong, wrong[0]
    assert reads
    assert numbers(table) == seen(table, kind) == list(range(250))
