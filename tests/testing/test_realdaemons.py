"""The daemons of a real peer's process, with a stand-in for the binding; the binding itself is in tests/interop."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from meshbus.testing.realdaemons import Counter, Failing, RealDaemons, Refusing, Stateless


class Move:
    """A move that goes through two phases, and fails if its target is 13."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.left = ["transfer", "transfer", "replay"]
        self.canceled = False

    def phase(self) -> str | None:
        return self.left.pop(0) if self.left else None

    def wait_with_timeout(self, _: int) -> None:
        if self.target == 13:
            raise OSError("state-failed")

    def cancel(self) -> None:
        self.canceled = True


class Runtime:
    """A runtime without a network."""

    def __init__(self, mesh: Any) -> None:
        self.told = mesh.told
        self.factories: dict[str, Callable[[], Any]] = {}
        self.daemons: dict[int, Any] = {}

    def start(self) -> None:
        self.told.append("start")

    def register_factory(self, kind: str, factory: Callable[[], Any]) -> None:
        assert kind not in self.factories
        self.factories[kind] = factory

    def spawn(self, kind: str, seed: bytes) -> Any:
        self.daemons[seed[0]] = self.factories[kind]()
        return SimpleNamespace(origin_hash=seed[0])

    def expect_migration(self, kind: str, origin: int) -> None:
        self.told.append((kind, origin))

    def register_migration_target_identity(self, kind: str, seed: bytes) -> None:
        self.told.append((kind, seed))

    def deliver(self, origin: int, event: Any) -> list[bytes]:
        return list(self.daemons[origin].process(event))

    def snapshot(self, origin: int) -> bytes | None:
        return self.daemons[origin].snapshot()  # type: ignore[no-any-return]

    def daemon_count(self) -> int:
        return len(self.daemons)

    def stop(self, origin: int) -> None:
        del self.daemons[origin]

    def start_migration_with(self, _origin: int, _source: int, target: int, options: dict[str, bool]) -> Move:
        self.told.append(options)
        return Move(target)


BINDING = SimpleNamespace(
    DaemonRuntime=Runtime,
    Identity=SimpleNamespace(from_seed=lambda seed: seed),
    CausalEvent=lambda *fields: fields,
)


def made() -> tuple[RealDaemons, list[Any]]:
    """Return daemons and what their runtime was told."""
    mesh = SimpleNamespace(told=[])
    return RealDaemons(BINDING, mesh), mesh.told


def test_daemons_of_the_same_kind_have_one_factory() -> None:
    daemons, told = made()
    daemons.do_start_daemons()
    assert [daemons.do_spawn("counter", bytes([number]), 20) for number in (1, 2)] == [1, 2]
    assert daemons.do_deliver(1, 7, 1, b"event") == [b"1"]
    assert daemons.do_take_snapshot(1) == b"\x01" + bytes(19)
    daemons.do_remove(2)
    assert daemons.do_daemon_count() == 1
    daemons.do_expect("counter", 5)
    daemons.do_expect_identity("counter", b"\x06")
    assert told == ["start", ("counter/8", 5), ("counter/8", b"\x06")]


async def test_a_move_reports_its_phases_or_fails() -> None:
    daemons, told = made()
    moved = await daemons.do_move(1, 2, 3, envelope=True, seconds=60)
    assert moved.phases == ["transfer", "replay"]
    assert told == [{"transport_identity": True}]
    with pytest.raises(OSError, match="state-failed"):
        await daemons.do_move(1, 2, 13, envelope=False, seconds=60)
    daemons.do_cancel(1)


def test_kinds() -> None:
    counter, failing = Counter(), Failing()
    counter.restore(b"\x05" + bytes(9))
    assert counter.process(None) == [b"6"]
    assert counter.snapshot() == b"\x06" + bytes(9)
    assert Stateless().snapshot() is None
    with pytest.raises(ValueError, match="refused 1 bytes"):
        Refusing().restore(b"x")
    assert failing.process(None) == [b"1"]
    with pytest.raises(ValueError, match="failed"):
        failing.process(None)
