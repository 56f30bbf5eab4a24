"""Services and their hooks: which are called, in which order, and what services share."""

from __future__ import annotations

import inspect
import random
from typing import Any

import pytest

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.notices import DownReason, PeerGone, SessionUp
from meshbus.engine.base.packets import Output
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Established, Row, Service, Services
from meshbus.engine.settings import EngineSettings
from meshbus.errors import RegistryError
from meshbus.names.identity import Identity
from meshbus.testing.rig import PSK, unix_ns
from meshbus.wire.constants import Subprotocol
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.subprotocol import SubprotocolVersion

ME, ROOT = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2))
FIRST, SECOND = 0x7001, 0x7002
HOOKS = [name for name, value in vars(Service).items() if callable(value) and not name.startswith("_")]


def context(*rows: Row, profile: bool = True, **options: Any) -> Context:
    settings = EngineSettings(psk=PSK, profile=profile, trusted_issuers=(ROOT.entity_id,))
    made = Context(ME, settings, now=3.0, wall=unix_ns, entropy=random.Random(0).randbytes, **options)
    made.build(rows)
    return made


def link(name: str = "there") -> Link:
    return Link(derive_keys(bytes(32), Role.INITIATOR), Role.INITIATOR, name, 0.0)


class Log(Service):
    """Records its calls, and returns the configured values."""

    def __init__(self, name: str, log: list[Any], timer: float | None = None, *, expects: bool = False) -> None:
        self.name = name
        self.log = log
        self.timer = timer
        self.expects = expects

    def tick(self, now: float, out: Output) -> None:
        self.log.append((self.name, "tick", now))

    def next_timer(self) -> float | None:
        return self.timer

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        self.log.append((self.name, "peer_up", peer.node_id, list(out.control)))

    def peer_down(self, down: Any, now: float, out: Output) -> None:
        self.log.append((self.name, "peer_down", down))

    def unknown_stream(self, node_id: int, now: float) -> bool:
        self.log.append((self.name, "unknown_stream", node_id))
        return self.expects


class Quiet(Service):
    """Overrides nothing."""


def rows_of(*services: Service) -> list[Row]:
    return [Row(lambda _context, made=service: made) for service in services]  # type: ignore[misc]


# ── hooks ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_is_not_overridden_does_nothing(hook: str) -> None:
    method = getattr(Service(), hook)
    out = Output()
    arguments = {name: out if name == "out" else None for name in inspect.signature(method).parameters}
    assert method(**arguments) in {None, False}
    assert (out.trains, out.control, out.events) == ([], [], [])


@pytest.mark.parametrize("hook", sorted(set(HOOKS) - {"receive"}))
def test_all_services_together_have_every_hook_with_the_same_arguments(hook: str) -> None:
    assert inspect.signature(getattr(Services, hook)) == inspect.signature(getattr(Service, hook))


@pytest.mark.parametrize("hook", sorted(set(HOOKS) - {"receive", "next_timer"}))
def test_a_hook_reaches_those_who_override_it_and_passes_its_arguments(hook: str) -> None:
    told: list[Any] = []
    names = list(inspect.signature(getattr(Service, hook)).parameters)[1:]

    def note(_self: Service, *arguments: object) -> bool:
        told.append(arguments)
        return False

    probe = type("Probe", (Service,), {hook: note})
    made = context(*rows_of(Quiet(), probe()))
    arguments = tuple(object() for _ in names)
    assert not getattr(made.services, hook)(*arguments)
    assert told == [arguments]
    assert [len(hooks) for name, hooks in made.services._hooks.items() if name != hook] == [0] * (len(HOOKS) - 1)


class Finishing(Service):
    """Counts how often it was asked to finish."""

    def __init__(self, *unfinished: list[int]) -> None:
        self.unfinished = unfinished
        self.asked = 0

    def finish(self, now: float, out: Output) -> None:
        self.asked += 1


def test_services_finish_if_one_has_something_to_complete_or_there_are_notices() -> None:
    waiting: list[int] = []
    one, other = Finishing(), Finishing([], waiting)
    made, notices = context(*rows_of(one, Quiet(), other)), Output()
    made.services.finish(1.0, Output())
    assert (one.asked, other.asked) == (0, 0)
    waiting.append(1)
    made.services.finish(1.0, Output())
    waiting.clear()
    made.services.finish(1.0, Output())
    assert (one.asked, other.asked) == (1, 1)
    notices.control.append(PeerGone(7, DownReason.CLOSED))
    made.services.finish(1.0, notices)
    assert (one.asked, other.asked) == (2, 2)


def test_hooks_run_in_the_order_of_the_table() -> None:
    log: list[Any] = []
    made = context(*rows_of(Log("b", log), Quiet(), Log("a", log)))
    made.services.tick(1.0, Output())
    made.services.peer_down(PeerGone(7, DownReason.CLOSED), 1.0, Output())
    gone = PeerGone(7, DownReason.CLOSED)
    assert log == [("b", "tick", 1.0), ("a", "tick", 1.0), ("b", "peer_down", gone), ("a", "peer_down", gone)]


@pytest.mark.parametrize(("timers", "first"), [((), None), ((None, None), None), ((5.0, None, 2.0), 2.0)])
def test_the_next_timer_is_the_earliest(timers: tuple[float | None, ...], first: float | None) -> None:
    made = context(*rows_of(Quiet(), *(Log("x", [], timer) for timer in timers)))
    assert made.services.next_timer() == first


def test_every_service_is_asked_about_an_unknown_stream() -> None:
    log: list[Any] = []
    made = context(*rows_of(Log("a", log, expects=True), Log("b", log)))
    assert made.services.unknown_stream(7, 1.0)
    assert [entry[0] for entry in log] == ["a", "b"], "each may have to ask for names"
    assert not context(*rows_of(Log("b", log))).services.unknown_stream(7, 1.0)


# ── the table ───────────────────────────────────────────────────────────────────────────────


def test_a_service_is_found_by_its_class_or_a_class_above_it() -> None:
    class Louder(Log):
        pass

    log: list[Any] = []
    quiet, louder = Quiet(), Louder("louder", log)
    services = context(*rows_of(quiet, louder)).services
    assert services[Quiet] is quiet
    assert services[Louder] is services[Log] is louder
    plain = Log("plain", log)
    for order in ((plain, louder), (louder, plain)):
        services = context(*rows_of(*order)).services
        assert (services[Log], services[Louder]) == (plain, louder), "the class itself comes first"
    with pytest.raises(KeyError):
        context().services[Quiet]


def test_a_service_of_two_rows_is_there_once() -> None:
    log: list[Any] = []
    both = Log("both", log)
    made = context(Row(lambda _context: both, FIRST, "first"), Row(lambda _context: both, SECOND, "second"))
    assert list(made.services) == [both]
    assert made.services.by_subprotocol == {FIRST: both, SECOND: both}
    made.services.tick(1.0, Output())
    assert len(log) == 1


def test_a_factory_sees_the_services_above_it_and_the_whole_table() -> None:
    seen: list[Any] = []

    class Below(Service):
        def __init__(self, made: Context) -> None:
            seen.append((type(made.services[Quiet]), [row.id for row in made.services.table]))

    context(Row(lambda _context: Quiet()), Row(Below, FIRST), Row(lambda _context: Service(), SECOND))
    assert seen == [(Quiet, [None, FIRST, SECOND])]


def test_what_rows_offer_is_registered_under_version_one() -> None:
    registry = context(Row(lambda _context: Quiet(), FIRST, "first"), Row(lambda _context: Service())).registry
    (descriptor,) = registry.all_descriptors()
    assert (descriptor.id, descriptor.name, descriptor.version) == (FIRST, "first", SubprotocolVersion(1))
    assert registry.is_handled(FIRST)


def test_without_the_profile_neither_its_rows_nor_negotiation_are_offered() -> None:
    rows = (
        Row(lambda _context: Service(), FIRST, profile=True),
        Row(lambda _context: Service(), Subprotocol.NEGOTIATION),
        Row(lambda _context: Service(), Subprotocol.MEMBERSHIP),
    )
    assert len(context(*rows).registry) == 3
    plain = context(*rows, profile=False)
    assert [descriptor.id for descriptor in plain.registry.all_descriptors()] == [Subprotocol.MEMBERSHIP]
    assert set(plain.services.by_subprotocol) == {FIRST, Subprotocol.NEGOTIATION, Subprotocol.MEMBERSHIP}


def test_two_rows_for_one_subprotocol_are_refused() -> None:
    with pytest.raises(RegistryError):
        context(*(Row(lambda _context: Service(), FIRST) for _ in range(2)))


# ── the context ─────────────────────────────────────────────────────────────────────────────


def test_the_context_is_what_the_node_was_given() -> None:
    counters = Counters()
    made = context(counters=counters, static_private_key=bytes(32))
    assert (made.identity, made.started_at, made.wall(0.0)) == (ME, 3.0, unix_ns(0.0))
    assert made.counters is counters
    assert made.static_private_key == bytes(32)
    assert context().static_private_key == ME.noise_private_key
    assert made.tokens.trusted_issuers == {ME.entity_id, ROOT.entity_id}
    assert context().counters is not context().counters


def test_services_know_a_new_session_before_its_early_packets() -> None:
    log: list[Any] = []
    made, out = context(*rows_of(Log("a", log))), Output()
    made.services.receive_again = lambda source, packet, now, _out: log.append((source, bytes(packet), now))
    up = Established(7, link(), initiated=True, held=(("here", b"one"), ("there", b"two")))
    made.establish([up], 4.0, out)
    notice = SessionUp(7, up.link.session_id, True)
    assert log == [("a", "peer_up", 7, [notice]), ("here", b"one", 4.0), ("there", b"two", 4.0)]
    assert out.control == [notice]
    assert made.peers.require(7).link is up.link


def test_packets_are_held_back_only_where_an_engine_receives_them() -> None:
    held = Established(7, link(), initiated=True, held=(("here", b"one"),))
    with pytest.raises(AssertionError, match="receive_again"):
        context().establish([held], 0.0, Output())
