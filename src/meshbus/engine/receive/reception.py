"""Reception: passes what the intake found to handshakes, liveness, services, delivery and forwarding.

The counterpart is engine/receive/intake.py, which finds the sender of a packet and authenticates it. Nothing here reads
the content of a message: services decode their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from meshbus.engine.base.packets import Address, Output
from meshbus.engine.nat.rendezvous import Rendezvous
from meshbus.engine.receive.dispatch import Dispatch, Group, Way, split
from meshbus.engine.receive.intake import Opened
from meshbus.engine.routes.mesh import Mesh
from meshbus.engine.routes.tap import Arrival
from meshbus.engine.session.handshake import Handshakes
from meshbus.engine.session.liveness import Liveness
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.secure import Secure
from meshbus.engine.session.service import Context
from meshbus.engine.streams.delivery import Delivery
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.frames import unpack_frames
from meshbus.wire.header import Header

if TYPE_CHECKING:
    from numpy.typing import NDArray

Handler = Callable[[Peer, memoryview, float, Output], object]
"""Handles one message of a subprotocol."""


class Reception:
    """Routes opened packets and other datagrams to the services of one node."""

    def __init__(self, context: Context) -> None:
        services = context.services
        carried = {row.id for row in services.table if row.reliable}
        self.handlers: dict[int, Handler] = {
            id_: service.receive for id_, service in services.by_subprotocol.items() if id_ not in carried
        }
        """Handlers of the subprotocols whose packets are unpacked here; the others are carried on reliable streams."""
        self._dispatch = Dispatch(services.table, context.settings.opaque)
        self._services = services
        self._handshakes = services[Handshakes]
        self._liveness = services[Liveness]
        self._secure = services[Secure]
        self._delivery = services[Delivery]
        self._mesh = services[Mesh]
        self._punches = services[Rendezvous].punches
        self._counters = context.counters
        self._establish = context.establish
        self._work = context.work

    def on_handshake(self, source: Address, datagram: memoryview, now: float, out: Output, *, routed: bool) -> None:
        """Handle a handshake packet, and establish the resulting session."""
        receive = self._handshakes.receive_routed if routed else self._handshakes.receive_direct
        self._establish(receive(source, datagram, now, out), now, out)

    def on_stranger(self, source: Address, packet: bytes, now: float, out: Output) -> bool:
        """Handle a packet of a session that is no peer's current one; return False if the session is unknown."""
        # transport.md §3: the session id is at byte 24.
        session_id = int.from_bytes(packet[24:32], "little")
        known = self._handshakes.knows(session_id)
        if known:
            self._establish(self._handshakes.claim(source, packet, now, out), now, out)
        else:
            self._counters.count(Reason.UNKNOWN_SESSION)
        return known

    def on_new_keys(self, peer: Peer, now: float, out: Output) -> None:
        """Handle the first packet under new keys: what it carries may need them."""
        self._secure.turned(peer, now, out)

    def on_heartbeat(self, peer: Peer, now: float, out: Output) -> None:
        """Record a verified heartbeat."""
        # transport.md §16: of a direct peer, only heartbeats count for the failure detector.
        recovered = self._liveness.heard(peer, now, out, heartbeat=True)
        # A heartbeat comes straight from the peer, which shows that the direct path works.
        self._mesh.heard(peer, now)
        if recovered:
            self._services.recovered(peer, now, out)

    def on_packets(self, peer: Peer, opened: Opened, now: float, out: Output) -> None:
        """Handle opened packets: messages first, in order, then events."""
        if self._liveness.heard(peer, now, out, heartbeat=False):
            self._services.recovered(peer, now, out)
        run, arrival, link = opened.run, opened.arrival, peer.link
        guarded = link.closed or link.epoch > 0
        # A run of plain events, the hot case, needs no sorting by subprotocol.
        if (
            run is not None
            and run.subprotocol_id == Subprotocol.EVENTS
            and not peer.muted
            and not (guarded and link.bars(run.session_id, run.subprotocol_id))
        ):
            if arrival is not None:
                self._record(peer, run.subprotocol_id, opened.headers, arrival, now)
            self._delivery.take_run(peer, run, opened.data, now, out)
            return
        groups = split(opened.headers["subprotocol_id"]) if run is None else (Group(run.subprotocol_id, slice(None)),)
        for subprotocol_id, rows in groups:
            # Looked up for each group: a manifest earlier in the batch may have changed what was negotiated.
            headers, starts = opened.headers[rows], opened.starts[rows]
            barred = guarded and link.bars(headers["session_id"].item(0), subprotocol_id)
            refusal = Reason.INSECURE if barred else _muted(peer, subprotocol_id)
            if refusal is not None:
                self._refuse(peer, refusal, headers, None if arrival is None else arrival.only(rows), now)
                continue
            disposition = self._dispatch.disposition(subprotocol_id, peer.negotiated)
            if arrival is not None:
                # A profile message that overtook the agreement is repeated: in the record it would look like a denial.
                early = disposition.reason is Reason.NOT_NEGOTIATED
                reason = disposition.reason if disposition.way is Way.DROP and not early else None
                self._record(peer, subprotocol_id, headers, arrival.only(rows), now, reason)
            if disposition.way is Way.SERVICE:
                self._serve(peer, subprotocol_id, headers, opened.data, starts, now, out)
                continue
            if disposition.reason is not None:
                if disposition.way is Way.DROP:
                    self._counters.count(disposition.reason, len(headers))
                else:
                    self._counters.add("opaque", disposition.reason.why, len(headers))
                if disposition.reason is Reason.NOT_NEGOTIATED:
                    self._services.not_agreed(peer, now, out)
            if disposition.way is Way.DROP:
                if disposition.owes_grant:
                    self._delivery.owe(peer, headers, now)
                continue
            self._delivery.take(peer, subprotocol_id, headers, opened.data, starts, now, out)

    def on_packet(self, peer: Peer, header: Header, payload: bytes, now: float, out: Output) -> None:
        """Handle one opened packet."""
        link, session_id, subprotocol_id = peer.link, header.session_id, header.subprotocol_id
        # Only packets under the first keys of a session can be barred, and only if it is to be secure.
        special = (
            session_id == link.session_id and (link.closed or link.epoch) and link.bars(session_id, subprotocol_id)
        )
        if subprotocol_id:
            handle = self.handlers.get(subprotocol_id)
            way = self._dispatch.disposition(subprotocol_id, peer.negotiated).way
            special = special or handle is None or way is not Way.SERVICE
        else:
            handle, special = None, special or peer.muted
        if special:
            self.on_packets(peer, Opened.of(header, payload), now, out)
            return
        link.used_at = now
        # The packets of a direct peer say nothing more about it (session/liveness.py).
        if link.route and self._liveness.heard(peer, now, out, heartbeat=False):
            self._services.recovered(peer, now, out)
        if handle is None:
            self._delivery.take_one(peer, header, payload, now, out)
        elif self._work.admits(peer.work, subprotocol_id, header.event_count, now):
            for message in unpack_frames(payload, header.event_count):
                handle(peer, message, now, out)

    def on_transit(
        self,
        source: Address,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        first: int,
        last: int,
        now: float,
        out: Output,
        /,
    ) -> None:
        """Forward routed packets for other nodes."""
        self._mesh.forwarder.forward(source, data, starts, lengths, first, last, now, out)

    def on_pingwave(self, source: Address, datagram: memoryview, now: float, out: Output, /) -> None:
        """Handle a pingwave."""
        self._mesh.pingwaves.receive(source, datagram, now, out)

    def on_keepalive(self, source: Address, datagram: memoryview, now: float, out: Output, /) -> None:
        """Handle a keep-alive of hole punching."""
        self._punches.receive(source, datagram, now, out)

    def _serve(
        self,
        peer: Peer,
        subprotocol_id: int,
        headers: NDArray[np.void],
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        now: float,
        out: Output,
    ) -> None:
        handle = self.handlers.get(subprotocol_id)
        if handle is None:
            self._delivery.take(peer, subprotocol_id, headers, data, starts, now, out)
            return
        view = data.data
        for start, size, count in zip(
            starts.tolist(), headers["payload_len"].tolist(), headers["event_count"].tolist(), strict=True
        ):
            if self._work.admits(peer.work, subprotocol_id, count, now):
                for message in unpack_frames(view[start : start + size], count):
                    handle(peer, message, now, out)

    def _refuse(
        self, peer: Peer, reason: Reason, headers: NDArray[np.void], arrival: Arrival | None, now: float
    ) -> None:
        self._counters.count(reason, len(headers))
        if arrival is not None:
            self._record(peer, headers["subprotocol_id"].item(0), headers, arrival, now, reason)

    def _record(
        self,
        peer: Peer,
        subprotocol_id: int,
        headers: NDArray[np.void],
        arrival: Arrival,
        now: float,
        reason: Reason | None = None,
    ) -> None:
        """Report packets for this node to the flight recorder, before they are handled."""
        if reason is not None:
            reasons = np.full(len(headers), reason.code, np.uint8)
        else:
            reasons = self._delivery.refusals(peer, subprotocol_id, headers)
        self._mesh.tap.arrived(headers, arrival, reasons, now)


def _muted(peer: Peer, subprotocol_id: int) -> Reason | None:
    """Return why the events of a peer are not handled, or None."""
    return Reason.REVOKED_PUBLISHER if peer.muted and subprotocol_id == Subprotocol.EVENTS else None
