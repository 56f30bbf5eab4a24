"""The flight recorder: takes packets in batches while they pass, and writes them to the disk soon after.

    recorder = PacketRecorder(log_dir, node_id, sampling=10)
    recorder.set_policy(policy, channels)         the policy in force, whenever it changes
    recorder.take(headers, reasons, ...)          one kernel call per batch, into memory that is allocated already
    recorder.take_train(model, data, ...)         the same from the receive buffer, for packets with the same decision
    recorder.close()

Taking packets never waits for a disk. Rows go into one of two arenas of fixed size, and a thread writes one while the
other fills: every DRAIN_S to the operating system, so that the death of the process loses no more than that, and every
SYNC_S to the disk. If both are full, rows are dropped and counted; packets are never delayed. The same thread seals and
expires (log/packets/store.py). If the disk refuses, rows are lost and counted, and the next ones are tried again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from meshbus.errors import ConfigError, LogError
from meshbus.log.files import Files
from meshbus.log.packets.fill import fill, sampling_rule
from meshbus.log.packets.packed import Arena
from meshbus.log.packets.parquet import warm_sealing
from meshbus.log.packets.policies import PolicyBook
from meshbus.log.packets.row import NOT_ASKED, Names, models
from meshbus.log.packets.runs import RecordInfo
from meshbus.log.packets.store import Bounds, PacketStore, folder_of
from meshbus.names.channel import ChannelName
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.seldom import SeldomWarning
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES
from meshbus.wire.header import HEADER_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

ARENA_ROWS: Final = 65_536
"""Rows of each arena: at most 9 MB, and about a tenth of a second of the fastest traffic that a node forwards."""
_HALF: Final = ARENA_ROWS // 2
DRAIN_S: Final = 0.25
SYNC_S: Final = 1.0
_KEEP_S: Final = 1.0
"""Seconds between two drains, two syncs, and two checks for what to seal or expire."""
_MAX_SAMPLING: Final = (1 << 31) - 1
_NOBODY: Final = np.zeros(1, np.uint64)
_log = logging.getLogger("meshbus.log")


class RecorderStats(msgspec.Struct):
    """Counts of a recorder since it was opened, in rows."""

    seen: int = 0
    """Packets that were offered to the recorder."""
    taken: int = 0
    """Chosen, and stored in memory."""
    lost_full: int = 0
    """Chosen, but memory was full."""
    lost_disk: int = 0
    """Taken, but the disk refused them."""
    written: int = 0
    damaged: int = 0
    """Written, but not readable when they were sealed."""
    expired: int = 0


class PacketRecorder:
    """Records the packets of one node."""

    def __init__(
        self,
        log_dir: Path | str,
        node_id: int,
        *,
        sampling: int = 1,
        seed: int = 0,
        bounds: Bounds | None = None,
        files: Files | None = None,
        clock: Callable[[], int] = time.time_ns,
        background: bool = True,
    ) -> None:
        """Open the record of a node, and create it if there is none.

        One in `sampling` packets is recorded, chosen by `seed`. `files`, `clock` and `background=False` are for tests:
        without the background thread, call `drain` and `keep` yourself. Raises LogError if the folder cannot be written
        or another process writes it.
        """
        if not 1 <= sampling <= _MAX_SAMPLING:
            raise ConfigError("record_sampling", f"must be in [1, {_MAX_SAMPLING}], got {sampling}")
        self._stats = RecorderStats()
        self.folder = folder_of(Path(log_dir), node_id)
        self._store = PacketStore(
            self.folder, RecordInfo(node_id, sampling), bounds or Bounds(), clock=clock, files=files
        )
        self._policies = PolicyBook(self.folder)
        self._streams = Names.of(())
        self._names: dict[int, str] = {}
        """Names by hash of the channels that are known now, and of those that rows in memory may still refer to."""
        self._current: dict[int, str] = {}
        self._policy = 0
        self._arena, self._other = (Arena(ARENA_ROWS, sampling_rule(sampling, seed)) for _ in range(2))
        self._swap = threading.Lock()
        """Held by `take` during a kernel call, and by `drain` while it exchanges the arenas."""
        self._storing = threading.RLock()
        """Held while files are written."""
        self._woken, self._stopped = threading.Event(), threading.Event()
        self._warn = SeldomWarning(_log)
        self._synced_at = self._kept_at = time.monotonic()
        if self._store.cut_bytes:
            _log.warning("record in %s: cut %d bytes of a torn tail", self.folder, self._store.cut_bytes)
        self._warm()
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._run, name="meshbus-recorder", daemon=True)
            self._thread.start()

    @property
    def stats(self) -> RecorderStats:
        """Counts so far."""
        seen, taken, lost = self._arena.counts.tolist()
        return msgspec.structs.replace(self._stats, seen=seen, taken=taken, lost_full=lost)

    # ── packets ─────────────────────────────────────────────────────────────────────────────

    def set_policy(self, policy: GatewayPolicy, channels: Iterable[ChannelName]) -> None:
        """Record under this policy from now on, and recognize these channels by their streams."""
        known = [*channels, *(name for name in policy.streams().values() if name is not None)]
        self._streams = Names.of(known)
        self._policy = self._policies.number_of(policy)
        with self._swap:
            self._current = {name.hash: str(name) for name in known}
            self._names = {**self._names, **self._current}

    def take(  # hot: bench_recorder
        self,
        headers: NDArray[np.void],
        reasons: NDArray[np.uint8],
        *,
        ts_ns: int,
        here: bool,
        routes: NDArray[np.void] | None = None,
        previous_hops: NDArray[np.uint64] = _NOBODY,
        next_hops: NDArray[np.uint64] = _NOBODY,
        sources: NDArray[np.uint32] | None = None,
        dests: NDArray[np.uint32] | None = None,
        guard: NDArray[np.uint8] | None = None,
    ) -> None:
        """Record packets and the decisions about them; the arrays are copied.

        Headers and routing headers are as they arrived; bytes that are not a header are recorded as zeros. `here` means
        that the packets were for this node. A reason is a code of policy/reason.py, or 0 if the packet was not dropped.
        Every array but the headers may have a single entry for all packets. A hop of 0 stands for none.
        """
        count = len(headers)
        packets = np.zeros((count, ROUTE_BYTES + HEADER_BYTES), np.uint8)
        packets[:, ROUTE_BYTES:] = headers.view(np.uint8).reshape(count, HEADER_BYTES)
        if routes is not None:
            packets[:, :ROUTE_BYTES] = routes.view(np.uint8).reshape(count, ROUTE_BYTES)
        facts = models(
            count,
            reasons,
            here=here,
            routed=routes is not None,
            previous_hops=previous_hops,
            next_hops=next_hops,
            subnets=None if sources is None or dests is None else (sources, dests),
            guard=NOT_ASKED if guard is None else guard,
            policy=self._policy,
            hashes=self._streams.hashes_of(headers),
        )
        self.take_train(facts, packets.reshape(-1), 0, ROUTE_BYTES + HEADER_BYTES, count, ts_ns)

    def model(
        self,
        header: NDArray[np.void],
        reason: int,
        previous_hop: int,
        next_hop: int,
        subnets: tuple[int, int] | None,
        guard: int,
    ) -> NDArray[np.uint64]:
        """Return the model that `take_train` needs for forwarded packets with the same decision, under the current policy.

        The packets are of one stream, and `header` is that of one of them.
        """
        return models(
            1,
            reason,
            here=False,
            routed=True,
            previous_hops=previous_hop,
            next_hops=next_hop,
            subnets=subnets,
            guard=guard,
            policy=self._policy,
            hashes=self._streams.hashes_of(header),
        )

    def take_train(  # hot: bench_recorder
        self, model: NDArray[np.uint64], data: NDArray[np.uint8], begin: int, size: int, count: int, ts_ns: int
    ) -> None:
        """Record `count` packets in place: each starts with a routing header, `size` bytes after the one before.

        They have one model, or one each.
        """
        with self._swap:
            there = fill.run(self._arena.memory, data, begin, size, count, model, ts_ns)
        # Half full: there is time to write it before rows are lost.
        if there > _HALF and not self._woken.is_set():
            self._woken.set()

    # ── files ───────────────────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        """Write what was taken so far to the operating system; rows that it refuses are lost and counted."""
        with self._storing:
            with self._swap:
                arena, names = self._arena, self._names
                # Totals continue in the arena that fills next.
                self._other.counts[:] = arena.counts
                self._arena, self._other = self._other, arena
                self._names = dict(self._current)
            before, rows = self._store.end, arena.rows
            try:
                # First the policies, so that no row on the disk refers to one that is not.
                self._policies.write(self._store.files)
                for block in arena.blocks():
                    self._store.append(block, names)
            except LogError as error:
                self._warn("record in %s: %s", self.folder, error)
            arena.clear()
            # What could not be written is lost: keeping it would fill memory while the disk is full.
            written = self._store.end - before
            self._stats.written += written
            self._stats.lost_disk += rows - written

    def sync(self) -> None:
        """Wait until everything taken so far is on the disk, unless the disk refused it."""
        with self._storing:
            self.drain()
            self._store.sync()

    def keep(self) -> None:
        """Seal what is due and remove what has expired; raises LogError if the disk refuses."""
        with self._storing:
            self._store.keep(self._drain_if_half_full)
            self._stats.expired, self._stats.damaged = self._store.expired, self._store.damaged

    def seal(self) -> None:
        """Write everything taken so far as Parquet."""
        with self._storing:
            self.drain()
            self._store.seal()

    def close(self) -> None:
        """Write what is left, sync and release the lock; does nothing if already closed."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join()
        self.drain()
        self._store.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._woken.wait(DRAIN_S)
            self._woken.clear()
            self._turn(time.monotonic())

    def _turn(self, now: float) -> None:
        try:
            self.drain()
            if now - self._synced_at >= SYNC_S:
                self._synced_at = now
                self.sync()
            if now - self._kept_at >= _KEEP_S:
                self._kept_at = now
                self.keep()
        except LogError as error:
            self._warn("record in %s: %s", self.folder, error)
        except Exception:  # noqa: BLE001 - if the thread died, recording would end silently
            _log.exception("record in %s: upkeep failed and will be retried", self.folder)

    def _drain_if_half_full(self) -> None:
        if self._arena.rows > _HALF:
            self.drain()

    def _warm(self) -> None:
        """Compile the kernels now, so that no packet waits for them."""
        warm_sealing()
        self.take(np.zeros(1, HEADER_DTYPE), np.zeros(1, np.uint8), ts_ns=0, here=True)
        self._arena.clear()
        self._arena.counts[:] = 0
