"""Attacks of one peer, or of one holder of the mesh key, on a node of the mesh, by the packets that it sends."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from itertools import count
from math import inf
from types import ModuleType

import numpy as np

from meshbus.engine.base.packets import Output
from meshbus.engine.channels import history_server, identityproof, interest_server, request
from meshbus.engine.core import Engine
from meshbus.engine.directory import directory
from meshbus.engine.nat import addresses, punch
from meshbus.engine.routes import forward, learnednames, pingwaves, proximity, publishers, routing, withdrawal
from meshbus.engine.session import candidate, handshake
from meshbus.engine.session import peer as peers
from meshbus.engine.settings import GatewayConfig
from meshbus.engine.streams import large
from meshbus.engine.streams.outbox import Leg, Load
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.policy import discovery
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.testing.fakenet import FakeNode
from meshbus.wire.constants import PACKET_COST, Flags, Subprotocol
from meshbus.wire.frames import Packed, pack_frames
from meshbus.wire.header import Header, pack_header
from meshbus.wire.messages.address import Address
from meshbus.wire.messages.capability import Announcement, encode_announcement
from meshbus.wire.messages.history import Read, encode_history
from meshbus.wire.messages.identityproof import ProofRequest, encode_proof
from meshbus.wire.messages.interest import Interest, encode_interest
from meshbus.wire.messages.membership import Subscribe, encode_membership
from meshbus.wire.messages.reliable import FIRST_SEQUENCE, Base, encode_reliable
from meshbus.wire.messages.rendezvous import PunchIntroduce, encode_rendezvous
from meshbus.wire.messages.request import Request, encode_request
from meshbus.wire.messages.withdrawal import RouteWithdrawal, encode_withdrawal
from meshbus.wire.pingwave import Pingwave, pack_pingwave
from meshbus.wire.route import RouteHeader, pack_route
from tests.engine.fleet import meet
from tests.limits.attack import Attacked, Scene, attack

MANY = 20
FEW = 6
"""A bound that is quickly reached, and larger than what honest nodes need in these scenes."""


def invented(number: int) -> Identity:
    return Identity.from_seed(blake2b(str(number).encode(), digest_size=32).digest())


def forwarded(number: int, *, tags: tuple[str, ...] = (), reflex: str | None = None) -> bytes:
    """Return the announcement of a node that does not exist, as if it had come from further away."""
    who = invented(number)
    announcement = Announcement(
        node_id=who.node_id,
        entity_id=who.entity_id,
        version=1,
        timestamp_ns=0,
        ttl_secs=300,
        tags=tags,
        metadata={},
        reflex_addr=reflex,
    ).sign(who)
    further = announcement.forwarded()
    assert further is not None
    return encode_announcement(further)


# ── sessions ────────────────────────────────────────────────────────────────────────────────


def knocked_at(scene: Scene) -> FakeNode:
    """Return a node at which sessions were begun in many names, by someone who says nothing in them."""
    victim = scene.net.create("victim")
    for number in range(MANY):
        stranger, out = scene.net.create(f"stranger {number}", announces=False), Output()
        stranger.engine.connect(victim.node_id, victim.name, victim.engine.public_key, scene.net.clock.now, out)
        for train in out.trains:
            scene.net.inject("spoofed", victim.name, bytes(train.data))
        scene.net.remove(stranger.name)
        scene.net.run(for_s=0.01)
    return victim


@attack("candidates")
def begun_sessions(scene: Scene) -> Attacked:
    scene.shrink(candidate, MAX_PER_HOST=FEW)
    victim = knocked_at(scene)
    return Attacked(len(victim.engine.handshakes._candidates), FEW, victim.engine.counters)


@attack("ephemerals")
def used_keys(scene: Scene) -> Attacked:
    scene.shrink(handshake, MAX_EPHEMERALS=FEW)
    victim = knocked_at(scene)
    return Attacked(len(victim.engine.handshakes._ephemerals), FEW, victim.engine.counters)


# ── announcements ───────────────────────────────────────────────────────────────────────────


@attack("announced_nodes")
def invented_nodes(scene: Scene) -> Attacked:
    bound = discovery.CapabilityIndex.__init__.__kwdefaults__
    assert bound is not None
    before = bound["max_nodes"]
    try:
        bound["max_nodes"] = FEW
        victim, mallory = scene.meet()
    finally:
        bound["max_nodes"] = before
    scene.say(mallory, victim, Subprotocol.CAPABILITY, *map(forwarded, range(MANY)))
    assert victim.engine.index.get(mallory.node_id) is not None, "a node that announced itself stays"
    return Attacked(len(victim.engine.index), FEW, victim.engine.counters)


# ── one message for each entry ──────────────────────────────────────────────────────────────

Flood = Callable[[Scene, FakeNode, FakeNode], None]


def announce(scene: Scene, victim: FakeNode, mallory: FakeNode) -> None:
    """Tell of nodes that do not exist, each with an address of its own."""
    lies = [forwarded(number, reflex=f"203.0.113.{number}:9000") for number in range(MANY)]
    scene.say(mallory, victim, Subprotocol.CAPABILITY, *lies)


def shout(scene: Scene, victim: FakeNode, mallory: FakeNode) -> None:
    """Pass on pingwaves of nodes that do not exist."""
    for number in range(MANY):
        wave = Pingwave(node_id=1000 + number, seq=1, hop_count=1, ttl=3, timestamp_us=1)
        scene.net.inject(mallory.name, victim.name, pack_pingwave(wave))
        scene.net.run(for_s=0.01)


FLOODS: dict[str, tuple[Flood, ModuleType, str, Callable[[Engine], int]]] = {
    "announcement_copies": (announce, directory, "MAX_SEEN", lambda engine: len(engine.directory._seen)),
    "recent_announcements": (announce, directory, "MAX_RECENT", lambda engine: len(engine.directory._recent)),
    "announced_addresses": (
        announce, addresses, "MAX_NODES", lambda engine: len(engine.traversal.rendezvous.addresses),
    ),
    "origins": (
        announce, publishers, "MAX_ORIGINS", lambda engine: len(engine.mesh.boundary._publishers.origins),
    ),
    "routes": (shout, routing, "MAX_ROUTES", lambda engine: len(engine.mesh.table)),
    "graph_nodes": (shout, proximity, "MAX_NODES", lambda engine: len(engine.mesh.graph)),
    "graph_edges": (shout, proximity, "MAX_EDGES", lambda engine: engine.mesh.graph._edge_count),
    "pingwave_copies": (shout, pingwaves, "MAX_SEEN", lambda engine: len(engine.mesh.pingwaves._seen)),
}  # fmt: skip
"""By the name of the bound: what fills it, where it is, and how much the victim keeps."""


def _flood(name: str) -> Callable[[Scene], Attacked]:
    flood, module, bound, kept = FLOODS[name]

    def flooded(scene: Scene) -> Attacked:
        scene.shrink(module, **{bound: FEW})
        victim, mallory = scene.meet(gateway=GatewayConfig())
        flood(scene, victim, mallory)
        return Attacked(kept(victim.engine), FEW, victim.engine.counters)

    return flooded


for _name in FLOODS:
    attack(_name)(_flood(_name))


# ── forwarding ──────────────────────────────────────────────────────────────────────────────


@attack("forward_decisions")
def invented_streams(scene: Scene) -> Attacked:
    scene.shrink(forward, MAX_DECISIONS=FEW)
    victim, mallory = scene.meet()
    for number in range(MANY):
        route = pack_route(RouteHeader(src_id=1, dest_id=mallory.node_id, ttl=9))
        scene.net.inject(mallory.name, victim.name, route + pack_header(Header(stream_id=number)))
    scene.net.run(for_s=0.1)
    return Attacked(len(victim.engine.mesh.forwarder._decisions), FEW, victim.engine.counters)


@attack("channel_names")
def invented_names(scene: Scene) -> Attacked:
    bound = learnednames.LearnedNames.__init__.__kwdefaults__
    assert bound is not None
    before = bound["max_names"]
    try:
        bound["max_names"] = FEW
        victim, mallory = scene.meet(gateway=GatewayConfig())
    finally:
        bound["max_names"] = before
    registry = ChannelConfigRegistry()
    registry.insert_prefix("secret/", ChannelConfig(name=ChannelName("secret"), require_token=True))
    with victim.turn() as (engine, now, out):
        engine.set_channel_configs(registry, now, out)
    lies = [forwarded(number, tags=(f"publishes:made/up/{number}",)) for number in range(MANY)]
    scene.say(mallory, victim, Subprotocol.CAPABILITY, *lies)
    return Attacked(len(victim.engine.mesh.boundary._names), FEW, victim.engine.counters)


# ── channels ────────────────────────────────────────────────────────────────────────────────


@attack("subscriptions")
def many_subscriptions(scene: Scene) -> Attacked:
    victim, mallory = scene.meet(max_channels_per_peer=FEW)
    asked = [Subscribe(nonce=number, channel=ChannelName(f"made/up/{number}")) for number in range(1, MANY)]
    scene.say(mallory, victim, Subprotocol.MEMBERSHIP, *map(encode_membership, asked))
    return Attacked(len(victim.engine.admission.roster), FEW, victim.engine.counters)


@attack("interests")
def many_interests(scene: Scene) -> Attacked:
    scene.shrink(interest_server, MAX_INTERESTS=FEW)
    victim, mallory = scene.meet()
    asked = [Interest(req=number, prefix=f"made/up/{number}/") for number in range(1, MANY)]
    scene.say(mallory, victim, Subprotocol.INTEREST, *map(encode_interest, asked), pause_s=0.1)
    book = victim.engine.services[interest_server.Interests]._books[mallory.node_id]
    return Attacked(len(book.standing), FEW, victim.engine.counters)


def reliably(scene: Scene, mallory: FakeNode, victim: FakeNode, subprotocol_id: int, messages: list[bytes]) -> None:
    for message in messages:
        with mallory.turn() as (engine, now, out):
            streams = engine.streams
            streams.send_reliable(engine.peers.require(victim.node_id), subprotocol_id, message, now, out)
        scene.net.run(for_s=0.05)


@attack("readers")
def many_readers(scene: Scene) -> Attacked:
    scene.shrink(history_server, MAX_READERS_PER_PEER=FEW)
    victim, mallory = scene.meet()
    asked = [Read(req=number, channel=ChannelName("made/up"), since=0, max_bytes=1) for number in range(1, MANY)]
    reliably(scene, mallory, victim, Subprotocol.HISTORY, [encode_history(read) for read in asked])
    return Attacked(len(victim.engine.history), FEW, victim.engine.counters)


@attack("serving")
def many_requests(scene: Scene) -> Attacked:
    scene.shrink(request, MAX_SERVING_PER_PEER=FEW)
    victim, mallory = scene.meet()
    victim.engine.requests.responder.serve(ChannelName("made/up"))
    asked = [
        Request(req=number, deadline_ms=60_000, channel=ChannelName("made/up"), payload=b"?")
        for number in range(1, MANY)
    ]
    reliably(scene, mallory, victim, Subprotocol.REQUEST, [encode_request(one) for one in asked])
    return Attacked(len(victim.engine.requests.responder), FEW, victim.engine.counters)


# ── streams ─────────────────────────────────────────────────────────────────────────────────


@attack("reliable_streams")
def invented_reliable_streams(scene: Scene) -> Attacked:
    from meshbus.engine.streams import reliable

    scene.shrink(reliable, MAX_STREAMS=FEW)
    victim, mallory = scene.meet()
    bases = [
        Base(stream_id=1000 + number, sequence=FIRST_SEQUENCE + 1, pub_seq=1, start=True) for number in range(MANY)
    ]
    scene.say(mallory, victim, Subprotocol.RELIABLE, *map(encode_reliable, bases))
    traffic = victim.engine.streams.traffic_of(victim.engine.peers.require(mallory.node_id))
    return Attacked(len(traffic.reliable._receiving), FEW, victim.engine.counters)


def flood_ordered(scene: Scene, *packets: Header, payload: bytes) -> tuple[FakeNode, FakeNode]:
    """Send packets of reliable streams as a net-mesh node does, without the profile."""
    victim, mallory = scene.meet(profile=False)
    for header in packets:
        with mallory.turn() as (engine, _now, out):
            out.trains.append(engine.peers.require(victim.node_id).link.seal(header, payload))
        scene.net.run(for_s=0.001)
    return victim, mallory


@attack("ordered_streams")
def invented_ordered_streams(scene: Scene) -> Attacked:
    from meshbus.engine.streams import ordering

    scene.shrink(ordering, MAX_STREAMS=FEW)
    packets = [Header(flags=1, stream_id=1000 + number, event_count=1) for number in range(MANY)]
    victim, mallory = flood_ordered(scene, *packets, payload=pack_frames([b"x"]))
    traffic = victim.engine.streams.traffic_of(victim.engine.peers.require(mallory.node_id))
    return Attacked(len(traffic.ordering._streams), FEW, victim.engine.counters)


@attack("ordering")
def packets_behind_a_gap(scene: Scene) -> Attacked:
    """The first packet never comes, so everything else waits."""
    payload = pack_frames([bytes(4000)])
    packets = [Header(flags=1, stream_id=1000, sequence=1 + number, event_count=1) for number in range(300)]
    victim, mallory = flood_ordered(scene, *packets, payload=payload)
    budget = victim.engine.streams.traffic_of(victim.engine.peers.require(mallory.node_id)).ordering._budget
    cost = len(payload) + PACKET_COST
    return Attacked(budget.limit - budget.left, budget.limit // cost * cost, victim.engine.counters)


@attack("proof_challenges")
def challenges_for_many(scene: Scene) -> Attacked:
    scene.shrink(identityproof, MAX_CHALLENGES=2)
    victim = scene.net.create("victim")
    for number in range(FEW):
        mallory = scene.net.create(f"mallory{number}")
        meet(mallory, victim)
        scene.say(mallory, victim, Subprotocol.IDENTITY_PROOF, encode_proof(ProofRequest(request_id=bytes(8))))
    kept = victim.engine.services[identityproof.IdentityProofs]._challenges
    return Attacked(len(kept), 2, victim.engine.counters)


@attack("withdrawals")
def withdrawals_of_invented_nodes(scene: Scene) -> Attacked:
    scene.shrink(withdrawal, MAX_NUMBERS=FEW)
    victim, mallory = scene.meet()
    told = [encode_withdrawal(RouteWithdrawal(dest=1000 + number, seq=0)) for number in range(MANY)]
    scene.say(mallory, victim, Subprotocol.ROUTE_WITHDRAWAL, *told)
    return Attacked(len(victim.engine.services[withdrawal.Withdrawals]._numbers), FEW, victim.engine.counters)


@attack("unfinished_events")
def claimed_sizes(scene: Scene) -> Attacked:
    """Begin many large requests, each on its own stream, and send nothing but a byte of each."""
    scene.shrink(large, PEER_BYTES=FEW * 5000)
    victim, mallory = scene.meet()
    claim = (5000).to_bytes(4, "little") + bytes(4) + b"x"
    for number in range(MANY):
        header = Header(flags=Flags.RELIABLE, subprotocol_id=Subprotocol.REQUEST, stream_id=1 << 40 | number)
        packed = Packed(np.frombuffer(claim, np.uint8), np.array((0, len(claim))), np.zeros(1, np.int64))
        with mallory.turn() as (engine, now, out):
            traffic = engine.streams.traffic_of(engine.peers.require(victim.node_id))
            traffic.send(Leg(Load(header, packed), inf, lambda _leg, _sent: None), now, out)
        scene.net.run(for_s=0.01)
    return Attacked(victim.engine.large.nbytes, FEW * 5000, victim.engine.counters)


@attack("streams")
def invented_plain_streams(scene: Scene) -> Attacked:
    scene.shrink(peers, MAX_STREAMS=FEW)
    victim, mallory = scene.meet()
    for number in range(MANY):
        with mallory.turn() as (engine, _now, out):
            to = engine.peers.require(victim.node_id)
            to.send_message(0x9999, b"x", out, stream_id=1000 + number)
        scene.net.run(for_s=0.01)
    return Attacked(len(victim.engine.peers.require(mallory.node_id).rx), FEW, victim.engine.counters)


# ── hole punching ───────────────────────────────────────────────────────────────────────────


@attack("punches")
def many_punches(scene: Scene) -> Attacked:
    scene.shrink(punch, MAX_PUNCHES=2)
    victim, mallory = scene.meet()
    hosts = count(1)
    for number in range(FEW):
        told = PunchIntroduce(
            peer=5000 + number,
            peer_reflex=Address(f"203.0.113.{next(hosts)}", 9000),
            fire_at_ms=scene.net.clock.wall(scene.net.clock.now) // 1_000_000 + 900,
        )
        scene.say(mallory, victim, Subprotocol.RENDEZVOUS, encode_rendezvous(told), pause_s=0.01)
    return Attacked(len(victim.engine.traversal.rendezvous.punches), 2, victim.engine.counters)
