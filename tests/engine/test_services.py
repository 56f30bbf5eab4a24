"""The table of services: what it must look like, and that the core depends on nothing in it."""

from __future__ import annotations

import ast
import inspect
from itertools import chain

import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.core import Engine
from meshbus.engine.services import SERVICES
from meshbus.engine.session.liveness import Liveness
from meshbus.engine.session.service import Row, Service
from meshbus.engine.settings import SecureConfig, SecureMode
from meshbus.testing.rig import rig
from meshbus.wire.constants import Subprotocol
from meshbus.wire.subprotocol import FIRST_VENDOR_ID, SubprotocolVersion
from tests.house.tree import PACKAGE, imports

CORE = PACKAGE / "engine" / "core.py"
ROOMS_OF_SERVICES = ("channels", "directory", "nat", "routes", "streams")
ALWAYS = tuple(row for row in SERVICES if not row.optional)
OPTIONAL = frozenset(row.id for row in SERVICES if row.optional and row.id is not None)
PLAIN = {row.id for row in ALWAYS if row.id is not None and not row.profile and not row.later}
PROFILE = {row.id for row in ALWAYS if row.id is not None and row.profile} - {Subprotocol.SECURE}
"""Without secure sessions, which an engine offers only if its settings say so."""
MAX_ARGUMENTS = 5


# ── rows ────────────────────────────────────────────────────────────────────────────────────


def test_every_subprotocol_has_one_row_and_its_own_name() -> None:
    rows = [row for row in SERVICES if row.id is not None]
    assert len({row.id for row in rows}) == len(rows)
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.name for row in rows)


def test_rows_without_a_subprotocol_have_none_of_its_fields() -> None:
    assert {row[1:] for row in SERVICES if row.id is None} == {Row(Liveness)[1:]}


@pytest.mark.parametrize("row", [row for row in ALWAYS if row.profile], ids=lambda row: row.name)
def test_the_profile_is_in_the_vendor_range(row: Row) -> None:
    assert row.id is not None
    assert row.id >= FIRST_VENDOR_ID or row.id == Subprotocol.HANDSHAKE_RELAY
    assert row.credit


def test_what_is_carried_on_reliable_streams_is_part_of_the_profile_and_needs_them() -> None:
    carried = [row for row in ALWAYS if row.reliable]
    assert {row.id for row in carried} == {Subprotocol.HISTORY, Subprotocol.REQUEST, Subprotocol.APPEND}
    assert all(row.profile and row.needs == Subprotocol.RELIABLE for row in carried)


def test_a_service_that_completes_calls_says_what_it_completes() -> None:
    """Without it, the hooks of all services would run after every packet."""
    services = rig(carries=OPTIONAL).services
    finishing = [service for service in services if type(service).finish is not Service.finish]
    assert len(finishing) > 3
    assert [type(service).__name__ for service in finishing if service.unfinished is None] == []


def test_a_node_offers_all_it_handles() -> None:
    registry = rig().registry
    assert [descriptor.id for descriptor in registry.all_descriptors()] == sorted(PLAIN | PROFILE)
    assert {descriptor.version for descriptor in registry.all_descriptors()} == {SubprotocolVersion(1)}
    assert all(registry.is_handled(subprotocol_id) for subprotocol_id in PLAIN | PROFILE)


def test_it_offers_what_is_optional_only_if_its_settings_say_so() -> None:
    assert Subprotocol.MIGRATION in OPTIONAL
    assert not OPTIONAL & (PLAIN | PROFILE)
    registry = rig(carries=frozenset({Subprotocol.MIGRATION})).registry
    offered = {descriptor.id for descriptor in registry.all_descriptors()}
    assert offered == PLAIN | PROFILE | {Subprotocol.MIGRATION}


@pytest.mark.parametrize("mode", SecureMode)
def test_it_offers_secure_sessions_only_if_its_settings_say_so(mode: SecureMode) -> None:
    registry = rig(secure=SecureConfig(mode=mode)).registry
    offered = {descriptor.id for descriptor in registry.all_descriptors()}
    assert offered == PLAIN | PROFILE | (set() if mode is SecureMode.OFF else {Subprotocol.SECURE})


def test_without_the_profile_it_is_a_plain_node() -> None:
    registry = rig(profile=False).registry
    assert not registry.is_handled(Subprotocol.NEGOTIATION)
    assert {descriptor.id for descriptor in registry.all_descriptors()} == PLAIN - {Subprotocol.NEGOTIATION}
    assert "subprotocol:0x0600" not in registry.capability_tags()


def test_every_node_has_its_own_registry() -> None:
    one, other = rig().registry, rig().registry
    one.unregister(Subprotocol.RELIABLE)
    assert other.is_handled(Subprotocol.RELIABLE)


# ── hooks ───────────────────────────────────────────────────────────────────────────────────


class Ticked(Service):
    """Records that it was called."""

    def __init__(self, place: int, turns: list[int]) -> None:
        self._place = place
        self._turns = turns

    def tick(self, now: float, out: Output) -> None:
        self._turns.append(self._place)


def test_the_order_of_rows_is_the_order_of_ticks() -> None:
    turns: list[int] = []
    probes = [Ticked(place, turns) for place in range(len(ALWAYS))]
    rows = [Row(lambda _context, probe=probe: probe) for probe in probes]  # type: ignore[misc]
    engine = rig(table=tuple(chain.from_iterable(zip(rows, ALWAYS, strict=True))))
    engine.tick(1.0)
    assert turns == list(range(len(ALWAYS)))
    services = list(engine.services)
    assert services[::2] == probes
    assert [type(service) for service in services[1::2]] == [type(service) for service in rig().services]


def test_a_hook_reaches_only_those_who_override_it() -> None:
    services = rig().services
    for name, hooks in services._hooks.items():
        own = {one: [kind for kind in type(one).__mro__ if issubclass(kind, Service)][:-1] for one in services}
        overriding = [service for service in services if any(name in vars(kind) for kind in own[service])]
        assert [hook.__self__ for hook in hooks] == overriding, name  # type: ignore[attr-defined]
    assert set(map(len, services._hooks.values())) != {len(SERVICES)}


def test_every_hook_has_a_service_that_overrides_it() -> None:
    assert [name for name, hooks in rig().services._hooks.items() if not hooks] == []


# ── shape ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [type(service) for service in rig().services], ids=lambda kind: kind.__name__)
def test_a_service_takes_few_arguments_and_the_context_first(kind: type[Service]) -> None:
    first, *others = list(inspect.signature(kind).parameters)
    assert first == "context"
    assert 1 + len(others) <= MAX_ARGUMENTS


def test_the_core_names_no_subprotocol_and_no_service() -> None:
    rooms = tuple(f"meshbus.engine.{room}" for room in ROOMS_OF_SERVICES)
    assert [name for _, name in imports(CORE) if name.startswith(rooms)] == []
    tree = ast.parse(CORE.read_text("utf-8"))
    words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    words |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    words |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert "Subprotocol" not in words
    assert not words & {type(service).__name__ for service in rig().services}


def test_the_core_adds_only_the_verbs_of_its_driver() -> None:
    own = {name for name, value in vars(Engine).items() if inspect.isfunction(value) and not name.startswith("_")}
    assert own == {"receive", "receive_one", "tick", "next_timer"}
