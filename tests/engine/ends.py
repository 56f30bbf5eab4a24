"""Two nodes reduced to their traffic with each other: what one end gives out is carried to the other by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from meshbus.engine.base.batch import EventBatch
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.packets import Output
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Peer, PeerTable
from meshbus.engine.streams.delivery import Delivery, Hooks
from meshbus.engine.streams.joined import JoinedChannels
from meshbus.engine.streams.outbox import Leg, Load
from meshbus.engine.streams.traffic import Traffic
from meshbus.names.channel import ChannelName
from meshbus.policy.registry import NegotiatedSet
from meshbus.wire.constants import Flags, Subprotocol
from meshbus.wire.frames import columns_of, encode_frames, unpack_frames
from meshbus.wire.header import HEADER_DTYPE, Header
from meshbus.wire.keys import Role, derive_keys

CHANNEL = ChannelName("sensors/lidar")
STREAM = CHANNEL.stream_id
ORIGIN = 0xABC
SERVED = Subprotocol.REQUEST


class End:
    """One side."""

    def __init__(self, name: str, node_id: int, *, seed: int = 0) -> None:
        self.name = name
        self.node_id = node_id
        self.counters = Counters()
        self.joined = JoinedChannels()
        self.peers = PeerTable()
        self.served: list[tuple[int, bytes]] = []
        self.missed = 0
        self.expects_names = False
        self.delivery = Delivery(
            joined=self.joined,
            counters=self.counters,
            entropy=random.Random(f"{name} {seed}").randbytes,
            wall=lambda now: round(now * 1e9),
            loopback=True,
            served=frozenset({SERVED}),
            hooks=Hooks(self._serve, self._not_agreed, lambda _node_id, _now: self.expects_names),
        )
        self.peer: Peer
        self.ended: list[tuple[str, bool]] = []

    @property
    def traffic(self) -> Traffic:
        return self.delivery.traffic_of(self.peer)

    def _serve(self, _peer: Peer, subprotocol_id: int, message: memoryview, _now: float, _out: Output) -> None:
        self.served.append((subprotocol_id, bytes(message)))

    def _not_agreed(self, _peer: Peer, _now: float, _out: Output) -> None:
        self.missed += 1

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
        """Send events, one in each packet unless told otherwise."""
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
        self.delivery.tick(now, out)
        return out


class Ends:
    """Both sides, and the session between them."""

    def __init__(self, *, profile: bool = True, window: int = 65_536) -> None:
        self.left, self.right = End("left", 1), End("right", 2)
        self._sessions = 0
        self.new_session()
        self.left.peer.widen(window)
        self.right.peer.widen(window)
        self.agree(profile=profile)
        self.right.joined.add(self.left.node_id, CHANNEL)

    def new_session(self, now: float = 0.0) -> None:
        """Give both a new session, as a handshake does."""
        self._sessions += 1
        secret = self._sessions.to_bytes(32, "little")
        for end, other, role in (
            (self.left, self.right, Role.INITIATOR),
            (self.right, self.left, Role.RESPONDER),
        ):
            known = end.peers.get(other.node_id) is not None
            end.peer = end.peers.establish(other.node_id, Link(derive_keys(secret, role), role, other.name, now), now)
            end.peer.negotiated = NegotiatedSet()
            if known:
                end.traffic.renew(now)

    def agree(self, now: float = 0.0, *, profile: bool = True) -> tuple[Output, Output]:
        """Let both know what was negotiated; gives what they send because of it."""
        agreed = NegotiatedSet(frozenset({Subprotocol.RELIABLE, SERVED} if profile else ()))
        outs = Output(), Output()
        for end, out in zip((self.left, self.right), outs, strict=True):
            end.peer.negotiated = agreed
            end.traffic.agreement_changed(now, out)
        return outs

    def carry(self, out: Output, to: End, now: float = 0.0, *, lost: Sequence[int] = ()) -> tuple[Output, list[Header]]:
        """Carry datagrams to an end, except those at some places; gives what it gives out, and what was carried."""
        answer, headers = Output(), []
        datagrams = [datagram for train in out.trains for datagram in train.datagrams()]
        for place, datagram in enumerate(datagrams):
            header, plain = to.peer.link.opener.open(datagram)
            headers.append(header)
            if place not in lost:
                self._hand_over(to, datagram, header, plain, now, answer)
        to.delivery.confirm(now, answer)
        return answer, headers

    @staticmethod
    def _hand_over(to: End, datagram: bytes, header: Header, plain: bytes, now: float, out: Output) -> None:
        if header.subprotocol_id == Subprotocol.STREAM_WINDOW:
            for event in unpack_frames(plain, header.event_count):
                to.traffic.on_grant(event, now, out)
        elif header.subprotocol_id == Subprotocol.RELIABLE:
            for event in unpack_frames(plain, header.event_count):
                to.delivery.on_reliable(to.peer, event, now, out)
        else:
            columns = np.frombuffer(datagram, HEADER_DTYPE, 1)
            data, starts = np.frombuffer(plain, np.uint8), np.zeros(1, np.int64)
            to.delivery.take(to.peer, header.subprotocol_id, columns, data, starts, now, out)

    def settle(self, out: Output, to: End, now: float = 0.0) -> list[bytes]:
        """Carry back and forth until nobody says anything; gives the events that were delivered."""
        events: list[EventBatch] = []
        while out.trains:
            out, _ = self.carry(out, to, now)
            events += out.events
            to = self.left if to is self.right else self.right
        return [payload for batch in events for payload in batch.payloads()]
