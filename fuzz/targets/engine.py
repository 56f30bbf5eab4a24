"""Engines that are driven by hostile datagrams: of outsiders, of a member of the mesh, of a member of a replica set.

An input is a list of steps. The first byte of a piece says which; datagrams of a member are sealed as its own. Time is virtual,
and every input begins with the same new nodes, so that it always does the same. Nothing may raise, and an honest neighbor must
have the same session afterwards, in which events arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from fuzz.pieces import cut
from fuzz.reach import unwatched
from fuzz.target import Run, Target
from meshbus.engine.base.packets import Address, PacketBatch
from meshbus.engine.services import SERVICES
from meshbus.engine.settings import GatewayConfig, SecureConfig, SecureMode
from meshbus.errors import MeshError
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.testing.fakenet import PSK, FakeNet, FakeNode, Passage
from meshbus.wire.constants import MAX_EVENTS, MAX_PAYLOAD, Flags, Subprotocol
from meshbus.wire.frames import pack_frames
from meshbus.wire.handshake import encode_handshake, encode_routed_handshake
from meshbus.wire.header import Header
from meshbus.wire.messages.fleetpolicy import PolicyStatement
from meshbus.wire.messages.reliable import FIRST_SEQUENCE
from meshbus.wire.messages.revocation import Revocation, Revoked
from meshbus.wire.noise import Initiator, prologue
from tests.engine.fleet import meet, subscribed
from tests.engine.replicas.trio import Trio

HONEST, HOSTILE, SECRET = "honest/events", "hostile/events", "secret/plans"
ISSUER = Identity.from_seed(bytes([77]) * 32)
OPTIONAL = frozenset(row.id for row in SERVICES if row.optional and row.id is not None)
MOST_STEPS = 48
"""Steps of one input: bounds its time."""
MOST_TIME_S = 100.0
"""Virtual time up to which an input waits, for the same reason; longer than any time-out of a session."""
WAITS_S = (0.0, 0.001, 0.05, 0.5, 2.0, 7.0, 31.0)
_DATA = 0xFF & ~int(Flags.HANDSHAKE | Flags.HEARTBEAT)
_HEAD_BYTES = 7


class Scene:
    """A node, an honest neighbor and a hostile one. They have met, and events flow in all directions."""

    def __init__(self) -> None:
        self.net = FakeNet(0)
        self.seen: list[Passage] = []
        self.net.taps.append(self.seen.append)
        self.victim, self.honest, self.hostile = (self._node(name) for name in ("victim", "honest", "hostile"))
        registry = ChannelConfigRegistry()
        registry.insert(ChannelConfig(name=ChannelName(SECRET), require_token=True))
        registry.insert(ChannelConfig(name=ChannelName(HONEST)))
        policy = b'unlisted_channels = "open"\n'
        with self.victim.turn() as (engine, now, out):
            engine.set_channel_configs(registry, now, out)
            engine.requests.responder.serve(ChannelName(HONEST))
            assert engine.fleet_policy is not None
            engine.fleet_policy.hold(PolicyStatement.sign(ISSUER, 7, policy), policy, now, out)
            assert engine.revoking is not None
            gone = Revocation.sign(ISSUER, Revoked.NODE, bytes(range(32)), at=1, reason="gone")
            engine.revoking.revoke(gone, now, out)
        meet(self.victim, self.honest, self.hostile)
        subscribed(self.victim, self.honest, HONEST)
        subscribed(self.victim, self.hostile, HOSTILE)
        subscribed(self.honest, self.victim, HONEST)
        self.session = self.session_id()
        self.held: list[tuple[Address, bytes]] = []

    def _node(self, name: str) -> FakeNode:
        return self.net.create(
            name,
            secure=SecureConfig(mode=SecureMode.AUTO),
            trusted_issuers=(ISSUER.entity_id,),
            policy_issuers=(ISSUER.entity_id,),
            carries=OPTIONAL,
            gateway=GatewayConfig(forward_unknown=True) if name == "victim" else None,
        )

    def session_id(self) -> int:
        """Return the session with the honest neighbor."""
        return self.victim.engine.peers.require(self.honest.node_id).link.session_id

    # ── steps ───────────────────────────────────────────────────────────────────────────────

    def take(self, source: Address, datagram: bytes, *, hold: bool) -> None:
        """Let the victim receive a datagram, alone or together with those that are held."""
        if hold:
            self.held.append((source, datagram))
            return
        out = self.victim.engine.receive_one(source, memoryview(datagram), self.net.clock.now)
        self.net.carry_out(self.victim, out)

    def deliver(self) -> None:
        """Let the victim receive what is held, as one drain."""
        if self.held:
            batch, self.held = PacketBatch.of(self.held), []
            self.net.carry_out(self.victim, self.victim.engine.receive(batch, self.net.clock.now))

    def wait(self, choice: int) -> None:
        """Let some time pass for all nodes."""
        self.net.run(until=min(self.net.clock.now + WAITS_S[choice % len(WAITS_S)], MOST_TIME_S))

    def act(self, choice: int, content: bytes) -> None:
        """Let the application of the victim do something that the hostile node then sees; errors are told to the application."""
        peer = self.victim.engine.peers.get(self.hostile.node_id)
        with suppress(MeshError), self.victim.turn() as (engine, now, out):
            channel = ChannelName(HOSTILE)
            match choice % 6:
                case 0:
                    engine.interest(self.hostile.node_id, "hostile/", now, out)
                case 1 if peer is not None:
                    engine.requests.requester.ask(peer, channel, content, now, out, timeout_s=5.0)
                case 2 if peer is not None:
                    engine.replays.open(peer, channel, 0, now, out)
                case 3:
                    engine.send(self.hostile.node_id, [content], now, out)
                case 4:
                    engine.disconnect(self.hostile.node_id, now, out)
                case 5:
                    engine.close_channel(ChannelName(HONEST), out)

    def check(self) -> None:
        """Nothing that happened has changed what the honest neighbor has."""
        self.deliver()
        self.net.run(for_s=1.0)
        self.victim.forget()
        self.honest.publish(HONEST, [b"still here"], reliable=True)
        self.net.run(for_s=2.0)
        assert self.session_id() == self.session, "the honest neighbor has another session"
        assert self.victim.payloads(HONEST) == [b"still here"], "an event of the honest neighbor did not arrive"


def sealed(scene: Scene, piece: bytes, *, framed: bool) -> bytes | None:
    """Return a packet of the hostile node: seven bytes choose its header, the rest is its content."""
    peer = scene.hostile.engine.peers.get(scene.victim.node_id)
    if len(piece) < _HEAD_BYTES or peer is None:
        return None
    flags, stream, sequence, events, other = piece[2:_HEAD_BYTES]
    subprotocol_id, content = int.from_bytes(piece[:2], "little"), piece[_HEAD_BYTES:][: MAX_PAYLOAD - 4]
    streams = (subprotocol_id, ChannelName(HOSTILE).stream_id, ChannelName(HONEST).stream_id, 0, 1 << 40 | other)
    numbers = (0, FIRST_SEQUENCE, FIRST_SEQUENCE + other, (1 << 64) - 1, 1 << 63)
    header = Header(
        subprotocol_id=subprotocol_id,
        flags=flags & _DATA,
        stream_id=streams[stream % len(streams)],
        sequence=numbers[sequence % len(numbers)],
        event_count=min(events, MAX_EVENTS),
        origin_hash=scene.hostile.engine.identity.origin_hash if other % 2 else other,
        channel_hash=streams[stream % len(streams)] & 0xFFFF,
        hop_ttl=other,
        priority=other,
    )
    return peer.link.sealer.seal(header, pack_frames([content]) if framed else content)


def knock(scene: Scene, piece: bytes) -> bytes:
    """Return the first message of a handshake by somebody who has the mesh key, with any id and payload."""
    node_id = int.from_bytes(piece[:8], "little")
    initiator = Initiator(
        psk=PSK,
        prologue=prologue(node_id, scene.victim.node_id),
        responder_public_key=scene.victim.engine.public_key,
        ephemeral_private_key=piece[:8].ljust(32, b"e"),
    )
    message = initiator.write(piece[8:][:1024])
    routed = encode_routed_handshake(message, sender=node_id, receiver=scene.victim.node_id)
    return routed if len(piece) % 2 else encode_handshake(message)


def _member(data: bytes) -> None:
    """Attack as a member of the mesh with a session."""
    with unwatched():
        scene = Scene()
    steps: Sequence[Callable[[bytes], object]] = (
        lambda rest: _receive(scene, sealed(scene, rest, framed=True), hold=False),
        lambda rest: _receive(scene, sealed(scene, rest, framed=True), hold=True),
        lambda rest: _receive(scene, sealed(scene, rest, framed=False), hold=False),
        lambda rest: _receive(scene, sealed(scene, rest, framed=False), hold=True),
        lambda _: scene.deliver(),
        lambda rest: scene.wait(rest[0] if rest else 1),
        lambda rest: scene.act(rest[0] if rest else 0, rest[1:]),
        lambda rest: _receive(scene, knock(scene, rest), hold=False),
        lambda rest: _receive(scene, rest, hold=True),
    )
    _play(data, steps)
    scene.check()


def _outsider(data: bytes) -> None:
    """Attack without the mesh key, with a record of everything that was sent before, from any address."""
    with unwatched():
        scene = Scene()
    recorded = [passage for passage in scene.seen if passage.dest == scene.victim.name]
    sources = ("outsider", "honest", "hostile", "victim")

    def repeat(rest: bytes, *, hold: bool) -> None:
        if len(rest) < 3:
            return
        passage = recorded[int.from_bytes(rest[:2], "little") % len(recorded)]
        datagram = bytearray(passage.datagram)
        for at in range(3, len(rest) - 2, 3):
            datagram[int.from_bytes(rest[at : at + 2], "little") % len(datagram)] = rest[at + 2]
        scene.take(sources[rest[2] % len(sources)], bytes(datagram), hold=hold)

    def send(rest: bytes, *, hold: bool) -> None:
        if rest:
            scene.take(sources[rest[0] % len(sources)], rest[1:], hold=hold)

    steps: Sequence[Callable[[bytes], object]] = (
        lambda rest: send(rest, hold=False),
        lambda rest: send(rest, hold=True),
        lambda rest: repeat(rest, hold=False),
        lambda rest: repeat(rest, hold=True),
        lambda _: scene.deliver(),
        lambda rest: scene.wait(rest[0] if rest else 1),
    )
    _play(data, steps)
    scene.check()


def _replica(data: bytes) -> None:
    """Attack as a member of a replica set; what the set agrees on then is not judged, because it is made for honest members."""
    with unwatched():
        trio = Trio()
        trio.open()
    one, _, three = trio.nodes

    def say(subprotocol_id: int, message: bytes) -> None:
        with three.turn() as (engine, _, out):
            engine.peers.require(one.node_id).send_message(subprotocol_id, message, out)
        trio.step()

    def pause() -> None:
        for _ in range(20):
            trio.step()

    def append(rest: bytes) -> None:
        trio.append(one, 7, rest)
        trio.step()

    steps: Sequence[Callable[[bytes], object]] = (
        lambda rest: say(Subprotocol.LEADERSHIP, rest[:4000]),
        lambda rest: say(Subprotocol.APPEND, rest[:4000]),
        lambda rest: say(Subprotocol.REDEX, rest[:4000]),
        append,
        lambda _: pause(),
    )
    _play(data, steps)
    trio.step()


def _receive(scene: Scene, datagram: bytes | None, *, hold: bool) -> None:
    if datagram is not None:
        scene.take(scene.hostile.name, datagram, hold=hold)


def _play(data: bytes, steps: Sequence[Callable[[bytes], object]]) -> None:
    for number, piece in enumerate(cut(data)):
        if number == MOST_STEPS:
            break
        if piece:
            steps[piece[0] % len(steps)](piece[1:])


def _of(run: Run) -> Callable[[], Run]:
    return lambda: run


TARGETS: tuple[Target, ...] = (
    Target("engine-outsider", _of(_outsider), (), most_bytes=8192),
    Target("engine-member", _of(_member), (), most_bytes=8192),
    Target("engine-replica", _of(_replica), (), most_bytes=8192),
)
