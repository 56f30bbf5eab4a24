from __future__ import annotations

import pytest

from meshbus.compute.host import DaemonHost
from meshbus.compute.registry import DaemonRegistry, Factory
from meshbus.errors import DaemonError, DaemonFault
from meshbus.names.identity import Identity
from tests.compute.counter import Counter

DAEMON = Identity.from_seed(bytes(32))


def test_a_daemon_runs_once_on_a_node() -> None:
    registry, host = DaemonRegistry(), DaemonHost(DAEMON, Counter())
    registry.add(host)
    assert host.origin in registry
    assert list(registry) == [host]
    assert len(registry) == 1
    assert registry.get(host.origin) is host
    with pytest.raises(DaemonError) as caught:
        registry.add(DaemonHost(DAEMON, Counter()))
    assert caught.value.fault == DaemonFault.DUPLICATE


def test_a_removed_daemon_is_unknown() -> None:
    registry, host = DaemonRegistry(), DaemonHost(DAEMON, Counter())
    registry.add(host)
    assert registry.remove(host.origin) is host
    assert registry.get(host.origin) is None
    with pytest.raises(DaemonError) as caught:
        registry.remove(host.origin)
    assert caught.value.fault == DaemonFault.UNKNOWN


def test_a_daemon_has_one_factory() -> None:
    registry, factory = DaemonRegistry(), Factory(create=Counter, identity=DAEMON)
    registry.offer(1, factory)
    assert registry.factory(1) is factory
    with pytest.raises(DaemonError) as caught:
        registry.offer(1, factory)
    assert caught.value.fault == DaemonFault.DUPLICATE
    registry.withdraw(1)
    registry.withdraw(1)
    assert registry.factory(1) is None
