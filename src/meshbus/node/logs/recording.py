"""Passes what the engine reports about packets (engine/routes/tap.py) to the recorder (log/packets/recorder.py).

Engine and recorder do not import each other. This file adds what the recorder needs: the policy when it has changed, the
names of channels, the wall clock, and the seed for sampling. Without `record_packets` nothing here is created.
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import TYPE_CHECKING

from meshbus.node.driving.setup import wall
from meshbus.policy.bound import Bound, By, forgotten
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
"""Decisions whose recorder model is cached, which bounds memory; when there are more, all models are made again."""
CLOCK_S = 0.1
"""How soon a change of the wall clock is noticed: reading it for every train would be a measurable part of the cost."""
_NS = 1e9


BOUNDS = (
    Bound(
        name="record_models",
        what="prepared rows of the recorder",
        by=By.PEER,
        per_node=MAX_MODELS,
        full="all are made again",
        counter=forgotten("record_models"),
    ),
)


class Recording:
    """Records the packets of one engine."""

    def __init__(self, engine: Engine, recorder: PacketRecorder) -> None:
        self.recorder = recorder
        self._take_train = recorder.take_train
        self._counters = engine.counters
        self._tap, self._joined = engine.mesh.tap, engine.joined
        self._boundary = engine.mesh.boundary
        self._policy: object = None
        self._known = -1
        self._ahead_ns, self._stale = 0, -1.0
        """How far the wall clock is ahead of the engine's, and when to read it again."""
        self._models: dict[Decided, NDArray[np.uint64]] = {}
        """The recorder's model of the packets that follow a decision."""
        self._tap.recorder = self

    def counters(self) -> dict[str, int]:
        """Return how many packets were recorded, and how many were not, by reason."""
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
        """Stop recording, and write everything so far to disk; closing twice is fine."""
        self._tap.recorder = None
        self.recorder.close()

    def crossed(  # hot: bench_recorder
        self, at: float, data: NDArray[np.uint8], begin: int, size: int, count: int, decided: Decided
    ) -> None:
        """Record forwarded packets in place, without copying them (engine/routes/tap.py)."""
        if at >= self._stale or decided.policy is not self._policy or self._joined.version != self._known:
            self._keep_up(at, decided.policy)
        model = self._models.get(decided)
        if model is None:
            model = self._prepare(decided, data[begin + ROUTE_BYTES : begin + ROUTE_BYTES + HEADER_BYTES])
        self._take_train(model, data, begin, size, count, int(at * _NS) + self._ahead_ns)

    def passed(self, told: Passed) -> None:  # hot: bench_recorder
        """Record packets that come as columns (engine/routes/tap.py)."""
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
        """Read the clock if it is due, and tell the recorder if the policy or the known channels have changed."""
        if at >= self._stale:
            self._ahead_ns, self._stale = wall(0.0), at + CLOCK_S
        if policy is self._policy and self._joined.version == self._known:
            return
        self._policy, self._known = policy, self._joined.version
        self.recorder.set_policy(self._boundary.gateway.snapshot(), self._joined)
        self._models.clear()

    def _prepare(self, decided: Decided, header: NDArray[np.uint8]) -> NDArray[np.uint64]:
        if len(self._models) >= MAX_MODELS:
            self._counters.add("forget", "record_models", len(self._models))
            self._models.clear()
        subnets = (decided.source, decided.dest) if decided.by_subnet else None
        model = self.recorder.model(
            header.view(HEADER_DTYPE), decided.reason, decided.previous_hop, decided.next_hop, subnets, decided.guard
        )
        self._models[decided] = model
        return model


def start_recording(engine: Engine, config: NodeConfig, psk: bytes) -> Recording | None:
    """Start recording if it is configured; None if not. Raises LogError if the folder cannot be used."""
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
    """Close a recording, if there is one, in a thread: it waits for the disk."""
    if recording is not None:
        await asyncio.to_thread(recording.close)


def sampling_seed(psk: bytes) -> int:
    """Return the sampling seed of a mesh: its nodes sample the same packets, and nobody else can predict which."""
    return int.from_bytes(blake2b(psk, digest_size=8, person=b"meshbus-sampling").digest(), "little")
