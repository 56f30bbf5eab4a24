"""The whole chain at once: a node publishes, another one logs what it receives, and a pipeline follows its log.

All three run on the same cores: the nodes as processes, the pipeline and Spark in this one. The search goes to four times
the rate from probe to probe until the chain falls behind, narrows it down, and confirms a little less than the result in one
longer run: a short probe may end before the chain is seen to fall behind.

A chain keeps up if

- the publisher reaches its rate: it waits for acknowledgements when the other node is slow;
- every event is in gold exactly once;
- gold has caught up with the last event at most two seconds later than at a light load, at which the same time is
  measured first. So the lag at the end is at most two seconds of traffic, apart from what every batch and refresh takes.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.funnel.flow import config_for, following
from bench.funnel.load import Load
from bench.funnel.nodes import ANSWER_S, Published, nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIGHT_RATE = 200
ALLOWED_S = 2.0
"""How much longer than at a light load gold may take to catch up."""
REACHED, LATE_S = 0.98, 0.5
"""The part of its rate that a publisher must reach, and how late the last turn may be on a busy machine."""
STEP = 4
"""Factor from probe to probe."""
NARROWING = 3
"""Probes between the highest rate that was kept up with and the lowest that was not."""
LONG_FIRST, BACK = 0.9, 0.8
"""Factor from that rate to the long run, and from there to a lower rate if it falls behind, at most TRIES times."""
TRIES = 5
LEAST_RATE = 125


class Probe(NamedTuple):
    """One run of the chain."""

    rate: float
    """Events per second that were asked for."""
    seconds: float
    published: Published
    behind: int
    """Events that were not in silver when the last one was published."""
    caught_up_s: float | None
    """Time from the last event until gold had all of them; None if the run ended before that."""
    kept_up: bool


def search(probe: Callable[[float, float], Probe], *, first: float, short_s: float, long_s: float) -> list[Probe]:
    """Find the highest rate that a chain keeps up with; the last probe is the long run at that rate.

    If the last probe did not keep up, no rate was found.
    """
    probes: list[Probe] = []

    def keeps_up(rate: float, seconds: float) -> bool:
        probes.append(probe(rate, seconds))
        return probes[-1].kept_up

    best, rate = 0.0, first
    while keeps_up(rate, short_s):
        best, rate = rate, rate * STEP
    worst = rate
    while not best and rate > LEAST_RATE:
        worst, rate = rate, max(rate / STEP, LEAST_RATE)
        best = rate if keeps_up(rate, short_s) else 0.0
    for _ in range(NARROWING if best else 0):
        middle = (best * worst) ** 0.5
        best, worst = (middle, worst) if keeps_up(middle, short_s) else (best, middle)
    best *= LONG_FIRST
    for _ in range(TRIES if best else 0):
        if keeps_up(best, long_s):
            break
        best *= BACK
    return probes


class Chain:
    """Runs probes below a folder; each has new logs and new tables."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self._light_s = 0.0

    def measure_light(self, seconds: float) -> Probe:
        """Measure how long gold takes to catch up at a light load; raises RuntimeError if it does not."""
        light = self._probe(LIGHT_RATE, seconds, allowed_s=ANSWER_S)
        if light.caught_up_s is None:
            raise RuntimeError(f"gold did not catch up with {LIGHT_RATE} events/s within {ANSWER_S:g} s")
        self._light_s = light.caught_up_s
        return light

    def probe(self, rate: float, seconds: float) -> Probe:
        """Publish at a rate for some seconds, and look whether the chain keeps up."""
        return self._probe(rate, seconds, allowed_s=self._light_s + ALLOWED_S)

    def _probe(self, rate: float, seconds: float, allowed_s: float) -> Probe:
        logs, place = self._folder / "chain-logs", self._folder / "chain-tables"
        logs.mkdir()
        try:
            with nodes(logs) as publisher, following(self._spark, config_for(logs, place, Load(0))) as follower:
                first = publisher.publish_first()
                if follower.wait_gold(first) is None:
                    raise RuntimeError("the first events of the chain are not in gold")
                published = publisher.publish(rate, seconds)
                ended = time.perf_counter()
                behind = first + published.events - follower.rows_at(ended)
                visible = follower.wait_gold(first + published.events, timeout_s=allowed_s)
        finally:
            for folder in (logs, place):
                shutil.rmtree(folder, ignore_errors=True)
        caught_up_s = None if visible is None else max(visible - ended, 0.0)
        reached = published.events == int(rate * seconds) and published.seconds <= seconds / REACHED + LATE_S
        kept_up = reached and caught_up_s is not None and caught_up_s <= allowed_s
        told = "not yet" if caught_up_s is None else f"after {caught_up_s:.1f} s"
        print(
            f"chain: {rate:.0f} events/s for {seconds:g} s, {published.events} published in {published.seconds:.1f} s, in gold {told}",
            file=sys.stderr,
        )
        return Probe(rate, seconds, published, behind, caught_up_s, kept_up)
