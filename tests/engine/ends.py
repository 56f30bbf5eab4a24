"""Two nodes and the traffic between them: the test carries the output of one end to the other."""

from __future__ import annotations

from collections.abc import Sequence

from meshbus.engine.base.batch import EventBatch
from meshbus.engine.base.notices import DownReason, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.receive.intake import Opened
from meshbus.engine.services import SERVICES
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Row, Service
from meshbus.engine.streams.delivery import Delivery
from meshbus.engine.streams.outbox import Leg, Load
from meshbus.engine.streams.traffic import Traffic
from meshbus.names.channel import ChannelName
from meshbus.policy.registry import NegotiatedSet
from meshbus.testing.rig import rig
from meshbus.wire.constants import Flags, Subprotocol
from meshbus.wire.frames import columns_of, encode_frames
from meshbus.wire.header import Header
from meshbus.wire.keys import Role, derive_keys

CHANNEL = ChannelName("sensors/lidar")
STREAM = CHANNEL.stream_id
ORIGIN = 0xABC
SERVED = 0x7E57
"""A subprotocol on reliable streams that only tests use."""


class Probe(Service):
    """A subprotocol on reliable streams that keeps its messages, and records the hooks about streams."""

    def __init__(self) -> None:
        self.served: list[tuple[int, bytes]] = []
        self.missed = 0
        self.expects_names = False

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        self.served.append((SERVED, bytes(message)))

    def not_agreed(self, peer: Peer, now: float, out: Output) -> None:
        self.missed += 1

    def unknown_stream(self, node_id: int, now: float) -> bool:
        return self.expects_names


class End:
    """One side."""

    def __init__(self, name: str, node_id: int, *, window: int) -> None:
        self.name = name
        self.node_id = node_id
        self.probe = Probe()
        row = Row(lambda _context: self.probe, SERVED, "probe", profile=True, reliable=True, needs=Subprotocol.RELIABLE)
        self.engine = rig(
            node_id=node_id,
            seed=node_id,
            wall=lambda now: round(now * 1e9),
            table=(*SERVICES, row),
            loopback=True,
            window=window,
        )
        self.counters, self.joined, self.peers = self.engine.counters, self.engine.joined, self.engine.peers
        self.streams, self.delivery = self.engine.streams, self.engine.services[Delivery]
        self.peer: Peer
        self.ended: list[tuple[str, bool]] = []

    @property
    def traffic(self) -> Traffic:
        return self.streams.traffic_of(self.peer)

    def drop(self) -> None:
        """End everything with the peer."""
        self.streams.peer_down(PeerGone(self.peer.node_id, DownReason.CLOSED), 0.0, Output())

    def send(
        self,
        events: Sequence[bytes],
        now: float = 0.0,
        *,
        name: str = "leg",
        reliable: bool = False,
        stream_id: int = STREAM,
        priority: int = 0,
        deadline: float = 5.0,
        pub_seq: int | None = 100,
        max_payload: int = 1,
    ) -> Output:
        """Send events, by default one in each packet."""
        header = Header(
            flags=int(Flags.RELIABLE) if reliable else 0,
            priority=priority,
            stream_id=stream_id,
            origin_hash=ORIGIN,
            channel_hash=stream_id & 0xFFFF,
            hop_ttl=8,
            subnet_id=3,
        )
        load = Load(header, encode_frames(*columns_of(events), max_payload=max_payload), pub_seq)
        out = Output()
        self.traffic.send(Leg(load, deadline, lambda _leg, ok: self.ended.append((name, ok))), now, out)
        return out

    def tick(self, now: float) -> Output:
        out = Output()
        self.streams.tick(now, out)
        return out


class Ends:
    """Both sides, and the session between them."""

    def __init__(self, *, profile: bool = True, window: int = 65_536) -> None:
        self.left, self.right = End("left", 1, window=window), End("right", 2, window=window)
        self._sessions = 0
        self.new_session()
        self.agree(profile=profile)
        for end in (self.left, self.right):
            end.peer.widen(window)  # without the profile it would be the window of the wire
        self.right.joined.add(self.left.node_id, CHANNEL)

    def new_session(self, now: float = 0.0) -> None:
        """Establish a new session on both sides, as a handshake does."""
        self._sessions += 1
        secret = self._sessions.to_bytes(32, "little")
        for end, other, role in (
            (self.left, self.right, Role.INITIATOR),
            (self.right, self.left, Role.RESPONDER),
        ):
            end.peer = end.peers.establish(other.node_id, Link(derive_keys(secret, role), role, other.name, now), now)
            end.peer.negotiated = NegotiatedSet()
            end.streams.peer_up(end.peer, now, Output())

    def agree(self, now: float = 0.0, *, profile: bool = True) -> tuple[Output, Output]:
        """Set what was negotiated on both sides, and return what they send because of it."""
        agreed = NegotiatedSet(frozenset({Subprotocol.RELIABLE, SERVED} if profile else ()))
        outs = Output(), Output()
        for end, out in zip((self.left, self.right), outs, strict=True):
            end.peer.negotiated = agreed
            end.streams.agreed(end.peer, now, out)
        return outs

    def carry(self, out: Output, to: End, now: float = 0.0, *, lost: Sequence[int] = ()) -> tuple[Output, list[Header]]:
        """Carry datagrams to an end, except those at some positions; return its output, and what was carried."""
        answer, headers = Output(), []
        datagrams = [datagram for train in out.trains for datagram in train.datagrams()]
        for place, datagram in enumerate(datagrams):
            header, plain = to.peer.link.opener.open(datagram)
            headers.append(header)
            if place not in lost:
                to.engine.reception.on_packets(to.peer, Opened.of(header, plain), now, answer)
        to.streams.received(now, answer)
        return answer, headers

    def settle(self, out: Output, to: End, now: float = 0.0) -> list[bytes]:
        """Carry datagrams in both directions until there are none; return the events that were delivered."""
        events: list[EventBatch] = []
        while out.trains:
            out, _ = self.carry(out, to, now)
            events += out.events
            to = self.left if to is self.right else self.right
        return [payload for batch in events for payload in batch.payloads()]
