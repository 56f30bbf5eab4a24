"""Uses every kernel on the thread of a running loop, and prints which were compiled or loaded there: none should be.

`python -m tests.house.kernels` does it in a new process, in which nothing is loaded yet; test_kernels.py runs it.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numba.core.dispatcher import Dispatcher

import meshbus
from meshbus import beside, jit
from meshbus.log.parquet.checksum import crc32
from meshbus.log.payload import Codec
from meshbus.node.driving.warmup import warm
from meshbus.policy.guard import AuthGuard
from meshbus.policy.prefixes import SubscriptionIndex
from meshbus.spark.lake.codec import Form
from meshbus.spark.lake.jsoncheck import surely_valid
from meshbus.spark.replay.kernelgateway import Judge
from meshbus.spark.replay.tally import count, move
from tests.log.making import open_log
from tests.log.varied import varied_appends, write_all
from tests.patience import PATIENCE_S
from tests.spark.packets import gateway_of, random_policy, read_record, record
from tests.spark.replay.test_tally import random_columns


class Found(msgspec.Struct):
    """What the walk saw."""

    kernels: list[str] = []
    """Every kernel of the package."""
    unused: list[str] = []
    """Kernels that no part of the walk uses: add one that does."""
    on_loop: list[str] = []
    """Kernels that were loaded on the thread of the loop."""
    late: list[str] = []
    """Kernels that were loaded when the same was done again."""


def use_guard() -> None:
    """Check authorizations of a batch."""
    guard = AuthGuard()
    guard.authorize(1, 2)
    guard.check_batch(np.array([1, 3], np.uint32), np.array([2, 4], np.uint64))


def use_index() -> None:
    """Match topics of every number, as a hub does."""
    index = SubscriptionIndex()
    for number in range(50):
        index.subscribe(number % 7, b"sensors/%d" % number)
    for topics in (1, 64, 1024):
        index.match_batch([b"sensors/%d/x" % number for number in range(topics)])


def use_log() -> None:
    """Append, read and seal a log, as a node and a pipeline do."""
    with tempfile.TemporaryDirectory() as folder, open_log(Path(folder)) as log:
        write_all(log, varied_appends(3, 12))
        list(log.read_range(0, 100))
        log.seal()
    crc32(bytearray(1 << 20))  # of a page as large as those of large logs


def use_json() -> None:
    """Check payloads, as a pipeline does."""
    for codec in (Codec.JSON, Codec.UTF8):
        surely_valid(Form(codec), pa.array([b"{}", b"x"], pa.binary()))


def use_record() -> None:
    """Record packets, and judge them by another policy, as a replay does."""
    rng = np.random.default_rng(3)
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder), 7, gateway_of(random_policy(rng)), rng, 1_000)
        Judge(random_policy(rng)).judge_batch(read_record(Path(folder)))
    columns, table = random_columns(rng, 50, 5), np.zeros((256, 4), np.uint64)
    count.run(*[*columns, table, 0, 60])
    move.run(table, np.zeros((1024, 4), np.uint64))


USES: tuple[Callable[[], None], ...] = (warm, use_guard, use_index, use_log, use_json, use_record)


def walk() -> Found:
    """Use every kernel on a loop, twice, and say what was loaded where."""
    for module in pkgutil.walk_packages(meshbus.__path__, "meshbus."):
        if "__main__" not in module.name:
            importlib.import_module(module.name)
    found = Found(kernels=[_name(kernel.loop) for kernel in jit.KERNELS])
    loaded: list[tuple[str, int]] = []
    compile_for = Dispatcher.compile

    def watched(self: Any, types: Any) -> Any:
        loaded.append((_name(self.py_func), threading.get_ident()))
        return compile_for(self, types)

    jit.WORTH_LOADING = 1
    setattr(Dispatcher, "compile", watched)  # noqa: B010 - not a plain assignment to mypy

    async def use() -> None:
        for part in USES:
            part()

    asyncio.run(use())
    assert beside.wait(PATIENCE_S)
    asyncio.run(use())
    assert beside.wait(PATIENCE_S)
    first = len(loaded)
    asyncio.run(use())
    assert beside.wait(PATIENCE_S)
    found.unused = sorted(set(found.kernels) - {name for name, _ in loaded})
    found.on_loop = sorted({name for name, thread in loaded if thread == threading.get_ident()} & set(found.kernels))
    found.late = sorted({name for name, _ in loaded[first:]} & set(found.kernels))
    return found


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(walk()).decode())
