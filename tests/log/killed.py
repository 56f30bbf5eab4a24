"""A writer that is killed: run by test_kill.py in a process of its own, which forks one child for each round.

The child appends, seals and compacts as fast as it can, moves segments if it has a place for them, and says after each
append how many events are acknowledged. Its parent, which holds no locks and no threads, kills it after the time it is told
on standard input.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from meshbus.log.durability import NEVER, Fsync, LogConfig, Retention, Tiering, every_n, interval
from meshbus.log.log import Redex
from tests.log.making import CHANNEL, numbered

LOCAL_BYTES = 40_000
POLICIES: list[Fsync] = [NEVER, every_n(1), every_n(50), interval(0.002)]


def write_until_killed(root: Path, uri: str | None, seed: int, told: int) -> None:
    rng = random.Random(seed)
    config = LogConfig(
        fsync=POLICIES[seed % len(POLICIES)], seal_bytes=20_000, seal_age_s=0.05, grace_s=0.05,
        retention=Retention(max_events=20_000), tier=Tiering(uri, local_bytes=LOCAL_BYTES) if uri else None,
    )  # fmt: skip
    log = Redex(root).open(CHANNEL, config)
    os.write(told, log.next_seq.to_bytes(8, "little"))
    while True:
        count = rng.choice([1, 1, 3, 40])
        events = numbered(log.next_seq, count)
        end = log.append(events[0]) + 1 if count == 1 else log.append_batch(events).stop
        os.write(told, end.to_bytes(8, "little"))
        match rng.randrange(60):
            case 0:
                log.seal()
            case 1:
                log.compact()
            case 2:
                log.tier()


def main(root: Path, uri: str | None = None) -> None:
    for line in sys.stdin:
        seed, seconds = line.split()
        heard, told = os.pipe()
        child = os.fork()
        if not child:
            os.close(heard)
            write_until_killed(root, uri, int(seed), told)
        os.close(told)
        said = os.read(heard, 8)  # it is open; the rest of its life is as long as it was told
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
    main(Path(sys.argv[1]), *sys.argv[2:])
