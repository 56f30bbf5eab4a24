"""A child process that says lines on its standard output, and never outlives its parent.

It is stopped through the handle that it was started with, kindly first; it leads a process group of its own, so Ctrl-C in
a terminal reaches only the parent, and what it started itself is ended with it. A child ends by itself when its standard
input does: a parent that is killed leaves nothing behind either. `run_child`, `say` and `follow_parent` are for children.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from meshbus.errors import MeshError
from meshbus.node.tasks import TaskOwner

_LEAVE_S = 10.0
"""What a child may take to end when it is asked to."""

Line = TypeVar("Line")

_log = logging.getLogger("meshbus.demo")


class Process(Generic[Line]):
    """One child, inside `async with`."""

    def __init__(
        self,
        name: str,
        *arguments: str,
        says: Callable[[bytes], Line],
        errors: Path,
        env: Mapping[str, str] | None = None,
        news: Callable[[Line], bool] = lambda _: False,
    ) -> None:
        """Prepare `python ARGUMENTS`; what it writes to standard error goes to a file.

        `says` makes a line of bytes a value. `news` hears each line first and says whether that was all; the others wait for `answer`.
        """
        self.name = name
        self._arguments = arguments
        self._says, self._news = says, news
        self._errors = errors
        self._environment = {**os.environ, **(env or {})}
        self._answers: asyncio.Queue[Line | None] = asyncio.Queue()
        self._process: asyncio.subprocess.Process | None = None
        self._tasks = TaskOwner(f"reading what {name} writes", _log)
        self._hearing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        with self._errors.open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=self._environment,
                process_group=0,
            )
        self._hearing = self._tasks.start(self._hear(self._process))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._kill()
        await self.leave()

    def tell(self, line: bytes) -> None:
        """Write a line to its standard input."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line)

    async def answer(self) -> Line:
        """Wait for its next line; raises MeshError when it ends instead."""
        answer = await self._answers.get()
        if answer is None:
            self._answers.put_nowait(None)
            lines = self._errors.read_text("utf-8", "replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "it did not say why")
            raise MeshError(f"the process of {self.name} has ended: {last}; see {self._errors}")
        return answer

    async def leave(self) -> None:
        """End it, and wait until it has; doing so twice is fine."""
        process, hearing = self._process, self._hearing
        if process is None or hearing is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _LEAVE_S)
        except TimeoutError:
            self._kill()
            await process.wait()
        await hearing
        self._process = None

    def _kill(self) -> None:
        """End it and its group at once; its number is its own as long as nobody has waited for its end."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _hear(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for text in process.stdout:
            line = self._says(text)
            if not self._news(line):
                self._answers.put_nowait(line)
        self._answers.put_nowait(None)


def say(line: bytes) -> None:
    """Say something to the parent, at once."""
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def follow_parent() -> threading.Event:
    """End this process as soon as its standard input does, whatever it is doing; what comes there first sets the event."""
    told = threading.Event()

    def follow() -> None:
        while os.read(0, 4096):  # nothing buffered: a thread that holds that lock cannot be left behind at exit
            told.set()
        os._exit(1)

    threading.Thread(target=follow, name="follow-parent", daemon=True).start()
    return told


def run_child(work: Callable[[], None]) -> None:
    """Do the work of a child; what goes wrong ends it, and the last line on standard error says what it was."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the last stop of this process
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, BrokenPipeError | KeyboardInterrupt):
            os._exit(1)  # nobody is left to tell, not even by a flush at exit
        traceback.print_exception(error)
        sys.stderr.write(f"{' '.join(str(error).split()) or type(error).__name__}\n")
        sys.exit(1)
