"""Attacks of a holder of the mesh key under many names: each name begins a session, proves it and announces itself."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from meshbus.engine.core import Engine
from meshbus.engine.directory import announce, directory
from meshbus.engine.routes import pingwaves
from meshbus.engine.session import budget, negotiate
from tests.limits.attack import Attacked, Scene, attack

NAMES = 6
FEW = 3

ROWS: dict[str, tuple[ModuleType, str, Callable[[Engine], Any]]] = {
    "handshake_hosts": (budget, "MAX_HOSTS", lambda engine: engine.handshakes._budget._hosts),
    "known_addresses": (budget, "MAX_KNOWN", lambda engine: engine.handshakes._budget._known),
    "profile_peers": (negotiate, "MAX_KNOWN", lambda engine: engine.services[negotiate.Negotiator]._agreed_before),
    "announced_versions": (announce, "MAX_TOLD", lambda engine: engine.announcer._told),
    "pins": (directory, "MAX_PINS", lambda engine: engine.directory._pins),
    "announcing_peers": (directory, "MAX_RATED", lambda engine: engine.directory._rates),
    "announcing_hosts": (directory, "MAX_HOSTS", lambda engine: engine.directory._hosts),
    "pingwave_neighbors": (pingwaves, "MAX_RATED", lambda engine: engine.mesh.pingwaves._rates),
}
"""What each name takes: where its bound is, and how the victim keeps it."""


def _crowd(name: str) -> Callable[[Scene], Attacked]:
    module, bound, kept = ROWS[name]

    def crowded(scene: Scene) -> Attacked:
        scene.shrink(module, **{bound: FEW})
        victim = scene.net.create("victim")
        members = [scene.net.create(f"member {number}") for number in range(NAMES)]
        for _ in range(2):  # the second handshake of each comes from an address where it proved itself
            for member in members:
                member.connect(victim)
            scene.net.run(for_s=7)
        return Attacked(len(kept(victim.engine)), FEW, victim.engine.counters)

    return crowded


for _name in ROWS:
    attack(_name)(_crowd(_name))
