"""A relay between a meshbus node and a real peer that notes what passes, and may hold it back.

Each side takes the tap for the other one. What an observer on the network could see is noted: the routing header and
the packet header are in clear, payloads are sealed.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import NamedTuple, Self

from meshbus.config.spelling import Endpoint, parse_endpoint
from meshbus.engine.base.packets import Train
from meshbus.node.driving.udp import UdpSocket

NET, ROUTED = b"\x45\x4e", b"\x52\x54"
ROUTE_BYTES, HEADER_BYTES = 18, 68
HANDSHAKE, HEARTBEAT = 0x10, 0x20
BUFFER_BYTES = 1 << 22
"""A whole window of the smallest packets fits, so that the tap itself loses nothing."""

_ROUTE = struct.Struct("<2xBB6xQ")
_HEADER = struct.Struct("<HBBBBBBHH12sQQQQIHHHH")  # written out here: the wire is judged by other code than its own


class Seen(NamedTuple):
    """A datagram that passed, or would have."""

    outgoing: bool
    """From the meshbus node to the peer."""
    size: int
    routed: bool
    flags: int
    subprotocol_id: int
    channel_hash: int
    stream_id: int
    sequence: int
    origin_hash: int
    event_count: int
    ttl: int = 0
    hop_count: int = 0
    dest_id: int = 0
    """Of the routing header, if there is one."""

    @property
    def is_data(self) -> bool:
        """Whether it carries a channel's events."""
        return not self.flags & (HANDSHAKE | HEARTBEAT) and self.subprotocol_id == 0 and self.origin_hash != 0


class Tap:
    """The only way between a node and a peer."""

    def __init__(self, node: str, peer: str, peer_id: int = 0) -> None:
        """Stand between two addresses, on the running loop; `peer_id` is the node at the second."""
        self.peer_id = peer_id
        self.seen: list[Seen] = []
        self.routed: list[tuple[bool, bytes]] = []
        """Whole datagrams with a routing header, with their direction."""
        self.others: list[tuple[bool, bytes]] = []
        """What has no packet header, such as pingwaves; with its direction."""
        self.outgoing = self.incoming = True
        """Whether datagrams of the node, and of the peer, get through."""
        self.heartbeats = True
        """Whether heartbeats get through."""
        self.judge: Callable[[bytes, bool], bool] = lambda _datagram, _outgoing: True
        """Sees every datagram with its direction, and returns whether it gets through."""
        self._loop = asyncio.get_running_loop()
        near, far = parse_endpoint(node), parse_endpoint(peer)
        self._near, self._far = (UdpSocket.bind(near.host, 0, receive_buffer=BUFFER_BYTES) for _ in range(2))
        self._node, self._peer = self._near.resolve(*near), self._far.resolve(*far)
        self._loop.add_reader(self._near.fileno(), self._receive, self._near, True)
        self._loop.add_reader(self._far.fileno(), self._receive, self._far, False)

    @property
    def peer_address(self) -> str:
        """Where the node finds the peer."""
        return _spell(self._near)

    @property
    def node_address(self) -> str:
        """Where the peer finds the node."""
        return _spell(self._far)

    def data(self, *, outgoing: bool = True) -> list[Seen]:
        """Return the data packets of channels that passed in a direction."""
        return [seen for seen in self.seen if seen.is_data and seen.outgoing is outgoing]

    def cut(self) -> None:
        """Drop everything."""
        self.outgoing = self.incoming = False

    def mend(self) -> None:
        """Pass everything."""
        self.outgoing = self.incoming = True

    def close(self) -> None:
        """Take the tap away; closing twice is fine."""
        for socket in (self._near, self._far):
            if socket.fileno() >= 0:
                self._loop.remove_reader(socket.fileno())
                socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pass_on(self, datagram: bytes, *, outgoing: bool) -> None:
        """Pass a datagram on, such as one that `judge` held back."""
        to, address = (self._far, self._peer) if outgoing else (self._near, self._node)
        if to.fileno() >= 0:
            to.send([Train(address, datagram, len(datagram))])

    def _receive(self, source: UdpSocket, outgoing: bool) -> None:
        while (batch := source.drain()) is not None:
            for start, length in zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True):
                datagram = batch.data[start : start + length].tobytes()
                heartbeat = self._note(datagram, outgoing=outgoing)
                passes = self.judge(datagram, outgoing) and (self.outgoing if outgoing else self.incoming)
                if passes and (self.heartbeats or not heartbeat):
                    self.pass_on(datagram, outgoing=outgoing)

    def _note(self, datagram: bytes, *, outgoing: bool) -> bool:
        """Note a datagram, and say whether it is a heartbeat."""
        routed = datagram[:2] == ROUTED
        packet = datagram[ROUTE_BYTES:] if routed else datagram
        if packet[:2] != NET or len(packet) < HEADER_BYTES:
            self.others.append((outgoing, datagram))
            return False
        (_, _, flags, _, _, _, _, subprotocol, channel, _, _, stream, sequence, origin, _, _, _, _, events) = (
            _HEADER.unpack_from(packet)
        )
        route = _ROUTE.unpack_from(datagram) if routed else (0, 0, 0)
        if routed:
            self.routed.append((outgoing, datagram))
        self.seen.append(
            Seen(outgoing, len(datagram), routed, flags, subprotocol, channel, stream, sequence, origin, events, *route)
        )
        return bool(flags == HEARTBEAT)


def _spell(socket: UdpSocket) -> str:
    return str(Endpoint(*socket.address[:2]))
