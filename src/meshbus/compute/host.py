"""Running one daemon: its events in, its outputs numbered and chained, its checkpoints.

Between two events everything about a daemon is one value, a checkpoint: state, chain, horizon, the next sequence of each
input log, and outputs that may not be published yet. Whoever drives a host keeps this order, and nothing is lost or done
twice, wherever it is interrupted:

1. deliver events;
2. write a checkpoint, atomically, if anything was delivered;
3. publish `pending` as batch `batch` of writer `writer` (`ChannelPublisher.publish_once`), then call `published`.

After a crash, the restored checkpoint has the outputs of its last batch with the same number, so publishing them again
appends nothing. An error of the daemon's own code leaves its state undefined: restore the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from meshbus.compute.causal import ChainHead
from meshbus.compute.daemon import Daemon, DaemonEvent, StatefulDaemon
from meshbus.compute.horizon import Horizon
from meshbus.errors import DaemonError, DaemonFault, Fault, MalformedPacket
from meshbus.names.identity import Identity
from meshbus.wire.messages.bindings import Binding, decode_bindings, encode_bindings
from meshbus.wire.messages.causal import CausalEvent, CausalLink, hash_event
from meshbus.wire.messages.checkpoint import (
    Checkpoint,
    InputPosition,
    PendingOutput,
    decode_checkpoint,
    encode_checkpoint,
    is_checkpoint,
)
from meshbus.wire.messages.snapshot import StateSnapshot


class HostStats(NamedTuple):
    """What a host has done since it was created."""

    processed: int
    emitted: int
    errors: int
    snapshots: int


class DaemonHost:
    """One daemon and everything that a checkpoint of it holds."""

    def __init__(self, identity: Identity, daemon: Daemon, inputs: Iterable[InputPosition] = ()) -> None:
        self.identity = identity
        self.daemon = daemon
        self.chain = ChainHead(CausalLink(identity.origin_hash))
        self.horizon = Horizon()
        self.bindings: tuple[Binding, ...] = ()
        """Subscriptions that the next node makes again."""
        self.moves = 0
        self.pending: list[CausalEvent] = []
        """Outputs of the last batch; they are published, and added to its history, after a checkpoint has them."""
        self.paused = False
        """Whether it takes no events, because it is being handed over."""
        self.term = 0
        """The term of its ledger in which it runs, or ran last; 0 without a ledger."""
        self.in_ledger = False
        """Whether its ledger has a checkpoint of this term."""
        self._inputs = {position.origin: position for position in inputs}
        self._processed = self._emitted = self._errors = self._snapshots = 0

    @classmethod
    def restored(cls, snapshot: StateSnapshot, daemon: Daemon, identity: Identity) -> DaemonHost:
        """Continue a daemon from a snapshot, on a fresh instance.

        Raises DaemonError if the daemon refuses the state, MalformedPacket for a damaged checkpoint.
        """
        host = cls(identity, daemon)
        state = snapshot.state
        if is_checkpoint(state):
            checkpoint = decode_checkpoint(state)
            state, parent_hash = checkpoint.state, checkpoint.parent_hash
            host._inputs = {position.origin: position for position in checkpoint.inputs}
            host.horizon = Horizon(checkpoint.observed)
            host.pending = _linked(checkpoint, snapshot.head)
            host.moves, host.term = checkpoint.moves, checkpoint.term
        else:
            # compute.md §2: a snapshot has no payload of its head, and 0.23 nodes hash the state in its place.
            parent_hash = hash_event(snapshot.head, state)
        host.chain = ChainHead(snapshot.head, parent_hash)
        host.bindings = decode_bindings(snapshot.bindings)
        host._restore(state)
        return host

    @property
    def origin(self) -> int:
        """The daemon's origin hash, which names it everywhere."""
        return self.identity.origin_hash

    @property
    def head(self) -> CausalLink:
        """The link of the last output."""
        return self.chain.link

    @property
    def next_link(self) -> CausalLink:
        """The link that the next output will have: two hosts with the same one have emitted the same."""
        return self.chain.next_link(self.horizon.encoded)

    @property
    def inputs(self) -> tuple[InputPosition, ...]:
        """The logs that it reads, and how far."""
        return tuple(self._inputs.values())

    @property
    def writer(self) -> str:
        """The name under which its outputs are published, the same on every node."""
        return f"daemon/{self.origin:016x}"

    @property
    def batch(self) -> int:
        """The number of the batch in `pending`: that of its first output in the chain, so it only grows."""
        return self.head.sequence - len(self.pending) + 1

    @property
    def stats(self) -> HostStats:
        """What was done since the host was created."""
        return HostStats(self._processed, self._emitted, self._errors, self._snapshots)

    def deliver(self, event: DaemonEvent) -> list[CausalEvent]:
        """Process one event, add its outputs to `pending`, and return them with their links.

        An event of an input log that was processed before is ignored. Raises DaemonError if the daemon is paused, if
        the event is not the next one of its log, or if the daemon's code fails.
        """
        if self.paused:
            raise DaemonError(DaemonFault.PAUSED, self.origin, "it is moving to another node and takes no events now")
        return self._process(event)

    def replay(self, event: DaemonEvent, *, shadow: bool) -> None:
        """Process an event that followed a snapshot in a move; with `shadow` its outputs are published already."""
        outputs = self._process(event)
        if shadow and outputs:
            del self.pending[-len(outputs) :]

    def published(self, count: int | None = None) -> None:
        """Remove the first `count` outputs from `pending`, or all of them: a log has them."""
        del self.pending[:count]

    def skip(self, origin: int, next_seq: int) -> None:
        """Continue at a later event of an input log, because those before it are gone."""
        position = self._inputs[origin]
        self._inputs[origin] = InputPosition(position.publisher, position.channel, max(next_seq, position.next_seq))

    def snapshot(
        self, created_ns: int, *, bare: bool = False, shadow: bool = False, moves: bool = True
    ) -> StateSnapshot:
        """Return everything that another node needs to continue, or this one if it does not move.

        A `bare` snapshot is one that 0.23 nodes understand: without positions in logs, horizon and pending outputs.
        Raises DaemonError for a daemon without state that is to move, or whose code fails.
        """
        state = self._state() if moves or isinstance(self.daemon, StatefulDaemon) else b""
        self._snapshots += 1
        if not bare:
            state = encode_checkpoint(
                Checkpoint(
                    state=state,
                    parent_hash=self.chain.parent_hash,
                    moves=self.moves,
                    inputs=self.inputs,
                    observed=self.horizon.pairs(),
                    pending=tuple(PendingOutput(event.link.horizon, event.payload) for event in self.pending),
                    pending_parent=self.pending[0].link.parent_hash if self.pending else 0,
                    shadow=shadow,
                    term=self.term,
                )
            )
        return StateSnapshot(
            entity_id=self.identity.entity_id,
            head=self.head,
            created_ns=created_ns,
            state=state,
            bindings=encode_bindings(self.bindings),
        )

    def _process(self, event: DaemonEvent) -> list[CausalEvent]:
        position = self._inputs.get(event.origin)
        if position is not None and event.sequence != position.next_seq:
            if event.sequence < position.next_seq:
                return []
            problem = f"{position.channel}: event {event.sequence} came, and {position.next_seq} is next"
            raise DaemonError(DaemonFault.GAP, self.origin, problem)
        try:
            outputs = [bytes(payload) for payload in self.daemon.process(event)]
        except (Exception, SystemExit) as error:
            self._errors += 1
            raise DaemonError(DaemonFault.FAILED, self.origin, f"it failed: {error!r}") from error
        if position is not None:
            advanced = InputPosition(position.publisher, position.channel, event.sequence + 1)
            self._inputs[event.origin] = advanced
        self.horizon.observe(event.origin, event.sequence)
        self._processed += 1
        self._emitted += len(outputs)
        emitted = [self.chain.emit(payload, self.horizon.encoded) for payload in outputs]
        self.pending += emitted
        return emitted

    def _state(self) -> bytes:
        if not isinstance(self.daemon, StatefulDaemon):
            raise DaemonError(
                DaemonFault.STATELESS, self.origin, "it has no snapshot() and restore(), so it cannot move"
            )
        try:
            state = self.daemon.snapshot()
        except Exception as error:
            raise DaemonError(DaemonFault.FAILED, self.origin, f"its snapshot() failed: {error!r}") from error
        if state is None:
            raise DaemonError(DaemonFault.STATELESS, self.origin, "its snapshot() returned None, so it cannot move")
        return bytes(state)

    def _restore(self, state: bytes) -> None:
        if not isinstance(self.daemon, StatefulDaemon):
            if state:
                raise DaemonError(DaemonFault.RESTORE, self.origin, "it has no restore(), and the snapshot has a state")
            return
        try:
            self.daemon.restore(state)
        except Exception as error:
            raise DaemonError(DaemonFault.RESTORE, self.origin, f"its restore() failed: {error!r}") from error


def _linked(checkpoint: Checkpoint, head: CausalLink) -> list[CausalEvent]:
    """Return the pending outputs with their links; raise MalformedPacket if they do not lead to the head."""
    if not checkpoint.pending:
        return []
    before = head.sequence - len(checkpoint.pending)
    if before < 0:
        raise MalformedPacket("checkpoint", Fault.BAD_VALUE, f"more outputs than the chain has, {head.sequence}")
    chain = ChainHead(CausalLink(head.origin_hash, sequence=before), checkpoint.pending_parent)
    events = [chain.emit(output.payload, output.horizon) for output in checkpoint.pending]
    if (chain.link, chain.parent_hash) != (head, checkpoint.parent_hash):
        raise MalformedPacket("checkpoint", Fault.BAD_VALUE, "its outputs do not lead to the head of its chain")
    return events
