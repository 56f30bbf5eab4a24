"""One target in a process of its own: an input may kill it, fill the memory or never come back.

The input that is being run is in a shared file at every moment, so that whoever started the process still has it then.
"""

from __future__ import annotations

import logging
import mmap
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from fuzz import corpus
from fuzz.finding import Finding
from fuzz.loop import Loop, Outcome
from fuzz.targets import TARGETS

GRACE_S = 120.0
"""How much longer than asked a process may take, for its imports and kernels on a busy machine."""
ROOM_BYTES = 2 << 30
"""Memory that a target may take beyond what it has at its start."""
_SLOT_BYTES = 1 << 17
_SIZE_BYTES = 4


class Order(msgspec.Struct, frozen=True):
    """What a process has to do."""

    target: str
    seconds: float
    seed: int
    keep: bool = False
    """Whether to add inputs that reach something new to the corpus."""


def fuzz_apart(order: Order) -> Outcome:
    """Run a target in a new process, and return what it found; the end of the process is a finding too."""
    with tempfile.NamedTemporaryFile() as slot:
        slot.truncate(_SLOT_BYTES)
        command = [sys.executable, "-m", "fuzz.worker", slot.name]
        began = msgspec.json.encode(order)
        try:
            done = subprocess.run(  # noqa: S603 - ours
                command, input=began, stdout=subprocess.PIPE, timeout=order.seconds + GRACE_S, check=False
            )
        except subprocess.TimeoutExpired:
            return _lost(order, "Stuck: the process did not come back", Path(slot.name))
        if done.returncode:
            return _lost(order, f"Died: the process ended with {done.returncode}", Path(slot.name))
        return msgspec.json.decode(done.stdout, type=Outcome)


def _lost(order: Order, how: str, slot: Path) -> Outcome:
    content = slot.read_bytes()
    data = content[_SIZE_BYTES : _SIZE_BYTES + int.from_bytes(content[:_SIZE_BYTES], "little")]
    found = Finding(order.target, how, "unknown", data)
    return Outcome(order.target, 0, order.seconds, 0, 0, 0, [], [found])


def main() -> None:
    """Carry out the order on standard input, and print the outcome."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    logging.disable()  # a log that is repaired thousands of times says so each time
    target = TARGETS[order.target]
    loop = Loop(target, corpus.load(order.target), seed=order.seed)
    with Path(sys.argv[1]).open("r+b") as slot, mmap.mmap(slot.fileno(), _SLOT_BYTES) as shared:

        def note(data: bytes) -> None:
            shared[: _SIZE_BYTES + len(data)] = len(data).to_bytes(_SIZE_BYTES, "little") + data

        loop.before = note
        _limit_memory()
        outcome = loop.run(seconds=order.seconds)
    if order.keep and not outcome.findings:
        corpus.store(order.target, corpus.distil(target, outcome.kept))
    sys.stdout.buffer.write(msgspec.json.encode(outcome))


def _limit_memory() -> None:
    """Let an input that asks for too much memory fail with MemoryError, which is a finding."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        size = pages * resource.getpagesize() + ROOM_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


if __name__ == "__main__":
    main()
