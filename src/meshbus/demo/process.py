"""Run child processes that write lines to standard output and never outlive their parent.

The parent closes a child's standard input to stop it, and kills it if that takes too long. A child has its own process
group, so that Ctrl-C in a terminal reaches only the parent, and a kill includes the child's own children. A child exits
when its standard input ends, also if the parent was killed. `run_child`, `say` and `follow_parent` are for children.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from meshbus.errors import MeshError
from meshbus.node.driving.tasks import TaskOwner

_LEAVE_S = 60.0
"""Time for a child to exit after its standard input was closed. A node that writes logs may need seconds, and more on a
busy machine; one that is killed loses the last packets that it recorded."""

_PATIENCE_S, _LOOK_S = 30.0, 0.02
"""How long `wait_for` waits, and how often it looks."""

Line = TypeVar("Line")

_log = logging.getLogger("meshbus.demo")


class Process(Generic[Line]):
    """One child process, used as an async context manager."""

    def __init__(
        self,
        name: str,
        *arguments: str,
        says: Callable[[bytes], Line],
        errors: Path,
        env: Mapping[str, str] | None = None,
        news: Callable[[Line], bool] = lambda _: False,
    ) -> None:
        """Prepare to run `python ARGUMENTS`; its standard error goes to the file `errors`.

        `says` decodes a line of its output. `news` gets each decoded line first and returns whether it has handled it;
        other lines wait for `answer`.
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
                process_group=0,  # its own group: Ctrl-C in the terminal reaches only the parent
            )
        self._hearing = self._tasks.start(self._hear(self._process))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:  # something went wrong, or Ctrl-C: do not wait for an orderly shutdown
            self.kill()
        await self.leave()

    def tell(self, line: bytes) -> None:
        """Write a line to the child's standard input."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line)

    async def answer(self) -> Line:
        """Return the child's next line. Raises MeshError if the child exits instead."""
        answer = await self._answers.get()
        if answer is None:
            self._answers.put_nowait(None)  # for the next caller: the end stays the end
            lines = self._errors.read_text("utf-8", "replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "no error message")
            raise MeshError(f"the process of {self.name} has exited: {last}; see {self._errors}")
        return answer

    def end_input(self) -> None:
        """End the child's standard input: it says what it has left to say, and exits."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def leave(self) -> None:
        """Stop the child and wait for its exit. Calling it again does nothing."""
        process, hearing = self._process, self._hearing
        if process is None or hearing is None:
            return
        self.end_input()
        try:
            await asyncio.wait_for(process.wait(), _LEAVE_S)
        except TimeoutError:
            self.kill()
            await process.wait()
        await hearing
        self._process = None

    def kill(self) -> None:
        """Kill the child's process group; the pid cannot have been reused, because nobody has waited for it yet."""
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
    """Write a line to the parent, and flush."""
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def own_output() -> None:
    """Keep standard output for `say`: what a library prints goes to standard error from now on."""
    kept = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(kept, "w")


async def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something holds, at most as long as a busy machine may need."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - it is looked at, nobody tells
                await asyncio.sleep(_LOOK_S)


async def input_lines() -> AsyncIterator[bytes]:
    """Yield the lines of standard input until it ends."""
    lines = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(lines)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await lines.readline():
        yield line


def follow_parent() -> threading.Event:
    """Exit this process when its standard input ends; return an event that is set when input arrives."""
    told = threading.Event()

    def follow() -> None:
        while os.read(0, 4096):  # not sys.stdin: a thread that holds its buffer lock would block the exit
            told.set()
        os._exit(1)

    threading.Thread(target=follow, name="follow-parent", daemon=True).start()
    return told


def run_child(work: Callable[[], None]) -> None:
    """Run the main function of a child; an exception ends it, with the message as last line on standard error."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the outermost handler of this process
        while isinstance(error, BaseExceptionGroup):  # TaskGroups wrap the error that matters
            error = error.exceptions[0]
        if isinstance(error, BrokenPipeError | KeyboardInterrupt):
            os._exit(1)  # the parent is gone: a flush at exit would fail again
        traceback.print_exception(error)
        sys.stderr.write(f"{' '.join(str(error).split()) or type(error).__name__}\n")
        sys.exit(1)
