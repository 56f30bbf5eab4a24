"""meshbus: a source, a target, and a node that publishes and receives, each in a process of its own, on loopback."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Self

import msgspec

from bench.child import Child
from bench.moves import member
from bench.moves.member import INPUTS

RATE = 500.0
"""Events per second while a daemon moves."""
WARM_S, BEFORE_S, AFTER_S = 0.5, 2.0, 2.0
"""Time under load: until everything runs, before the move, and from its begin."""
WAIT_S = 30.0


class Pause(msgspec.Struct, frozen=True):
    """What a move did to the events that were published meanwhile; times in seconds."""

    seconds: float
    """How long the move took."""
    before: list[float]
    """Delays of events that were published before the move."""
    during: list[float]
    """Delays of events that were published during the move."""
    silence: float
    """The longest time without an output, over the whole load."""
    lost: int
    repeated: int


class Nodes:
    """Three nodes that know each other."""

    def __init__(self, folder: Path, children: list[Child], ids: list[int]) -> None:
        self._folder = folder
        self._children = children
        self._source, self._target, self._outside = children
        self._target_id = ids[1]
        self._ids = ids
        self._names = map("daemon-{}".format, itertools.count())

    @classmethod
    async def start(cls) -> Self:
        """Start the nodes, and connect them."""
        folder = Path(tempfile.mkdtemp(prefix="bench-moves-"))
        names = ("source", "target", "outside")
        children = [await Child.start(member.__name__, name, str(folder / name)) for name in names]
        told = [await child.hear() for child in children]
        for place, child in enumerate(children):
            await child.ask("connect", peers=[(other["address"], other["public_key"]) for other in told[:place]])
        nodes = cls(folder, children, [one["node_id"] for one in told])
        await nodes._outside.ask("listen", publishers=nodes._ids[:2])
        return nodes

    async def move(self, kind: str, size: int) -> float:
        """Move a daemon without inputs, and return the seconds that it took."""
        name = next(self._names)
        await self._source.ask("run", daemon=name, kind=kind, size=size, inputs=[])
        await self._target.ask("offer", daemon=name, kind=kind, has_output=False)
        moved = await self._source.ask("move", daemon=name, target=self._target_id)
        await self._target.ask("withdraw", daemon=name)
        return float(moved["seconds"])

    async def move_under_load(self, kind: str, size: int) -> Pause:
        """Move a daemon while events come for it."""
        name = next(self._names)
        channel = INPUTS + name
        await self._source.ask("run", daemon=name, kind=kind, size=size, inputs=[f"{channel}@outside"])
        await self._target.ask("offer", daemon=name, kind=kind, has_output=True)
        await self._publish(channel, WARM_S)  # until the daemon reads its input
        async with asyncio.TaskGroup() as group:
            load = group.create_task(self._publish(channel, BEFORE_S + AFTER_S))
            await asyncio.sleep(BEFORE_S)
            moved = await self._source.ask("move", daemon=name, target=self._target_id)
        published, delays = load.result()
        await self._target.ask("withdraw", daemon=name)
        began, ended = moved["began"], moved["began"] + moved["seconds"]
        outputs = sorted(at + delay for at, delay in delays)
        return Pause(
            seconds=moved["seconds"],
            before=[delay for at, delay in delays if began - 1 <= at < began - 0.1],
            during=[delay for at, delay in delays if began <= at < ended],
            silence=max(later - earlier for earlier, later in itertools.pairwise(outputs)),
            lost=published - len(delays),
            repeated=await self._repeated(),
        )

    async def close(self) -> None:
        """Stop all processes."""
        for child in self._children:
            await child.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _publish(self, channel: str, seconds: float) -> tuple[int, list[tuple[float, float]]]:
        """Publish events, and return how many, and the times of those whose outputs came back."""
        told = await self._outside.ask("publish", channel=channel, rate=RATE, seconds=seconds)
        first, count = told["first"], told["published"]
        return count, await self._outside.ask("delays", first=first, count=count, wait_s=WAIT_S)

    async def _repeated(self) -> int:
        return int((await self._outside.ask("repeated"))["count"])
