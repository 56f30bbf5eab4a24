"""The decision table on packets: three subnets and more around one gateway, every kind of channel, every reason.

What subscribers received, what the gateway counted and what its recorder was told must agree to the last packet. The
expected table is written out here, apart from the code that decides.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from meshbus.engine.channels import publication
from meshbus.engine.routes.boundary import NOT_ASKED, NOWHERE
from meshbus.engine.routes.tap import InColumns, Passed
from meshbus.engine.settings import GatewayConfig
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import SubnetPolicy, SubnetRule
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
from meshbus.policy.fate import Fate
from meshbus.policy.guard import AuthVerdict
from meshbus.policy.reason import DropReason
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath, Passage
from meshbus.wire.constants import ROUTE_BYTES
from meshbus.wire.header import unpack_header
from meshbus.wire.route import unpack_route
from tests.engine.fleet import subscribed

HERE, ABOVE, BESIDE, ELSEWHERE, UNHEARD = (SubnetId.new(levels) for levels in ([3, 7], [3], [3, 8], [5], [9]))
PLACES = {"here": HERE, "above": ABOVE, "beside": BESIDE, "elsewhere": ELSEWHERE, "unheard": UNHEARD}
READERS = (*PLACES, "silent")
"""One in each subnet; the gateway does not know the last subnet, and the last reader never announces itself."""
POLICY = SubnetPolicy(
    rules=tuple(SubnetRule(match_tags=(f"at:{name}",), target_subnet=subnet) for name, subnet in PLACES.items())
)
FORWARDED = 0
SENSOR = CapabilityFilter(require_tags=("sensor",))
CHANNELS = {
    "local": ChannelConfig(name=ChannelName("local"), visibility=Visibility.SUBNET_LOCAL),
    "parent": ChannelConfig(name=ChannelName("parent"), visibility=Visibility.PARENT_VISIBLE),
    "exported": ChannelConfig(name=ChannelName("exported"), visibility=Visibility.EXPORTED),
    "global": ChannelConfig(name=ChannelName("global"), visibility=Visibility.GLOBAL),
    "allowed": ChannelConfig(name=ChannelName("allowed"), publish_caps=SENSOR),
    "denied": ChannelConfig(name=ChannelName("denied"), publish_caps=CapabilityFilter(require_tags=("radar",))),
    "tokened": ChannelConfig(name=ChannelName("tokened"), require_token=True),
    "unknown": None,
}
FINE, SPENT, WORN = "fine", "no hops left to route", "no hops left by its origin"


def expected(channel: str, reader: str, ttl: str, publisher_known: bool) -> int:
    """Return the expected result for a packet: 0 if it arrives, otherwise the drop reason."""
    if ttl != FINE:
        return DropReason.TTL_EXPIRED
    if reader in {"unheard", "silent"} or not publisher_known:
        return DropReason.UNKNOWN_SUBNET
    match channel:
        case "local" | "unknown":
            return DropReason.SUBNET_LOCAL
        case "parent":
            return FORWARDED if reader in {"here", "above"} else DropReason.NOT_ANCESTOR
        case "exported":
            return FORWARDED if reader == "elsewhere" else DropReason.NOT_EXPORTED
        case "denied" | "tokened":
            return DropReason.UNAUTHORIZED_PUBLISHER
    return FORWARDED


class Fleet:
    """A publisher and readers that share no link but those with the gateway."""

    def __init__(self, *, publisher_known: bool = True) -> None:
        self.net = FakeNet(11)
        registry = ChannelConfigRegistry()
        for config in CHANNELS.values():
            if config is not None:
                registry.insert(config)
        self.gateway = self.net.create(
            "gateway",
            assignment=POLICY,
            subnet=ABOVE,
            gateway=GatewayConfig(
                peer_subnets=(HERE, BESIDE, ELSEWHERE), exports={ChannelName("exported"): (ELSEWHERE,)}
            ),
        )
        with self.gateway.turn() as (engine, now, out):
            engine.set_channel_configs(registry, now, out)
        self.publisher = self._member("publisher", *(["at:here", "sensor"] if publisher_known else []), subnet=HERE)
        self.readers = {name: self._member(name, *([f"at:{name}"] if name in PLACES else [])) for name in READERS}
        self.net.run(for_s=12)
        self.captured: list[Passage] = []
        self.told: list[Passed] = []
        for reader in self.readers.values():
            with self.publisher.turn() as (engine, now, out):
                engine.connect(reader.node_id, None, reader.engine.public_key, now, out)
            self.net.run_until(lambda reader=reader: self.publisher.has_session_with(reader))  # type: ignore[misc]
        self.net.taps.append(self.captured.append)

    def _member(self, name: str, *tags: str, **settings: Any) -> FakeNode:
        node = self.net.create(name, announces=False, **settings)
        if tags:
            with node.turn() as (engine, now, out):
                engine.announce(CapabilitySet(tags), now, out)
        for other in self.net.nodes.values():
            if other.name not in {"gateway", name}:
                self.net.set_path(name, other.name, FakePath(loss=1.0))
        node.connect(self.gateway)
        return node

    def sealed(self, channel: str, reader: str) -> bytes:
        """Publish an event that is lost before the gateway; return the datagram."""
        self.net.set_path("publisher", "gateway", FakePath(loss=1.0), both=False)
        self.captured.clear()
        self.publisher.publish(channel, [f"{channel} for {reader}".encode()])
        self.net.set_path("publisher", "gateway", FakePath(), both=False)
        found = [
            passage.datagram
            for passage in self.captured
            if passage.datagram[:2] == b"RT"
            and unpack_route(passage.datagram).dest_id == self.readers[reader].node_id
            and unpack_header(passage.datagram[ROUTE_BYTES:]).origin_hash
        ]
        assert len(found) == 1
        return found[0]


def with_hops(datagram: bytes, ttl: str) -> bytes:
    """Return a packet whose hops are used up; neither of the changed bytes is authenticated."""
    if ttl == SPENT:
        return datagram[:2] + b"\0" + datagram[3:]
    if ttl == WORN:
        at = ROUTE_BYTES + 6
        return datagram[:at] + b"\xff" + datagram[at + 1 :]
    return datagram


@pytest.mark.parametrize("form", ["ours", "plain"])
@pytest.mark.parametrize("publisher_known", [True, False])
def test_every_decision_is_made_counted_recorded_and_felt(
    form: str, publisher_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(publisher_known=publisher_known)
    gateway = fleet.gateway.engine.mesh
    if form == "plain":  # as a 0.23 publisher sends it
        monkeypatch.setattr(publication, "HOP_TTL", 0)
        fleet.publisher.engine.publications._subnet_id = SubnetId.GLOBAL
    cases = [
        (channel, reader, ttl)
        for channel in CHANNELS
        for reader in READERS
        for ttl in ((FINE, SPENT) if form == "plain" else (FINE, SPENT, WORN))
    ]
    packets = []
    for channel, reader, ttl in cases:
        subscribed(fleet.readers[reader], fleet.publisher, channel)
        packets.append(with_hops(fleet.sealed(channel, reader), ttl))
        with fleet.readers[reader].turn() as (engine, now, out):
            engine.unsubscribe(fleet.publisher.node_id, ChannelName(channel), now, out)
        fleet.net.run(for_s=0.05)
        fleet.readers[reader].forget()
        subscribed(fleet.readers[reader], fleet.publisher, channel)  # so that it would take what arrives
    headers = [unpack_header(packet[ROUTE_BYTES:]) for packet in packets]
    assert {(header.hop_ttl == 0, header.subnet_id == 0) for header in headers} == {(form == "plain", form == "plain")}

    before = gateway.boundary.gateway.stats
    gateway.tap.recorder = InColumns(fleet.told.append)
    at = fleet.net.clock.now
    for packet in packets:
        fleet.net.inject("publisher", "gateway", packet)
    fleet.net.run(for_s=0.02)

    verdicts = [expected(*case, publisher_known) for case in cases]
    # What the readers got.
    for name, node in fleet.readers.items():
        due = Counter(
            f"{channel} for {name}".encode()
            for (channel, to, _), verdict in zip(cases, verdicts, strict=True)
            if to == name and verdict == FORWARDED
        )
        assert Counter(node.payloads()) == due
    check_records(fleet, packets, cases, verdicts, at, publisher_known=publisher_known)
    # What was counted.
    after = gateway.boundary.gateway.stats
    dropped = Counter(verdict for verdict in verdicts if verdict)
    assert {reason: after.drops[reason] - before.drops[reason] for reason in DropReason} == {
        reason: dropped[reason] for reason in DropReason
    }
    for reason in DropReason:
        counted = fleet.gateway.engine.counters.get("drop", f"transit_{reason.name.lower()}")
        assert counted == after.drops[reason]


def check_records(
    fleet: Fleet,
    packets: list[bytes],
    cases: list[tuple[str, str, str]],
    verdicts: list[int],
    at: float,
    *,
    publisher_known: bool,
) -> None:
    """Compare what the recorder received with the expected decisions."""
    own = {packet[ROUTE_BYTES + 12 : ROUTE_BYTES + 32] for packet in packets}
    rows: dict[bytes, tuple[object, ...]] = {}
    for passed in fleet.told:
        if passed.previous_hops.item(0) != fleet.publisher.node_id:
            continue  # what readers answered
        assert passed.at >= at
        assert passed.policy is fleet.gateway.engine.mesh.boundary.gateway.policy
        told = tuple(
            column.item(0)
            for column in (passed.reasons, passed.fates, passed.next_hops, passed.sources, passed.dests, passed.guard)
            if column is not None
        )
        rows |= {key: told for header in passed.headers if (key := header.tobytes()[12:32]) in own}
    assert len(rows) == len(packets)
    for packet, (channel, reader, _), verdict in zip(packets, cases, verdicts, strict=True):
        reason, fate, next_hop, source, dest, guard = rows[packet[ROUTE_BYTES + 12 : ROUTE_BYTES + 32]]
        assert reason == verdict
        assert fate == (Fate.DROPPED if verdict else Fate.FORWARDED)
        assert verdict or next_hop == fleet.readers[reader].node_id
        assert source == (HERE if publisher_known else NOWHERE)
        assert dest == PLACES.get(reader, NOWHERE)
        if channel not in {"allowed", "denied", "tokened"}:
            assert guard == NOT_ASKED
        elif verdict in {FORWARDED, DropReason.UNAUTHORIZED_PUBLISHER}:
            assert guard == (AuthVerdict.DENIED if verdict else AuthVerdict.ALLOWED)


def test_everything_but_publications_crosses() -> None:
    fleet = Fleet()
    silent = fleet.readers["silent"]
    before = fleet.gateway.engine.counters.total("drop")
    for node, other in ((fleet.publisher, silent), (silent, fleet.publisher)):
        with node.turn() as (engine, now, out):
            engine.send(other.node_id, [b"without a channel"], now, out)
            engine.peers.require(other.node_id).send_message(0x7777, b"unheard of", out)
    fleet.net.run(for_s=0.1)
    for node in (fleet.publisher, silent):
        events = sorted((event.subprotocol_id, event.payload) for batch in node.events for event in batch)
        assert events == [(0, b"without a channel"), (0x7777, b"unheard of")]
    assert fleet.gateway.engine.counters.total("drop") == before


def test_a_forged_subnet_gains_nothing_and_is_counted() -> None:
    fleet = Fleet()
    fleet.publisher.engine.publications._subnet_id = ELSEWHERE
    reader = fleet.readers["beside"]
    subscribed(reader, fleet.publisher, "parent")
    fleet.publisher.publish("parent", [b"claims to be elsewhere"])
    fleet.publisher.engine.publications._subnet_id = ABOVE
    fleet.publisher.publish("parent", [b"claims to be above"])
    fleet.net.run(for_s=0.1)
    assert reader.payloads() == []
    counters = fleet.gateway.engine.counters
    assert counters.get("drop", "transit_not_ancestor") == 2
    assert counters.get("gateway", "subnet_forged") >= 1
