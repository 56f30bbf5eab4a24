"""Received pingwaves: the observed rules of the wire, and where ours are stricter."""

from __future__ import annotations

from typing import Any

import pytest

from meshbus.engine.base.packets import Address, Output
from meshbus.engine.routes import pingwaves
from meshbus.engine.routes.pingwaves import BURST, NEWCOMER_BURST
from meshbus.engine.session.link import Link
from meshbus.testing.rig import rig
from meshbus.wire.constants import PINGWAVE_TTL
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.pingwave import Pingwave, pack_pingwave, unpack_pingwave
from tests.vectors import load

SCENARIOS: dict[str, Any] = load("mesh")["routing_scenarios"]
WAVES: dict[str, Any] = load("mesh")["pingwave"]
SELF = 0xB
PEERS = {"A": 0xA, "C": 0xC, "D": 0xD}
FAR = {"Y": 0x100, "Z": 0x200}


class PingwaveRig:
    """One node with three neighbors, whose names are their addresses."""

    def __init__(self) -> None:
        engine = rig(node_id=SELF, wall=lambda now: round((1_000 + now) * 1e9))
        self.counters, self.peers = engine.counters, engine.peers
        self.table, self.graph, self.waves = engine.mesh.table, engine.mesh.graph, engine.mesh.pingwaves
        for name, node_id in PEERS.items():
            keys = derive_keys(node_id.to_bytes(32, "big"), Role.INITIATOR)
            self.peers.establish(node_id, Link(keys, Role.INITIATOR, name, 0.0), 0.0)
            self.table.install(node_id, name, 0.0)
        self.seq = 0

    def hear(
        self, origin: int, source: Address, *, hops: int = 1, ttl: int = PINGWAVE_TTL, seq: int = 0, now: float = 0.0
    ) -> dict[str, Pingwave]:
        """Receive a pingwave; return what was forwarded, and to which neighbor."""
        self.seq += 1
        wave = Pingwave(node_id=origin, seq=seq or self.seq, ttl=ttl, hop_count=hops, timestamp_us=1_000_000_000)
        out = Output()
        self.waves.receive(source, pack_pingwave(wave), now, out)
        return {str(train.address): unpack_pingwave(train.data) for train in out.trains}

    def drops(self) -> dict[str, int]:
        return self.counters.snapshot().get("drop", {})


def test_routes_and_split_horizon_follow_the_observed_scenario() -> None:
    """With one more hop each, because hop 0 must come from the origin itself."""
    setup = PingwaveRig()
    for step in SCENARIOS["steps"]:
        words = step["step"].replace("(", " ").replace(")", " ").replace(",", " ").split()
        origin, source, hops = words[1], words[3], int(words[5])
        sent = setup.hear({**PEERS, **FAR}[origin], source, hops=hops + 1)
        assert sorted(sent) == step["forwarded_to"]
        assert setup.table.lookup({**PEERS, **FAR}[origin], 0.0) == step[f"route_{origin}"]


def test_the_first_hop_of_a_pingwave_is_its_origin() -> None:
    setup = PingwaveRig()
    assert setup.hear(FAR["Y"], "A", hops=0) == {}
    assert setup.hear(PEERS["C"], "A", hops=0) == {}
    assert setup.hear(PEERS["A"], "A", hops=2) == {}
    assert setup.hear(0, "A", hops=2) == {}
    assert setup.drops() == {"pingwave_forged": 4}
    assert setup.table.lookup(FAR["Y"], 0.0) is None
    assert sorted(setup.hear(PEERS["A"], "A", hops=0)) == ["C", "D"]


@pytest.mark.parametrize("case", WAVES["receive_cases"], ids=lambda case: str(case["case"]))
def test_pingwaves_are_taken_as_observed(case: dict[str, Any]) -> None:
    """With one more hop where the observed ones had hop 0 and were not the sender's own."""
    setup = PingwaveRig()
    match case["case"]:
        case "first sight, ttl 3 hops 0 from A" | "health byte 3":
            sent = setup.hear(PEERS["A"], "A", hops=0)
        case "same (origin, seq) again from C, same hops":
            setup.hear(FAR["Y"], "A", seq=5)
            sent = setup.hear(FAR["Y"], "C", seq=5)
        case "ttl 0":
            sent = setup.hear(FAR["Y"], "A", ttl=0)
            assert setup.table.lookup(FAR["Y"], 0.0) == "A"
        case "ttl 1":
            sent = setup.hear(PEERS["A"], "A", hops=0, ttl=1)
        case "origin is the receiver itself":
            sent = setup.hear(SELF, "A")
            assert setup.drops() == {"pingwave_own": 1}
        case "hops 15":
            sent = setup.hear(FAR["Y"], "A", hops=15)
            assert setup.table.metric(FAR["Y"]) == case["metric"]
        case "hops 16":
            sent = setup.hear(FAR["Y"], "A", hops=16)
            assert setup.drops() == {"pingwave_hops": 1}
        case "source address is not a registered direct peer":
            sent = setup.hear(FAR["Y"], "E")
            assert setup.drops() == {"pingwave_stranger": 1}
        case "duplicate (origin, seq) arriving with FEWER hops via another peer":
            setup.hear(FAR["Y"], "A", hops=5, seq=5)
            sent = setup.hear(FAR["Y"], "C", hops=2, seq=5)
            assert setup.table.lookup(FAR["Y"], 0.0) == "C"
        case _:  # not taken for pingwaves at all: tests/wire/test_datagram.py
            assert case["case"] in {"health byte 4", "node_id low 16 bits = 0x4E45"}
            return
    assert sorted(sent) == case["forwarded_to"]
    if "as_" in case:
        assert all(vars_of(wave) == case["as_"] for wave in sent.values())
    if case.get("route") == "A":
        assert setup.table.lookup(PEERS["A"] if "hops 0" in case["case"] else FAR["Y"], 0.0) in {"A", None}


def vars_of(wave: Pingwave) -> dict[str, int]:
    return {"ttl": wave.ttl, "hops": wave.hop_count}


def test_observed_pingwaves_are_heard() -> None:
    setup = PingwaveRig()
    for row in WAVES["observed"]:
        wave = unpack_pingwave(bytes.fromhex(row["hex"]))
        setup.hear(wave.node_id, "A", hops=wave.hop_count + 1, seq=wave.seq)
    assert len(setup.graph) == len({row["decoded"]["origin"] for row in WAVES["observed"]})


def test_a_restarted_node_is_heard_again() -> None:
    """At once where it is a neighbor, elsewhere after its earlier sequences were forgotten."""
    setup = PingwaveRig()
    observed = [1, 2, 50, 1, 2, 3]
    assert [bool(setup.hear(PEERS["A"], "A", hops=0, seq=seq)) for seq in observed] == [
        True, True, True, False, False, True
    ]  # fmt: skip
    setup.hear(FAR["Y"], "A", seq=50)
    assert setup.hear(FAR["Y"], "A", seq=1, now=10.0) == {}
    assert setup.drops() == {"pingwave_old": 1}
    assert setup.hear(FAR["Y"], "A", seq=2, now=31.0)
    assert setup.hear(FAR["Y"], "A", seq=3, now=32.0)


def test_copies_are_forgotten_in_time() -> None:
    setup = PingwaveRig()
    setup.hear(FAR["Y"], "A", seq=5)
    setup.waves.sweep(90.0, 90.0)
    assert setup.hear(FAR["Y"], "A", seq=5, now=90.0) == {}
    setup.waves.sweep(91.0, 90.0)
    assert len(setup.waves._seen) == 0


def test_one_neighbor_cannot_flood() -> None:
    setup = PingwaveRig()
    for _ in range(int(BURST) + 100):
        setup.hear(FAR["Y"], "A", seq=7)
    assert setup.drops() == {"pingwave_rate": 100}
    assert setup.hear(FAR["Y"], "C", seq=8)
    assert setup.hear(FAR["Y"], "A", seq=9, now=1.0)


def test_one_neighbor_cannot_fill_the_tables() -> None:
    setup = PingwaveRig()
    for origin in range(int(NEWCOMER_BURST) + 50):
        setup.hear(0x10000 + origin, "A")
    assert setup.drops() == {"pingwave_newcomers": 50}
    assert len(setup.graph) == NEWCOMER_BURST
    assert setup.hear(0x999999, "C")
    assert setup.hear(PEERS["A"], "A", hops=0), "a neighbor itself is never a newcomer too many"


def test_full_tables_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.engine.routes.routing.MAX_ROUTES", 4)
    setup = PingwaveRig()
    assert [bool(setup.hear(0x1000 + n, "A")) for n in range(3)] == [True, False, False]
    assert setup.drops() == {"pingwave_full": 2}
    monkeypatch.setattr("meshbus.engine.routes.routing.MAX_ROUTES", 100)
    monkeypatch.setattr("meshbus.engine.routes.proximity.MAX_NODES", 1)
    assert setup.hear(0x1001, "A") == {}
    assert setup.drops() == {"pingwave_full": 3}


def test_the_bounds_hold_for_fleets_we_promise() -> None:
    # A thousand nodes that beat every five seconds, each heard once through a neighbor.
    assert pingwaves.RATE >= 1000 / 5
    assert pingwaves.NEWCOMER_BURST >= 1000
