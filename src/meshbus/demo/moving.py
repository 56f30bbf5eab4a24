"""What became of the demo's detector, read from the disks of the nodes that it ran on.

Its output must be what the poses in the rover's log lead to, each anomaly once and in order, first in the log of the rover
and then in that of the gateway.
"""

from __future__ import annotations

import msgspec

from meshbus.demo.detector import anomalies
from meshbus.demo.roles import ANOMALIES, FAILING, GATEWAY, POSES, FleetFiles
from meshbus.errors import MeshError
from meshbus.log.reader import LogReader, list_channels


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What the detector did, and where."""

    poses: int
    """Poses in the rover's log."""
    before: int
    """Anomalies that it published on the rover."""
    after: int
    """Anomalies that it published on the gateway."""


def check_moved(files: FleetFiles) -> Moved:
    """Compare what the detector published with what the rover's log leads to. Raises MeshError if they differ."""
    poses = _logged(files, FAILING, POSES)
    before, after = (_logged(files, name, ANOMALIES) for name in (FAILING, GATEWAY))
    if before + after != anomalies(poses):
        raise MeshError(
            f"the detector published {len(before)} anomalies on {FAILING} and {len(after)} on {GATEWAY}, and not exactly"
            f" those that its poses in {files.log_dir(FAILING)} lead to; this is a bug"
        )
    return Moved(poses=len(poses), before=len(before), after=len(after))


def _logged(files: FleetFiles, name: str, channel: str) -> list[bytes]:
    root = files.log_dir(name) / "published"
    if all(entry.channel != channel for entry in list_channels(root)):
        return []  # nothing was published there
    return [bytes(event.payload) for event in LogReader(root, channel).snapshot().events()]
