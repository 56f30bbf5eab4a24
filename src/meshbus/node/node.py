"""The public node: open it, connect, publish, subscribe, close.

The protocol is engine/core.py, sockets and timers are node/driving/driver.py; this file offers what they do as methods that can
be awaited. While a node is open it has one Live (node/driving/live.py), and the parts that do the work around it: connecting
(dialing.py, redial.py), subscribing (joining.py, historyreader.py), serving (answer.py, pageserver.py). A node belongs
to the event loop that it was opened on. The blocking twin is meshbus.sync.Node, with the same methods and docstrings.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from random import SystemRandom
from types import TracebackType
from typing import Self, Unpack

import msgspec

from meshbus.config.node import NodeConfig
from meshbus.config.policy import PolicyConfig
from meshbus.config.spelling import Endpoint
from meshbus.config.subscription import SubscriptionEntry
from meshbus.engine.base.batch import EventBatch
from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.notices import (
    Acked,
    Announced,
    Carried,
    Control,
    HistoryWanted,
    Matched,
    Negotiated,
    NodeRenamed,
    PeerGone,
    PeerPlain,
    PeerRecovered,
    PeerSecured,
    PolicyArrived,
    Requested,
    RevocationTaken,
    SessionUp,
    TokenIssued,
    TokenRenewed,
)
from meshbus.engine.base.packets import Output
from meshbus.engine.channels.publish import PublishConfig
from meshbus.engine.channels.roster import RosterView
from meshbus.engine.core import Engine
from meshbus.engine.session.negotiate import Profile
from meshbus.engine.settings import PolicySettings
from meshbus.errors import (
    ConfigError,
    LocalProtocolError,
    SlowConsumer,
    Timeout,
)
from meshbus.keyfile import load_succession
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.names.nodename import NAME_KEY
from meshbus.node.audit import this_user
from meshbus.node.channels.answer import Answers, Handler
from meshbus.node.channels.channelinfo import ChannelInfo, channels_known
from meshbus.node.channels.historyreader import HistoryReader
from meshbus.node.channels.joining import Joiner
from meshbus.node.channels.publisher import ChannelPublisher, PublishOptions, bytes_of
from meshbus.node.channels.standing import Standing
from meshbus.node.channels.subscribers import Subscribers, SubscriptionSpec
from meshbus.node.channels.subscription import MAX_BYTES, MAX_EVENTS, OVERRUN, Subscription, WhenFull
from meshbus.node.channels.tokenkeeper import TokenKeeper
from meshbus.node.daemons.branchfiles import BranchFiles
from meshbus.node.daemons.coordinating import Coordinating
from meshbus.node.daemons.daemonhosting import Around, DaemonHosting
from meshbus.node.daemons.daemons import Daemons, start_configured
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.live import Live
from meshbus.node.driving.setup import engine_settings, wall
from meshbus.node.driving.udp import UdpSocket
from meshbus.node.driving.waiter import Waiter
from meshbus.node.driving.warmup import keep_memory
from meshbus.node.invites.grants import Grants, NodeState
from meshbus.node.invites.invites import Invites, NewInvite
from meshbus.node.invites.inviting import InviteInfo, Inviting
from meshbus.node.invites.joinlistener import JoinListener
from meshbus.node.logs.census import Census, open_census
from meshbus.node.logs.logs import NO_LOGS, Logs, open_logs
from meshbus.node.logs.pageserver import PageServer
from meshbus.node.logs.recording import Recording, start_recording, stop_recording
from meshbus.node.options import NodeOptions
from meshbus.node.peers.dialing import Connecting, Dialer, Target
from meshbus.node.peers.info import GATEWAY_KEY, PeerInfo, info_of, name_in, node_named
from meshbus.node.peers.meshview import MeshView
from meshbus.node.peers.noticelog import Notice, NoticeLog, PolicyChanged
from meshbus.node.peers.pinfile import PinWriter, load_pins
from meshbus.node.peers.redial import DialInfo, Redialer
from meshbus.node.policies.keeper import PolicyKeeper, Via, first_policy, settings_of
from meshbus.node.policies.meshkey import MeshKeyKeeper
from meshbus.node.policies.revocationfile import load_revocations
from meshbus.node.policies.revocationkeeper import RevocationKeeper
from meshbus.node.policies.succession import REASON, IdentityKeeper
from meshbus.node.replicas import replicastaff, replicaverify
from meshbus.node.replicas.replicamember import ReplicaMember
from meshbus.node.replicas.replicas import Replicas
from meshbus.node.replicas.replicastatus import NO_MEMBER, ReplicaStatus
from meshbus.node.replicas.replicatedpublisher import ReplicatedPublisher
from meshbus.node.replicas.replicaverify import ReplicaRange
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.policy.capability import CapabilityFilter, CapabilitySet, member_of
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.policy.discovery import ScopeFilter
from meshbus.policy.invites import InviteSpec
from meshbus.policy.reason import Reason
from meshbus.policy.revocations import Revocations
from meshbus.policy.tokens import TokenCache
from meshbus.wire.certificate import Certificate
from meshbus.wire.constants import STREAM_WINDOW
from meshbus.wire.messages.address import numeric
from meshbus.wire.messages.redex import chain_of, channel_id
from meshbus.wire.messages.revocation import Revocation
from meshbus.wire.messages.token import PermissionToken

_logger = logging.getLogger("meshbus.node")

INBOX = "(inbox)"
"""The topic of an inbox; no channel can have this name."""
NOT_OPEN = "the node is not open; enter it with `async with` (`with` for meshbus.sync.Node) and use it inside the block"

GOODBYE_S = 0.25
"""How long closing waits for a negotiation that has just begun. Our choice: most take a few milliseconds, and a peer
without a goodbye waits for this node until it fails."""
MAX_NAMES = 65_536
"""Nodes whose names are remembered: as many as the directory keeps announcements of."""


BOUNDS = (
    Bound(
        name="node_names",
        what="names of nodes",
        by=By.PEER,
        per_node=MAX_NAMES,
        full="the oldest goes",
        counter=forgotten("node_names"),
    ),
)


class _Parts:
    """What a node consists of while it is open; all parts act through the same Live."""

    def __init__(
        self,
        live: Live,
        logs: Logs | None,
        subscribers: Subscribers,
        tokens: TokenKeeper,
        notice: Callable[[Notice], None],
        subscribe: Callable[[SubscriptionEntry], Subscription],
        pins: Path | None,
    ) -> None:
        self.live = live
        self.opened_at = Driver.now()
        self.logs = logs
        self.dialer = Dialer(live)
        self.redialer = Redialer(live, self.dialer, notice, SystemRandom().random)
        self.tokens = tokens
        self.joiner = Joiner(live, subscribers, tokens.chains)
        self.reader = HistoryReader(live, logs)
        self.pages = PageServer(live, logs)
        self.answers = Answers(live)
        self.standing = Standing(subscribe, self.joiner.ask_again)
        self.pins = PinWriter(pins, lambda: dict(live.engine.secure.pins))
        self.replicas: Replicas | None = None
        self.daemons: tuple[DaemonHosting, Daemons] | None = None
        self.coordinating: Coordinating | None = None
        self.connecting: Connecting | None = None
        self.recording: Recording | None = None
        self.census: Census | None = None
        self.policies: PolicyKeeper | None = None
        self.mesh_key: MeshKeyKeeper | None = None
        self.invites: Invites | None = None
        self.revocations: RevocationKeeper | None = None
        self.identity: IdentityKeeper | None = None


class Node:
    """One node of the mesh."""

    def __init__(self, config: NodeConfig, identity: Identity | None = None) -> None:
        """Prepare a node; it starts with `async with`, or with `start`."""
        self.config = config
        self.identity = config.load_identity() if identity is None else identity
        # The file beside an identity that is not used is not this node's.
        self._pins_path = config.pins_path() if identity is None else config.pins
        self._revocations_path = config.revocations_path() if identity is None else config.revocations
        self._mesh_key = config.load_mesh_key()
        self._policy_file = first_policy(config)
        self._issuer = config.load_issuer()
        self._identity_path = config.identity_path() if identity is None else None
        self._succeeds = None if self._identity_path is None else load_succession(self._identity_path)
        """The record by which the identity of this node succeeded another one."""
        self._certificate = self._load_certificate()
        self._tokens = list(config.load_tokens())
        self._subscribers = Subscribers()
        self._notices = NoticeLog()
        self._announced = CapabilitySet(), False
        """What the application announced last, and whether this node was a gateway then."""
        self._names: BoundedMap[int, str] = BoundedMap(MAX_NAMES, self._forget_name)
        self._received_events = self._received_bytes = 0
        self._parts: _Parts | None = None
        self._closing = asyncio.Lock()

    def _load_certificate(self) -> Certificate | None:
        if self.config.certificate is None:
            return None
        held = Revocations(TokenCache(), self._known_revocations())
        return self.config.load_certificate(self.identity.entity_id, held.earlier_of(self.identity.entity_id))

    def _known_revocations(self) -> tuple[Revocation, ...]:
        """Return the records that this node starts with; blocks."""
        place, own = self._revocations_path, self._succeeds
        kept = () if place is None else load_revocations(place)
        # The identity file alone says which key this node has: a crash may have kept the record out of the other one.
        return kept if own is None or any(one.id == own.id for one in kept) else (*kept, own)

    def _forget_name(self) -> None:
        self.live.engine.counters.forgetting("node_names")()

    @classmethod
    def open(cls, config: NodeConfig | Path | str | None = None, **options: Unpack[NodeOptions]) -> Self:
        """Prepare a node from a NodeConfig, from a TOML file, or from options alone; it starts with `async with`.

        Raises ConfigError for the first setting that is not valid.
        """
        if isinstance(config, NodeConfig):
            if options:
                raise LocalProtocolError("give either a NodeConfig or single settings, not both")
            return cls(config)
        return cls(NodeConfig.load(config, **options))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ── opening and closing ─────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Open the logs, bind the socket, announce what this node can do, and start to dial the configured peers."""
        if self._parts is not None:
            return
        keep_memory()
        counters = Counters()
        logs = await open_logs(self.config, self.identity, counters)
        book = await open_census(self.config, self.identity.node_id, counters)
        try:
            live = await self._make_live(counters)
        except BaseException:
            for opened in (logs, book):
                if opened is not None:
                    await asyncio.to_thread(opened.close)
            raise
        tokens = TokenKeeper(live, self.config, self._tokens, self._notice)
        self._parts = _Parts(
            live, logs, self._subscribers, tokens, self._notice, self._subscribe_entry, self._pins_path
        )
        self._parts.policies = PolicyKeeper(live, self.config, self._policy_file, self._notice)
        self._parts.mesh_key = MeshKeyKeeper(live, self.config, self._mesh_key, self._notice)
        self._parts.revocations = RevocationKeeper(live, self.config, self._revocations_path)
        identity = IdentityKeeper(live, self.config, self._identity_path, self._issuer, self._notice)
        identity.bonds = self._bonds
        if self._succeeds is not None:
            self._parts.revocations.keep()  # a crash may have kept it out of the file
        self._parts.identity = identity
        self._parts.census = None if book is None else Census(live.engine, self.config, book)
        if any(entry.replicas for entry in self.config.channels):
            self._parts.replicas = Replicas(live, self.config, logs, self._names)
            self._parts.reader.members = self._parts.replicas.members_of
            if logs is not None:
                logs.marks.members = self._parts.replicas.members_of
        try:
            if self.config.daemons_dir is not None:
                await self._open_daemons(self._parts)
            self._begin(self._parts)
            await self._parts.policies.start()
            if self._issuer is not None:
                self._parts.invites = self._make_invites(live, self._issuer)
                await self._parts.invites.start()
        except BaseException:
            await self.close()  # a configuration that cannot be used must not keep the port
            raise

    async def _make_live(self, counters: Counters) -> Live:
        bind, buffer = self.config.bind, self.config.receive_buffer_bytes
        pins = {} if self._pins_path is None else await asyncio.to_thread(load_pins, self._pins_path)
        revocations = await asyncio.to_thread(self._known_revocations)
        listen = partial(UdpSocket.bind, bind.host, bind.port, receive_buffer=buffer, counters=counters)
        # Looking up a name may take long, and other nodes may be on this loop.
        socket = listen() if numeric((bind.host, bind.port)) else await asyncio.to_thread(listen)
        settings = engine_settings(
            self.config, self._mesh_key, socket.receive_buffer, socket.address, pins, self._first_policy()
        )
        engine = Engine(
            self.identity,
            msgspec.structs.replace(settings, revocations=revocations),
            now=Driver.now(),
            wall=wall,
            entropy=os.urandom,
            counters=counters,
        )
        live = Live(engine, Driver(engine, socket, self._on_output, self.config.poll_us / 1e6))
        if self.config.web is not None or self.config.otel is not None:
            live.measure()
        return live

    def _first_policy(self) -> PolicySettings:
        policy = self.config.own_policy(self.node_id) if self._policy_file is None else self._policy_file.policy
        return settings_of(policy, self.node_id, self.config.name)

    def _begin(self, parts: _Parts) -> None:
        parts.tokens.use_all()
        registry = self._first_policy().channels
        if registry is not None:
            self.set_channel_configs(registry)
        revocations = parts.live.engine.revocations
        heir = revocations.heir_of(self.public_key)
        if heir is not None:
            _logger.error(
                "the key of this node was succeeded by %s, so that peers refuse it; use the identity file with that key",
                heir.hex(),
            )
        for node_id in self.config.accept:
            parts.live.engine.handshakes.accept(revocations.heir_id(node_id), once=False)
        parts.recording = start_recording(parts.live.engine, self.config, self._mesh_key.root)
        self.announce(self.config.capabilities())
        for entry in self.config.peers:
            target = self._target(
                str(entry.address), entry.public_key, entry.node_id, routed=entry.routed, profile=entry.profile
            )
            if target.node_id != self.node_id:  # all nodes of a fleet may have the same list of peers
                parts.redialer.keep(target)
        parts.standing.start(self.config.subscriptions)
        if parts.replicas is not None:
            parts.replicas.start()
        if parts.daemons is not None:
            start_configured(*parts.daemons)

    def _make_invites(self, live: Live, issuer: Identity) -> Invites:
        counters = live.engine.counters
        listens = Endpoint(*live.driver.socket.address[:2])
        state = NodeState(
            psk=lambda: live.engine.mesh_keys.current,
            trusted_issuers=lambda: self.policy.trusted_issuers,
            address=lambda: listens,
            revoked=lambda node_id: node_id in live.engine.revocations.nodes,
            psk_root=self._mesh_key.root,
        )
        inviting = Inviting(
            self.config, live.engine.identity, Grants(self.config, issuer, state), counters, self._notice
        )
        bind = self.config.join_bind or listens
        return Invites(inviting, JoinListener(bind, inviting, counters))

    async def _open_daemons(self, parts: _Parts) -> None:
        around = Around(
            live=parts.live,
            config=self.config,
            logs=parts.logs,
            publisher=self.publisher,
            subscribe=lambda channel, publisher, since: self.subscribe(channel, publisher=publisher, since=since),
            is_replicated=lambda channel: parts.replicas is not None and parts.replicas.get(channel) is not None,
            holds=lambda channel: (
                parts.replicas is not None and (one := parts.replicas.get(channel)) is not None and one.disk is not None
            ),
            noise_key_of=parts.dialer.noise_keys.get,
            record=(lambda *_: None) if parts.census is None else parts.census.daemon_moves,
        )
        hosting = DaemonHosting(around)
        parts.connecting = Connecting(parts.live, parts.dialer)
        parts.daemons = hosting, Daemons(hosting, self._mesh_key.root, self._find_node, parts.connecting.connect)
        await hosting.open(parts.connecting.begin)
        folder = self.config.daemons_dir
        assert folder is not None
        parts.coordinating = Coordinating(
            parts.live,
            parts.daemons[1].origin_of,
            self.publisher,
            hosting.host,
            hosting.halt_one,
            parts.connecting.connect,
            BranchFiles(folder),
        )
        hosting.emitted = parts.coordinating.emitted

    async def close(self) -> None:
        """Close the subscriptions and stop the node; closing twice is fine.

        Calls that still wait for something, such as a publish without credit, raise LocalProtocolError.
        """
        async with self._closing:  # a second call waits for the first
            if self._parts is not None:
                await self._close(self._parts)

    async def _close(self, parts: _Parts) -> None:
        if parts.daemons is not None:
            await parts.daemons[0].close()
        if parts.coordinating is not None:
            await parts.coordinating.close()
        if parts.connecting is not None:
            parts.connecting.close()
        if parts.invites is not None:
            await parts.invites.close()
        if parts.policies is not None:
            await parts.policies.close()
        if parts.mesh_key is not None:
            await parts.mesh_key.close()
        if parts.identity is not None:
            await parts.identity.close()
        await parts.tokens.close()
        parts.standing.cancel()
        parts.redialer.cancel()
        for subscription in (*self._subscribers.subscriptions(), *parts.reader.subscriptions()):
            await subscription.close()
        parts.pages.cancel()
        if parts.replicas is not None:
            await parts.replicas.close()
        if parts.logs is not None:
            await parts.logs.drain()  # what waits for a sync is still sent
        await parts.live.settled(GOODBYE_S)  # only a peer that speaks the profile can be sent a goodbye
        if parts.census is not None:
            await parts.census.close()
        parts.live.act(lambda engine, now, out: engine.close(now, out))
        self._parts = None
        parts.live.close()
        await parts.pins.close()
        if parts.revocations is not None:
            await parts.revocations.close()
        parts.answers.cancel()
        await stop_recording(parts.recording)
        self._notices.close()
        if parts.logs is not None:
            await asyncio.to_thread(parts.logs.close)

    # ── identity and state ──────────────────────────────────────────────────────────────────

    @property
    def node_id(self) -> int:
        """The id of this node."""
        return self.identity.node_id

    @property
    def public_key(self) -> bytes:
        """The key that another meshbus node needs to connect to this one."""
        return self.identity.entity_id

    @property
    def noise_public_key(self) -> bytes:
        """The key that a net-mesh 0.23 node needs to connect to this one, in addition to the node id."""
        return self.live.engine.public_key

    @property
    def address(self) -> str:
        """The address on which this node listens, as `host:port`."""
        host, port = self.live.driver.socket.address[:2]
        return str(Endpoint(host, port))

    @property
    def peers(self) -> list[PeerInfo]:
        """The nodes that this node has a session with."""
        return [info_of(peer) for peer in self.live.engine.peers]

    @property
    def dialing(self) -> list[DialInfo]:
        """The configured peers, which this node dials for as long as it takes, and how that goes."""
        return self._opened.redialer.infos()

    @property
    def uptime_s(self) -> float:
        """How long this node has been open."""
        return Driver.now() - self._opened.opened_at

    def name_of(self, node_id: int) -> str | None:
        """Return the name that a node announced last, or None; it is remembered when the node is gone."""
        return self.config.name if node_id == self.node_id else self._names.get(node_id)

    @property
    def mesh(self) -> MeshView:
        """The routes to other nodes, and the packets that this node forwarded."""
        return MeshView(self.live.engine)

    @property
    def roster(self) -> RosterView:
        """The subscribers of this node's channels."""
        return RosterView(self.live.engine.admission.roster)

    def channels(self) -> list[ChannelInfo]:
        """Return the channels that this node publishes, receives or heard of: subscribers, publishers and traffic."""
        topics = {subscription.topic for subscription in self._subscribers.subscriptions()} - {INBOX}
        return channels_known(self.live.engine, Driver.now(), topics, self.live.received)

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """The counts of everything that was sent, received, dropped, refused, retried or failed, by kind and reason.

        `sent` and `received` count events and their bytes, once for each receiver.
        """
        parts, publications = self._opened, self.live.engine.publications
        counts = parts.live.engine.counters.snapshot()
        counts["received"] = {"bytes": self._received_bytes, "events": self._received_events}
        if parts.daemons is not None:
            for kind, reasons in parts.daemons[0].counters.snapshot().items():
                of_kind = counts.setdefault(kind, {})
                for why, count in reasons.items():
                    of_kind[why] = of_kind.get(why, 0) + count
        counts["sent"] = {"bytes": publications.sent_bytes, "events": publications.sent_events}
        return counts if parts.recording is None else {**counts, "record": parts.recording.counters()}

    @property
    def logs(self) -> Logs:
        """The logs of the events that this node published and received. Raises ConfigError if it keeps none."""
        logs = self._opened.logs
        if logs is None:
            raise ConfigError("log_dir", NO_LOGS)
        return logs

    @property
    def daemons(self) -> Daemons:
        """The daemons that this node runs, offers and moves. Raises ConfigError if it can run none."""
        daemons = self._opened.daemons
        if daemons is None:
            raise ConfigError("daemons_dir", "is not set, so this node runs no daemons; set it to a directory")
        return daemons[1]

    @property
    def coordination(self) -> Coordinating:
        """The histories and groups of daemons that this node keeps with others. Raises ConfigError if it can run none."""
        coordinating = self._opened.coordinating
        if coordinating is None:
            raise ConfigError("daemons_dir", "is not set, so this node runs no daemons; set it to a directory")
        return coordinating

    def replicas(self) -> list[ReplicaStatus]:
        """Return the state of every channel that is configured as replicated: role, leader, members, lag."""
        parts = self._opened
        return [] if parts.replicas is None else parts.replicas.status()

    async def replica_add(self, channel: str, node: int | str, *, timeout_s: float = 10.0) -> None:
        """Make a node, by id or name, a member of a replicated channel that this node leads.

        The node must be running and configured for the channel. Raises ReplicationError if it does not become one.
        """
        await replicastaff.add(self._replica(channel), self.find_node(node), timeout_s)

    async def replica_remove(self, channel: str, node: int | str, *, timeout_s: float = 10.0) -> None:
        """Remove a member of a replicated channel that this node leads; its log stays where it is.

        Raises ReplicationError if that is refused.
        """
        await replicastaff.remove(self._replica(channel), self.find_node(node), timeout_s)

    async def replica_transfer(self, channel: str, node: int | str, *, timeout_s: float = 10.0) -> None:
        """Ask another member to lead a replicated channel that this node leads; appends wait meanwhile.

        Raises ReplicationError if it does not lead in time.
        """
        await replicastaff.transfer(self._replica(channel), self.find_node(node), timeout_s)

    async def replica_verify(
        self, channel: str, *, repair: bool = False, timeout_s: float = 60.0
    ) -> list[ReplicaRange]:
        """Compare the log of a replicated channel with those of the other members, by checksums of ranges.

        With `repair`, a log of this node that differs from what a majority has is moved aside and copied again. Members
        that do not send their log within the time are shown as unread. Raises ReplicationError if this node is no member.
        """
        member = self._replica(channel)
        log, committed = member.disk.log, member.core.committed
        ranges = replicaverify.ranges_of(log.first_retained, committed)

        def history(node_id: int, since: int) -> Subscription:
            return self.subscribe(channel, publisher=node_id, since=since)

        found: dict[int, replicaverify.Checksums] = {}
        for node_id in member.nodes():
            if node_id == self.node_id:
                found[node_id] = await asyncio.to_thread(replicaverify.read_own, log, ranges)
            elif ranges:
                found[node_id] = await replicaverify.read_other(history, node_id, ranges, timeout_s)
        checked = list(replicaverify.judge(ranges, found))
        if repair and any(self.node_id in one.wrong and one.equal for one in checked):
            assert self._opened.replicas is not None, "it has a member"
            await self._opened.replicas.copy_again(channel)
        return checked

    def find_nodes(
        self, capability_filter: CapabilityFilter | None = None, *, scope: ScopeFilter | None = None
    ) -> list[int]:
        """Return the nodes that announced capabilities that match the filter, this node included."""
        directory = self.live.engine.directory
        return directory.find_nodes(capability_filter or CapabilityFilter(), Driver.now(), scope=scope)

    def notices(self) -> AsyncIterator[Notice]:
        """Iterate over what happens to this node: sessions, failures, subscriptions, slow consumers."""
        return self._notices.follow()

    def watch(self, listener: Callable[[Notice], None]) -> Callable[[], None]:
        """Call a listener with every notice, in addition to `notices`; return a function that stops it."""
        return self._notices.watch(listener)

    # ── peers ───────────────────────────────────────────────────────────────────────────────

    async def connect(
        self,
        address: str | None = None,
        *,
        public_key: bytes | str,
        node_id: int | None = None,
        routed: bool = True,
        profile: Profile | str = Profile.AUTO,
    ) -> PeerInfo:
        """Connect to a node, and wait until the session is up.

        A meshbus node needs only its public key. For a net-mesh 0.23 node give its node id too; `public_key` is then
        its Noise key. `routed=False` reaches a 0.23 node that waits in `accept`. Without an address the node is reached
        through the mesh, which has `handshake_timeout_s` to find a route. If the call is cancelled, the attempt ends,
        unless another call waits for the same node. Raises HandshakeError if no session is established, PeerError if
        there is no route.
        """
        parts, target = self._opened, self._target(address, public_key, node_id, routed=routed, profile=profile)
        async with parts.redialer.yielding(target.node_id, target):
            return await parts.dialer.dial(target)

    async def connect_direct(
        self, node_id: int, *, public_key: bytes | str | None = None, coordinator: int | None = None
    ) -> PeerInfo:
        """Connect to a node through the NATs on both sides, or through a relay if nothing else works.

        A peer of both nodes introduces them: `coordinator`, or one that is found. The key of a meshbus node is taken
        from its announcement; the Noise key of a net-mesh 0.23 node must be given. If the call is cancelled, the attempt
        ends, unless another call waits for the same node. Raises PeerError if nothing can be tried, HandshakeError if
        nothing worked.
        """
        parts = self._opened
        async with parts.redialer.yielding(node_id):
            return await parts.dialer.connect_direct(node_id, public_key, coordinator)

    async def ping(self, node: int | str, *, timeout_s: float = 5.0) -> float:
        """Send a message to a peer, by id or name, and return how many seconds its answer took.

        Every peer answers, also a net-mesh 0.23 node. Raises PeerError for a node without a session, and Timeout without
        an answer.
        """
        live, node_id = self.live, self.find_node(node)
        peer, answer, began = await live.peer(node_id), live.waiting.promise(), Driver.now()
        took = 0.0

        def answered() -> None:
            nonlocal took
            took = Driver.now() - began
            if not answer.done():
                answer.set_result(None)

        stop = live.act(lambda engine, _now, out: engine.traversal.reflex.ping(peer, answered, out))
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                await answer
        except TimeoutError:
            if not limit.expired():
                raise
            raise Timeout(f"ping of {node_id:016x}", timeout_s) from None
        finally:
            stop()
        return took

    def find_node(self, node: int | str) -> int:
        """Return the id of a node that is given by its id or name. Raises LocalProtocolError for an unknown name."""
        if isinstance(node, int):
            return node
        found = self._find_node(node)
        if found is None:
            raise LocalProtocolError(f"no node, or more than one, announced the name {node!r}; give its id instead")
        return found

    def accept(self, node_id: int) -> None:
        """Allow a node to start a direct handshake with this one, as 0.23 nodes do when they `connect`."""
        self.live.engine.handshakes.accept(node_id)

    def disconnect(self, node_id: int) -> None:
        """Remove a peer, and do not dial it again before the next `connect`.

        A meshbus peer is told; a net-mesh 0.23 peer fails the session when nothing more arrives.
        """
        self._opened.redialer.stop(node_id)
        self.live.act(lambda engine, now, out: engine.disconnect(node_id, now, out))

    def send(self, node_id: int, *events: bytes) -> None:
        """Send events to the inbox of one peer, directly or through relays; whether they arrive is not reported.

        Events wait for credit for up to 5 seconds if the inbox of the peer is full and blocks. Raises Backpressure if
        too many wait, and PeerError if there is no session with the node. A session that the other node began exists from its
        first packet on.
        """
        payloads = [bytes_of(event) for event in events]
        self.live.act(lambda engine, now, out: engine.send(node_id, payloads, now, out))

    def announce(self, capabilities: CapabilitySet) -> None:
        """Announce what this node can do, to its peers and to those that connect later; the configured name is added.

        A gateway adds that it is one.
        """
        self._announced = capabilities, self.mesh.is_gateway
        if self.config.name is not None:
            capabilities = capabilities.with_metadata(NAME_KEY, self.config.name)
        if self.mesh.is_gateway:
            capabilities = capabilities.with_metadata(GATEWAY_KEY, "true")
        if self._opened.replicas is not None:
            capabilities = capabilities.with_tags(self._opened.replicas.tags())
        self.live.act(lambda engine, now, out: engine.announce(capabilities, now, out))

    def announce_chain(self, chain: int | str, *, tip: int | None = None) -> None:
        """Announce that this node holds a chain, up to the sequence number `tip` if it is given.

        A chain is an origin hash, or the name of a replicated channel; replicas announce theirs by themselves.
        """
        self.live.act(lambda engine, now, _out: engine.chains.announce_chain(_origin_hash(chain), tip, now))

    def withdraw_chain(self, chain: int | str) -> None:
        """Announce that this node no longer holds a chain."""
        self.live.act(lambda engine, now, _out: engine.chains.withdraw_chain(_origin_hash(chain), now))

    def find_chain_holders(self, chain: int | str) -> list[int]:
        """Return the nodes that hold a chain: this node, then the nearest first, then those of unknown distance."""
        return self.live.engine.chains.find_chain_holders(_origin_hash(chain), Driver.now())

    # ── channels ────────────────────────────────────────────────────────────────────────────

    def set_channel_configs(self, registry: ChannelConfigRegistry | None) -> None:
        """Set the policies of this node's channels; current subscribers are checked again at once."""
        self.live.act(lambda engine, now, out: engine.set_channel_configs(registry, now, out))

    def add_token(self, token: PermissionToken | Iterable[PermissionToken]) -> None:
        """Add a token or a chain of tokens: presented to publishers that require one, and used for our own publishing."""
        chain = (token,) if isinstance(token, PermissionToken) else tuple(token)
        self._opened.tokens.use(chain)
        self._tokens.append(chain)

    @property
    def pins(self) -> dict[int, bytes]:
        """The nodes that were seen secure, with their public keys; nothing less is accepted from them."""
        return dict(self.live.engine.secure.pins)

    def reset_pins(self, node: int | str | None = None) -> int:
        """Remove the pin of a node, given by its id or name, or all pins; return how many there were.

        Raises ConfigError if the node is not pinned.
        """
        secure = self.live.engine.secure
        meant = self._find_node(node) if isinstance(node, str) else node
        if node is not None and (meant is None or meant not in secure.pins):
            shown = f"{node:016x}" if isinstance(node, int) else repr(node)
            raise ConfigError("node", f"{shown} is not pinned; `meshbus pins ls` lists the nodes that are")
        removed = sum(secure.forget(pinned) for pinned, _ in secure.pins if meant in {None, pinned})
        self._opened.pins.changed()
        return removed

    def revoke_tokens(self, issuer: bytes, generation: int) -> None:
        """Reject an issuer's tokens of lower generations; subscriptions that depend on one end at once."""
        self.live.engine.tokens.revoke_below(issuer, generation)
        self.live.act(lambda engine, now, out: engine.recheck(now, out))

    def publisher(
        self, channel: str, config: PublishConfig | None = None, **options: Unpack[PublishOptions]
    ) -> ChannelPublisher:
        """Return a publisher for a channel; the options are the fields of PublishConfig.

        The channel counts as published by this node until the publisher or the node is closed.
        """
        if config is not None and options:
            raise LocalProtocolError("give either a PublishConfig or single options, not both")
        parts, name = self._opened, ChannelName(channel)
        chosen = msgspec.convert(options, PublishConfig) if config is None else config
        replicated = None if parts.replicas is None else parts.replicas.get(name)
        if replicated is not None:
            return ReplicatedPublisher(name, chosen, lambda: self.live, replicated)
        log = None if parts.logs is None else parts.logs.of_published(name)
        parts.live.act(lambda engine, now, out: engine.open_channel(name, now, out))
        return ChannelPublisher(name, chosen, self._running, log, on_close=lambda: self._close_channel(name))

    async def subscribe_channel(
        self, publisher: int, channel: str, *, token: bytes = b"", queue_group: str = ""
    ) -> None:
        """Subscribe to one channel of one peer with a single message, and wait for the answer.

        Events arrive at the subscriptions that match the channel. Raises ChannelError with the publisher's reason,
        PeerError for a node without a session, Timeout without an answer.
        """
        await self._opened.joiner.subscribe(publisher, ChannelName(channel), token, queue_group)

    async def unsubscribe_channel(self, publisher: int, channel: str) -> None:
        """End a subscription to one channel of one peer."""
        await self._opened.joiner.unsubscribe(publisher, ChannelName(channel))

    def subscribe(
        self,
        topic: str,
        *,
        publisher: int | None = None,
        queue_group: str = "",
        token: bytes | None = None,
        since: int | str | None = None,
        when_full: WhenFull | str = WhenFull.BLOCK,
        max_events: int = MAX_EVENTS,
        max_bytes: int = MAX_BYTES,
    ) -> Subscription:
        """Prepare a subscription to a channel, or to all channels under a prefix such as `sensors/`.

        It starts with `async with`, and is live when that line returns. Without a publisher every peer is asked, and
        those that connect later too; entering raises ChannelError if there are peers and all of them refuse. Prefixes
        reach meshbus nodes once the profile is agreed on; a plain 0.23 node supports single channels only. `token`
        defaults to the tokens of `add_token` and of the configuration.

        With `since` the events come from the publisher's log, starting at that publish number or at the `"first"` that
        is left, and continue with new ones: each once and in order. This needs one channel of one meshbus publisher that
        logs it; entering raises LogError with the first available number if the start is gone. A replicated channel needs
        no publisher: it is read at the nearest member, and continues at another if that one fails.
        """
        spec = SubscriptionSpec(topic, publisher, queue_group, token)

        def now() -> SubscriptionSpec:
            if spec.publisher is None:
                return spec
            return msgspec.structs.replace(spec, publisher=self.live.engine.revocations.heir_id(spec.publisher))

        def source() -> Joiner | HistoryReader:
            return self._opened.joiner if since is None else self._opened.reader

        async def start(subscription: Subscription) -> None:
            parts = self._opened
            if since is None:
                await parts.joiner.start(subscription, now())
            else:
                await parts.reader.start(subscription, now(), since, parts.joiner.tokens_for(spec))

        async def stop(subscription: Subscription) -> None:
            if self._parts is not None:  # closing the node ended what had been started
                await source().stop(subscription)

        return Subscription(
            topic,
            start=start,
            stop=stop,
            hold=lambda subscription, batch: source().hold(subscription, batch),
            notice=self._notice,
            wake=self._wake,
            when_full=member_of(WhenFull, "when_full", when_full),
            max_events=max_events,
            max_bytes=max_bytes,
        )

    def inbox(
        self,
        *,
        when_full: WhenFull | str = WhenFull.DROP_OLDEST,
        max_events: int = MAX_EVENTS,
        max_bytes: int = MAX_BYTES,
    ) -> Subscription:
        """Prepare a subscription to events that were sent to this node without a channel, as 0.23 nodes can."""

        async def start(subscription: Subscription) -> None:
            self._subscribers.add_inbox(subscription)

        async def stop(subscription: Subscription) -> None:
            self._subscribers.remove(subscription)

        def hold(subscription: Subscription, batch: EventBatch | None) -> None:
            self._opened.joiner.hold(subscription, batch)

        return Subscription(
            INBOX,
            start=start,
            stop=stop,
            hold=hold,
            notice=self._notice,
            wake=self._wake,
            when_full=member_of(WhenFull, "when_full", when_full),
            max_events=max_events,
            max_bytes=max_bytes,
            max_overrun_bytes=OVERRUN * STREAM_WINDOW,
        )

    @property
    def policy(self) -> PolicyConfig:
        """The policy in force: channels, subnets, exports, gateways and trusted issuers."""
        return self._policies.policy

    @property
    def policy_hash(self) -> str | None:
        """SHA-256 of the policy file in force; None if this node has none."""
        return self._policies.hash

    @property
    def policy_version(self) -> int | None:
        """The version of the signed policy in force; None if it is not signed."""
        return self._policies.version

    async def apply_policy(
        self, path: Path | str | None = None, *, by: str | None = None, via: Via = Via.APPLY
    ) -> tuple[str, ...]:
        """Apply the policy of a file, or read `policy_file` again; return what changed, in words.

        It takes effect at one moment, and no session ends. The policy of another file is copied to `policy_file`. Raises
        ConfigError, and changes nothing, if the policy is not valid or this node has no `policy_file`. `by` is the user
        that the audit log names, by default the user of this process.
        """
        who = this_user() if by is None else by
        return await self._policies.apply(None if path is None else Path(path), by=who, via=via)

    async def rotate_psk(
        self, path: Path | str | None = None, *, by: str | None = None, via: Via = Via.APPLY
    ) -> tuple[str, ...]:
        """Replace the mesh key by that of a file, or read `psk_file` again; return what changed, in words.

        No session ends: both keys are accepted until the window that the file names is over. Another file is copied to
        `psk_file`. Raises ConfigError, and changes nothing, if the key does not follow from the one in force.
        """
        keeper = self._opened.mesh_key
        assert keeper is not None, "an open node has one"
        who = this_user() if by is None else by
        return await keeper.apply(None if path is None else Path(path), by=who, via=str(via))

    async def rotate_tokens(self, *, by: str | None = None, via: Via = Via.APPLY) -> tuple[str, ...]:
        """Read the files of `tokens` again, use those that were replaced, and return what changed, in words.

        Subscriptions that rest on an old token go on with the new one. Raises ConfigError, and changes nothing, if a file is
        not a token, or its signature is wrong.
        """
        return await self._opened.tokens.reload(by=this_user() if by is None else by, via=str(via))

    async def prepare_identity(self, reason: str = REASON, *, issuer: bytes | None = None) -> Revocation:
        """Make the key that `rotate_identity` is to use, and return the record by which it succeeds the present one.

        Where the fleet has `policy_issuers`, `issuer` is the public key of the one that has to endorse the record
        (`record.endorse(identity)`). The new secret stays in this node. Raises ConfigError, with what to do first, if this
        node cannot go on under another key.
        """
        return self._identity_keeper.prepare(reason, issuer)

    async def rotate_identity(
        self,
        record: Revocation | None = None,
        *,
        timeout_s: float = 10.0,
        by: str | None = None,
        via: Via = Via.APPLY,
    ) -> tuple[str, ...]:
        """Continue under another key, without ending a session; return what changed, in words.

        `record` comes from `prepare_identity`. Without it a key is made now, and where the fleet has `policy_issuers`, this
        node has to hold one (`issuer_key`). Peers refuse the old key from then on. Raises ConfigError with what to do first, or
        Timeout with the peers that do not answer; then nothing is changed.
        """
        who = this_user() if by is None else by
        return await self._identity_keeper.apply(record, by=who, via=str(via), timeout_s=timeout_s)

    # ── invites ─────────────────────────────────────────────────────────────────────────────

    async def invite(self, spec: InviteSpec, *, by: str | None = None) -> NewInvite:
        """Make an invite: a token by which one new node can join, once and in time (`meshbus.join`).

        Raises ConfigError if this node has no `issuer_key`, or cannot listen for newcomers. `by` is the user that the audit
        log names, by default the user of this process.
        """
        return await self._invites.invite(spec, this_user() if by is None else by)

    def invites(self) -> list[InviteInfo]:
        """Return the invites of this node, the oldest first, with those that are over. Raises ConfigError if it cannot invite."""
        return self._invites.infos()

    async def approve_invite(self, invite: str, *, by: str | None = None) -> InviteInfo:
        """Approve the newcomer that presented an invite, given by its id. Raises ConfigError if no newcomer waits."""
        return await self._invites.approve(invite, this_user() if by is None else by)

    async def withdraw_invite(self, invite: str, *, by: str | None = None) -> InviteInfo:
        """Withdraw an invite, given by its id, so that no node can use it. Raises ConfigError if it is over."""
        return await self._invites.withdraw(invite, this_user() if by is None else by)

    @property
    def join_address(self) -> str | None:
        """Where newcomers join, as `host:port` (TCP); None while no invite is open."""
        invites = self._opened.invites
        return None if invites is None else invites.address

    @property
    def certificate(self) -> Certificate | None:
        """What an issuer of the fleet certified about this node when it joined; None if it did not join by an invite."""
        return self._certificate

    # ── revocation ──────────────────────────────────────────────────────────────────────────

    @property
    def revocations(self) -> list[Revocation]:
        """What issuers of the fleet revoked, as far as this node knows."""
        return list(self.live.engine.revocations)

    @property
    def revocations_saved(self) -> bool | None:
        """Whether all revocations are on disk, so that a restart forgets none; None if this node keeps no file of them."""
        return self._revocation_keeper.saved

    def revoke(self, record: Revocation, *, by: str | None = None) -> bool:
        """Put a signed revocation into effect at once, here and in the whole fleet; return False if it is known already.

        Sessions, subscriptions, readers and requests that it ends are gone when this returns. Raises ConfigError if this node
        has no `policy_issuers`, AuthError if none of them signed the record, and LocalProtocolError if there is no room. `by`
        is the user that the audit log names, by default the user of this process.
        """
        return self._revocation_keeper.revoke(record, this_user() if by is None else by)

    def key_of(self, node_id: int) -> bytes | None:
        """Return the public key of a node that this one has heard of, or None."""
        if node_id == self.node_id:
            return self.public_key
        engine = self.live.engine
        return engine.directory.pinned(node_id) or engine.secure.pins.get(node_id)

    # ── requests ────────────────────────────────────────────────────────────────────────────

    async def request(self, publisher: int, channel: str, payload: bytes, *, timeout_s: float = 5.0) -> bytes:
        """Send a request to a peer's responder on a channel, and return its reply.

        Right after `connect` it waits until the profile is agreed on, within the timeout. Raises ChannelError if there is
        no responder, or it refuses or fails, PeerError if the peer takes no requests, and Timeout without a reply.
        """
        return await self._opened.answers.request(publisher, ChannelName(channel), bytes_of(payload), timeout_s)

    def respond(self, channel: str, handler: Handler) -> AbstractAsyncContextManager[None]:
        """Answer the requests of peers on a channel while the `async with` block runs.

        `handler` is a coroutine function from the payload of a request to that of the reply; who may send requests is
        decided by the policy of the channel. An exception in the handler is reported to the requester.
        """
        return self._opened.answers.serve(ChannelName(channel), handler)

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    @property
    def live(self) -> Live:
        """The running engine and its driver; for the rooms above and for tests."""
        return self._running()

    def _running(self) -> Live:
        # Not by way of `_opened`: every single publish calls this.
        if self._parts is None:
            raise LocalProtocolError(NOT_OPEN)
        return self._parts.live

    @property
    def _opened(self) -> _Parts:
        if self._parts is None:
            raise LocalProtocolError(NOT_OPEN)
        return self._parts

    @property
    def _policies(self) -> PolicyKeeper:
        policies = self._opened.policies
        assert policies is not None, "it is there from the start on"
        return policies

    @property
    def _invites(self) -> Invites:
        invites = self._opened.invites
        if invites is None:
            raise ConfigError(
                "issuer_key", "is not set, so this node cannot invite others; set it to the identity file of an issuer"
            )
        return invites

    @property
    def _identity_keeper(self) -> IdentityKeeper:
        keeper = self._opened.identity
        assert keeper is not None, "it is there from the start on"
        return keeper

    def _bonds(self) -> str | None:
        """Return what ties this node to its key and what to do about it, or None."""
        parts, key = self._opened, self.public_key
        if any(one.role != NO_MEMBER for one in self.replicas()):
            return (
                "is that of a member of a replicated channel, which is known by its node id; make another node a member, and"
                " remove this one with `meshbus replica remove`"
            )
        if parts.daemons is not None and parts.daemons[1].list():
            return "is that of a host of daemons; stop them, or move them to other nodes with `meshbus daemon move`"
        invites = () if parts.invites is None else parts.invites.infos()
        if any(one.state in {"open", "waiting", "approved", "granted"} for one in invites):
            return "is named in open invites; wait until they are used, or withdraw them with `meshbus invite withdraw`"
        issuers = {*self.policy.trusted_issuers, *self.config.policy_issuers}
        own_issuer = self._issuer is not None and self._issuer.entity_id == key
        if key in issuers or own_issuer or self.config.renew_tokens_s is not None:
            return "signs tokens, policies or certificates for others; rotate the key of the issuer first, as the guide says"
        return None

    def _target(
        self,
        address: str | None,
        public_key: bytes | str,
        node_id: int | None,
        *,
        routed: bool = True,
        profile: Profile | str = Profile.AUTO,
    ) -> Target:
        """Return a node to connect to; if its key was succeeded by another one, that with the new key."""
        target = Target.of(address, public_key, node_id, routed=routed, profile=profile)
        heir = None if target.given_key is None else self.live.engine.revocations.heir_of(target.given_key)
        return target if heir is None else Target.of(address, heir, None, routed=routed, profile=profile)

    def _take_trust(self, parts: _Parts, event: PeerSecured | RevocationTaken | NodeRenamed) -> None:
        match event:
            case PeerSecured(pinned=pinned):
                if pinned:
                    parts.pins.changed()
            case RevocationTaken():
                self._revocation_keeper.take(event)
                if parts.live.engine.identity != self.identity:
                    self.identity = Identity.from_seed(parts.live.engine.identity.seed)
            case NodeRenamed():
                self._renamed(parts, event)

    def _renamed(self, parts: _Parts, event: NodeRenamed) -> None:
        """Continue with a node under its new key."""
        old, new = event.old_id, event.node_id
        name = self._names.pop(old)
        if name is not None and new not in self._names:
            self._names.put(new, name)
        key = parts.live.engine.revocations.key_of(new)
        assert key is not None, "the record of it names the key"
        parts.joiner.renamed(old, new)
        parts.redialer.renamed(old, key)
        parts.dialer.noise_keys.pop(old, None)
        parts.pins.changed()
        parts.reader.take(event)

    @property
    def _revocation_keeper(self) -> RevocationKeeper:
        keeper = self._opened.revocations
        assert keeper is not None, "it is there from the start on"
        return keeper

    def _subscribe_entry(self, entry: SubscriptionEntry) -> Subscription:
        return self.subscribe(entry.topic, publisher=entry.publisher, queue_group=entry.queue_group)

    def _learn_name(self, node_id: int) -> None:
        capabilities = self.live.engine.directory.capabilities_of(node_id)
        if capabilities is None:
            return  # it is gone already; what it was called is still of use
        name = name_in(capabilities)
        if name is None:
            self._names.pop(node_id)
        else:
            self._names.put(node_id, name)

    def _replica(self, channel: str) -> ReplicaMember:
        replicas = self._opened.replicas
        if replicas is None:
            raise ConfigError("replicas", f"{channel!r} is not replicated; set replicas for it in [[channels]]")
        return replicas.member_of(channel)

    def _find_node(self, text: str) -> int | None:
        own = {} if self.config.name is None else {self.node_id: self.config.name}
        revoked = () if self._parts is None else self.live.engine.revocations.nodes
        return node_named(text, {**dict(self._names.items()), **own}, revoked)

    def _close_channel(self, channel: ChannelName) -> None:
        if self._parts is not None:
            self._parts.live.act(lambda engine, _now, out: engine.close_channel(channel, out))

    def _notice(self, event: Notice) -> None:
        if isinstance(event, PolicyChanged):
            self._opened.tokens.use_all()
            if self.mesh.is_gateway != self._announced[1]:
                self.announce(self._announced[0])
        if isinstance(event, SlowConsumer):
            self.live.engine.counters.add("slow_consumer", "inbox" if event.subscription == INBOX else "subscription")
        self._notices.add(event)

    def _wake(self, waiter: Waiter) -> None:
        """Continue a task that waited for events."""
        if self._parts is None:
            waiter.wake()
        else:
            self._parts.live.driver.wake(waiter)

    def _deliver(self, parts: _Parts, batch: EventBatch) -> None:
        events, nbytes = len(batch), batch.nbytes
        self._received_events += events
        self._received_bytes += nbytes
        if batch.channel is not None:
            parts.live.received.add(batch.channel, events, nbytes)
        if parts.live.timings is not None and batch.reading is None and (times := batch.event_times()) is not None:
            parts.live.timings.delivery.observe_all((batch.received_ns - times) / 1e9)
        if parts.logs is not None:
            parts.logs.take(batch)
        if not (self._subscribers if batch.reading is None else parts.reader).feed(batch):
            parts.live.engine.counters.count(Reason.NOBODY_LISTENS, len(batch))

    def _on_output(self, out: Output) -> None:
        parts = self._parts  # not by way of `_opened`: every datagram with an event calls this
        if parts is None:
            raise LocalProtocolError(NOT_OPEN)
        for batch in out.events:
            self._deliver(parts, batch)
        for event in out.control:
            parts.live.waiting.tell(event)
            if parts.census is not None:
                parts.census.take(event)
            if parts.replicas is not None and parts.replicas.take(event):
                continue
            if parts.coordinating is not None and parts.coordinating.take(event):
                continue
            if isinstance(event, PolicyArrived):
                self._policies.take(event)
                continue
            if isinstance(event, Carried):  # one comes for every message; not worth a notice
                if parts.daemons is not None:
                    parts.daemons[0].take(event)
                continue
            if parts.redialer.take(event):
                continue  # reported as PeerUnreachable, less often
            self._pass_on(parts, event)
            if not isinstance(event, HistoryWanted):  # one comes for every page; not worth a notice
                parts.standing.take(event)
                self._notice(event)

    def _pass_on(self, parts: _Parts, event: Control) -> None:
        """Pass what the engine reported to the part that it concerns."""
        match event:
            case Announced(node_id=node_id):
                self._learn_name(node_id)
                if parts.replicas is not None:
                    parts.replicas.announced()
            case SessionUp(node_id=node_id):
                parts.joiner.session_up(node_id)
            case Negotiated(node_id=node_id):
                parts.joiner.agreed(node_id)
                parts.reader.take(event)
            case PeerPlain(node_id=node_id):
                parts.joiner.plain(node_id)
            case PeerGone(node_id=node_id):
                parts.joiner.peer_gone(node_id)
                parts.reader.take(event)
            case PeerRecovered(node_id=node_id):
                parts.joiner.recovered(node_id)
            case TokenRenewed() | TokenIssued():
                parts.tokens.take(event)
            case PeerSecured() | RevocationTaken() | NodeRenamed():
                self._take_trust(parts, event)
            case Acked():
                parts.joiner.acked(event)
            case Matched():
                parts.joiner.matched(event)
            case Requested():
                parts.answers.take(event)
            case HistoryWanted():
                parts.pages.take(event)
            case _:
                parts.reader.take(event)


def _origin_hash(chain: int | str) -> int:
    """Return the origin hash of a chain, which a channel name may stand for."""
    return chain_of(channel_id(ChannelName(chain))) if isinstance(chain, str) else chain
