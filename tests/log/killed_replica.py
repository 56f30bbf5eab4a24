"""A replica's writer that is killed: run by test_replicated_kill.py in a process of its own, a child for each round.

What it writes follows from the seed of its round and from what it found, so the test can work it out again. It says after
each write how many it has done.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from meshbus.log.durability import LogConfig
from meshbus.log.replicated import ReplicatedLog
from tests.engine.replicas.memorydisk import Content
from tests.log.making import CHANNEL
from tests.log.replicas import LOG_ID, Author, carry_out

SETTINGS = LogConfig(seal_bytes=4_000, seal_age_s=0.05, grace_s=0.05)


def author_of(seed: int, content: Content, committed: int) -> Author:
    """Return who thinks of the writes of a round that begins with some content."""
    author = Author(random.Random(seed))
    author.content, author.committed, author.number = content, committed, 1_000_000 * (seed + 1)
    author.epoch = 10_000 * (seed + 1)
    return author


def write_until_killed(root: Path, seed: int, tail: int, committed: int, told: int) -> None:
    log = ReplicatedLog.open(root, CHANNEL, LOG_ID, SETTINGS)
    # Only the end matters for what is written next.
    author = author_of(seed, Content(first=tail), committed)
    for number in range(1, 1 << 60):
        write = author.next_write()
        carry_out(log, write)
        author.apply(write)
        os.write(told, number.to_bytes(8, "little"))
        if number % 7 == 0:
            log.sync()
        if number % 5 == 0:
            log.commit_to(author.commit())


def main(root: Path) -> None:
    for line in sys.stdin:
        seed, tail, committed, seconds = line.split()
        heard, told = os.pipe()
        child = os.fork()
        if not child:
            os.close(heard)
            write_until_killed(root, int(seed), int(tail), int(committed), told)
        os.close(told)
        said = os.read(heard, 8)  # its first write is done; the rest of its life is as long as it was told
        time.sleep(float(seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(heard, 1 << 20):
            said += more
        os.close(heard)
        whole = said[: len(said) // 8 * 8]
        sys.stdout.write(f"{int.from_bytes(whole[-8:], 'little')}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
