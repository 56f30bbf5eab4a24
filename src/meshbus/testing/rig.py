"""One engine without a network, for tests that call its services themselves.

    engine = rig(node_id=1, ack_timeout_s=2.0)         any field of EngineSettings
    engine.membership.subscribe(peer, channel, now, out)

Everything is built from the service table, as in a real node. A test that observes hooks appends a row with a service
of its own, `table=(*SERVICES, Row(lambda _context: probe))`; one that needs another service in the place of a real one
passes `replaced(SERVICES, Handshakes, factory)`. Whole networks are meshbus.testing.fakenet.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from meshbus.engine.core import Engine
from meshbus.engine.services import SERVICES
from meshbus.engine.session.service import Context, Row, Service
from meshbus.engine.settings import EngineSettings
from meshbus.names.identity import Entropy, Identity

PSK = bytes(range(32))


def unix_ns(now: float) -> int:
    """Convert virtual time to Unix nanoseconds; it starts in November 2023."""
    return 1_700_000_000_000_000_000 + round(now * 1e9)


def rig(
    identity: Identity | None = None,
    *,
    node_id: int | None = None,
    seed: int = 0,
    now: float = 0.0,
    wall: Callable[[float], int] = unix_ns,
    entropy: Entropy | None = None,
    static_private_key: bytes | None = None,
    table: Sequence[Row] = SERVICES,
    **settings: Any,
) -> Engine:
    """Build an engine; `node_id` overrides the one that follows from the identity."""
    chance = random.Random(f"rig {seed}")  # noqa: S311  repeatable, not secret
    who = Identity.generate(chance.randbytes) if identity is None else identity
    if node_id is not None:
        who = Identity(who.entity_id, seed=who.seed)
        who.node_id = node_id
    return Engine(
        who,
        EngineSettings(**{"psk": PSK, **settings}),
        now=now,
        wall=wall,
        entropy=chance.randbytes if entropy is None else entropy,
        static_private_key=static_private_key,
        table=table,
    )


def replaced(table: Sequence[Row], what: int | type[Service], factory: Callable[[Context], Service]) -> tuple[Row, ...]:
    """Return a table whose row for a subprotocol id, or for a service class, has another factory."""
    rows = tuple(row._replace(factory=factory) if what in {row.id, row.factory} else row for row in table)
    if rows == tuple(table):
        raise KeyError(f"the table has no row for {what!r}")
    return rows
