"""Every kind of attack at once, at full rate, beside an honest reliable publisher and a log."""

from __future__ import annotations

import os
import sys

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
"""The load of other programs up to which the rate is judged."""


@pytest.mark.soak
@pytest.mark.timeout(2 * SECONDS + 900)
def test_an_honest_stream_stays_exact_in_ten_minutes_of_attack() -> None:
    others = os.getloadavg()[0]
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
