"""Every kind of attack at once, at full rate, beside an honest reliable publisher and a log."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from bench.hostile.share import run

SECONDS = float(os.environ.get("HOSTILE_SECONDS", "600"))
"""Ten minutes of attack, after two without; set it lower for a look."""
FLAT_KB = 16 * 1024
"""What the victim's memory may grow by in the last third: less than its receive buffers and caches move."""
LONG_S = 120.0
"""Shorter runs are for a look: caches still fill."""
KEPT = 0.5
"""The part of its rate that the stream is to keep, beside the same attacker working against nobody."""
ALONE = 1.0
"""The cores that other programs may keep busy for the rate to be judged."""
LOOK_S = 3.0


def busy_cores() -> float:
    """Return the cores that are busy now; the load average would still count what ended a minute ago."""

    def busy_s() -> float:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        idle = fields[3] + fields[4]
        return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK")

    before = busy_s()
    time.sleep(LOOK_S)
    return (busy_s() - before) / LOOK_S


@pytest.mark.soak
@pytest.mark.timeout(2 * SECONDS + 900)
def test_an_honest_stream_stays_exact_in_ten_minutes_of_attack() -> None:
    others = busy_cores()
    outcome = run(SECONDS)
    sys.stdout.write(
        f"{outcome}\nkept {outcome.kept:.2f} of its rate beside an attacker that works against nobody,"
        f" {outcome.kept_of_alone:.2f} of its rate alone\n"
    )
    assert outcome.sent > 0
    assert outcome.last.wrong == 0, "an event was lost, repeated or changed"
    assert outcome.last.exceptions == 0
    assert outcome.last.dropped > 0
    # The log has what was received; the last batch may still be on its way to it.
    assert outcome.last.logged >= 0.99 * outcome.last.events
    if SECONDS >= LONG_S:
        assert outcome.grown_kb < FLAT_KB, f"the victim's memory grew by {outcome.grown_kb} kB"
    if others > ALONE:
        pytest.skip(f"the rate means little: other programs kept {others:.1f} cores busy; kept {outcome.kept:.2f}")
    assert outcome.kept >= KEPT
