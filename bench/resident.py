"""Resident memory of a process that uses more and more of the package. bench_import runs it in a process for each row.

    python -m bench.resident "an idle node"

prints the resident megabytes of the process, interpreter included, and which heavy packages it has loaded.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshbus import Node, Subscription

HEAVY = ("numba", "pyarrow", "pyspark")
PSK = "5a" * 32
REST_S = 2.0
"""How long kernels are given to load."""


def bare() -> None:
    """Do nothing."""


def package() -> None:
    """Import the package."""
    import meshbus  # noqa: F401


def idle() -> None:
    """Open a node."""
    asyncio.run(_idle())


async def _idle() -> None:
    from meshbus import Node

    async with Node.open(psk=PSK, ephemeral=True):
        await asyncio.sleep(REST_S)
        show()


async def _pair(use: Callable[[Node, Subscription], Awaitable[None]], **options: Any) -> None:
    from meshbus import Node

    async with (
        Node.open(psk=PSK, ephemeral=True, **options) as publisher,
        Node.open(psk=PSK, ephemeral=True) as subscriber,
    ):
        await subscriber.connect(publisher.address, public_key=publisher.public_key)
        async with subscriber.subscribe("x") as subscription:
            await use(publisher, subscription)
            await asyncio.sleep(REST_S)
            show()


async def _single(node: Node, subscription: Subscription) -> None:
    for _ in range(1000):
        await node.publisher("x").publish(b"one")
        await subscription.next_batch()


async def _batches(node: Node, subscription: Subscription) -> None:
    for _ in range(100):
        await node.publisher("x").publish_batch([bytes(64)] * 5_000)
        while subscription.stats.pending:
            await subscription.next_batch()


async def _sealing(node: Node, subscription: Subscription) -> None:
    from meshbus import ChannelName

    await _batches(node, subscription)
    log = node.logs.of_published(ChannelName("x"))
    assert log is not None
    await asyncio.to_thread(log.file.seal)


def single() -> None:
    """Send single events between two nodes."""
    asyncio.run(_pair(_single))


def batches() -> None:
    """Send batches between two nodes."""
    asyncio.run(_pair(_batches))


def sealing() -> None:
    """Send logged batches between two nodes, and seal the log."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_pair(_sealing, log_dir=Path(folder), channels=[{"name": "x", "log": "published"}]))


ROWS: dict[str, Callable[[], None]] = {
    "bare interpreter": bare,
    "import meshbus": package,
    "an idle node": idle,
    "two nodes, 1000 single events": single,
    "two nodes, batches": batches,
    "the same, logged and sealed": sealing,
}


def show() -> None:
    """Print the memory of this process, once, and end it."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    heavy = [name for name in HEAVY if name in sys.modules]
    print(pages * os.sysconf("SC_PAGE_SIZE") // 1_000_000, *heavy, flush=True)
    os._exit(0)


if __name__ == "__main__":
    ROWS[sys.argv[1]]()
    show()
