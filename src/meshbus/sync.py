"""The blocking twin of the node, for scripts and notebooks: the same methods, without `await`.

    with meshbus.sync.Node.open(psk=...) as node:
        node.connect("10.0.0.7:9000", public_key=...)
        node.publisher("sensors/lidar").publish(b"...")
        with node.subscribe("sensors/lidar") as subscription:
            for event in subscription: ...

Each node runs on its own event loop in a background thread, so it works where a loop already runs, as in a notebook.
Methods may be called from any thread. The asynchronous original is meshbus.Node; signatures and docstrings here are held
to it by tests/test_sync.py. `mesh` and `roster` are views that must be read on the node's loop, which `look` does:
`node.look(lambda node: node.mesh.routes)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import msgspec

from meshbus.background import BackgroundLoop, Intake, LoopStopped
from meshbus.compute.coordination import Report
from meshbus.compute.daemon import DaemonFactory
from meshbus.compute.groups import GroupSpec
from meshbus.compute.heldchain import LostBranch
from meshbus.config.node import NodeConfig
from meshbus.config.policy import PolicyConfig
from meshbus.engine.base.batch import Event, EventBatch
from meshbus.engine.channels.publish import WAIT_S, PublishConfig, PublishReport
from meshbus.engine.session.negotiate import Profile
from meshbus.errors import LocalProtocolError
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.node import node as asynchronous
from meshbus.node.channels import publisher as asynchronous_publisher
from meshbus.node.channels import subscription as asynchronous_subscription
from meshbus.node.channels.answer import Handler
from meshbus.node.channels.channelinfo import ChannelInfo
from meshbus.node.channels.publisher import PublishOptions
from meshbus.node.channels.sendqueue import Unsent
from meshbus.node.channels.subscription import MAX_BYTES, MAX_EVENTS, SubscriptionRefusal, SubscriptionStats, WhenFull
from meshbus.node.daemons import coordinating as asynchronous_coordinating
from meshbus.node.daemons import daemons as asynchronous_daemons
from meshbus.node.daemons.coordinating import PROOF_S, ROUTE_S, ChainStatus
from meshbus.node.daemons.daemoninfo import DaemonInfo, DaemonLine, DaemonMove
from meshbus.node.invites.invites import NewInvite
from meshbus.node.invites.inviting import InviteInfo
from meshbus.node.logs.logs import Logs
from meshbus.node.node import NOT_OPEN
from meshbus.node.options import NodeOptions
from meshbus.node.peers.info import PeerInfo
from meshbus.node.peers.noticelog import Notice
from meshbus.node.peers.redial import DialInfo
from meshbus.node.policies.keeper import Via
from meshbus.node.policies.succession import REASON
from meshbus.node.replicas.replicastatus import ReplicaStatus
from meshbus.node.replicas.replicaverify import ReplicaRange
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.policy.discovery import ScopeFilter
from meshbus.policy.invites import InviteSpec
from meshbus.wire.certificate import Certificate
from meshbus.wire.messages.continuity import Verdict
from meshbus.wire.messages.revocation import Revocation
from meshbus.wire.messages.token import PermissionToken

T = TypeVar("T")


class Publisher:
    """Publishes on one channel. Every call returns who got the events.

    While it is open, its channel is announced to the nodes that subscribe to a prefix of it. Close it, or use it as a
    context manager, when the node is to go on without the channel; closing the node closes it too.
    """

    def __init__(self, loop: BackgroundLoop, publisher: asynchronous_publisher.ChannelPublisher) -> None:
        self._loop = loop
        self._publisher = publisher

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def channel(self) -> ChannelName:
        """The channel that it publishes on."""
        return self._publisher.channel

    @property
    def config(self) -> PublishConfig:
        """How it publishes."""
        return self._publisher.config

    @property
    def max_event_bytes(self) -> int:
        """The largest event that can be published on the channel; over 8104 bytes only meshbus nodes get it."""
        return self._publisher.max_event_bytes

    def close(self) -> None:
        """Stop publishing on this channel; closing twice is fine.

        When the last publisher of a channel is closed, and the channel is not configured by name, prefix subscribers
        get a notice that it is gone.
        """
        with suppress(LoopStopped):
            self._loop.run(self._publisher.close())

    def publish(self, payload: bytes | bytearray | memoryview | str) -> PublishReport:
        """Send one event to every subscriber.

        The report says to whom it was sent; `flush` waits until it has arrived.

        Wait for credit if a subscriber is slow, up to `config.wait_s`. Raises PartialDelivery if no subscriber could be
        reached (BEST_EFFORT), LocalProtocolError for an event above `max_event_bytes`, AuthError or ChannelError if this
        node may not publish now, LogError if the channel is logged and the event cannot be appended, LocalProtocolError if
        the node is closed meanwhile.
        """
        return self._loop.run(self._publisher.publish(payload))

    def send(self, payload: bytes | bytearray | memoryview | str) -> None:
        """Send one event without waiting: it goes out with others when the loop iterates, or after `max_delay_ms`.

        Much cheaper than `publish` for many events, and in order with it. What goes wrong later is in the report of
        `flush`, and passed to `on_unsent`. Raises Backpressure if more than `config.max_bytes` wait and `when_full` is
        FAIL: then call `flush`, and send the event again. Raises LocalProtocolError for an event over 8104 bytes, and
        if the publisher is closed.
        """
        self._publisher.send(payload)  # on this thread: the queue takes events from any

    @property
    def on_unsent(self) -> Callable[[Unsent], None] | None:
        """What is called on the node's loop with events of `send` that did not reach every subscriber; None at first."""
        return self._publisher.on_unsent

    @on_unsent.setter
    def on_unsent(self, call: Callable[[Unsent], None] | None) -> None:
        self._publisher.on_unsent = call

    def publish_batch(self, events: Any) -> PublishReport:
        """Send many events at once: a list of bytes or text, or an Arrow binary or string array.

        Far cheaper per event than `publish`, and raises the same errors. If the events take several packets, a
        subscriber for which an error is reported may have got the first ones.
        """
        return self._loop.run(self._publisher.publish_batch(events))

    def flush(self, timeout_s: float = WAIT_S) -> PublishReport:
        """Wait until the subscribers have acknowledged what was published on the channel so far, and report who has.

        Only reliable streams are acknowledged: `attempted` counts the subscribers that have one, `acknowledged` is None
        if there is none. A subscriber that has not acknowledged in time, or whose stream failed, is in `errors`.

        Events of `send` are published first. Those that could not be sent since the last flush are counted in `unsent`,
        with the reasons in `errors`.
        """
        return self._loop.run(self._publisher.flush(timeout_s))

    def publish_once(self, rows: Any, *, writer: str, batch: int) -> int:
        """Publish the rows of a batch that the channel's log does not have yet, and return their number.

        `rows` is an Arrow table with a column `payload`, and optionally `ts_ns` and `headers`. A writer numbers its
        batches in ascending order and retries a batch with the same rows in the same order until this returns; the rows
        are then in the log and on disk. A subscriber that cannot be reached is not an error: it can read the log.
        Raises ConfigError if the channel is not logged, and otherwise the errors of `publish_batch`.
        """
        return self._loop.run(self._publisher.publish_once(rows, writer=writer, batch=batch))


class Subscription:
    """Events of one channel or prefix, in order of arrival.

    Use it as a context manager: it is live when the `with` line returns, and ends with the block.
    """

    def __init__(self, loop: BackgroundLoop, subscription: asynchronous_subscription.Subscription) -> None:
        self._loop = loop
        self._subscription = subscription
        self._intake = Intake(loop, self._take)

    def __enter__(self) -> Self:
        self._loop.run(self._subscription.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def topic(self) -> str:
        """The channel or prefix."""
        return self._subscription.topic

    @property
    def when_full(self) -> WhenFull:
        """What it does when it is full."""
        return self._subscription.when_full

    def close(self) -> None:
        """End the subscription; events that still wait can be read. Closing twice is fine."""
        with suppress(LoopStopped):
            self._loop.run(self._subscription.close())

    @property
    def stats(self) -> SubscriptionStats:
        """The counts so far."""
        stats, taken = self._subscription.stats, tuple(self._intake)
        events, size = sum(map(len, taken)), sum(batch.nbytes for batch in taken)
        return msgspec.structs.replace(
            stats,
            delivered=stats.delivered - events,
            pending=stats.pending + events,
            pending_bytes=stats.pending_bytes + size,
        )

    @property
    def publishers(self) -> tuple[int, ...]:
        """The node ids of the publishers that have accepted the subscription."""
        return self._subscription.publishers

    @property
    def refused(self) -> tuple[SubscriptionRefusal, ...]:
        """The publishers that currently refuse the channel, or a channel under the prefix, while others may send it."""
        return self._subscription.refused

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events; costs an object per event."""
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[EventBatch]:
        """Iterate over the events in the batches in which they came; ends when the subscription is closed."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, timeout_s: float | None = None) -> EventBatch | None:
        """Wait for events and return them; None if the subscription was closed. Raises TimeoutError after `timeout_s`."""
        return self._intake.next(timeout_s)

    async def _take(self) -> Sequence[EventBatch]:
        batch = await self._subscription.next_batch()
        return () if batch is None else (batch,)


class Daemons:
    """The daemons of one node."""

    def __init__(self, loop: BackgroundLoop, daemons: asynchronous_daemons.Daemons) -> None:
        self._loop = loop
        self._daemons = daemons

    def run(
        self,
        name: str,
        factory: DaemonFactory,
        *,
        inputs: Sequence[str] = (),
        output: str | None = None,
        key: str | None = None,
        orchestrators: Iterable[int | str] | None = None,
        checkpoints: str | None = None,
        skip_gaps: bool = False,
    ) -> DaemonInfo:
        """Run a daemon, from its checkpoint if this node has one, and offer it so that it can move back here.

        `factory` creates it. Each of `inputs` is a channel whose log it reads: `CHANNEL` of this node, or of its members
        if it is replicated, or `CHANNEL@NODE` of another node, by name or id. They count only at the very first start;
        later the checkpoint says where it goes on. `output` is the channel for what it returns, which this node must log.
        `key` is a file with its own secret, by default it has one that follows from its name. `orchestrators` are the nodes
        that may move it, by default all. Events that are gone from an input's log stop the daemon, unless `skip_gaps`.
        `checkpoints` is a replicated channel for its checkpoints: if its node dies, another that offers it with the same
        channel continues it. Its output must then be replicated too, and its inputs must not be logs of the dead node.

        A daemon that was moved to another node stays there. Raises DaemonError if it cannot be started, ConfigError if
        its channels are not logged.
        """
        return self._loop.run(
            self._daemons.run(
                name,
                factory,
                inputs=inputs,
                output=output,
                key=key,
                orchestrators=orchestrators,
                checkpoints=checkpoints,
                skip_gaps=skip_gaps,
            )
        )

    def offer(
        self,
        name: str,
        factory: DaemonFactory,
        *,
        output: str | None = None,
        key: str | None = None,
        orchestrators: Iterable[int | str] | None = None,
        checkpoints: str | None = None,
        skip_gaps: bool = False,
    ) -> DaemonInfo:
        """Allow a daemon to move to this node; one that was here when the node stopped goes on. The arguments are those of `run`."""
        return self._loop.run(
            self._daemons.offer(
                name,
                factory,
                output=output,
                key=key,
                orchestrators=orchestrators,
                checkpoints=checkpoints,
                skip_gaps=skip_gaps,
            )
        )

    def stop(self, daemon: str | int) -> None:
        """Stop a daemon on this node after what it is doing; its checkpoint stays, and `run` goes on from it.

        Raises DaemonError if it is moving, or is not known here.
        """
        self._loop.run(self._daemons.stop(daemon))

    def withdraw(self, daemon: str | int) -> None:
        """Stop a daemon as `stop` does, and do not let it move here any more."""
        self._loop.run(self._daemons.withdraw(daemon))

    def deliver(
        self, daemon: str | int, payload: bytes, *, origin: int | None = None, sequence: int | None = None
    ) -> Sequence[bytes]:
        """Deliver an event without a log to a daemon of this node, and return its outputs, which are published by then.

        While it moves, the event is kept for it, and the list is empty. An event without a log is lost if the node dies
        before the call returns. `origin` and `sequence` say whose event it is, by default this node's.
        """
        return self._loop.run(self._daemons.deliver(daemon, payload, origin=origin, sequence=sequence))

    def list(self) -> Sequence[DaemonInfo]:
        """Return the daemons that this node runs, offers or has a record of, and their states."""
        return self._loop.call(self._daemons.list)

    def get(self, daemon: str | int) -> DaemonInfo:
        """Return the state of one daemon. Raises DaemonError if it is not known here."""
        return self._loop.call(lambda: self._daemons.get(daemon))

    def origin_of(self, name: str) -> int:
        """Return the origin hash of a daemon by its name; if it has a key of its own, only where it is offered."""
        return self._loop.call(lambda: self._daemons.origin_of(name))

    def logs(self, daemon: str | int) -> Sequence[DaemonLine]:
        """Return what happened to a daemon on this node, and what it logged below `meshbus.daemon`, the oldest first."""
        return self._loop.call(lambda: self._daemons.logs(daemon))

    def move(
        self,
        daemon: str | int,
        target: str | int | None = None,
        *,
        source: str | int | None = None,
        timeout_s: float = 60.0,
    ) -> DaemonMove:
        """Move a daemon to another node, wherever it runs, and wait until it runs there.

        Without a target it goes to the nearest node that can run daemons, meets its requirements and offers it. The source
        is the node on which it was last known to run. Raises MigrationError if it did not move, and Timeout if that took
        too long; the move is then taken back if that is still possible, which `list` shows at the source and the target.
        """
        return self._loop.run(self._daemons.move(daemon, target, source=source, timeout_s=timeout_s))

    def cancel(self, daemon: str | int) -> None:
        """Take a move back that this node drives. Raises MigrationError if there is none, or if it is too late."""
        self._loop.run(self._daemons.cancel(daemon))


class Coordinating:
    """The histories and groups of one node."""

    def __init__(self, loop: BackgroundLoop, coordinating: asynchronous_coordinating.Coordinating) -> None:
        self._loop = loop
        self._coordinating = coordinating

    def hold(self, daemon: str | int, members: Iterable[int]) -> None:
        """Keep the history of a daemon together with other nodes, which must do the same.

        Whatever it emits on one of them goes to all, and each checks that it continues the history, also when the daemon
        moves between them. Of what it emitted here before this call, the last 1024 outputs are added; a node that held the
        history before a restart should hold it again before the daemon has emitted more. Raises DaemonError if this node
        holds too many.
        """
        self._loop.call(lambda: self._coordinating.hold(daemon, members))

    def release(self, daemon: str | int) -> None:
        """Hold the history of a daemon no longer."""
        self._loop.call(lambda: self._coordinating.release(daemon))

    def chains(self) -> Sequence[ChainStatus]:
        """Return the histories that this node holds."""
        return self._loop.call(self._coordinating.chains)

    def branches(self, daemon: str | int) -> Sequence[LostBranch]:
        """Return the branches of a daemon's history that lost, the oldest first. Raises DaemonError if it is not held."""
        return self._loop.call(lambda: self._coordinating.branches(daemon))

    def prove(self, daemon: str | int, *, timeout_s: float = PROOF_S) -> dict[int, Verdict]:
        """Send the proof of a daemon's history to the other nodes that hold it, and return what each of them found.

        A node that does not answer is left out. Raises DaemonError if the history is not held here, LocalProtocolError if
        it is empty.
        """
        return self._loop.run(self._coordinating.prove(daemon, timeout_s=timeout_s))

    def route(
        self,
        subprotocol_id: int,
        message: bytes,
        *,
        requires: CapabilityFilter | None = None,
        timeout_s: float = ROUTE_S,
    ) -> int:
        """Send a message to the nearest node that handles a subprotocol and matches a filter, and return its id.

        A session with it is opened if there is none. Raises PeerError if no node does, or if it cannot be reached, and
        LocalProtocolError if this node does not carry the subprotocol.
        """
        return self._loop.run(self._coordinating.route(subprotocol_id, message, requires=requires, timeout_s=timeout_s))

    def join(self, spec: GroupSpec, factory: DaemonFactory, *, output: str | None = None) -> int:
        """Take part in a group of daemons, and return its number; all nodes of the group must do so with the same spec.

        `output` is the channel for what its daemons emit on this node, which should be replicated if an output must be
        published exactly once wherever it was emitted. Raises DaemonError if this node takes part already.
        """
        return self._loop.call(lambda: self._coordinating.join(spec, factory, output=output))

    def send(self, group: int, payload: bytes, *, key: bytes | None = None, sequence: int | None = None) -> None:
        """Send an event to the member of a group that is to process it; events with the same key go to the same one.

        `sequence` numbers the events of this node upwards; one that comes again is ignored. A refusal is a report. Raises
        DaemonError if no member runs, or this node does not take part.
        """
        self._loop.call(lambda: self._coordinating.send(group, payload, key=key, sequence=sequence))

    def runners(self, group: int) -> dict[int, int | None]:
        """Return the node that runs each member of a group, as far as this node knows."""
        return self._loop.call(lambda: self._coordinating.runners(group))

    @property
    def reports(self) -> Sequence[Report]:
        """What happened, the oldest first."""
        return self._loop.call(lambda: self._coordinating.reports)


class Node:
    """One node of the mesh."""

    def __init__(self, node: asynchronous.Node, loop: BackgroundLoop) -> None:
        self._node = node
        self._loop: BackgroundLoop | None = loop

    @classmethod
    def open(cls, config: NodeConfig | Path | str | None = None, **options: Unpack[NodeOptions]) -> Self:
        """Prepare a node from a NodeConfig, from a TOML file, or from options alone; it starts with `with`.

        Raises ConfigError for the first setting that is not valid.
        """
        loop = BackgroundLoop()
        try:
            return cls(loop.call(lambda: asynchronous.Node.open(config, **options)), loop)
        except BaseException:
            loop.stop()
            raise

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ── opening and closing ─────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Open the logs, bind the socket, announce what this node can do, and start to dial the configured peers."""
        self._running.run(self._node.start())

    def close(self) -> None:
        """Close the subscriptions and stop the node; closing twice is fine.

        Calls that still wait for something, such as a publish without credit, raise LocalProtocolError.
        """
        if self._loop is not None:
            self._loop.run(self._node.close())
            self._loop.stop()
            self._loop = None

    # ── identity and state ──────────────────────────────────────────────────────────────────

    @property
    def config(self) -> NodeConfig:
        """The settings of this node."""
        return self._node.config

    @property
    def identity(self) -> Identity:
        """The identity of this node."""
        return self._node.identity

    @property
    def node_id(self) -> int:
        """The id of this node."""
        return self._node.node_id

    @property
    def public_key(self) -> bytes:
        """The key that another meshbus node needs to connect to this one."""
        return self._node.public_key

    @property
    def noise_public_key(self) -> bytes:
        """The key that a net-mesh 0.23 node needs to connect to this one, in addition to the node id."""
        return self._node.noise_public_key

    @property
    def address(self) -> str:
        """The address on which this node listens, as `host:port`."""
        return self._node.address

    @property
    def peers(self) -> list[PeerInfo]:
        """The nodes that this node has a session with."""
        return self._running.call(lambda: self._node.peers)

    @property
    def dialing(self) -> list[DialInfo]:
        """The configured peers, which this node dials for as long as it takes, and how that goes."""
        return self._running.call(lambda: self._node.dialing)

    @property
    def uptime_s(self) -> float:
        """How long this node has been open."""
        return self._running.call(lambda: self._node.uptime_s)

    def name_of(self, node_id: int) -> str | None:
        """Return the name that a node announced last, or None; it is remembered when the node is gone."""
        return self._node.name_of(node_id)

    def channels(self) -> list[ChannelInfo]:
        """Return the channels that this node publishes, receives or heard of: subscribers, publishers and traffic."""
        return self._running.call(self._node.channels)

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """The counts of everything that was sent, received, dropped, refused, retried or failed, by kind and reason.

        `sent` and `received` count events and their bytes, once for each receiver.
        """
        return self._running.call(lambda: self._node.counters)

    @property
    def logs(self) -> Logs:
        """The logs of the events that this node published and received. Raises ConfigError if it keeps none."""
        return self._node.logs

    def look(self, function: Callable[[asynchronous.Node], T]) -> T:
        """Call a function with the asynchronous node on its loop, and return its result; it must not block."""
        return self._running.call(lambda: function(self._node))

    @property
    def daemons(self) -> Daemons:
        """The daemons that this node runs, offers and moves. Raises ConfigError if it can run none."""
        return Daemons(self._running, self._running.call(lambda: self._node.daemons))

    @property
    def coordination(self) -> Coordinating:
        """The histories and groups of daemons that this node keeps with others. Raises ConfigError if it can run none."""
        return Coordinating(self._running, self._running.call(lambda: self._node.coordination))

    def replicas(self) -> list[ReplicaStatus]:
        """Return the state of every channel that is configured as replicated: role, leader, members, lag."""
        return self._running.call(self._node.replicas)

    def replica_add(self, channel: str, node: int | str, *, timeout_s: float = 10.0) -> None:
        """Make a node, by id or name, a member of a replicated channel that this node leads.

        The node must be running and configured for the channel. Raises ReplicationError if it does not become one.
        """
        self._running.run(self._node.replica_add(channel, node, timeout_s=timeout_s))

    def replica_remove(self, channel: str, node: int | str, *, timeout_s: float = 10.0) -> None:
        """Remove a member of a replicated channel that this node leads; its log stays where it is.

        Raises ReplicationError if that is refused.
        """
        self._running.run(self._node.replica_remove(channel, node, timeout_s=timeout_s))

    def replica_transfer(self, channel: str, node: int | str, *, timeout_s: float = 10.0) -> None:
        """Ask another member to lead a replicated channel that this node leads; appends wait meanwhile.

        Raises ReplicationError if it does not lead in time.
        """
        self._running.run(self._node.replica_transfer(channel, node, timeout_s=timeout_s))

    def replica_verify(self, channel: str, *, repair: bool = False, timeout_s: float = 60.0) -> list[ReplicaRange]:
        """Compare the log of a replicated channel with those of the other members, by checksums of ranges.

        With `repair`, a log of this node that differs from what a majority has is moved aside and copied again. Members
        that do not send their log within the time are shown as unread. Raises ReplicationError if this node is no member.
        """
        return self._running.run(self._node.replica_verify(channel, repair=repair, timeout_s=timeout_s))

    def find_nodes(
        self, capability_filter: CapabilityFilter | None = None, *, scope: ScopeFilter | None = None
    ) -> list[int]:
        """Return the nodes that announced capabilities that match the filter, this node included."""
        return self._running.call(lambda: self._node.find_nodes(capability_filter, scope=scope))

    def notices(self) -> Iterator[Notice]:
        """Iterate over what happens to this node: sessions, failures, subscriptions, slow consumers."""
        loop, following = self._running, self._node.notices()

        async def next_notice() -> Notice | None:
            return await anext(following, None)

        with suppress(LoopStopped):
            while (notice := loop.run(next_notice())) is not None:
                yield notice

    def watch(self, listener: Callable[[Notice], None]) -> Callable[[], None]:
        """Call a listener with every notice, in addition to `notices`; return a function that stops it. The listener is called on the node's thread."""
        loop = self._running
        stop = loop.call(lambda: self._node.watch(listener))

        def stop_on_loop() -> None:
            with suppress(LoopStopped):
                loop.call(stop)

        return stop_on_loop

    # ── peers ───────────────────────────────────────────────────────────────────────────────

    def connect(
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
        return self._running.run(
            self._node.connect(address, public_key=public_key, node_id=node_id, routed=routed, profile=profile)
        )

    def connect_direct(
        self, node_id: int, *, public_key: bytes | str | None = None, coordinator: int | None = None
    ) -> PeerInfo:
        """Connect to a node through the NATs on both sides, or through a relay if nothing else works.

        A peer of both nodes introduces them: `coordinator`, or one that is found. The key of a meshbus node is taken
        from its announcement; the Noise key of a net-mesh 0.23 node must be given. If the call is cancelled, the attempt
        ends, unless another call waits for the same node. Raises PeerError if nothing can be tried, HandshakeError if
        nothing worked.
        """
        return self._running.run(self._node.connect_direct(node_id, public_key=public_key, coordinator=coordinator))

    def ping(self, node: int | str, *, timeout_s: float = 5.0) -> float:
        """Send a message to a peer, by id or name, and return how many seconds its answer took.

        Every peer answers, also a net-mesh 0.23 node. Raises PeerError for a node without a session, and Timeout without
        an answer.
        """
        return self._running.run(self._node.ping(node, timeout_s=timeout_s))

    def find_node(self, node: int | str) -> int:
        """Return the id of a node that is given by its id or name. Raises LocalProtocolError for an unknown name."""
        return self._running.call(lambda: self._node.find_node(node))

    def accept(self, node_id: int) -> None:
        """Allow a node to start a direct handshake with this one, as 0.23 nodes do when they `connect`."""
        self._running.call(lambda: self._node.accept(node_id))

    def disconnect(self, node_id: int) -> None:
        """Remove a peer, and do not dial it again before the next `connect`.

        A meshbus peer is told; a net-mesh 0.23 peer fails the session when nothing more arrives.
        """
        self._running.call(lambda: self._node.disconnect(node_id))

    def send(self, node_id: int, *events: bytes) -> None:
        """Send events to the inbox of one peer, directly or through relays; whether they arrive is not reported.

        Events wait for credit for up to 5 seconds if the inbox of the peer is full and blocks. Raises Backpressure if
        too many wait, and PeerError if there is no session with the node. A session that the other node began exists from its
        first packet on.
        """
        self._running.call(lambda: self._node.send(node_id, *events))

    def announce(self, capabilities: CapabilitySet) -> None:
        """Announce what this node can do, to its peers and to those that connect later; the configured name is added.

        A gateway adds that it is one.
        """
        self._running.call(lambda: self._node.announce(capabilities))

    def announce_chain(self, chain: int | str, *, tip: int | None = None) -> None:
        """Announce that this node holds a chain, up to the sequence number `tip` if it is given.

        A chain is an origin hash, or the name of a replicated channel; replicas announce theirs by themselves.
        """
        self._running.call(lambda: self._node.announce_chain(chain, tip=tip))

    def withdraw_chain(self, chain: int | str) -> None:
        """Announce that this node no longer holds a chain."""
        self._running.call(lambda: self._node.withdraw_chain(chain))

    def find_chain_holders(self, chain: int | str) -> list[int]:
        """Return the nodes that hold a chain: this node, then the nearest first, then those of unknown distance."""
        return self._running.call(lambda: self._node.find_chain_holders(chain))

    # ── channels ────────────────────────────────────────────────────────────────────────────

    def set_channel_configs(self, registry: ChannelConfigRegistry | None) -> None:
        """Set the policies of this node's channels; current subscribers are checked again at once."""
        self._running.call(lambda: self._node.set_channel_configs(registry))

    @property
    def policy(self) -> PolicyConfig:
        """The policy in force: channels, subnets, exports, gateways and trusted issuers."""
        return self._running.call(lambda: self._node.policy)

    @property
    def policy_hash(self) -> str | None:
        """SHA-256 of the policy file in force; None if this node has none."""
        return self._running.call(lambda: self._node.policy_hash)

    @property
    def policy_version(self) -> int | None:
        """The version of the signed policy in force; None if it is not signed."""
        return self._running.call(lambda: self._node.policy_version)

    def apply_policy(
        self, path: Path | str | None = None, *, by: str | None = None, via: Via = Via.APPLY
    ) -> tuple[str, ...]:
        """Apply the policy of a file, or read `policy_file` again; return what changed, in words.

        It takes effect at one moment, and no session ends. The policy of another file is copied to `policy_file`. Raises
        ConfigError, and changes nothing, if the policy is not valid or this node has no `policy_file`. `by` is the user
        that the audit log names, by default the user of this process.
        """
        return self._running.run(self._node.apply_policy(path, by=by, via=via))

    def rotate_psk(
        self, path: Path | str | None = None, *, by: str | None = None, via: Via = Via.APPLY
    ) -> tuple[str, ...]:
        """Replace the mesh key by that of a file, or read `psk_file` again; return what changed, in words.

        No session ends: both keys are accepted until the window that the file names is over. Another file is copied to
        `psk_file`. Raises ConfigError, and changes nothing, if the key does not follow from the one in force.
        """
        return self._running.run(self._node.rotate_psk(path, by=by, via=via))

    def rotate_tokens(self, *, by: str | None = None, via: Via = Via.APPLY) -> tuple[str, ...]:
        """Read the files of `tokens` again, use those that were replaced, and return what changed, in words.

        Subscriptions that rest on an old token go on with the new one. Raises ConfigError, and changes nothing, if a file is
        not a token, or its signature is wrong.
        """
        return self._running.run(self._node.rotate_tokens(by=by, via=via))

    def prepare_identity(self, reason: str = REASON, *, issuer: bytes | None = None) -> Revocation:
        """Make the key that `rotate_identity` is to use, and return the record by which it succeeds the present one.

        Where the fleet has `policy_issuers`, `issuer` is the public key of the one that has to endorse the record
        (`record.endorse(identity)`). The new secret stays in this node. Raises ConfigError, with what to do first, if this
        node cannot go on under another key.
        """
        return self._running.run(self._node.prepare_identity(reason, issuer=issuer))

    def rotate_identity(
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
        return self._running.run(self._node.rotate_identity(record, timeout_s=timeout_s, by=by, via=via))

    def invite(self, spec: InviteSpec, *, by: str | None = None) -> NewInvite:
        """Make an invite: a token by which one new node can join, once and in time (`meshbus.join`).

        Raises ConfigError if this node has no `issuer_key`, or cannot listen for newcomers. `by` is the user that the audit
        log names, by default the user of this process.
        """
        return self._running.run(self._node.invite(spec, by=by))

    def invites(self) -> list[InviteInfo]:
        """Return the invites of this node, the oldest first, with those that are over. Raises ConfigError if it cannot invite."""
        return self._running.call(self._node.invites)

    def approve_invite(self, invite: str, *, by: str | None = None) -> InviteInfo:
        """Approve the newcomer that presented an invite, given by its id. Raises ConfigError if no newcomer waits."""
        return self._running.run(self._node.approve_invite(invite, by=by))

    def withdraw_invite(self, invite: str, *, by: str | None = None) -> InviteInfo:
        """Withdraw an invite, given by its id, so that no node can use it. Raises ConfigError if it is over."""
        return self._running.run(self._node.withdraw_invite(invite, by=by))

    @property
    def join_address(self) -> str | None:
        """Where newcomers join, as `host:port` (TCP); None while no invite is open."""
        return self._running.call(lambda: self._node.join_address)

    @property
    def certificate(self) -> Certificate | None:
        """What an issuer of the fleet certified about this node when it joined; None if it did not join by an invite."""
        return self._node.certificate

    def add_token(self, token: PermissionToken | Iterable[PermissionToken]) -> None:
        """Add a token or a chain of tokens: presented to publishers that require one, and used for our own publishing."""
        self._running.call(lambda: self._node.add_token(token))

    @property
    def pins(self) -> dict[int, bytes]:
        """The nodes that were seen secure, with their public keys; nothing less is accepted from them."""
        return self._running.call(lambda: self._node.pins)

    def reset_pins(self, node: int | str | None = None) -> int:
        """Remove the pin of a node, given by its id or name, or all pins; return how many there were.

        Raises ConfigError if the node is not pinned.
        """
        return self._running.call(lambda: self._node.reset_pins(node))

    def revoke_tokens(self, issuer: bytes, generation: int) -> None:
        """Reject an issuer's tokens of lower generations; subscriptions that depend on one end at once."""
        self._running.call(lambda: self._node.revoke_tokens(issuer, generation))

    @property
    def revocations(self) -> list[Revocation]:
        """What issuers of the fleet revoked, as far as this node knows."""
        return self._running.call(lambda: self._node.revocations)

    @property
    def revocations_saved(self) -> bool | None:
        """Whether all revocations are on disk, so that a restart forgets none; None if this node keeps no file of them."""
        return self._running.call(lambda: self._node.revocations_saved)

    def revoke(self, record: Revocation, *, by: str | None = None) -> bool:
        """Put a signed revocation into effect at once, here and in the whole fleet; return False if it is known already.

        Sessions, subscriptions, readers and requests that it ends are gone when this returns. Raises ConfigError if this node
        has no `policy_issuers`, AuthError if none of them signed the record, and LocalProtocolError if there is no room. `by`
        is the user that the audit log names, by default the user of this process.
        """
        return self._running.call(lambda: self._node.revoke(record, by=by))

    def key_of(self, node_id: int) -> bytes | None:
        """Return the public key of a node that this one has heard of, or None."""
        return self._running.call(lambda: self._node.key_of(node_id))

    def publisher(
        self, channel: str, config: PublishConfig | None = None, **options: Unpack[PublishOptions]
    ) -> Publisher:
        """Return a publisher for a channel; the options are the fields of PublishConfig.

        The channel counts as published by this node until the publisher or the node is closed.
        """
        loop = self._running
        return Publisher(loop, loop.call(lambda: self._node.publisher(channel, config, **options)))

    def subscribe_channel(self, publisher: int, channel: str, *, token: bytes = b"", queue_group: str = "") -> None:
        """Subscribe to one channel of one peer with a single message, and wait for the answer.

        Events arrive at the subscriptions that match the channel. Raises ChannelError with the publisher's reason,
        PeerError for a node without a session, Timeout without an answer.
        """
        self._running.run(self._node.subscribe_channel(publisher, channel, token=token, queue_group=queue_group))

    def unsubscribe_channel(self, publisher: int, channel: str) -> None:
        """End a subscription to one channel of one peer."""
        self._running.run(self._node.unsubscribe_channel(publisher, channel))

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

        It starts with `with`, and is live when that line returns. Without a publisher every peer is asked, and
        those that connect later too; entering raises ChannelError if there are peers and all of them refuse. Prefixes
        reach meshbus nodes once the profile is agreed on; a plain 0.23 node supports single channels only. `token`
        defaults to the tokens of `add_token` and of the configuration.

        With `since` the events come from the publisher's log, starting at that publish number or at the `"first"` that
        is left, and continue with new ones: each once and in order. This needs one channel of one meshbus publisher that
        logs it; entering raises LogError with the first available number if the start is gone. A replicated channel needs
        no publisher: it is read at the nearest member, and continues at another if that one fails.
        """

        def prepare() -> asynchronous_subscription.Subscription:
            return self._node.subscribe(
                topic,
                publisher=publisher,
                queue_group=queue_group,
                token=token,
                since=since,
                when_full=when_full,
                max_events=max_events,
                max_bytes=max_bytes,
            )

        return Subscription(self._running, self._running.call(prepare))

    def inbox(
        self,
        *,
        when_full: WhenFull | str = WhenFull.DROP_OLDEST,
        max_events: int = MAX_EVENTS,
        max_bytes: int = MAX_BYTES,
    ) -> Subscription:
        """Prepare a subscription to events that were sent to this node without a channel, as 0.23 nodes can."""

        def prepare() -> asynchronous_subscription.Subscription:
            return self._node.inbox(when_full=when_full, max_events=max_events, max_bytes=max_bytes)

        return Subscription(self._running, self._running.call(prepare))

    # ── requests ────────────────────────────────────────────────────────────────────────────

    def request(self, publisher: int, channel: str, payload: bytes, *, timeout_s: float = 5.0) -> bytes:
        """Send a request to a peer's responder on a channel, and return its reply.

        Right after `connect` it waits until the profile is agreed on, within the timeout. Raises ChannelError if there is
        no responder, or it refuses or fails, PeerError if the peer takes no requests, and Timeout without a reply.
        """
        return self._running.run(self._node.request(publisher, channel, payload, timeout_s=timeout_s))

    def respond(self, channel: str, handler: Callable[[bytes], bytes]) -> AbstractContextManager[None]:
        """Answer the requests of peers on a channel while the `with` block runs.

        `handler` is a plain function from the payload of a request to that of the reply. It is called in a thread, and
        for several requests at once if they come so; who may send requests is decided by the policy of the channel. An
        exception in the handler is reported to the requester.
        """

        async def answer(question: bytes) -> bytes:
            return await asyncio.to_thread(handler, question)

        return self._serving(channel, answer)

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _serving(self, channel: str, handler: Handler) -> Iterator[None]:
        loop, serving = self._running, self._node.respond(channel, handler)
        loop.run(serving.__aenter__())
        try:
            yield
        finally:
            with suppress(LoopStopped):
                loop.run(serving.__aexit__(None, None, None))

    @property
    def _running(self) -> BackgroundLoop:
        if self._loop is None:
            raise LocalProtocolError(NOT_OPEN)
        return self._loop
