"""Services: the parts of a node's protocol, their hooks, and the context that they share.

A subprotocol consists of a message file (wire/messages), a service file (a subclass of `Service`) and a row of the
table in engine/services.py. A service overrides the hooks that it needs; the others are never called for it. Hooks run
in the order of the table, so a service can rely on the ones above it having run first.

The hooks about the state of a peer:

    peer_up         a session was established: the first one, or one that replaces another
    agreed          the set of subprotocols to use with the peer changed; it may be empty
    claims_changed  a signed announcement changed what the peer claims about itself
    peer_down       the peer failed (its session may recover) or was removed
    recovered       a failed peer was heard again
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from itertools import chain
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.notices import DownReason, PeerFailed, PeerGone, SessionUp
from meshbus.engine.base.packets import Address, Output
from meshbus.engine.session.link import Link
from meshbus.engine.session.meshkeys import MeshKeys
from meshbus.engine.session.peer import Health, Peer, PeerTable
from meshbus.engine.session.unproved import UnprovedPeers
from meshbus.engine.session.work import DEFAULT_US, MessageWork
from meshbus.engine.settings import EngineSettings, SecureMode
from meshbus.names.identity import Entropy, Identity, OwnIdentity
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.policy.discovery import CapabilityIndex
from meshbus.policy.reason import Reason
from meshbus.policy.registry import SubprotocolRegistry
from meshbus.policy.revocations import Revocations
from meshbus.policy.tokens import TokenCache
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.capability import Announcement
from meshbus.wire.messages.revocation import Revocation
from meshbus.wire.subprotocol import SubprotocolDescriptor, SubprotocolVersion

ServiceType = TypeVar("ServiceType", bound="Service")
_ALWAYS: Sequence[Sized] = ((None,),)
"""Stands for what is never empty."""


class Service:
    """One part of a node's protocol. Hooks do nothing unless they are overridden."""

    unfinished: Sequence[Sized] | None = None
    """What `finish` completes: it is called if one of these is not empty, or if there are notices; None for every call."""

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Handle one message of the service's subprotocol."""

    def tick(self, now: float, out: Output) -> None:
        """Do what is due at this time."""

    def next_timer(self) -> float | None:
        """Return when `tick` is due, or None."""
        return None

    def finish(self, now: float, out: Output) -> None:
        """Complete a call into the engine, after its notices were handled and before its output is returned.

        See `unfinished` for when it is called; what it refers to must be in place when the services are sealed.
        """

    def received(self, now: float, out: Output) -> None:
        """Confirm what a batch of datagrams brought; the last step of `Engine.receive`."""

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        """Handle a new session with a peer."""

    def recovered(self, peer: Peer, now: float, out: Output) -> None:
        """Handle a failed peer that was heard again."""

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """Handle a peer that failed or was removed."""

    def agreed(self, peer: Peer, now: float, out: Output) -> None:
        """Handle a change of `peer.negotiated`."""

    def not_agreed(self, peer: Peer, now: float, out: Output) -> None:
        """Handle a packet of a profile subprotocol that was not negotiated with its sender."""

    def announced(self, peer: Peer, heard: Announcement, now: float) -> None:
        """Handle a verified announcement of any node, which this peer sent or forwarded."""

    def vouched(self, peer: Peer, now: float, out: Output) -> None:
        """Handle a peer's own announcement in this session; its claims are in effect from now on."""

    def claims_changed(self, peer: Peer, now: float, out: Output) -> None:
        """Handle a change of `peer.claims`."""

    def channels_configured(self, registry: ChannelConfigRegistry | None, now: float, out: Output) -> None:
        """Handle new channel configurations."""

    def tokens_changed(self, now: float, out: Output) -> None:
        """Check again everything that a token allowed."""

    def revoked(self, record: Revocation, now: float, out: Output) -> None:
        """Handle a revocation that has just come into effect; `tokens_changed` follows."""

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Handle a node that goes on under another key, and thus id; a peer among the peers has its new id already."""

    def became(self, old: int, now: float, out: Output) -> None:
        """Handle that this node itself goes on under another key; `old` is the id that it had."""

    def closing(self, now: float, out: Output) -> None:
        """Send what peers must know before this node closes."""

    def stream_failed(self, node_id: int, stream_id: int, now: float, out: Output) -> None:
        """Handle a reliable stream to a peer that ended early."""

    def unknown_stream(self, node_id: int, now: float) -> bool:
        """Return whether the channel of an unknown stream of this publisher is expected to become known soon."""
        return False


class Row(NamedTuple):
    """One row of the service table: a service, and the subprotocol that it handles, if any."""

    factory: Callable[[Context], Service]
    id: int | None = None
    name: str = ""
    """Name of the subprotocol, for descriptors and messages."""
    profile: bool = False
    """Whether the subprotocol belongs to the meshbus profile and must be negotiated; the others are 0.23 wire."""
    reliable: bool = False
    """Whether its messages are carried on reliable streams."""
    large: bool = False
    """Whether its messages on reliable streams may be larger than a packet, if the peer takes large events (0x4D0A)."""
    needs: int | None = None
    """Another subprotocol without which this one is not used."""
    credit: bool = True
    """Whether a 0.23 sender spends stream credit on its packets and expects grants for them (transport.md §14)."""
    optional: bool = False
    """Whether a node has it only if its settings say so (`EngineSettings.carries`); without it, the id is unknown."""
    version: int = 1
    """Major version that the manifest names; peers with another one do not use the subprotocol with this node."""
    unannounced: bool = False
    """Whether no tag of the announcement names it: peers find it in the manifest."""
    later: bool = False
    """Whether only net-mesh versions after 0.23 have it: handled, but neither announced nor negotiated, so that what a 0.23
    node hears of this one does not change."""
    cost_us: float = DEFAULT_US
    """About what handling one of its messages costs, in microseconds; engine/session/work.py limits the sum for a peer."""


class Established(msgspec.Struct, frozen=True):
    """The session of a finished handshake, to be put into the peer table."""

    node_id: int
    link: Link
    initiated: bool
    held: tuple[tuple[Address, bytes], ...] = ()
    """Packets that arrived before the session was established, with their sources, in order."""

    @property
    def proved(self) -> bool:
        """Whether the other side has shown that it has the keys of the session."""
        # transport.md §11: message 2 proves it to the initiator, the first packet that verifies to the responder.
        return self.initiated or bool(self.held)


class Context:
    """What all services of one node share: identity, settings, peers, counters, and the other services."""

    def __init__(
        self,
        identity: Identity,
        settings: EngineSettings,
        *,
        now: float,
        wall: Callable[[float], int],
        entropy: Entropy,
        static_private_key: bytes | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.identity = OwnIdentity(identity)
        self.static_private_key = identity.noise_private_key if static_private_key is None else static_private_key
        """The Noise static key of this node: the identity's own, unless another is given."""
        self.settings = settings
        self.started_at = now
        self.wall = wall
        """Converts a monotonic `now` to Unix nanoseconds."""
        self.entropy = entropy
        self.mesh_keys = MeshKeys(settings.psk, settings.previous_psk, wall)
        self.counters = Counters() if counters is None else counters
        self.peers = PeerTable(self.counters.forgetting("streams"))
        self._unproved = UnprovedPeers(self.peers)
        self.tokens = TokenCache((identity.entity_id, *settings.trusted_issuers), any_issuer=settings.any_issuer)
        self.revocations = Revocations(self.tokens, settings.revocations)
        self.index = CapabilityIndex()
        self.registry = SubprotocolRegistry()
        """The subprotocols that this node offers."""
        self.services = Services()
        self.work = MessageWork({}, self.counters)
        """What messages cost; complete when the services are built."""

    def build(self, table: Sequence[Row]) -> None:
        """Create the services of a table, in its order."""
        present = [row for row in table if not row.optional or row.id in self.settings.carries]
        # Factories may read the registry and the table, so both are complete before the first service is created.
        for row in present:
            if row.id is not None and self._offers(row):
                descriptor = SubprotocolDescriptor(id=row.id, name=row.name, version=SubprotocolVersion(row.version))
                self.registry.register(descriptor, announced=not row.unannounced)
        self.work = MessageWork({row.id: row.cost_us for row in present if row.id is not None}, self.counters)
        self.services.table = tuple(present)
        for row in present:
            self.services.add(row.id, row.factory(self))
        self.services.seal()

    def establish(self, established: list[Established], now: float, out: Output) -> None:
        """Put new sessions into the peer table, notify all services, and receive the packets that arrived early."""
        for new in established:
            # Whatever way it came: no session of a revoked node begins.
            if new.node_id in self.revocations.nodes:
                self.counters.count(Reason.REFUSE_REVOKED)
                continue
            known = self.peers.get(new.node_id) is not None
            if not (known or new.initiated or self.peers.has_room(new.link.address)):
                self.counters.count(Reason.REFUSE_PEERS_FULL)
                continue
            peer = self.peers.establish(new.node_id, new.link, now)
            peer.muted = new.node_id in self.revocations.publishers
            if not new.proved:
                # Nobody waits for its answers, and it is no way to anywhere, until it is heard.
                peer.health = Health.SUSPECTED
                self._evict(self._unproved.add(new.node_id, new.link), now, out)
            out.control.append(SessionUp(new.node_id, new.link.session_id, new.initiated))
            self.services.peer_up(peer, now, out)
            # After `peer_up`: the services must know the session before its packets arrive.
            for source, packet in new.held:
                self.services.receive_again(source, memoryview(bytearray(packet)), now, out)

    def _evict(self, node_id: int | None, now: float, out: Output) -> None:
        if node_id is not None:
            self.peers.remove(node_id)
            down = PeerGone(node_id, DownReason.EVICTED)
            self.counters.count(Reason.EVICT_UNPROVED_PEER)
            out.control.append(down)
            self.services.peer_down(down, now, out)

    def _offers(self, row: Row) -> bool:
        # Negotiation itself is no profile subprotocol, but without the profile there is nothing to negotiate.
        if row.later or (row.id == Subprotocol.SECURE and self.settings.secure.mode is SecureMode.OFF):
            return False
        return self.settings.profile or not (row.profile or row.id == Subprotocol.NEGOTIATION)


class Services:
    """The services of one node, in the order of the table. Each hook is called for the services that override it."""

    def __init__(self) -> None:
        self.table: tuple[Row, ...] = ()
        self.by_subprotocol: dict[int, Service] = {}
        self.receive_again: Callable[[Address, memoryview, float, Output], None] = _unset
        """Receives a packet that was held back; engine/core.py sets it."""
        self._all: list[Service] = []
        self._by_type: dict[type, Service] = {}
        self._hooks: Mapping[str, tuple[Callable[..., Any], ...]] = {}
        self.unfinished: tuple[Sized, ...] = ()
        """What the hooks `finish` would complete."""

    def __iter__(self) -> Iterator[Service]:
        return iter(self._all)

    def __getitem__(self, kind: type[ServiceType]) -> ServiceType:
        """Return the service of a class or of a subclass of it."""
        return cast("ServiceType", self._by_type[kind])

    def add(self, subprotocol_id: int | None, service: Service) -> None:
        """Append a service; a service that was added before only gets another subprotocol."""
        if service not in self._all:
            self._all.append(service)
            # Found by its base classes too (`__getitem__`), but the exact class has precedence.
            for kind in type(service).__mro__:
                self._by_type.setdefault(kind, service)
            self._by_type[type(service)] = service
        if subprotocol_id is not None:
            self.by_subprotocol[subprotocol_id] = service

    def seal(self) -> None:
        """Find out which services override which hook."""
        # Done once: a hook that no service overrides costs nothing afterwards.
        names = [name for name, value in vars(Service).items() if callable(value) and not name.startswith("_")]
        self._hooks = {
            name: tuple(getattr(s, name) for s in self._all if getattr(type(s), name) is not getattr(Service, name))
            for name in names
        }
        finishing = [s.unfinished for s in self._all if type(s).finish is not Service.finish]
        self.unfinished = tuple(chain.from_iterable(_ALWAYS if one is None else one for one in finishing))

    # ── one method per hook ─────────────────────────────────────────────────────────────────

    def tick(self, now: float, out: Output) -> None:
        """Call `tick` of every service."""
        for hook in self._hooks["tick"]:
            hook(now, out)

    def next_timer(self) -> float | None:
        """Return the earliest timer of all services, or None."""
        times = [hook() for hook in self._hooks["next_timer"]]
        return min((time for time in times if time is not None), default=None)

    def finish(self, now: float, out: Output) -> None:
        """Call `finish` of every service, if one has something to complete."""
        if any(self.unfinished) or out.control:
            for hook in self._hooks["finish"]:
                hook(now, out)

    def received(self, now: float, out: Output) -> None:
        """Call `received` of every service."""
        for hook in self._hooks["received"]:
            hook(now, out)

    def peer_up(self, peer: Peer, now: float, out: Output) -> None:
        """Notify every service of a new session."""
        for hook in self._hooks["peer_up"]:
            hook(peer, now, out)

    def recovered(self, peer: Peer, now: float, out: Output) -> None:
        """Notify every service of a failed peer that was heard again."""
        for hook in self._hooks["recovered"]:
            hook(peer, now, out)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """Notify every service of a peer that failed or was removed."""
        for hook in self._hooks["peer_down"]:
            hook(down, now, out)

    def agreed(self, peer: Peer, now: float, out: Output) -> None:
        """Notify every service of a changed negotiated set."""
        for hook in self._hooks["agreed"]:
            hook(peer, now, out)

    def not_agreed(self, peer: Peer, now: float, out: Output) -> None:
        """Notify every service of a peer that uses what was not negotiated."""
        for hook in self._hooks["not_agreed"]:
            hook(peer, now, out)

    def announced(self, peer: Peer, heard: Announcement, now: float) -> None:
        """Notify every service of a verified announcement."""
        for hook in self._hooks["announced"]:
            hook(peer, heard, now)

    def vouched(self, peer: Peer, now: float, out: Output) -> None:
        """Notify every service of a peer's own announcement in this session."""
        for hook in self._hooks["vouched"]:
            hook(peer, now, out)

    def claims_changed(self, peer: Peer, now: float, out: Output) -> None:
        """Notify every service of changed claims of a peer."""
        for hook in self._hooks["claims_changed"]:
            hook(peer, now, out)

    def channels_configured(self, registry: ChannelConfigRegistry | None, now: float, out: Output) -> None:
        """Notify every service of new channel configurations."""
        for hook in self._hooks["channels_configured"]:
            hook(registry, now, out)

    def tokens_changed(self, now: float, out: Output) -> None:
        """Call `tokens_changed` of every service, to check again what tokens allowed."""
        for hook in self._hooks["tokens_changed"]:
            hook(now, out)

    def revoked(self, record: Revocation, now: float, out: Output) -> None:
        """Notify every service of a revocation."""
        for hook in self._hooks["revoked"]:
            hook(record, now, out)

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Notify every service of a node that goes on under another id."""
        for hook in self._hooks["renamed"]:
            hook(old, new, now, out)

    def became(self, old: int, now: float, out: Output) -> None:
        """Notify every service that this node goes on under another id."""
        for hook in self._hooks["became"]:
            hook(old, now, out)

    def closing(self, now: float, out: Output) -> None:
        """Call `closing` of every service, to send what peers must know before this node closes."""
        for hook in self._hooks["closing"]:
            hook(now, out)

    def stream_failed(self, node_id: int, stream_id: int, now: float, out: Output) -> None:
        """Notify every service of a reliable stream that ended early."""
        for hook in self._hooks["stream_failed"]:
            hook(node_id, stream_id, now, out)

    def unknown_stream(self, node_id: int, now: float) -> bool:
        """Return whether any service expects the channel of an unknown stream to become known soon."""
        # No short circuit: every service may act on it, for example by asking the publisher again.
        expected = False
        for hook in self._hooks["unknown_stream"]:
            expected |= hook(node_id, now)
        return expected


def _unset(_source: Address, _packet: memoryview, _now: float, _out: Output) -> None:
    raise AssertionError("receive_again is not set; create an Engine (engine/core.py), which sets it")
