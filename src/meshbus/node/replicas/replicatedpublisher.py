"""Publishes on a replicated channel: the events go to the leader, wherever it is, and are acknowledged when they are safe.

Subscribers get them from the leader once they are committed, so the report of a publish counts none; it has the sequence
of the first event instead. The way to the leader is node/replicas/replicapublish.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from meshbus.engine.channels.authorize import MUTED
from meshbus.engine.channels.publish import WAIT_S, PublishConfig, PublishReport
from meshbus.errors import AuthError, AuthFault, ConfigError
from meshbus.log.once import batch_slices
from meshbus.names.channel import ChannelName
from meshbus.node.channels.publisher import ChannelPublisher, bytes_of, columns_from
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.live import Live
from meshbus.node.replicas.replicapublish import MAX_PAYLOAD, check_record_size
from meshbus.node.replicas.replicas import ReplicatedChannel
from meshbus.wire.frames import columns_of
from meshbus.wire.messages.append import Appended, Outcome
from meshbus.wire.record import RECORD_COST, Record, pack_record
from meshbus.wire.recordcolumn import pack_record_column

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ONCE_WAIT_S = 60.0
"""How long `publish_once` tries: it can be repeated safely, so it outlasts a change of the leader with a slow disk."""


class ReplicatedPublisher(ChannelPublisher):
    """Publishes on one replicated channel."""

    def __init__(
        self, channel: ChannelName, config: PublishConfig, live: Callable[[], Live], replicated: ReplicatedChannel
    ) -> None:
        super().__init__(channel, config, live)
        self._replicated = replicated

    @property
    def max_event_bytes(self) -> int:
        """The largest event of a replicated channel: it has to fit one packet between its members."""
        return MAX_PAYLOAD

    async def publish(self, payload: bytes | bytearray | memoryview | str) -> PublishReport:
        """Append one event, and wait until it is as durable as `acks` of the channel says.

        Raises LocalProtocolError for an event over 7971 bytes, AuthError if this node may not publish, and
        ReplicationError if no leader acknowledged it within `config.wait_s`; its `fault` says whether it may be stored.
        """
        event = payload if type(payload) is bytes else bytes_of(payload)
        await self._send_first()
        return await self._append([pack_record(Record(event, time.time_ns(), self._origin()))])

    def send(self, payload: bytes | bytearray | memoryview | str) -> None:
        """Append one event without waiting, together with others; as `ChannelPublisher.send`, up to 7971 bytes."""
        event = payload if type(payload) is bytes else bytes_of(payload)
        check_record_size(len(event) + RECORD_COST)  # now: together with others it would be refused with them
        super().send(event)

    async def publish_batch(self, events: Any) -> PublishReport:
        """Append many events, all or none and one after the other; raises as `publish` does."""
        offsets, data = columns_from(events)
        await self._send_first()
        return await self._append_columns(offsets, data)

    async def flush(self, timeout_s: float = WAIT_S) -> PublishReport:
        """Wait for the events of `send`: a publish on a replicated channel returns when its events are safe."""
        self._live()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._sends.settle()
        return self._sends.take_failures(PublishReport(0, 0), timeout_s)

    async def publish_once(self, rows: Any, *, writer: str, batch: int) -> int:
        """Publish the rows of a batch that the channel's log does not have yet, and return their number.

        `rows` is an Arrow table with a column `payload`, and optionally `ts_ns` and `headers`. A writer numbers its
        batches in ascending order and retries a batch with the same rows in the same order until this returns; the
        rows are then in the log, once, whatever happened to leaders meanwhile.
        """
        if self._replicated.is_plain():
            problem = (
                f"{self.channel} is replicated with a net-mesh 0.23 node, which keeps no headers; use publish_batch"
            )
            raise ConfigError("replicas", problem)
        await self._send_first()
        done = 0
        for payloads, columns in batch_slices(rows, writer, batch):
            records = _records(payloads.to_pylist(), columns["headers"], columns.get("ts_ns"), self._origin())
            publishing, acks = self._replicated.publishing, self._replicated.acks
            done += (await publishing.append(records, acks, ONCE_WAIT_S, once=True)).count
        return done

    def _start(self, events: list[bytes]) -> Coroutine[Any, Any, PublishReport]:
        return self._append_columns(*columns_of(events))

    async def _send_first(self) -> None:
        if self._sends.nbytes:
            await self._sends.settle()

    async def _append_columns(self, offsets: NDArray[np.integer], data: NDArray[np.uint8]) -> PublishReport:
        return await self._append(pack_record_column(offsets, data, time.time_ns(), self._origin()))

    async def _append(self, records: Sequence[bytes]) -> PublishReport:
        replicated = self._replicated
        answer = await replicated.publishing.append(records, replicated.acks, self.config.wait_s)
        return PublishReport(0, 0, log_seq=answer.first_seq, replicated=self._word(answer))

    def _origin(self) -> int:
        """Return the origin hash of this node, which may publish; raises AuthError if it may not."""
        engine = self._live().engine
        authorizer = engine.admission.authorizer
        if not authorizer.can_publish_locally(self.channel, Driver.now()):
            why = MUTED if authorizer.muted else "see publish_caps and require_token there"
            problem = f"this node may not publish on {str(self.channel)!r}: {why}"
            raise AuthError(AuthFault.DENIED, problem)
        return engine.identity.origin_hash

    def _word(self, answer: Appended) -> str:
        return "unconfirmed" if answer.outcome is Outcome.UNCONFIRMED else str(self._replicated.acks)


def _records(
    payloads: Sequence[bytes], headers: Sequence[Mapping[str, bytes]], times: Sequence[int] | None, origin: int
) -> list[bytes]:
    """Return records with headers, published now unless times are given."""
    now_ns = time.time_ns()
    return [
        pack_record(Record(payload, now_ns if times is None else int(times[place]), origin, headers[place]))
        for place, payload in enumerate(payloads)
    ]
