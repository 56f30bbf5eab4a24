"""meshbus: three members of a replicated channel, each in a process of its own, on loopback."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Self

import msgspec

from bench.child import Child
from bench.replicated import member
from bench.replicated.contender import Load, Mode

NAMES = ("m0", "m1", "m2")
START_S = 60.0
PAUSE_S = 0.05


class _Member(Child):
    """One member."""

    node_id = 0


class Members:
    """Three members."""

    def __init__(self, folder: Path, members: list[_Member]) -> None:
        self._folder = folder
        self._members = members

    @classmethod
    async def start(cls, acks: str) -> Self:
        """Start the members, connect them, and wait until they take appends."""
        folder = Path(tempfile.mkdtemp(prefix="bench-members-"))
        members = [
            await _Member.start(member.__name__, name, ",".join(NAMES), str(folder / name), acks) for name in NAMES
        ]
        contender = cls(folder, members)
        told = [await one.hear() for one in members]
        for place, one in enumerate(members):
            one.node_id = told[place]["node_id"]
            await one.ask("connect", peers=[(other["address"], other["public_key"]) for other in told[:place]])
        await contender._leader()
        return contender

    async def load(self, mode: Mode, size: int, seconds: float) -> Load:
        """Append events of a size for some time, at the leader."""
        answer = await (await self._leader()).ask("load", mode=mode, size=size, seconds=seconds)
        return msgspec.convert(answer, Load)

    async def fail_over(self) -> float:
        """Kill the leader while events are appended, and return the seconds until the next acknowledgement."""
        leader = await self._leader()
        began = time.monotonic()
        await leader.kill()
        self._members.remove(leader)
        return float((await self._members[0].ask("append"))["at"] - began)

    async def close(self) -> None:
        """Stop all processes."""
        for one in self._members:
            await one.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _leader(self) -> _Member:
        """Wait until one of the members leads and takes appends, and return it."""
        deadline = time.monotonic() + START_S
        waiting = None
        while time.monotonic() < deadline:
            for one in self._members:
                status = await one.ask("status")
                waiting = status["waiting"]
                if status["leader"] == one.node_id and waiting is None:
                    return one
            await asyncio.sleep(PAUSE_S)
        raise RuntimeError(f"no member leads after {START_S:g} s: {waiting}")
