"""This node's member of a channel that 0.23 nodes replicate too (0x0E00): without epochs, acknowledged locally.

On the 0.23 wire an event is its payload and nothing else, so time, publisher and headers of a record stay at the node that
appended it; the others store when they got it. What is on the own disk is shown to readers: no majority confirms it, and
the log of another leader may replace nothing of it, but may differ from it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from meshbus.engine.base.notices import ReplicaWork
from meshbus.engine.core import Engine
from meshbus.engine.replicas.coordinator import ReplicationCoordinator
from meshbus.engine.replicas.records import Acks, AppendEvents
from meshbus.engine.replicas.replication import Replication
from meshbus.node.replicas.replicadisk import ReplicaDisk
from meshbus.node.replicas.replicamember import ReplicaMember
from meshbus.wire.messages.append import Appended
from meshbus.wire.record import Record, pack_record, unpack_record


class PlainReader:
    """The payloads of a log, for members that know nothing else."""

    def __init__(self, disk: ReplicaDisk) -> None:
        self._disk = disk

    def read(self, first_seq: int, max_events: int, max_bytes: int) -> tuple[bytes, ...]:
        """Return consecutive payloads from a sequence on, at least one if it is there."""
        return tuple(unpack_record(record).payload for record in self._disk.read(first_seq, max_events, max_bytes))


class PlainMember(ReplicaMember):
    """One member of one replicated channel without epochs."""

    @property
    def core(self) -> ReplicationCoordinator:
        """The member in the engine, to look at it."""
        return self._live.engine.replication[self.channel_id]

    async def append(self, records: Sequence[bytes], acks: Acks, *, once: bool = False) -> Appended:  # noqa: ARG002
        """Append the payloads of records if this node leads; what the log has already is not left out."""
        return await super().append([unpack_record(record).payload for record in records], acks)

    def take(self, work: ReplicaWork) -> None:
        """Carry out what the engine asks for; payloads become records."""
        now_ns = time.time_ns()
        writes = [
            msgspec.structs.replace(
                write, payloads=tuple(pack_record(Record(payload, now_ns, 0)) for payload in write.payloads)
            )
            if isinstance(write, AppendEvents)
            else write
            for write in work.writes
        ]
        super().take(msgspec.structs.replace(work, writes=tuple(writes)))

    def durable(self, number: int) -> None:
        """Report to the engine how far the disk is, and show readers as much."""
        super().durable(number)
        self._commit(self.core.committed)

    def disk_failed(self, problem: str) -> None:
        """Withdraw, and try again later."""
        super().disk_failed(problem)
        self._on_halt(problem)

    def fenced(self) -> bool:
        """Return False: nobody waits for a majority."""
        return False

    def _service(self, engine: Engine) -> Replication:
        return engine.replication
