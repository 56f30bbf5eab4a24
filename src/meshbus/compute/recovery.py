"""Keeping a daemon on disk, and continuing it: after a restart, and when a move is taken back."""

from __future__ import annotations

import msgspec

from meshbus.compute.daemon import DaemonEvent
from meshbus.compute.host import DaemonHost
from meshbus.compute.registry import Factory
from meshbus.compute.store import DaemonStore, Mark, Status, Stored
from meshbus.errors import DaemonError, DaemonFault
from meshbus.names.identity import Identity
from meshbus.wire.messages.checkpoint import decode_checkpoint, is_checkpoint
from meshbus.wire.messages.migration import BufferedEvent
from meshbus.wire.messages.snapshot import decode_snapshot, encode_snapshot

UNPROCESSED = 1
"""In the link of an event in a numbered attempt: the source has stopped before it, so its outputs are not published."""


def revive(stored: Stored, factory: Factory) -> DaemonHost:
    """Create the host that a record describes.

    Raises DaemonError if the daemon refuses the state or its key is missing, MalformedPacket for a damaged record.
    """
    snapshot = decode_snapshot(stored.snapshot)
    identity = factory.identity if stored.seed is None else Identity.from_seed(stored.seed)
    if identity is None or identity.entity_id != snapshot.entity_id:
        problem = "its key is missing: neither its factory nor its record has it"
        raise DaemonError(DaemonFault.RESTORE, snapshot.origin_hash, problem)
    host = DaemonHost.restored(snapshot, factory.create(), identity)
    host.moves = stored.mark.moves
    # Events of a shadow were published by the source before it handed over.
    shadow = is_checkpoint(snapshot.state) and decode_checkpoint(snapshot.state).shadow
    for event in stored.replayed:
        replay(host, event, shadow=shadow)
    return host


def replay(host: DaemonHost, event: BufferedEvent, *, shadow: bool) -> None:
    """Process an event that followed a snapshot; in a shadow, the source has published the outputs of most."""
    host.replay(event_of(event), shadow=shadow and event.link.parent_hash != UNPROCESSED)


def keep(store: DaemonStore, host: DaemonHost, created_ns: int) -> bytes:
    """Write a checkpoint of a daemon that runs here, and return its snapshot."""
    before = store.marked(host.origin) or Mark(status=Status.ACTIVE)
    mark = msgspec.structs.replace(before, moves=host.moves)
    snapshot = encode_snapshot(host.snapshot(created_ns, moves=False))
    seed = host.identity.seed if host.identity.can_sign else None
    store.save(host.origin, Stored(mark=mark, snapshot=snapshot, seed=seed))
    return snapshot


def event_of(buffered: BufferedEvent) -> DaemonEvent:
    """Return a buffered event as its daemon sees it."""
    return DaemonEvent(buffered.link.origin_hash, buffered.link.sequence, buffered.payload)
