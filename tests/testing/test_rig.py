"""Engines without a network: repeatable, with any settings, and with other services where a test wants them."""

from __future__ import annotations

import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.services import SERVICES
from meshbus.engine.session.handshake import Handshakes
from meshbus.engine.session.liveness import Liveness
from meshbus.engine.session.service import Row, Service
from meshbus.names.identity import Identity
from meshbus.testing.rig import PSK, replaced, rig, unix_ns
from meshbus.wire.constants import Subprotocol


def hello(seed: int = 0) -> bytes:
    """Return the first datagram of an engine, which holds an ephemeral key."""
    engine, out = rig(seed=seed), Output()
    engine.connect(7, "there", rig(seed=99).public_key, 0.0, out)
    return bytes(out.trains[0].data)


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert rig().node_id == rig().node_id != rig(seed=1).node_id
    assert hello() == hello() != hello(seed=1)


def test_identity_node_id_clock_and_settings_are_the_callers() -> None:
    who = Identity.from_seed(bytes(32))
    engine = rig(who, now=7.0, wall=lambda _now: 5, static_private_key=bytes([1]) * 32, ack_timeout_s=2.0)
    assert engine.identity == who
    assert engine.settings.psk == PSK
    assert engine.settings.ack_timeout_s == 2.0
    assert engine.public_key != rig(who).public_key
    assert engine.liveness.next_timer() == 7.0 + engine.settings.liveness.heartbeat_s
    renamed = rig(who, node_id=42)
    assert (renamed.node_id, renamed.identity.entity_id) == (42, who.entity_id)
    assert who.node_id != 42
    assert rig(psk=bytes(32)).settings.psk == bytes(32)


def test_drawn_bytes_can_be_the_callers_too() -> None:
    drawn: list[int] = []

    def entropy(size: int) -> bytes:
        drawn.append(size)
        return bytes(size)

    rig(entropy=entropy)
    assert drawn == [8], "where the numbers of requests begin"


def test_a_row_is_replaced_by_id_or_by_class_and_stays_where_it_was() -> None:
    class Other(Handshakes):
        pass

    by_class = replaced(SERVICES, Handshakes, Other)
    assert by_class == (Row(Other), *SERVICES[1:])
    assert isinstance(rig(table=by_class).handshakes, Other)
    by_id = replaced(SERVICES, Subprotocol.REFLEX, lambda _context: Service())
    changed = [(old, new) for old, new in zip(SERVICES, by_id, strict=True) if old != new]
    ((old, new),) = changed
    assert (old.id, old[1:]) == (Subprotocol.REFLEX, new[1:])


def test_what_is_not_in_the_table_cannot_be_replaced() -> None:
    for what in (0x7777, Service):
        with pytest.raises(KeyError, match="no row for"):
            replaced(SERVICES, what, Liveness)


def test_virtual_time_starts_in_november_2023() -> None:
    assert unix_ns(0.0) == 1_700_000_000_000_000_000
    assert unix_ns(1.5) - unix_ns(0.0) == 1_500_000_000
