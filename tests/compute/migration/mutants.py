"""Deliberate bugs in the roles of a migration, one at a time. The checker has to find each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from meshbus.compute.host import DaemonHost
from meshbus.compute.migration import source
from meshbus.compute.migration.base import Outbound, Phase
from meshbus.compute.migration.leaving import Leaving
from meshbus.compute.migration.orchestrator import MigrationOrchestrator
from meshbus.compute.migration.source import MigrationSourceHandler
from meshbus.compute.migration.target import MigrationTargetHandler
from meshbus.wire.messages.migration import ActivateTarget, CleanupComplete
from tests.compute.memorystore import MemoryStore
from tests.compute.migration.world import World


def _confirm_anything(_self: MigrationSourceHandler, message: Any, sender: int) -> list[Outbound]:
    """CutoverNotify is confirmed although the daemon runs on, as a 0.23 source does."""
    return [(sender, CleanupComplete(origin=message.origin, attempt=message.attempt))]


def _forget_to_write(self: MigrationSourceHandler, leaving: Any) -> list[Outbound]:
    """A daemon is handed over, and the disk does not know."""
    before = self._seat.store.load(leaving.origin)
    out = _HAND_OVER(self, leaving)
    if before is not None and isinstance(self._seat.store, MemoryStore):
        self._seat.store.records[leaving.origin] = before
    return out


_HAND_OVER = MigrationSourceHandler._hand_over


def _begin_early(self: MigrationOrchestrator, message: Any, sender: int, now: float) -> list[Outbound]:
    """The target begins before the source has stopped."""
    out = _REPLAYED(self, message, sender, now)
    early = ActivateTarget(origin=message.origin, attempt=message.attempt)
    return [(sender, early), *out] if self.phase(message.origin) == Phase.CUTOVER else out


_REPLAYED = MigrationOrchestrator.replayed


def _drop_copies(_self: Any, _event: Any) -> None:
    """Events that arrive during the move are not kept, as in 0.23 nodes."""


def _trust(self: MigrationSourceHandler, leaving: Any, _now: float) -> list[Outbound]:
    """A copy is not compared with the original."""
    return self._hand_over(leaving)


def _publish_again(self: DaemonHost, event: Any, *, shadow: bool) -> None:
    """Outputs that the source has published are published again."""
    self._process(event)


def _decide_in_memory(_self: MemoryStore, _decision: Any) -> None:
    """An orchestrator forgets what it has decided."""


PATCHES: dict[str, tuple[tuple[object, str, object], ...]] = {
    "confirms every handover": ((MigrationSourceHandler, "_cutover_again", _confirm_anything),),
    "hands over without writing it": ((MigrationSourceHandler, "_hand_over", _forget_to_write),),
    "begins before the source has stopped": ((MigrationOrchestrator, "replayed", _begin_early),),
    "gives all attempts the same number": ((World, "entropy", lambda _self, size: bytes(size)),),
    "takes two snapshots in one attempt": ((MigrationSourceHandler, "_has_begun", lambda *_: False),),
    "loses events that arrive during the move": (
        (Leaving, "keep", _drop_copies),
        (MigrationSourceHandler, "_verify", _trust),
    ),
    "publishes what was published": ((DaemonHost, "replay", _publish_again),),
    "confirms what is not on disk": ((World, "keeps_staged", False),),
    "takes any refusal for a decision": ((source, "is_withdrawal", lambda _: True),),
    "forgets what was decided": ((MemoryStore, "decide", _decide_in_memory),),
    "publishes before the checkpoint": ((World, "keeps_first", False),),
    "stages snapshots of the past": ((MigrationTargetHandler, "_is_past", lambda *_: False),),
}


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Run with one deliberate bug."""
    patches = [mock.patch.object(owner, attribute, value) for owner, attribute, value in PATCHES[name]]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
