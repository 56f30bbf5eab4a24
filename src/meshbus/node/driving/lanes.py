"""Lanes: a receive buffer of its own for each neighbor, so that what others send cannot crowd its packets out.

All datagrams for a port share one receive buffer in the kernel, and the kernel drops what does not fit, whoever sent it. So
a node opens a second socket on its port for each neighbor, connected to that neighbor's address: the kernel then keeps the
neighbor's datagrams apart from those of strangers and of other neighbors. The driver drains every lane in each turn of the
loop, and the socket of all others only a little.

Lanes only receive. Whoever can forge a neighbor's address still reaches its lane; without keys, nothing of that is
delivered. Where the system refuses a second socket, all share one, as before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.packets import Address, host_of
from meshbus.engine.session.peer import Peer
from meshbus.node.driving.udp import UdpSocket
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.keys import Role

MAX_LANES = 64
"""Neighbors with a lane. Our choice: each takes a file handle and at most the receive buffer of the node."""
MAX_LANES_PER_HOST = 16
"""Of these, neighbors of one host that began their session: one host with many names leaves room for others."""

BOUNDS = (
    Bound(
        name="lanes",
        what="neighbors with a receive buffer of their own",
        by=By.MEMBER,
        per_node=MAX_LANES,
        per={"host": MAX_LANES_PER_HOST},
        full="the new one shares the buffer of all others; those that this node dialed come first",
        cost="the number of neighbors",
        counter=Reason.REFUSE_LANE,
    ),
)


class Lanes:
    """The lanes of one socket."""

    def __init__(self, socket: UdpSocket, counters: Counters) -> None:
        self._socket = socket
        self._counters = counters
        self._open: dict[Address, UdpSocket] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[UdpSocket]:
        return iter(list(self._open.values()))

    def follow(
        self, neighbors: Iterable[Peer], opened: Callable[[UdpSocket], None], ending: Callable[[UdpSocket], None]
    ) -> None:
        """Open lanes for these neighbors and close those of others; the callbacks are told of each one's life."""
        wanted = self._chosen(neighbors)
        for address in [address for address in self._open if address not in wanted]:
            lane = self._open.pop(address)
            ending(lane)
            lane.close()
        for address in wanted:
            if address in self._open:
                continue
            new = self._socket.open_lane(address)
            if new is None:
                self._counters.count(Reason.REFUSE_LANE)
                continue
            self._open[address] = new
            opened(new)

    def _chosen(self, neighbors: Iterable[Peer]) -> dict[Address, None]:
        """Return the addresses that get a lane: first those that this node dialed, then those that have one already."""
        homes = {peer.link.home: peer.link.role is Role.INITIATOR for peer in neighbors if peer.link.home is not None}
        chosen: dict[Address, None] = {}
        hosts: Counter[Address] = Counter()
        for address, dialed in sorted(homes.items(), key=lambda one: (not one[1], one[0] not in self._open)):
            host = host_of(address)
            if len(chosen) < MAX_LANES and (dialed or hosts[host] < MAX_LANES_PER_HOST):
                chosen[address] = None
                hosts[host] += not dialed
            else:
                self._counters.count(Reason.REFUSE_LANE)
        return chosen
