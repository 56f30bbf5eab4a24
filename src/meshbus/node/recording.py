"""Carries what the engine tells about packets (engine/routes/tap.py) to the flight recorder (log/packets/recorder.py).

Neither knows the other. Here is what both need of each other: when the policy has changed, which channels have names,
what time it is, and how packets are chosen. Without `record_packets` nothing of this is made.
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import TYPE_CHECKING

from meshbus.node.setup import wall
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from meshbus.config.node import NodeConfig
    from meshbus.engine.core import Engine
    from meshbus.engine.routes.tap import Decided, Passed
    from meshbus.log.packets.recorder import PacketRecorder

MAX_MODELS = 8_192
"""Decisions that are kept ready for the recorder."""
CLOCK_S = 0.1
"""How soon a wall clock that was set is noticed: reading it for every train would be a part of the price."""
_NS = 1e9


class Recording:
    """Records the packets of one running engine."""

    def __init__(self, engine: Engine, recorder: PacketRecorder) -> None:
        self.recorder = recorder
        self._take_train = recorder.take_train
        self._tap, self._joined = engine.mesh.tap, engine.joined
        self._boundary = engine.mesh.boundary
        self._policy: object = None
        self._known = -1
        self._ahead_ns, self._stale = 0, -1.0
        """What the wall clock is ahead of the engine's, and until when that was read."""
        self._models: dict[Decided, NDArray[np.uint64]] = {}
        """What the recorder is told about packets that follow a decision."""
        self._tap.recorder = self

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
        self._tap.recorder = None
        self.recorder.close()

    def crossed(  # hot: bench_recorder
        self, at: float, data: NDArray[np.uint8], begin: int, size: int, count: int, decided: Decided
    ) -> None:
        """Record packets for others where they lie (engine/routes/tap.py)."""
        if at >= self._stale or decided.policy is not self._policy or self._joined.version != self._known:
            self._keep_up(at, decided.policy)
        model = self._models.get(decided)
        if model is None:
            model = self._prepare(decided, data[begin + ROUTE_BYTES : begin + ROUTE_BYTES + HEADER_BYTES])
        self._take_train(model, data, begin, size, count, int(at * _NS) + self._ahead_ns)

    def passed(self, told: Passed) -> None:  # hot: bench_recorder
        """Record packets as columns (engine/routes/tap.py)."""
        if told.at >= self._stale or told.policy is not self._policy or self._joined.version != self._known:
            self._keep_up(told.at, told.policy)
        self.recorder.take(
            told.headers,
            told.reasons,
            ts_ns=int(told.at * _NS) + self._ahead_ns,
            here=told.here,
            routes=told.routes,
            previous_hops=told.previous_hops,
            next_hops=told.next_hops,
            sources=told.sources,
            dests=told.dests,
            guard=told.guard,
        )

    def _keep_up(self, at: float, policy: NDArray[np.uint64]) -> None:
        """Read the clock when it is due; let the recorder know that another policy is in force, or other channels named."""
        if at >= self._stale:
            self._ahead_ns, self._stale = wall(0.0), at + CLOCK_S
        if policy is self._policy and self._joined.version == self._known:
            return
        self._policy, self._known = policy, self._joined.version
        self.recorder.set_policy(self._boundary.gateway.snapshot(), self._joined)
        self._models.clear()

    def _prepare(self, decided: Decided, header: NDArray[np.uint8]) -> NDArray[np.uint64]:
        if len(self._models) >= MAX_MODELS:
            self._models.clear()
        subnets = (decided.source, decided.dest) if decided.by_subnet else None
        model = self.recorder.model(
            header.view(HEADER_DTYPE), decided.reason, decided.previous_hop, decided.next_hop, subnets, decided.guard
        )
        self._models[decided] = model
        return model


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
