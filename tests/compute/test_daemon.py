from __future__ import annotations

from meshbus.compute.daemon import (
    Daemon,
    DaemonEvent,
    StatefulDaemon,
    derive_daemon,
    is_deterministic,
    requirements_of,
)
from meshbus.policy.capability import CapabilityFilter
from tests.compute.counter import Counter, Stubborn


class Bare:
    def process(self, event: DaemonEvent) -> list[bytes]:
        return [event.payload]


def test_a_daemon_needs_only_to_process() -> None:
    assert isinstance(Bare(), Daemon)
    assert not isinstance(Bare(), StatefulDaemon)
    assert isinstance(Counter(), StatefulDaemon)
    assert not isinstance(object(), Daemon)


def test_what_a_daemon_does_not_declare_has_a_default() -> None:
    assert requirements_of(Bare()) == CapabilityFilter()
    assert not is_deterministic(Bare())


def test_a_daemon_declares_what_it_needs() -> None:
    daemon = Counter()
    daemon.requirements = CapabilityFilter(require_tags=("gpu",))  # type: ignore[attr-defined]
    assert requirements_of(daemon).require_tags == ("gpu",)
    assert is_deterministic(daemon)
    assert not is_deterministic(Stubborn())


def test_every_node_of_a_mesh_derives_the_same_daemon_from_a_name() -> None:
    one, other = derive_daemon(bytes(32), "detector"), derive_daemon(bytes(32), "counter")
    assert one == derive_daemon(bytes(32), "detector")
    assert one.can_sign
    assert len({one.origin_hash, other.origin_hash, derive_daemon(bytes([1]) * 32, "detector").origin_hash}) == 3
