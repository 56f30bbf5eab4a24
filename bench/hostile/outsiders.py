"""Datagrams of attackers without the mesh key: what they can make up, and what they recorded.

An outsider knows the format and sees headers: node ids, session ids and addresses of others. Sources can be forged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from bench.hostile.victim import Member, Target
from meshbus.engine.base.packets import Address, PacketBatch
from meshbus.names.identity import routing_id
from meshbus.wire.constants import HEADER_BYTES, Flags
from meshbus.wire.frames import pack_frames
from meshbus.wire.handshake import encode_handshake, encode_routed_handshake
from meshbus.wire.header import Header, pack_header
from meshbus.wire.pingwave import Pingwave, pack_pingwave
from meshbus.wire.route import RouteHeader, pack_route

SMALL, LARGE = 100, 8_000
"""Bytes of a short and of a long datagram."""
_TAG = 16
_HANDSHAKE_BYTES = 64
"""Message 1 without its payload: an ephemeral key and tags."""

Maker = Callable[["Outsider", int], list[bytes]]


class Outsider:
    """Someone who can send datagrams from any address, and has seen those of an honest neighbor."""

    def __init__(self, victim: Target, honest: Member, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.victim = victim
        self.honest = honest
        self.recorded: list[bytes] = []
        """Genuine packets of the honest neighbor, which the victim has seen."""
        self.handshake = (honest.sent or [b""])[0]
        """The handshake message that began the session of the honest neighbor, if that was recorded."""

    def one_source(self) -> Address:
        """Return an address that is nobody's."""
        return ("127.0.0.1", 9)

    def any_source(self) -> Address:
        """Return one of very many addresses."""
        return (f"127.{self.rng.randrange(256)}.{self.rng.randrange(256)}.{self.rng.randrange(1, 255)}", 9)


def junk(who: Outsider, count: int, size: int = SMALL) -> list[bytes]:
    """Make random bytes."""
    return [who.rng.randbytes(size) for _ in range(count)]


def routed_elsewhere(who: Outsider, count: int) -> list[bytes]:
    """Make routed packets that are for us and for nodes that nobody knows, in turn."""
    ids = [who.victim.node_id, *(who.rng.getrandbits(63) | 1 for _ in range(7))]
    return [
        pack_route(RouteHeader(src_id=who.rng.getrandbits(32), dest_id=ids[number % len(ids)]))
        + pack_header(Header(session_id=who.rng.getrandbits(64), payload_len=SMALL))
        + who.rng.randbytes(SMALL + _TAG)
        for number in range(count)
    ]


def random_sessions(who: Outsider, count: int) -> list[bytes]:
    """Make well-formed packets of sessions that do not exist."""
    return [
        pack_header(Header(session_id=who.rng.getrandbits(64), payload_len=SMALL, event_count=1))
        + who.rng.randbytes(SMALL + _TAG)
        for _ in range(count)
    ]


def _genuine(who: Outsider, count: int, size: int) -> list[bytes]:
    link = who.honest.engine.peers.require(who.victim.node_id).link
    payload = pack_frames([bytes(size - 4)])
    return [link.sealer.seal(Header(stream_id=1, event_count=1), payload) for _ in range(count)]


def forged_tags(who: Outsider, count: int, size: int = SMALL) -> list[bytes]:
    """Make packets of a live session with a wrong tag."""
    return [packet[:-1] + bytes([packet[-1] ^ 1]) for packet in _genuine(who, count, size)]


def replayed_packets(who: Outsider, count: int) -> list[bytes]:
    """Return packets that the victim has already accepted."""
    if len(who.recorded) < count:
        who.recorded = _genuine(who, count, SMALL)
        who.victim.take(PacketBatch.of([(who.honest.address, packet) for packet in who.recorded]))
    return who.recorded[:count]


def replayed_handshakes(who: Outsider, count: int) -> list[bytes]:
    """Repeat the handshake of the honest neighbor, which the victim remembers."""
    return [who.handshake] * count


def fresh_handshakes(who: Outsider, count: int) -> list[bytes]:
    """Make direct handshake messages with new ephemeral keys."""
    return [encode_handshake(who.rng.randbytes(_HANDSHAKE_BYTES)) for _ in range(count)]


def fresh_routed_handshakes(who: Outsider, count: int) -> list[bytes]:
    """Make routed handshake messages with new ephemeral keys, of nodes that do not exist."""
    return [
        encode_routed_handshake(
            who.rng.randbytes(_HANDSHAKE_BYTES),
            sender=routing_id(who.rng.getrandbits(64) | 1),
            receiver=who.victim.node_id,
        )
        for _ in range(count)
    ]


def pingwaves(who: Outsider, count: int) -> list[bytes]:
    """Make pingwaves of invented nodes."""
    return [
        pack_pingwave(Pingwave(node_id=who.rng.getrandbits(63) | 1, seq=number, hop_count=1, timestamp_us=0))
        for number in range(count)
    ]


def heartbeats(who: Outsider, count: int) -> list[bytes]:
    """Make heartbeats of a live session with a random tag."""
    link = who.honest.engine.peers.require(who.victim.node_id).link
    head = pack_header(Header(session_id=link.session_id, flags=Flags.HEARTBEAT))
    return [head[:HEADER_BYTES] + who.rng.randbytes(_TAG) for _ in range(count)]


KINDS: Mapping[str, Maker] = {
    "plain junk": junk,
    "plain junk, 8 kB": lambda who, count: junk(who, count, LARGE),
    "one byte": lambda who, count: junk(who, count, 1),
    "routed, alternating destinations": routed_elsewhere,
    "random session ids": random_sessions,
    "forged tags": forged_tags,
    "forged tags, 8 kB": lambda who, count: forged_tags(who, count, LARGE),
    "forged heartbeats": heartbeats,
    "replayed packets": replayed_packets,
    "replayed handshakes": replayed_handshakes,
    "fresh handshakes, direct": fresh_handshakes,
    "fresh handshakes, routed": fresh_routed_handshakes,
    "pingwaves": pingwaves,
}
"""What an outsider can send, by name; the first is what the others are compared with."""
