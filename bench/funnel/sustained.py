"""The chain in a process of its own: this version of meshbus, or another one, measured with the same benchmark.

    python -m bench.funnel.sustained <result.json> <first rate> <seconds of a probe> <seconds of the long run>

The result is the list of probes; the first is at a light load, the last is the result. Which version is measured is decided
by PYTHONPATH, so that both start with a Java of the same age.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from bench.funnel.chain import Chain, Probe, search
from bench.harness import Cell, Table

ROOT = Path(__file__).parents[2]
MEMORY = {"spark.driver.memory": "4g"}
LIMIT_S = 1800.0
"""Time after which a chain that does not end is given up."""


def sustained(source: Path | None, *, first: float, probe_s: float, long_s: float) -> list[Probe]:
    """Search the rate of the chain with the sources of a version, by default those that are in use.

    Raises RuntimeError if the chain fails.
    """
    with tempfile.TemporaryDirectory(prefix="bench-chain-") as folder:
        result = Path(folder) / "result.json"
        numbers = [str(number) for number in (first, probe_s, long_s)]
        command = [sys.executable, "-m", __name__, str(result), *numbers]
        environment = os.environ if source is None else {**os.environ, "PYTHONPATH": str(source)}
        ended = subprocess.run(command, cwd=ROOT, env=environment, timeout=LIMIT_S, check=False)  # noqa: S603 - this file
        if ended.returncode:
            raise RuntimeError(f"the chain of {source or 'this version'} ended with status {ended.returncode}")
        return msgspec.json.decode(result.read_bytes(), type=list[Probe])


def rate_of(probes: list[Probe]) -> float:
    """Return the events per second of the long run; 0 if no rate was sustained."""
    last = probes[-1]
    return last.published.events / last.published.seconds if last.kept_up else 0.0


def most_of(probes: list[Probe]) -> float:
    """Return the most events per second that the chain may sustain: its rate, or the lowest that was too much for it."""
    return rate_of(probes) or min(probe.rate for probe in probes if not probe.kept_up)


def chain_table(whose: str, probes: list[Probe], notes: list[str]) -> Table:
    """Show all probes of a chain."""
    rows: list[list[Cell]] = [
        [
            round(probe.rate), probe.seconds, probe.published.events / probe.published.seconds, probe.behind,
            "later" if probe.caught_up_s is None else probe.caught_up_s, "yes" if probe.kept_up else "no",
        ]
        for probe in probes
    ]  # fmt: skip
    rate, seconds = rate_of(probes), probes[-1].seconds
    result = f"{rate:,.0f} events/s sustained for {seconds:g} s" if rate else "no rate was sustained"
    return Table(
        f"Node, log and pipeline of {whose} on the same cores: {result}",
        ["asked events/s", "seconds", "published events/s", "rows behind", "caught up s", "kept up"],
        rows,
        notes,
    )


def main(result: Path, first: float, probe_s: float, long_s: float) -> None:
    """Search, and write the probes."""
    from meshbus.spark.run.sparksession import session

    with tempfile.TemporaryDirectory(prefix="bench-chain-") as folder:
        spark = session(settings=MEMORY)
        try:
            chain = Chain(spark, Path(folder))
            chain.measure_light(probe_s)  # the first is slower: everything is compiled
            light = chain.measure_light(probe_s)
            probes = search(chain.probe, first=first, short_s=probe_s, long_s=long_s)
        finally:
            spark.stop()
    result.write_bytes(msgspec.json.encode([light, *probes]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(float(number) for number in sys.argv[2:]))
