"""Three real processes replicate a channel while leaders are killed, cut off and stopped."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.node.replicafleet import Fleet, fleet


def publish_everywhere(found: Fleet, count: int, batch: int = 1) -> None:
    for member in found.running():
        member.do("publish", f"n{member.number}.", count, batch)


def all_done(found: Fleet, prefixes: set[str]) -> None:
    found.wait(lambda: prefixes <= found.done, "publishers to finish")


def finish(found: Fleet) -> int:
    found.converge()
    for member in found.running():
        member.stop()
    return found.check()


def test_killed_leaders_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with fleet(tmp_path) as found:
        publisher = found.wait_for_leader()
        rest = [member for member in found.members if member is not publisher]
        for member in rest:
            member.do("publish", f"n{member.number}.", 400, 5)
        publisher.kill()
        second = found.wait_for_leader(other_than=publisher)
        publisher.start()
        all_done(found, {f"n{member.number}." for member in rest})
        second.do("publish", "again.", 50, 1)
        all_done(found, {"again."})
        assert finish(found) >= 50
