"""No kernel is compiled or loaded on the thread of a loop: a node, a hub or a pipeline must not stall in the middle of work."""

import subprocess
import sys

import msgspec
import pytest

from meshbus import jit
from tests.house.kernels import Found
from tests.patience import PATIENCE_S

IDLE = """
import asyncio, os, sys
from meshbus import Node

async def main():
    async with Node.open(psk="5a" * 32, ephemeral=True):
        await asyncio.sleep(0)
        pages = int(open("/proc/self/statm").read().split()[1])
        print(pages * os.sysconf("SC_PAGE_SIZE") // 1_000_000, *({"numba", "pyarrow", "pyspark"} & set(sys.modules)))

asyncio.run(main())
"""
IDLE_MB = 90
"""What an idle node may take; it took 62 MB when this was written, and 181 with numba."""


def run(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=2 * PATIENCE_S).stdout


@pytest.mark.skipif(not jit.available(), reason="numba is not installed, or switched off")
def test_every_kernel_is_loaded_beside_the_loop_and_only_once() -> None:
    found = msgspec.json.decode(run("-m", "tests.house.kernels"), type=Found)
    assert len(found.kernels) > 30
    assert not found.unused, "add a use of them to tests/house/kernels.py"
    assert not found.on_loop, "a loop stood still while they were loaded"
    assert not found.late, "they were loaded again for the same use"


def test_an_idle_node_takes_little_memory_and_loads_nothing_heavy() -> None:
    megabytes, *heavy = run("-c", IDLE).split()
    assert not heavy
    assert int(megabytes) <= IDLE_MB
