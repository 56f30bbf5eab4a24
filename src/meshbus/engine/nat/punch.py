"""Hole punching: sends keep-alives to an address at a time that a coordinator sets, and waits for one (mesh.md §8.3).

A node that sends to another one opens its own NAT for the answer. If both nodes send at the same time, each NAT takes
the other's keep-alive for an answer. Introductions are followed even if this node did not ask for them, as on 0.23
nodes, so an introduction must not be able to cause much:

* It causes three keep-alives of 14 bytes, less than the packet that carried it. A received keep-alive is answered only
  by one message inside the session with the coordinator.
* The address must be one that a host can have, and loopback only if the coordinator is on loopback itself.
* The rate is limited for each coordinator and for each host, and so is the number at one time; what exceeds a limit is
  refused and counted.
* The keep-alives are sent at most `MAX_LEAD_S` later, whatever time the coordinator sets: its clock may be wrong.

A keep-alive counts if it comes from the introduced host and names the introduced node. Its port may differ: a symmetric
NAT uses another port for every destination, and the port that it used towards us is the one that reaches the node.
(A 0.23 node compares the whole source address, and does not look at the node id.)

The coordinator's side is engine/nat/rendezvous.py; the connection attempt is engine/nat/traversal.py.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

from meshbus.engine.base.packets import Address as Place
from meshbus.engine.base.packets import Output
from meshbus.engine.session.budget import Rates
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.header import Buffer
from meshbus.wire.messages.address import Address, numeric
from meshbus.wire.messages.rendezvous import PunchAck, PunchIntroduce, encode_rendezvous
from meshbus.wire.punch import Keepalive, pack_keepalive, unpack_keepalive

OFFSETS_S = (0.0, 0.1, 0.25)
"""When keep-alives are sent, in seconds after the time that was set (mesh.md §8.3)."""
MAX_LEAD_S = 1.0
"""Longest wait before the first keep-alive. Our choice: twice the lead of a 0.23 coordinator (mesh.md §8.3)."""
WATCH_S = 5.0
"""How long to wait for a keep-alive after the time that was set (mesh.md §8.3)."""

MAX_PUNCHES = 256
"""Introductions followed at one time. Our choice."""
COORDINATOR_RATE, COORDINATOR_BURST = 20.0, 64.0
"""Introductions per second from one coordinator. Our choice."""
HOST_RATE, HOST_BURST = 5.0, 64.0
"""Introductions per second to one host. Our choice: many nodes may be behind one NAT, but a victim gets no more than
210 bytes per second from each node."""
MAX_RATED = 1024
"""Coordinators and hosts whose rate is kept. Our choice."""

Opened = Callable[[int, Address, float, Output], None]
"""Called with a node that can be reached now, and the address."""


BOUNDS = (
    Bound(
        name="punches",
        what="hole punches under way",
        by=By.PEER,
        per_node=MAX_PUNCHES,
        full="the introduction is refused",
        counter=Reason.REFUSE_PUNCH_FULL,
    ),
    Bound(
        name="punch_coordinators",
        what="coordinators with a rate of introductions",
        by=By.MEMBER,
        per_node=MAX_RATED,
        full="the one that was quiet longest goes",
        counter=forgotten("punch_coordinators"),
    ),
    Bound(
        name="punch_hosts",
        what="hosts with a rate of keep-alives",
        by=By.PEER,
        per_node=MAX_RATED,
        full="the one that was quiet longest goes",
        counter=forgotten("punch_hosts"),
    ),
)


def usable(address: Address, witness: Place) -> bool:
    """Return whether a host can have this address; loopback only if the peer that named it is on loopback too."""
    ip, seen = ip_address(address.host), numeric(witness)
    if not address.port or ip.is_unspecified or ip.is_multicast or (ip.version == 4 and ip.is_reserved):
        return False
    return not ip.is_loopback or (seen is not None and ip_address(seen.host).is_loopback)


class Punches:
    """The introductions that this node follows."""

    def __init__(self, context: Context) -> None:
        self.introduced: Callable[[int, float], None] = lambda _node_id, _until: None
        """Called when a requested introduction arrived, with the node and the time until which to wait."""
        self.opened: Opened = lambda _node_id, _address, _now, _out: None
        """Called when a keep-alive arrived, here or at the other node."""
        self._identity = context.identity
        self._peers = context.peers
        self._counters = context.counters
        self._wall = context.wall
        self._asked: dict[int, int] = {}
        """The coordinator that was asked, by the node to be reached."""
        self._punches: dict[int, _Punch] = {}
        self._coordinators: Rates[int] = Rates(
            COORDINATOR_RATE, COORDINATOR_BURST, MAX_RATED, self._counters.forgetting("punch_coordinators")
        )
        self._hosts: Rates[str] = Rates(HOST_RATE, HOST_BURST, MAX_RATED, self._counters.forgetting("punch_hosts"))

    def __len__(self) -> int:
        return len(self._punches)

    def expect(self, node_id: int, coordinator: int) -> None:
        """Accept introductions to a node from this coordinator only, until `forget` (mesh.md §8.3)."""
        self._asked[node_id] = coordinator

    def forget(self, node_id: int) -> None:
        """Undo `expect`."""
        self._asked.pop(node_id, None)

    def introduce(self, coordinator: Peer, message: PunchIntroduce, now: float) -> None:
        """Handle an introduction: follow it, or refuse and count it."""
        refusal = self._refusal(coordinator, message, now)
        if refusal is not None:
            self._counters.count(refusal)
            return
        # mesh.md §8.3: a time in the past means at once. One far ahead is not believed.
        lead_s = message.fire_at_ms / 1e3 - self._wall(now) / 1e9
        fire_at = now + min(max(lead_s, 0.0), MAX_LEAD_S)
        self._punches[message.peer] = _Punch(coordinator.node_id, message.peer_reflex, fire_at)
        self._counters.add("punch", "introduced")
        if message.peer in self._asked:
            self.introduced(message.peer, fire_at + WATCH_S)

    def acknowledge(self, coordinator: Peer, message: PunchAck, now: float, out: Output) -> None:
        """Handle a PunchAck: our keep-alive arrived at the node. Only the coordinator of its introduction counts."""
        punch = self._punches.get(message.from_peer)
        if punch is None or punch.coordinator != coordinator.node_id:
            self._counters.count(Reason.REFUSE_PUNCH_ACK_UNEXPECTED)
            return
        self._counters.add("punch", "acknowledged")
        self.opened(message.from_peer, punch.address, now, out)

    def receive(self, source: Place, datagram: Buffer, now: float, out: Output) -> None:
        """Handle a datagram that is a keep-alive."""
        keepalive, seen = unpack_keepalive(datagram), numeric(source)
        punch = self._punches.get(keepalive.node_id)
        # Anyone can send a keep-alive: only an introduced node at its introduced host counts.
        if punch is None or seen is None or seen.host != punch.address.host:
            self._counters.count(Reason.KEEPALIVE_UNEXPECTED)
            return
        if punch.heard:
            self._counters.count(Reason.IGNORE_KEEPALIVE_REPEATED)
            return
        punch.heard = True
        self._counters.add("punch", "heard")
        coordinator = self._peers.get(punch.coordinator)
        if coordinator is not None:
            ack = PunchAck(from_peer=self._identity.node_id, to_peer=keepalive.node_id)
            coordinator.send_message(Subprotocol.RENDEZVOUS, encode_rendezvous(ack), out)
        self.opened(keepalive.node_id, seen, now, out)

    def next_timer(self) -> float | None:
        """Return the earliest time to send a keep-alive or to end an introduction, or None."""
        return min((punch.due for punch in self._punches.values()), default=None)

    def tick(self, now: float, out: Output) -> None:
        """Send the keep-alives that are due, and end introductions that are over."""
        datagram = pack_keepalive(Keepalive(node_id=self._identity.node_id))
        for node_id, punch in list(self._punches.items()):
            for _ in range(punch.take_due(now)):
                out.send(punch.address, datagram)
            if now >= punch.fire_at + WATCH_S:
                del self._punches[node_id]

    def _refusal(self, coordinator: Peer, message: PunchIntroduce, now: float) -> Reason | None:
        """Return the reason to refuse an introduction, or None."""
        home, asked = coordinator.link.home, self._asked.get(message.peer)
        if message.peer in {0, self._identity.node_id, coordinator.node_id}:
            return Reason.REFUSE_PUNCH_TARGET
        if home is None:
            return Reason.REFUSE_PUNCH_NO_SESSION
        # mesh.md §8.3: if we asked for it, only the coordinator that we asked may introduce.
        if asked is not None and asked != coordinator.node_id:
            return Reason.REFUSE_PUNCH_OTHER_COORDINATOR
        if not usable(message.peer_reflex, home):
            return Reason.REFUSE_PUNCH_ADDRESS
        if not self._coordinators.take(coordinator.node_id, now):
            return Reason.REFUSE_PUNCH_RATE
        if not self._hosts.take(message.peer_reflex.host, now):
            return Reason.REFUSE_PUNCH_HOST_RATE
        full = len(self._punches) >= MAX_PUNCHES and message.peer not in self._punches
        return Reason.REFUSE_PUNCH_FULL if full else None


class _Punch:
    """One introduction that is being followed."""

    __slots__ = ("_left", "address", "coordinator", "fire_at", "heard")

    def __init__(self, coordinator: int, address: Address, fire_at: float) -> None:
        self.coordinator = coordinator
        self.address = address
        self.fire_at = fire_at
        self.heard = False
        self._left = [fire_at + offset for offset in OFFSETS_S]

    @property
    def due(self) -> float:
        return self._left[0] if self._left else self.fire_at + WATCH_S

    def take_due(self, now: float) -> int:
        """Remove the keep-alives that are due, and return how many to send: one, even if several are overdue."""
        passed = sum(time <= now for time in self._left)
        del self._left[:passed]
        return min(passed, 1)
