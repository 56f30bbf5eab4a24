"""Polling: look for datagrams again and again instead of sleeping, for nodes with `poll_us`.

Waking a process up takes longer than handling a datagram, and so does an iteration of the loop. While a node polls, the
loop gets its turn after each datagram, and every TURN_S without one. The owner is node/driving/driver.py.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from typing import Any

from meshbus.node.driving.udp import UdpSocket

TURN_S = 0.0001
"""How long timers and other sockets of the loop may have to wait meanwhile. Our choice: about ten loop iterations."""


_yield: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class Polling:
    """Calls `readable` for the sockets of one driver when datagrams come, while it is awake."""

    def __init__(self, poll_s: float, readable: Callable[[UdpSocket], None], clock: Callable[[], float]) -> None:
        self._poll_s = poll_s
        self._readable = readable
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._sockets: dict[int, UdpSocket] = {}
        # Not on every system; without it, the loop itself looks, once per iteration.
        self._poller: Any = select.poll() if hasattr(select, "poll") else None
        self._until: float | None = None
        """Until when the loop must not sleep; None while it may."""

    def add(self, socket: UdpSocket) -> None:
        """Include a socket."""
        self._sockets[socket.fileno()] = socket
        if self._poller is not None:
            self._poller.register(socket.fileno(), select.POLLIN)

    def remove(self, socket: UdpSocket) -> None:
        """Remove a socket; call it before the socket is closed."""
        if self._sockets.pop(socket.fileno(), None) is not None and self._poller is not None:
            self._poller.unregister(socket.fileno())

    def stay_awake(self, now: float) -> None:
        """Do not sleep for a while: a datagram came."""
        if self._until is None:
            self._loop.call_soon(self._turn)
        self._until = now + self._poll_s

    def stop(self) -> None:
        """Stop polling, so that the loop may sleep."""
        self._until = None

    def _turn(self) -> None:
        began = now = self._clock()
        if self._until is None or now >= self._until:
            self._until = None
            return
        # A loop with a callback that is ready does not sleep.
        self._loop.call_soon(self._turn)
        while self._poller is not None and now - began < TURN_S:
            if ready := self._poller.poll(0):
                for handle, _ in ready:
                    if handle in self._sockets:
                        self._readable(self._sockets[handle])
                return
            # Two nodes that poll on one core would each use up their time slices, of milliseconds, in turn.
            _yield()
            now = self._clock()
