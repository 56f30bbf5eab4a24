"""Carries what the engine tells about packets (engine/witness.py) to the flight recorder (log/packets/recorder.py).

Neither knows the other. Here is what both need of each other: when the policy has changed, which channels have names,
what time it is, and how packets are chosen. Without `record_packets` nothing of this is made.
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import TYPE_CHECKING

from meshbus.node.setup import wall

if TYPE_CHECKING:
    from meshbus.config.node import NodeConfig
    from meshbus.engine.core import Engine
    from meshbus.engine.witness import Passed
    from meshbus.log.packets.recorder import PacketRecorder


class Recording:
    """Records the packets of one running engine."""

    def __init__(self, engine: Engine, recorder: PacketRecorder) -> None:
        self.recorder = recorder
        self._witness, self._joined = engine.mesh.witness, engine.joined
        self._boundary = engine.mesh.boundary
        self._policy: object = None
        self._known = -1
        self._witness.recorder = self._take

    def counters(self) -> dict[str, int]:
        """Say what was recorded and what was not, by why."""
        stats = self.recorder.stats
        return {
            "taken": stats.taken,
            "unsampled": stats.seen - stats.taken - stats.lost_full,
            "lost_full": stats.lost_full,
            "lost_disk": stats.lost_disk,
            "damaged": stats.damaged,
            "expired": stats.expired,
        }

    def close(self) -> None:
        """Stop, with everything that was told so far on the disk; closing twice is fine."""
        self._witness.recorder = None
        self.recorder.close()

    def _take(self, passed: Passed) -> None:  # hot: bench_recorder
        if passed.policy is not self._policy or self._joined.version != self._known:
            self._policy, self._known = passed.policy, self._joined.version
            self.recorder.set_policy(self._boundary.gateway.snapshot(), self._joined)
        self.recorder.take(
            passed.headers,
            passed.reasons,
            ts_ns=wall(passed.at),
            here=passed.here,
            routes=passed.routes,
            previous_hops=passed.previous_hops,
            next_hops=passed.next_hops,
            sources=passed.sources,
            dests=passed.dests,
            guard=passed.guard,
        )


def start_recording(engine: Engine, config: NodeConfig, psk: bytes) -> Recording | None:
    """Begin to record when the configuration says so; raises LogError when the folder cannot be used."""
    if not config.record_packets or config.log_dir is None:
        return None
    from meshbus.log.packets.recorder import PacketRecorder
    from meshbus.log.packets.store import Bounds

    recorder = PacketRecorder(
        config.log_dir,
        engine.node_id,
        sampling=config.record_sampling,
        seed=sampling_seed(psk),
        bounds=Bounds(config.record_retain_bytes, config.record_retain_hours * 3600.0),
    )
    return Recording(engine, recorder)


async def stop_recording(recording: Recording | None) -> None:
    """Close a recording, if there is one, without holding up the loop while the disk is at work."""
    if recording is not None:
        await asyncio.to_thread(recording.close)


def sampling_seed(psk: bytes) -> int:
    """Give the seed of a mesh: its nodes choose the same packets, and nobody else knows which."""
    return int.from_bytes(blake2b(psk, digest_size=8, person=b"meshbus-sampling").digest(), "little")
