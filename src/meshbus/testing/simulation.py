"""Simulated fleet on virtual time: many engines, one seed, links that fail, and rules that must hold after every step.

    sim = Simulation(seed=7)
    sim.build(ring(12))
    sim.run(for_s=2 * sim.heartbeat_s)
    assert sim.talk([(0, 4)], within_s=1.0) == {(0, 4): ""}      # empty: they talked
    sim.crash(2)
    sim.run(for_s=sim.healing_s)
    assert sim.talk([(0, 3)], within_s=1.0) == {(0, 3): ""}      # around the ring in the other direction

Nodes are numbered. Nodes without a link reach each other only through other nodes. Links have latency, loss, duplication,
reordering and bandwidth; they can be cut and restored, nodes can crash and restart with or without their state. After
every step the rules are checked: those of this module and those of the caller. The same seed and the same calls give the
same transcript, byte for byte. If a rule is broken, the error has the seed and the last lines of the transcript.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from hashlib import blake2s
from typing import Any

from meshbus.engine.routes.pingwaves import MAX_HOPS
from meshbus.engine.routes.routing import MAX_ROUTES
from meshbus.engine.settings import HandshakeConfig, LivenessConfig
from meshbus.errors import MeshError, PeerError
from meshbus.names.identity import Identity
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath, Passage
from meshbus.testing.topology import Link, distances, size_of
from meshbus.wire.constants import HANDSHAKE_TTL, HEADER_BYTES, ROUTE_BYTES, Flags
from meshbus.wire.datagram import DatagramKind
from meshbus.wire.header import unpack_header
from meshbus.wire.pingwave import unpack_pingwave
from meshbus.wire.route import unpack_route

HEARTBEAT_S = 1.0
SESSION_TIMEOUT_S = 3.0
HEALING_BEATS = 3
"""Heartbeats after a session timeout until routes avoid a failed node."""
RETRY_S = 0.25
"""Pause between two attempts of `talk`."""
SHOWN_LINES = 40
"""Lines of the transcript that an error shows."""
KEPT_LINES = 100_000

_NOWHERE = FakePath(loss=1.0)

Rule = Callable[["Simulation"], str]
"""Checks a simulation after a step; returns what is wrong, or an empty string."""


class SimulationError(MeshError):
    """A rule was broken; the message has the seed to reproduce it and the last lines of the transcript."""

    code = "simulation"

    def __init__(self, seed: int, at: float, problem: str, lines: Iterable[str]) -> None:
        self.seed = seed
        self.at = at
        self.problem = problem
        shown = "\n".join(lines)
        super().__init__(f"seed {seed} at {at:.3f} s: {problem}; run it again with Simulation(seed={seed})\n{shown}")


class Simulation:
    """A fleet of engines with links, faults and rules."""

    def __init__(
        self,
        seed: int = 0,
        *,
        path: FakePath | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        radius: int = 4,
        rules: Iterable[Rule] = (),
        keep: int | None = KEPT_LINES,
        **settings: Any,
    ) -> None:
        """Create an empty fleet; `path` applies to links, `settings` are the fields of EngineSettings.

        `keep` is the number of transcript lines that are kept; None keeps all.
        """
        self.seed = seed
        self.path = path or FakePath()
        self.heartbeat_s = heartbeat_s
        self.healing_s = session_timeout_s + HEALING_BEATS * heartbeat_s
        """Time in which the fleet routes around a failure."""
        self._timeout_s = session_timeout_s
        self._tend_at = 0.0
        self.radius = radius
        self.links: set[Link] = set()
        self.down: set[int] = set()
        """Nodes that crashed and were not restarted."""
        liveness = LivenessConfig(heartbeat_s=heartbeat_s, session_timeout_s=session_timeout_s, radius=radius)
        handshake = HandshakeConfig(timeout_s=heartbeat_s)
        self._settings = {"liveness": liveness, "handshake": handshake, **settings}
        self._rules: list[Rule] = [_hops_are_limited, _memory_is_bounded, *rules]
        self._nodes: dict[int, FakeNode] = {}
        self._identities: dict[int, Identity] = {}
        self._lives: dict[int, int] = {}
        self._words = 0
        self._lines: deque[str] = deque(maxlen=keep)
        self._digest = blake2s()
        self._broken = ""
        self.net = FakeNet(seed, path=_NOWHERE)
        self.net.taps.append(self._watch)
        self.net.after_step.append(self._check)

    # ── the fleet ───────────────────────────────────────────────────────────────────────────

    def build(self, links: Iterable[Link]) -> None:
        """Create the nodes and links of a topology (testing/topology.py)."""
        wanted = sorted(links)
        for number in range(size_of(wanted)):
            self.add(number)
        for one, other in wanted:
            self.link(one, other)

    def add(self, number: int) -> FakeNode:
        """Create a node without links."""
        self._identities[number] = Identity.generate(self.net.entropy(f"identity {number}"))
        return self._boot(number)

    def node(self, number: int) -> FakeNode:
        """Return a node by its number."""
        return self._nodes[number]

    def link(self, one: int, other: int, path: FakePath | None = None) -> None:
        """Link two nodes, or change their link; they start a session if they have none."""
        self.links.add((min(one, other), max(one, other)))
        self.net.set_path(_name(one), _name(other), path or self.path)
        self._say(f"link {one} – {other}")
        self._tend_at = self.now  # connect at the start of the next run

    def unlink(self, one: int, other: int) -> None:
        """Cut a link."""
        self.links.discard((min(one, other), max(one, other)))
        self.net.set_path(_name(one), _name(other), _NOWHERE)
        self._say(f"unlink {one} – {other}")

    def crash(self, number: int) -> None:
        """Stop a node at once."""
        self.down.add(number)
        self.net.remove(_name(number))
        self._say(f"crash {number}")

    def restart(self, number: int, *, memory: bool) -> None:
        """Restart a crashed node with its state, or with its identity only and new sessions with its neighbors."""
        self.down.discard(number)
        self._say(f"restart {number} {'with' if memory else 'without'} its memory")
        if memory:
            self._nodes[number] = self.net.add(_name(number), self._nodes[number].engine)
            return
        self._boot(number)
        self._tend_at = self.now

    def partition(self, *sides: Iterable[int]) -> None:
        """Partition the fleet: nodes reach only their own side."""
        told = [sorted(side) for side in sides]
        self.net.partition(*([_name(number) for number in side] for side in told))
        self._say(f"partition {told}")

    def heal(self) -> None:
        """End a partition."""
        self.net.heal()
        self._say("heal")

    def within_radius(self, pairs: Iterable[Link] | None = None) -> list[Link]:
        """Return the pairs of running nodes that are near enough to learn of each other, of all nodes or of some."""
        near = []
        asked = None if pairs is None else set(pairs)
        living = [number for number in sorted(self._nodes) if number not in self.down]
        for one in living if asked is None else sorted({one for one, _ in asked} - self.down):
            hops = distances(self.links, one, without=frozenset(self.down))
            near += [
                (one, other)
                for other, count in sorted(hops.items())
                if 1 <= count <= self.radius and ((one, other) in asked if asked is not None else one < other)
            ]
        return near

    # ── time ────────────────────────────────────────────────────────────────────────────────

    @property
    def now(self) -> float:
        """The virtual clock."""
        return self.net.clock.now

    def run(self, *, for_s: float) -> None:
        """Advance time; linked nodes that lost their session reconnect, like configured peers."""
        end = self.now + for_s
        try:
            while self._tend_at <= end:
                self.net.run(until=max(self._tend_at, self.now))
                self._tend_at = self.now + self.heartbeat_s
                for one, other in sorted(self.links):
                    self._join(one, other)
            self.net.run(until=end)
        except SimulationError:
            raise
        except Exception as error:  # the first rule: an engine never raises
            raise self._error(f"{type(error).__name__}: {error}") from error

    def talk(self, pairs: Iterable[Link], within_s: float) -> dict[Link, str]:
        """Send a message between pairs of nodes by node id; return why each pair failed, or an empty string for success.

        The first node of a pair starts a session if there is none and sends a message, again until it arrives.
        """
        reasons = dict.fromkeys(pairs, "not heard in time")
        words = {pair: f"word {self._words + number}".encode() for number, pair in enumerate(reasons)}
        self._words += len(words)
        end = self.now + within_s
        open_pairs = set(reasons)
        while open_pairs:
            for pair in sorted(open_pairs):
                reasons[pair] = self._try_to_say(pair, words[pair]) or "not heard in time"
            self.run(for_s=min(RETRY_S, max(end - self.now, 0.0)))
            for pair in sorted(open_pairs):
                heard = self._nodes[pair[1]].events
                if any(words[pair] in batch.payloads() for batch in heard):
                    open_pairs.discard(pair)
                    reasons[pair] = ""
            if self.now >= end:
                break
        for node in self._nodes.values():
            node.forget()
        return reasons

    # ── the transcript ──────────────────────────────────────────────────────────────────────

    @property
    def transcript(self) -> str:
        """The kept lines of the transcript."""
        return "\n".join(self._lines)

    @property
    def digest(self) -> str:
        """Return a hash of the whole transcript, also of lines that are not kept, and of every byte that was sent."""
        digest = self._digest.copy()
        digest.update(self.net.digest.encode())
        return digest.hexdigest()

    def fail(self, problem: str) -> SimulationError:
        """Return an error about this run, for checks of the caller."""
        return self._error(problem)

    def _boot(self, number: int) -> FakeNode:
        """Create an engine; a restarted node keeps its identity and gets new entropy."""
        life = self._lives[number] = self._lives.get(number, 0) + 1
        node = self.net.create(
            _name(number),
            identity=self._identities[number],
            announces=False,
            # New entropy for each life: a node without its state must not repeat session ids and keys.
            entropy=self.net.entropy(f"{number} life {life}"),
            **self._settings,
        )
        self._nodes[number] = node
        return node

    def _join(self, one: int, other: int) -> None:
        """Start sessions between linked nodes if one of them has no live session."""
        if {one, other} & self.down:
            return
        for near, far in ((one, other), (other, one)):
            node, peer = self._nodes[near], self._nodes[far]
            if not self._hears(node, peer) and peer.node_id not in node.engine.handshakes.connecting:
                node.connect(peer)
                return  # one side starts; if both did, their handshakes would cross

    def _hears(self, node: FakeNode, other: FakeNode) -> bool:
        """Return whether a node has a session with another that was heard within the session timeout."""
        peer = node.engine.peers.get(other.node_id)
        return peer is not None and self.now - peer.heard_at <= self._timeout_s

    def _try_to_say(self, pair: Link, word: bytes) -> str:
        """Send a message, or start a session for it; return the reason if there is no route."""
        one, other = (self._nodes[number] for number in pair)
        with one.turn() as (engine, now, out):
            if engine.peers.get(other.node_id) is not None:
                engine.send(other.node_id, [word], now, out)
            if not self._hears(one, other) and other.node_id not in engine.handshakes.connecting:
                try:
                    engine.connect(other.node_id, None, other.engine.public_key, now, out)
                except PeerError as error:
                    return str(error)
        return ""

    def _watch(self, passage: Passage) -> None:
        """Add a datagram to the transcript, and check its number of hops."""
        self._say(f"{passage.source} → {passage.dest} {_describe(passage)}, {passage.outcome}")
        if passage.kind is DatagramKind.ROUTED:
            route = unpack_route(passage.datagram)
            if route.ttl + route.hop_count > HANDSHAKE_TTL:
                self._broken = f"a packet may make {route.ttl} hops after {route.hop_count}"

    def _say(self, what: str) -> None:
        line = f"{self.now:10.3f}  {what}"
        self._lines.append(line)
        self._digest.update(line.encode() + b"\n")  # also lines that are not kept

    def _check(self) -> None:
        for rule in self._rules:
            problem = rule(self)
            if problem:
                raise self._error(problem)

    def _error(self, problem: str) -> SimulationError:
        return SimulationError(self.seed, self.now, problem, list(self._lines)[-SHOWN_LINES:])


def _hops_are_limited(sim: Simulation) -> str:
    return sim._broken


def _memory_is_bounded(sim: Simulation) -> str:
    for number, node in sim._nodes.items():
        mesh = node.engine.mesh
        if len(mesh.table) > MAX_ROUTES or len(mesh.reroute) > MAX_ROUTES:
            return f"node {number} holds {len(mesh.table)} routes"
    return ""


def _name(number: int) -> str:
    return f"n{number}"


def _describe(passage: Passage) -> str:
    """Return a short description of a datagram."""
    datagram = passage.datagram
    match passage.kind:
        case DatagramKind.PINGWAVE:
            wave = unpack_pingwave(datagram)
            return f"pingwave of {wave.node_id:016x} #{wave.seq} ttl {wave.ttl} hops {wave.hop_count}/{MAX_HOPS}"
        case DatagramKind.ROUTED:
            route = unpack_route(datagram)
            inner = _describe_packet(datagram[ROUTE_BYTES:])
            return f"for {route.dest_id:016x} ttl {route.ttl} hops {route.hop_count}: {inner}"
        case DatagramKind.NET:
            return _describe_packet(datagram)
    return f"{passage.kind.name.lower()} of {len(datagram)} bytes"


def _describe_packet(packet: bytes) -> str:
    if len(packet) < HEADER_BYTES:
        return f"{len(packet)} bytes"
    try:
        header = unpack_header(packet)
    except MeshError as error:
        return str(error)
    if header.flags & Flags.HANDSHAKE:
        return "handshake"
    if header.flags & Flags.HEARTBEAT:
        return "heartbeat"
    return f"packet 0x{header.subprotocol_id:04x} stream {header.stream_id:x} #{header.sequence}, {len(packet)} bytes"
