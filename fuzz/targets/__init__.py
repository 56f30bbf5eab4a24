"""The table of targets, by name."""

from __future__ import annotations

from collections.abc import Mapping

from fuzz.target import Target
from fuzz.targets import compute, config, edge, engine, log, wire

TARGETS: Mapping[str, Target] = {
    target.name: target for room in (wire, engine, compute, edge, log, config) for target in room.TARGETS
}
