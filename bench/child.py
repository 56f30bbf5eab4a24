"""A process that carries out commands of a benchmark: one JSON object per line in, one per line out."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Any, Self

import msgspec

_LINE_BYTES = 64 << 20


class Child:
    """The process, from the side of the benchmark."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, module: str, *arguments: str) -> Self:
        """Start a module as a program."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
        )
        return cls(process)

    async def hear(self) -> Any:
        """Return the next answer."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the benchmark has exited")
        return msgspec.json.decode(line)

    async def ask(self, do: str, **fields: object) -> Any:
        """Send a command, and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode({"do": do, **fields}) + b"\n")
        return await self.hear()

    async def kill(self) -> None:
        """End the process."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


def tell(answer: object) -> None:
    """Write an answer, in the process."""
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


async def serve(commands: object) -> None:
    """Carry out commands until the input ends: each is a coroutine method of `commands`."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        command = msgspec.json.decode(line)
        tell(await getattr(commands, command.pop("do"))(**command))
