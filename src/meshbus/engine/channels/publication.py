"""Running publishes: packs the events once, and sends them to every subscriber of the plan.

The plan comes from engine/channels/publish.py. `Publications` starts as many legs at once as the publisher allows; each
goes out through engine/streams/traffic.py of its peer. A leg without credit waits in that peer's outbox
(engine/streams/outbox.py). When it ends, the publish starts its next legs in the same call into the engine (`finish`).

Events that do not fit a packet are not packed, but cut into parts while they are sent (engine/streams/largeload.py). A
publish with such an event is reliable as a whole, so that its events arrive in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.packets import Output
from meshbus.engine.base.tally import Tally
from meshbus.engine.channels.publish import WAIT_S, Fanout, LegError, Planner, PublishConfig, PublishPlan, PublishReport
from meshbus.engine.session.link import equalize
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.streams.largeload import LargeLoad
from meshbus.engine.streams.outbox import Cargo, Leg, Load, side_lane
from meshbus.engine.streams.streams import Streams
from meshbus.errors import Backpressure, LocalProtocolError, MeshError, PeerError, PeerFault, Timeout
from meshbus.names.channel import ChannelName
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.reason import Reason
from meshbus.wire.constants import FRAME_PREFIX_BYTES, MAX_EVENT, PACKET_COST, ROUTED_PAYLOAD, Subprotocol
from meshbus.wire.frames import Packed, columns_of, encode_frames
from meshbus.wire.header import Header
from meshbus.wire.messages.large import parts_of
from meshbus.wire.messages.reliable import CLOCK_NUMBERS
from meshbus.wire.stamp import stamp_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

HOP_TTL = 16
"""Hop limit in the inner header of our publications: the largest hop count of a pingwave (mesh.md §4).

0.23 receivers ignore it; meshbus forwarders count against it (profile.md §9)."""
MAX_PUSHES = 4096
"""Sends to one peer that may wait for credit. Our choice, to bound memory: as many as messages (streams/traffic.py)."""
MAX_NUMBERED = 65_536
"""Channels whose next publish number is kept. Our choice; a forgotten one continues at the wall clock, as after a
restart."""


BOUNDS = (
    Bound(
        name="pushes",
        what="events for a peer that wait for credit",
        by=By.USER,
        per_node=None,
        per={"peer": MAX_PUSHES},
        full="the call is refused",
        counter="raises Backpressure",
    ),
    Bound(
        name="publish_numbers",
        what="channels whose publish number is kept",
        by=By.USER,
        per_node=MAX_NUMBERED,
        full="the oldest goes",
        counter=forgotten("publish_numbers"),
    ),
)


class Prepared(NamedTuple):
    """A publish that passed all checks; nothing of it is sent yet."""

    plan: PublishPlan
    config: PublishConfig
    pieces: Sequence[Packed | NDArray[np.uint8]]
    """The packed payloads of small events, and large events as they are, in order."""
    events: int
    nbytes: int
    """Bytes of the events, without framing."""
    aside: bool = False
    """Whether other events of the channel may overtake it: it is reliable because it is large, and they are not."""
    origin: int = 0
    """The origin hash of its events, which a log has to have, too."""


class Publication:
    """One publish; done at once if no leg has to wait for credit."""

    __slots__ = ("_waiting", "config", "done", "events", "fanout", "lane", "loads", "nbytes", "plan", "running")

    def __init__(self, prepared: Prepared, loads: Sequence[Cargo]) -> None:
        self.plan = plan = prepared.plan
        self.config = config = prepared.config
        self.events = prepared.events
        self.nbytes = prepared.nbytes
        """Bytes of the events, without framing."""
        self.loads = loads
        """What every subscriber gets, in order."""
        self.lane = side_lane(plan.stream_id) if prepared.aside else 0
        """The lane of its legs in the outbox; 0 for that of the channel's stream."""
        self.fanout = Fanout(plan, config)
        self.done = False
        self.running = False
        """Legs are being started now, so a leg that ends must not schedule another run."""
        self._waiting: Callable[[], None] | None = None

    def when_done(self, call: Callable[[], None]) -> None:
        """Call `call` when the last leg ends, or at once if it has ended."""
        if self.done:
            call()
        else:
            self._waiting = call

    def end(self) -> None:
        """Record that every leg has ended, and call the waiting callback."""
        self.done = True
        if self._waiting is not None:
            self._waiting()

    def report(self) -> PublishReport:
        """Return the report.

        Raises PartialDelivery if `on_failure` is BEST_EFFORT and every attempted leg failed.
        """
        return self.fanout.report()


class Confirmation:
    """The wait for the acknowledgements of what was sent on a channel."""

    __slots__ = ("_acknowledged", "_attempted", "_errors", "_pending", "_waiting")

    def __init__(self) -> None:
        self._attempted = self._acknowledged = 0
        self._errors: list[LegError] = []
        self._pending: set[int] = set()
        self._waiting: Callable[[], None] | None = None

    @property
    def done(self) -> bool:
        """Whether every subscriber has acknowledged or failed."""
        return not self._pending

    def expect(self, node_id: int) -> Callable[[str | None], None]:
        """Add a subscriber, and return what to call with its outcome: None, or why it will not acknowledge."""
        self._attempted += 1
        self._pending.add(node_id)

        def end(problem: str | None) -> None:
            self._pending.remove(node_id)
            if problem is None:
                self._acknowledged += 1
            else:
                error = PeerError(PeerFault.FAILED, node_id, f"not acknowledged: {problem}")
                self._errors.append(LegError(node_id, error.code, str(error)))
            if self.done and self._waiting is not None:
                self._waiting()

        return end

    def when_done(self, call: Callable[[], None]) -> None:
        """Call back when every subscriber has acknowledged or failed; at once if they have."""
        if self.done:
            call()
        else:
            self._waiting = call

    def report(self, timeout_s: float) -> PublishReport:
        """Return the outcome; those who have not acknowledged by now are errors."""
        late = [
            (node_id, Timeout(f"acknowledgement of {node_id:016x}", timeout_s)) for node_id in sorted(self._pending)
        ]
        errors = (*self._errors, *(LegError(node_id, error.code, str(error)) for node_id, error in late))
        acknowledged = self._acknowledged if self._attempted else None
        return PublishReport(self._attempted, self._attempted - len(errors), errors, acknowledged=acknowledged)


class _Outlet:
    """What the events of a channel need: their numbers, and what all events of one plan share."""

    __slots__ = ("header", "number", "origin", "plan", "report")

    def __init__(self, number: int, origin: int) -> None:
        self.origin = origin
        """The origin hash of its events. It stays when this node gets another key: the number of an event counts with it, and
        what was sent before may have to be repeated beside what follows."""
        self.number = number
        """The publish number of the next event."""
        self.plan: PublishPlan | None = None
        """The plan by which the last event was sent."""
        self.header = Header()
        """The pattern of the headers of its packets."""
        self.report = PublishReport(0, 0)
        """The report of an event that was sent to all its subscribers."""


class Publications(Service):
    """All publishes of one node."""

    def __init__(self, context: Context, planner: Planner, streams: Streams) -> None:
        self._planner = planner
        self._streams = streams
        self._peers = context.peers
        self._counters = context.counters
        self._wall = context.wall
        self._identity = context.identity
        self._heir_id = context.revocations.heir_id
        self._subnet_id = context.settings.subnet
        self._max_payload = context.settings.max_payload
        self._body_bytes = streams.body_bytes
        self.sent_events = 0
        """Events sent so far, once for each receiver; those of a leg that failed are left out."""
        self.sent_bytes = 0
        """Their bytes, without framing."""
        self.tally = Tally()
        """What was published, by channel, whether or not anybody subscribes."""
        self._outlets: BoundedMap[ChannelName, _Outlet] = BoundedMap(
            MAX_NUMBERED, self._counters.forgetting("publish_numbers")
        )
        self._moved: dict[Publication, None] = {}
        """Publishes of which a leg has ended, so that others may start."""
        self.unfinished = (self._moved,)

    def publish(
        self,
        channel: ChannelName,
        offsets: NDArray[np.int64],
        data: NDArray[np.uint8],
        config: PublishConfig,
        now: float,
        out: Output,
    ) -> Publication:
        """Send events to the subscribers of a channel; raises the errors of Engine.publish."""
        prepared = self.prepare(channel, offsets, data, config, now)
        outlet = self._outlet(channel, now)
        number, outlet.number = outlet.number, outlet.number + prepared.events
        return self._send(prepared, number, now, out)

    def prepare(
        self,
        channel: ChannelName,
        offsets: NDArray[np.int64],
        data: NDArray[np.uint8],
        config: PublishConfig,
        now: float,
    ) -> Prepared:
        """Run every step of a publish that can be refused, without sending; raises the errors of Engine.publish.

        The caller can then append to its log between `prepare` and `send`.
        """
        longest = int(np.diff(offsets).max(initial=0)) if len(offsets) > 1 else 0
        events = max(len(offsets) - 1, 0)
        nbytes = int(offsets[-1] - offsets[0]) if events else 0
        if longest <= MAX_EVENT:
            packed = equalize(encode_frames(offsets, data, max_payload=self._max_payload))
            plan = self._planner.plan(channel, config, now, packets=max(len(packed), 1))
            return Prepared(plan, config, (packed,), events, nbytes, origin=self._outlet(channel, now).origin)
        pieces = tuple(self._pieces(np.asarray(offsets, np.int64), data))
        return self._prepare_large(channel, pieces, longest, config, now)._replace(events=events, nbytes=nbytes)

    def _prepare_large(
        self,
        channel: ChannelName,
        pieces: Sequence[Packed | NDArray[np.uint8]],
        longest: int,
        config: PublishConfig,
        now: float,
    ) -> Prepared:
        """Prepare a publish with large events; what is returned says that it is one of `longest` bytes."""
        sure = self._planner.carry_large(channel, config, longest)
        packets = sum(
            len(piece) if isinstance(piece, Packed) else parts_of(len(piece), self._body_bytes) for piece in pieces
        )
        plan = self._planner.plan(channel, sure, now, packets=packets)
        origin = self._outlet(channel, now).origin
        return Prepared(plan, config, pieces, 1, longest, aside=sure is not config, origin=origin)

    def _pieces(self, offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> Iterator[Packed | NDArray[np.uint8]]:
        """Yield large events as they are, and what is between them packed."""
        if not 0 <= offsets.item(0) <= offsets.item(-1) <= len(data) or (np.diff(offsets) < 0).any():
            raise LocalProtocolError("event offsets must ascend, and lie within the data")
        large = np.flatnonzero(np.diff(offsets) > MAX_EVENT).tolist()
        for before, place in pairwise((-1, *large, len(offsets) - 1)):
            if place > before + 1:
                yield equalize(encode_frames(offsets[before + 1 : place + 1], data, max_payload=self._max_payload))
            if place < len(offsets) - 1:
                yield data[offsets.item(place) : offsets.item(place + 1)]

    def send(self, prepared: Prepared, number: int, now: float, out: Output) -> Publication:
        """Send a prepared publish. `number` is the publish number of its first event: its sequence in the log."""
        return self._send(prepared._replace(plan=self._planner.narrow(prepared.plan, now)), number, now, out)

    def publish_one(  # hot: bench_publish
        self, channel: ChannelName, event: bytes, config: PublishConfig, now: float, out: Output
    ) -> PublishReport | Publication:
        """Send one event, and return the report at once if no leg has to wait for credit."""
        size = len(event)
        if size > MAX_EVENT:
            return self._publish_large(channel, event, config, now, out)
        plan = self._planner.plan(channel, config, now)
        outlet = self._outlet(channel, now)
        if outlet.plan is not plan:
            self._aim(outlet, plan)
        header, report, number = outlet.header, outlet.report, outlet.number
        outlet.number = number + 1
        self.tally.add(channel, 1, size)
        payload, legs = size.to_bytes(FRAME_PREFIX_BYTES, "little") + event, plan.legs
        if len(payload) > ROUTED_PAYLOAD and self._is_relayed(plan):
            return self._send_slowly(plan, config, event, number, now, out)
        stamp = stamp_of(self._wall(now))
        peer = self._peers.get(legs[0]) if len(legs) == 1 else None
        if peer is not None and self._streams.traffic_of(peer).send_plain(header, payload, stamp, now, out):
            self.sent_events += 1
            self.sent_bytes += size
            return report
        ways = []
        for node_id in legs:
            peer = self._peers.get(node_id)
            # One peer without credit is enough to take the general way, which can wait. Nothing was sent so far.
            if peer is None or not (traffic := self._streams.traffic_of(peer)).admits(header, len(payload), now):
                return self._send_slowly(plan, config, event, number, now, out)
            ways.append(traffic)
        for traffic in ways:
            traffic.send_one(header, payload, number, stamp, now, out)
        self.sent_events += len(ways)
        self.sent_bytes += size * len(ways)
        return report

    def _publish_large(
        self, channel: ChannelName, event: bytes, config: PublishConfig, now: float, out: Output
    ) -> Publication:
        """Send one large event, as it is: a column of one would be a copy of it."""
        prepared = self._prepare_large(channel, (np.frombuffer(event, np.uint8),), len(event), config, now)
        outlet = self._outlet(channel, now)
        number, outlet.number = outlet.number, outlet.number + 1
        return self._send(prepared, number, now, out)

    def confirm(self, channel: ChannelName) -> Confirmation:
        """Begin to wait until what was sent on the reliable streams of a channel is acknowledged."""
        confirmation = Confirmation()
        for peer in self._peers:
            if channel.stream_id in peer.tx:
                reliable = self._streams.traffic_of(peer).reliable
                if reliable.sends(channel.stream_id):
                    reliable.await_acknowledgement(channel.stream_id, confirmation.expect(peer.node_id))
        return confirmation

    def push(self, peer: Peer, events: Sequence[bytes], now: float, out: Output) -> None:
        """Send events to one peer without a channel, in as few packets as possible, as its credit allows.

        Raises LocalProtocolError if an event is too long, and Backpressure if `MAX_PUSHES` wait for credit; then nothing
        is sent.
        """
        packed = encode_frames(*columns_of(events), max_payload=min(self._max_payload, ROUTED_PAYLOAD))
        longest = int(np.diff(packed.bounds).max(initial=0)) if peer.link.route else 0
        if longest > ROUTED_PAYLOAD:
            raise _too_long_for_relays(longest)
        traffic = self._streams.traffic_of(peer)
        # transport.md §13: a raw push to a peer is on stream 0; §14: 0.23 nodes send it without credit, but grant it.
        stream = peer.tx_stream(Subprotocol.EVENTS)
        if traffic.outbox.waiting(stream.stream_id) >= MAX_PUSHES:
            raise Backpressure(stream.credit, int(packed.bounds[-1]) + PACKET_COST * len(packed))
        stamped = Packed(packed.data, packed.bounds, packed.counts, stamp_of(self._wall(now)))
        traffic.send(Leg(Load(Header(), stamped), now + WAIT_S, self._pushed), now, out)

    def _pushed(self, leg: Leg, arrived: bool) -> None:
        load = leg.load
        assert isinstance(load, Load)
        packed = load.packed
        if arrived:
            events = int(packed.counts.sum())
            self.sent_events += events
            self.sent_bytes += int(packed.bounds[-1]) - FRAME_PREFIX_BYTES * events
        else:
            self._counters.count(Reason.PUSH_EXPIRED, int(packed.counts[leg.sent :].sum()))

    def _outlet(self, channel: ChannelName, now: float) -> _Outlet:
        """Return what the next event of a channel needs; it is the one that was used last."""
        outlet = self._outlets.get(channel)
        if outlet is not None:
            self._outlets.renew(channel)
            return outlet
        # profile.md §2: numbers continue over restarts; the wall clock is above every number used before. A clock
        # that was never set must not make them look like those of a log.
        number = self._wall(now)
        first = number if number >= CLOCK_NUMBERS else number + CLOCK_NUMBERS
        outlet = _Outlet(first, self._identity.origin_hash)
        self._outlets.put(channel, outlet)
        return outlet

    def _aim(self, outlet: _Outlet, plan: PublishPlan) -> None:
        """Send along a plan from now on: make what its events share."""
        outlet.plan = plan
        outlet.header = plan.header(origin_hash=outlet.origin, subnet_id=self._subnet_id, hop_ttl=HOP_TTL)
        outlet.report = PublishReport(len(plan.legs), len(plan.legs), (), plan.filtered)

    def _send_slowly(
        self, plan: PublishPlan, config: PublishConfig, event: bytes, number: int, now: float, out: Output
    ) -> Publication:
        """Send one event that may have to wait, or that may be refused for a subscriber."""
        prepared = Prepared(plan, config, (encode_frames(*columns_of([event])),), 1, len(event))
        return self._begin(prepared, number, now, out)

    def _is_relayed(self, plan: PublishPlan) -> bool:
        """Return whether a subscriber is behind a relay, which does not carry packets of the full length."""
        return any((peer := self._peers.get(node_id)) is not None and peer.link.route for node_id in plan.legs)

    def _send(self, prepared: Prepared, number: int, now: float, out: Output) -> Publication:
        self.tally.add(prepared.plan.channel, prepared.events, prepared.nbytes)
        return self._begin(prepared, number, now, out)

    def _begin(self, prepared: Prepared, number: int, now: float, out: Output) -> Publication:
        outlet, stamp, loads = self._outlet(prepared.plan.channel, now), stamp_of(self._wall(now)), list[Cargo]()
        if outlet.plan is not prepared.plan:
            self._aim(outlet, prepared.plan)
        header = outlet.header
        for piece in prepared.pieces:
            if isinstance(piece, Packed):
                loads.append(Load(header, Packed(piece.data, piece.bounds, piece.counts, stamp), number))
                # The usual publish has one piece, and needs no number after it.
                number += int(piece.counts.sum()) if len(prepared.pieces) > 1 else 0
            else:
                loads.append(LargeLoad(header, piece, self._body_bytes, number, stamp))
                number += 1
        publication = Publication(prepared, loads)
        self._run(publication, now, out)
        return publication

    def next_timer(self) -> float | None:
        """Return 0 if `finish` has work to do, otherwise None."""
        return 0.0 if self._moved else None

    def finish(self, now: float, out: Output) -> None:
        """Start further legs of the publishes of which a leg has ended."""
        while self._moved:
            publication = next(iter(self._moved))
            del self._moved[publication]
            self._run(publication, now, out)

    def _run(self, publication: Publication, now: float, out: Output) -> None:
        """Start legs up to the limit, and end the publish if all have ended."""
        publication.running = True
        while started := publication.fanout.start():
            for node_id in started:
                self._start(publication, node_id, now, out)
        publication.running = False
        if publication.fanout.done and not publication.done:
            publication.end()

    def _start(self, publication: Publication, node_id: int, now: float, out: Output) -> None:
        peer = self._peers.get(node_id) or self._peers.get(self._heir_id(node_id))
        if peer is None:
            self._end(publication, node_id, PeerError(PeerFault.UNKNOWN, node_id))
            return

        if peer.link.refused:
            self._end(publication, node_id, PeerError(PeerFault.INSECURE, node_id, "its session should be secure"))
            return
        longest = max(map(_longest, publication.loads)) if peer.link.route else 0
        if longest > ROUTED_PAYLOAD:
            self._end(publication, node_id, _too_long_for_relays(longest))
            return

        def done(leg: Leg, arrived: bool) -> None:
            self._end(publication, node_id, None if arrived else self._failure(peer, leg))

        wait_s = publication.config.wait_s
        traffic = self._streams.traffic_of(peer)
        # `wait_s` is for credit; the end of a negotiation is waited for in any case.
        deadline = max(now, peer.settles_at) + wait_s
        first, *rest = publication.loads
        leg = Leg(first, deadline, done, wait_s=wait_s, lane=publication.lane)
        leg.rest.extend(rest)
        traffic.send(leg, now, out)
        if wait_s == 0:
            # Its deadline is now: without this, the leg would wait until the next tick.
            traffic.outbox.expire(now)

    def _end(self, publication: Publication, node_id: int, error: MeshError | None) -> None:
        if error is None:
            self.sent_events += publication.events
            self.sent_bytes += publication.nbytes
            publication.fanout.delivered(node_id)
        else:
            self._counters.add("fail", error.code)
            publication.fanout.failed(node_id, error)
        if not publication.running:
            self._moved[publication] = None

    def _failure(self, peer: Peer, leg: Leg) -> MeshError:
        """Return the error of a leg that was not sent completely."""
        if self._peers.get(peer.node_id) is not peer:
            return PeerError(PeerFault.FAILED, peer.node_id, "it was removed while events for it waited for credit")
        if leg.problem is not None:
            return leg.problem
        return Backpressure(peer.tx_stream(leg.load.header.stream_id).credit, leg.load.cost(leg.sent))


def _longest(load: Cargo) -> int:
    """Return the longest payload of a load; parts of large events fit every path."""
    return int(np.diff(load.packed.bounds).max(initial=0)) if isinstance(load, Load) else 0


def _too_long_for_relays(payload_bytes: int) -> LocalProtocolError:
    # A relay drops what is longer than a datagram with its routing header, and on a reliable stream nothing behind it
    # would arrive either.
    most = ROUTED_PAYLOAD - FRAME_PREFIX_BYTES
    return LocalProtocolError(
        f"event of {payload_bytes - FRAME_PREFIX_BYTES} bytes does not fit into a packet through a relay; the limit is "
        f"{most} bytes"
    )
