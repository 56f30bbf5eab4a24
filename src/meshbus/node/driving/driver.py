"""Drives an engine: datagrams in, datagrams out, timers, on the running asyncio loop.

The socket is drained by a reader callback, a bounded number of datagrams per loop iteration, because asyncio's own
datagram transport takes only one per iteration. Single events that are published faster than the loop iterates are sent
together, as a train: the first of such a burst at once, the others at the end of the iteration or when a train is full.
All decisions are the engine's; what it reports is passed to `on_output`, one batch or notice at a time. An exception
behind one of them is counted by its class (`exception.*`) and ends nothing else. A driver belongs to the loop on which it
was created, and cannot be reopened.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import inf

from meshbus.engine.base.notices import AppendAsked, Control, ReplicaWork
from meshbus.engine.base.packets import Address, Output, Train
from meshbus.engine.core import Engine
from meshbus.engine.session.link import MAX_TRAIN_PACKETS
from meshbus.engine.streams.traffic import SHARED_S
from meshbus.node.driving.lanes import Lanes
from meshbus.node.driving.polling import Polling
from meshbus.node.driving.turns import Turns
from meshbus.node.driving.udp import MAX_DATAGRAMS, UdpSocket
from meshbus.node.driving.waiter import Waiter
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason

DRAINS_PER_TURN = 4
"""Drains before other callbacks of the loop run: about four milliseconds of work when packets keep coming."""
MAX_BACKLOG = 4096
"""Trains held while the socket is not writable. Beyond that the newest are dropped and counted: UDP may lose packets, and
reliable streams send them again."""
MIN_DELAY_S = 0.0005
"""The shortest delay of a timer, so that a timer that is due again at once cannot keep the loop busy."""
ASK_S = 0.002
"""How long after a call the engine is asked for its next timer: asking costs as much as several packets, and no timer of
the protocol is shorter than twice this."""

QUIET_S = 0.0005
"""A socket that was not read for so long usually holds one datagram. Our choice: about what a drain takes at most."""

BURST_S = 0.0002
"""A single datagram that follows the previous one within this time belongs to a burst."""
MAX_BURST = MAX_TRAIN_PACKETS
"""Datagrams that are collected before they are sent: as many as the kernel takes in one call."""

_logger = logging.getLogger("meshbus.node")


BOUNDS = (
    Bound(
        name="backlog",
        what="trains of packets that wait for the socket",
        by=By.PEER,
        per_node=MAX_BACKLOG,
        full="the new train is dropped",
        counter=Reason.SEND_BACKLOG,
    ),
)


class Driver:
    """One engine on one socket."""

    now = staticmethod(time.monotonic)
    """Returns the time on the clock that the engine runs on, in monotonic seconds."""

    def __init__(
        self, engine: Engine, socket: UdpSocket, on_output: Callable[[Output], None], poll_s: float = 0.0
    ) -> None:
        """Begin to receive; for `poll_s` after each datagram the loop does not sleep, but looks for the next."""
        self._polling = Polling(poll_s, self._readable, self.now) if poll_s else None
        self._woken: list[Waiter] | None = None
        """What the datagrams of this callback woke; None outside of such a callback."""
        self.engine = engine
        self.socket = socket
        self._on_output = on_output
        self._loop = asyncio.get_running_loop()
        self._backlog: deque[Train] = deque()
        self._burst: list[Train] = []
        """Datagrams that are sent at the end of this loop iteration."""
        self._single_at = -inf
        """When the last single datagram was sent."""
        self._small_at = -inf
        """When events last came that are no parts of large ones."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._asking: asyncio.TimerHandle | None = None
        """Set while a call of `_set_timer` is scheduled."""
        self.closed = False
        self.took: Callable[[float], None] | None = None
        """Called with how long the datagrams of each read took, if somebody measures."""
        self._lanes = Lanes(socket, engine.counters)
        self._peers_version: int | None = None
        """Which state of the table of peers the lanes follow."""
        self._turns = Turns()
        self._listen(socket)
        self._set_timer()

    def apply(self, out: Output) -> None:
        """Send what the engine wants sent, and pass on what it reports."""
        if out.trains:
            self._send(out.trains)
        if out.events or out.control:
            self._report(out)
        if self._asking is None:
            self._ask_later()

    def apply_single(self, out: Output, now: float) -> None:  # hot: bench_publish
        """Do the same for one event; its datagrams may be collected with those of further events in this loop iteration."""
        follows, self._single_at = now - self._single_at < BURST_S, now
        if (
            not (follows or self._burst or self._backlog)
            and len(out.trains) == 1
            and self.socket.send_one(out.trains[0])
        ):
            out.trains = []
        elif follows or self._burst:
            self._send_later(out.trains)
            out.trains = []
            if len(self._burst) >= MAX_BURST:
                self._end_burst()
                self._single_at = self.now()  # sending took its time, which is no pause of the publisher
        if out.trains or out.events or out.control:
            self.apply(out)
        elif self._asking is None:
            self._ask_later()

    def wake(self, waiter: Waiter) -> None:
        """Continue a task that waited for events: when the datagram that brought them is done with, or soon."""
        if self._woken is None:
            waiter.wake()
        else:
            self._woken.append(waiter)

    def close(self) -> None:
        """Stop the timers and close the socket; closing twice is fine."""
        if self.closed:
            return
        self._end_burst()
        self.closed = True
        if self._polling is not None:
            self._polling.stop()
        for timer in (self._timer, self._asking):
            if timer is not None:
                timer.cancel()
        self._loop.remove_writer(self.socket.fileno())
        for socket in (self.socket, *self._lanes):
            self._ignore(socket)
            socket.close()

    def _readable(self, socket: UdpSocket) -> None:
        """Handle what came, and let the tasks go on that waited for it."""
        now = self.now()
        wait_s = self._turns.wait_s(socket, now)
        if wait_s:
            self._pause(socket, wait_s)
            return
        self._woken = []
        quiet, socket.drained_at = now - socket.drained_at > QUIET_S, now
        try:
            if quiet:
                self._take_first(socket, now)
            else:
                self._drain_busy(socket)
        finally:
            if self._woken:  # after an error: `_handle` resumes them otherwise
                self._resume()
            self._woken = None

    def _resume(self) -> None:
        """Let the tasks go on that waited for what came, if any."""
        woken, self._woken = self._woken, None
        for waiter in woken or ():
            waiter.resume()

    def _drain_busy(self, socket: UdpSocket) -> None:
        """Handle what came on a socket that is read often."""
        for _ in range(DRAINS_PER_TURN):
            # A sender goes on as long as it brings events: anything else comes once a turn, and so do parts
            # of large events: the small events of other senders must not wait for many of them.
            if not self._drain(socket) or self.closed or socket.emptied:
                return

    def _drain(self, socket: UdpSocket) -> bool:
        """Handle what one drain returns; return whether the sender may go on: events were in it, and no parts."""
        began = self.now()
        batch = socket.drain(max_datagrams=self._turns.room(socket, began) or MAX_DATAGRAMS)
        if socket.no_listener:
            self._report_refused(socket)
        if batch is None or self.closed:
            return False
        return self._handle(socket, len(batch), began, self.engine.receive, batch, began)

    def _take_first(self, socket: UdpSocket, now: float) -> None:  # hot: bench_publish
        """Handle what came first on a socket that was quiet; if there is more, the loop calls again."""
        first = socket.receive_first()
        if socket.no_listener:
            self._report_refused(socket)
        if first is None or self.closed:
            return
        if isinstance(first, tuple):
            self._handle(socket, 1, now, self.engine.receive_one, *first, now)
        else:
            self._handle(socket, len(first), now, self.engine.receive, first, now)

    def _handle(
        self, socket: UdpSocket, datagrams: int, began: float, receive: Callable[..., Output], *arguments: object
    ) -> bool:
        """Pass datagrams to the engine and carry out what follows; return whether events were in them, and no parts."""
        counters = self.engine.counters
        lost = counters.lost
        try:
            out = receive(*arguments)
        except Exception as error:  # noqa: BLE001 - a packet of one peer must not end the traffic of the others
            out = self._failed(error)
        # Appends and what replicas send each other are events too: a member must not fall behind beside a stream. Parts
        # bring an event, which is there with the last of them.
        large = out.parts > 0
        events = bool(out.events) or large or out.forwarded > 0 or any(map(_has_events, out.control))
        if events and not large:
            self._small_at = began
        if out.trains:
            self._answer(out, began)
        if out.events or out.control:
            self._report(out)
        refused = 2 * (counters.lost - lost) > datagrams
        ended = self.now()
        # Before the books of this read are kept, and before the next one: a task that waits is what a node is for.
        if self._woken:
            self._resume()
            self._woken = []
        if self._asking is None:
            self._ask_later()
        self._turns.note(socket, began, ended, datagrams, events=events, refused=refused)
        if self._polling is not None and not self.closed:
            self._polling.stay_awake(ended)
        if self.took is not None:
            self.took(ended - began)
        return events and not large

    def _answer(self, out: Output, now: float) -> None:
        """Send what datagrams caused; what confirms parts, only after the small events that have come were read."""
        # A confirmation wakes the sender of the parts, and the system may give it this core at once, to seal the next
        # ones: a small event that is here already would wait for that. The loop looks at the sockets before each of its
        # iterations, so those that have something now are read in this one or in the next.
        if out.parts and not out.forwarded and now - self._small_at < SHARED_S:
            self._loop.call_soon(self._send_later, out.trains)
        else:
            self._send(out.trains)

    def _pause(self, socket: UdpSocket, wait_s: float) -> None:
        """Stop listening to a socket until it is its turn."""
        self._ignore(socket)
        self._loop.call_later(wait_s, self._listen, socket)

    def _listen(self, socket: UdpSocket) -> None:
        if not self.closed and socket.fileno() >= 0:
            self._loop.add_reader(socket.fileno(), self._readable, socket)
            if self._polling is not None:
                self._polling.add(socket)

    def _ignore(self, socket: UdpSocket) -> None:
        self._loop.remove_reader(socket.fileno())
        if self._polling is not None:
            self._polling.remove(socket)

    def _follow_peers(self) -> None:
        """Open lanes for the neighbors of this moment, and close the others."""
        if self._peers_version == self.engine.peers.version:
            return
        self._peers_version = self.engine.peers.version
        self._lanes.follow(self.engine.peers.neighbors(), self._listen, self._end_lane)

    def _end_lane(self, lane: UdpSocket) -> None:
        self._ignore(lane)
        self._turns.forget(lane)
        self._drain(lane)

    def _report_refused(self, socket: UdpSocket) -> None:
        """Tell the engine at which addresses nothing listens."""
        out = Output()
        for address in socket.take_refused():
            self.engine.handshakes.refused(address, out)
        if not self.closed:
            self.apply(out)

    def _send_later(self, trains: Sequence[Train]) -> None:
        """Send trains at the end of this loop iteration."""
        if self.closed:
            return
        if not self._burst:
            self._loop.call_soon(self._end_burst)
        self._burst += trains

    def _end_burst(self) -> None:
        if self._burst and not self.closed:
            self._send(())

    def _send(self, trains: Sequence[Train]) -> None:
        if self._burst:
            trains = [*_by_address(self._burst), *trains]
            self._burst = []
        if self._backlog:
            self._hold(trains)
            return
        left = self.socket.send(trains)
        if self.socket.no_listener:
            self._loop.call_soon(self._report_refused, self.socket)
        if left:
            self._hold(left)
            # What is forwarded would only fill the backlog, without the fairness of the forwarder's own queues.
            self.engine.mesh.forwarder.hold()
            self._loop.add_writer(self.socket.fileno(), self._writable)

    def _hold(self, trains: Iterable[Train]) -> None:
        for train in trains:
            if len(self._backlog) >= MAX_BACKLOG:
                self.engine.counters.count(Reason.SEND_BACKLOG, -(-len(train.data) // train.segment))
            else:
                # A forwarded train lies in the receive buffer, which the next drain overwrites.
                self._backlog.append(Train(train.address, bytes(train.data), train.segment))

    def _writable(self) -> None:
        waiting = list(self._backlog)
        if not waiting:  # our own packets are sent; now those that the forwarder holds
            out = Output()
            self.engine.mesh.forwarder.release(out)
            waiting = out.trains
        self._backlog = deque(self.socket.send(waiting))
        if not waiting:
            self._loop.remove_writer(self.socket.fileno())

    def _ask_later(self) -> None:
        """Ask the engine for its next timer in a moment, once for everything that happens until then."""
        if not self.closed:
            self._asking = self._loop.call_later(ASK_S, self._set_timer)

    def _set_timer(self) -> None:
        self._asking = None
        if not self.closed:
            self._follow_peers()
        # Only an earlier or later deadline needs another timer: most packets change none.
        at = self.engine.next_timer()
        if self.closed or at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        if at is None:
            self._timer = None
            return
        delay = max(at - self.now(), MIN_DELAY_S)
        self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        try:
            out = self.engine.tick(self.now())
        except Exception as error:  # noqa: BLE001 - the other timers must go on
            out = self._failed(error)
        self.apply(out)
        # Asked now instead of in a moment: nothing waits for this callback.
        if self._asking is not None:
            self._asking.cancel()
            self._set_timer()

    def _report(self, out: Output) -> None:
        """Pass on what the engine reports in pieces, so that each can fail without the others."""
        pieces = [out]
        if len(out.events) + len(out.control) > 1:
            pieces = [Output(events=[batch]) for batch in out.events]
            pieces += [Output(control=[event]) for event in out.control]
        for piece in pieces:
            try:
                self._on_output(piece)
            except Exception as error:  # noqa: BLE001 - the other pieces must arrive
                self._failed(error)

    def _failed(self, error: Exception) -> Output:
        """Count an exception of the engine or the node by its class, and return what is to be done instead: nothing."""
        name = type(error).__name__
        # The traceback of the first of a class is enough: a peer may be able to cause many.
        if not self.engine.counters.get("exception", name):
            _logger.error("%s while handling packets; please report this as a bug", name, exc_info=error)
        self.engine.counters.add("exception", name)
        return Output()


def _by_address(trains: Sequence[Train]) -> Sequence[Train]:
    """Group trains by address, keeping the order within each address."""
    if len({train.address for train in trains}) == 1:
        return trains  # one subscriber, as usual
    groups: dict[Address, list[Train]] = {}
    for train in trains:
        groups.setdefault(train.address, []).append(train)
    return [train for group in groups.values() for train in group]


def _has_events(notice: Control) -> bool:
    return isinstance(notice, AppendAsked | ReplicaWork)
