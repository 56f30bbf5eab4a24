"""Peers of a node under test: each holds the other end of its session and reads what was sent to it."""

from __future__ import annotations

from hashlib import blake2s

from meshbus.engine.base.packets import Address, Output
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Peer, PeerTable
from meshbus.wire.frames import unpack_frames
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.route import RouteHeader

Message = tuple[int, bytes]
"""Subprotocol id and content."""


class FarEnd:
    """The other end of one session of a node."""

    def __init__(
        self,
        peers: PeerTable,
        node_id: int,
        now: float = 0.0,
        *,
        session: int = 0,
        address: Address | None = None,
        route: RouteHeader | None = None,
    ) -> None:
        secret = blake2s(f"{node_id} {session}".encode()).digest()
        self.address = f"{node_id:x}/{session}" if address is None else address
        link = Link(derive_keys(secret, Role.INITIATOR), Role.INITIATOR, self.address, now, route=route)
        self.peer: Peer = peers.establish(node_id, link, now)
        self.node_id = node_id
        self._opener = Link(derive_keys(secret, Role.RESPONDER), Role.RESPONDER, "near", now).opener

    def read(self, out: Output) -> list[Message]:
        """Read the messages that an output holds for this end."""
        messages: list[Message] = []
        for train in out.trains:
            if train.address == self.address:
                for datagram in train.datagrams():
                    header, plain = self._opener.open(datagram)
                    events = unpack_frames(plain, header.event_count)
                    messages += [(header.subprotocol_id, bytes(event)) for event in events]
        return messages
