"""Attacks on bounds: each fills one row of docs/limits.md further than it may, and reports how much was kept."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from meshbus.engine.base.counters import Counters
from meshbus.testing.fakenet import FakeNet, FakeNode
from tests.engine.fleet import meet


class Attacked(NamedTuple):
    """What an attack left behind."""

    kept: int
    """How much of it the victim keeps."""
    most: int
    """The bound, as small as the attack made it."""
    counters: Counters


class Scene:
    """A victim, and a peer that means it harm. Bounds are made small, so that an attack is short."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.net = FakeNet(1)

    def shrink(self, module: ModuleType, **bounds: int) -> None:
        """Set bounds of a module; call it before the nodes are created."""
        for name, value in bounds.items():
            assert getattr(module, name) > value
            self._monkeypatch.setattr(module, name, value)

    def meet(self, **settings: Any) -> tuple[FakeNode, FakeNode]:
        """Create the victim, with these settings, and the attacker, with a session between them."""
        victim, mallory = self.net.create("victim", **settings), self.net.create("mallory")
        meet(mallory, victim)
        return victim, mallory

    def say(
        self, mallory: FakeNode, victim: FakeNode, subprotocol_id: int, *messages: bytes, pause_s: float = 0.01
    ) -> None:
        """Send messages, whatever they are, one by one."""
        for message in messages:
            with mallory.turn() as (engine, _now, out):
                engine.peers.require(victim.node_id).send_message(subprotocol_id, message, out)
            self.net.run(for_s=pause_s)


Attack = Callable[[Scene], Attacked]
ATTACKS: dict[str, Attack] = {}
"""By the name of the bound."""


def attack(*names: str) -> Callable[[Attack], Attack]:
    """Register an attack on a bound."""

    def register(function: Attack) -> Attack:
        for name in names:
            assert name not in ATTACKS
            ATTACKS[name] = function
        return function

    return register
