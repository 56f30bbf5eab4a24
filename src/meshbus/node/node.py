"""The node as a user holds it: open it, connect, publish, subscribe, close.

The protocol is engine/core.py, sockets and timers are node/driver.py; this file turns their callbacks into things one
can await. One node, one life, on one event loop. The blocking twin is meshbus.sync.Node.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from meshbus.config.node import NodeConfig
from meshbus.config.spelling import Endpoint
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.notices import Acked, HistoryWanted, Negotiated, Requested, SessionUp
from meshbus.engine.base.packets import Output
from meshbus.engine.channels.publish import PublishConfig
from meshbus.engine.channels.roster import RosterView
from meshbus.engine.core import Engine
from meshbus.engine.session.negotiate import Profile
from meshbus.errors import (
    AuthError,
    AuthFault,
    ChannelError,
    ChannelFault,
    ConfigError,
    LocalProtocolError,
    SlowConsumer,
    Timeout,
)
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.node.answer import Answers, Handler, answer_of
from meshbus.node.dialing import Dialer
from meshbus.node.driver import Driver
from meshbus.node.historyreader import LogServer, Replayer
from meshbus.node.info import PeerInfo, info_of
from meshbus.node.joining import Joiner
from meshbus.node.logs import Logs
from meshbus.node.meshview import MeshView
from meshbus.node.noticelog import Notice, Notices
from meshbus.node.publisher import ChannelPublisher
from meshbus.node.recording import Recording, start_recording, stop_recording
from meshbus.node.setup import engine_settings, wall
from meshbus.node.subscribers import Router, Wish
from meshbus.node.subscription import MAX_BYTES, MAX_EVENTS, Subscription, WhenFull
from meshbus.node.udp import UdpSocket
from meshbus.node.waiting import Waiting, answered
from meshbus.node.warmup import warm
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfigRegistry
from meshbus.policy.discovery import ScopeFilter
from meshbus.policy.reason import Reason
from meshbus.wire.messages.membership import AckReason
from meshbus.wire.messages.token import PermissionToken

T = TypeVar("T")


class Node:
    """One node of the mesh."""

    def __init__(self, config: NodeConfig, identity: Identity | None = None) -> None:
        self.config = config
        self.identity = config.load_identity() if identity is None else identity
        self._psk = config.load_psk()
        self._tokens = list(config.load_tokens())
        self._router = Router()
        self._joiner = Joiner(self, self._router)
        self._answers = Answers(self.running)
        self._notices = Notices()
        self._waiting = Waiting()
        self._dialer = Dialer(lambda: self._both, self._waiting)
        self._replayer = Replayer(self.running, self._waiting, config.membership_ack_timeout_s)
        self._log_server = LogServer(self.running)
        self._engine: Engine | None = None
        self._driver: Driver | None = None
        self._recording: Recording | None = None

    @classmethod
    def open(cls, config: NodeConfig | Path | str | None = None, **arguments: Any) -> Node:
        """Prepare a node from a config object, a TOML file, or arguments alone; it starts with `async with`.

        Raises ConfigError for the first setting that does not fit.
        """
        if isinstance(config, NodeConfig):
            if arguments:
                raise LocalProtocolError("give either a NodeConfig or single settings, not both")
            return cls(config)
        return cls(NodeConfig.load(config, **arguments))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ── life ────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Bind the socket, announce what this node can do, and begin to connect to the configured peers."""
        if self._driver is not None:
            return
        warm()
        counters = Counters()
        bind, buffer = self.config.bind, self.config.receive_buffer_bytes
        try:
            await self._log_server.open(self.config, self.identity, counters)
            socket = UdpSocket.bind(bind.host, bind.port, receive_buffer=buffer, counters=counters)
            self._engine = Engine(
                self.identity,
                engine_settings(self.config, self._psk, socket.receive_buffer, socket.address),
                now=Driver.now(),
                wall=wall,
                entropy=os.urandom,
                counters=counters,
            )
            self._driver = Driver(self._engine, socket, self._on_output)
            self._begin()
        except BaseException:
            await self.close()  # a configuration that cannot be used must not keep the port
            raise

    def _begin(self) -> None:
        for chain in self._tokens:
            self._use_token(chain)
        if self.config.channels:
            self.set_channel_configs(self.config.channel_registry())
        self._recording = start_recording(self._live, self.config, self._psk)
        self.announce(self.config.capabilities())
        connecting = [
            self.connect(str(entry.address), node_id=entry.node_id, public_key=entry.public_key, profile=entry.profile)
            for entry in self.config.peers
        ]
        if connecting:
            self._background = asyncio.gather(*connecting, return_exceptions=True)

    async def close(self) -> None:
        """Stop, and end every subscription; closing twice is fine."""
        if self._driver is not None:
            for subscription in (*self._router.subscriptions(), *self._replayer.subscriptions()):
                await subscription.close()
            await self._log_server.drain()
            self._act(lambda engine, now, out: engine.history.close(now, out))
            self._driver.close()
            self._driver = None
            await stop_recording(self._recording)
            self._waiting.cancel()
            self._answers.cancel()
            self._notices.close()
        await self._log_server.close()

    # ── who and where ───────────────────────────────────────────────────────────────────────

    @property
    def node_id(self) -> int:
        """The id of this node."""
        return self.identity.node_id

    @property
    def public_key(self) -> bytes:
        """The one key another meshbus node needs to connect to us."""
        return self.identity.entity_id

    @property
    def noise_public_key(self) -> bytes:
        """The key a net-mesh 0.23 node needs to connect to us, beside the node id."""
        return self._live.public_key

    @property
    def address(self) -> str:
        """Where this node listens, as `host:port`."""
        host, port = self._running.socket.address[:2]
        return str(Endpoint(host, port))

    @property
    def peers(self) -> list[PeerInfo]:
        """The nodes we have a session with."""
        return [info_of(peer) for peer in self._live.peers]

    @property
    def mesh(self) -> MeshView:
        """What this node knows about the ways to others, and what it did with packets for them."""
        return MeshView(self._live)

    @property
    def roster(self) -> RosterView:
        """Who subscribed to which of our channels."""
        return RosterView(self._live.admission.roster)

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        """Everything that was dropped, refused, retried or failed, by what and why."""
        counts = self._live.counters.snapshot()
        return counts if self._recording is None else {**counts, "record": self._recording.counters()}

    @property
    def logs(self) -> Logs:
        """The logs of what this node published and received; raises ConfigError when it keeps none."""
        if self._log_server.logs is None:
            raise ConfigError("log_dir", "is not set: this node keeps no logs")
        return self._log_server.logs

    def find_nodes(
        self, capability_filter: CapabilityFilter | None = None, *, scope: ScopeFilter | None = None
    ) -> list[int]:
        """Give the nodes that announced capabilities matching the filter, this one included."""
        return self._live.directory.find_nodes(capability_filter or CapabilityFilter(), Driver.now(), scope=scope)

    def notices(self) -> AsyncIterator[Notice]:
        """Give what happens to this node: sessions, failures, subscriptions, slow consumers."""
        return self._notices.follow()

    def watch(self, listener: Callable[[Notice], None]) -> Callable[[], None]:
        """Call a listener with every notice as it happens, beside `notices`; gives what ends that."""
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
        its Noise key. `routed=False` reaches a 0.23 node that waits in `accept`. Without an address the mesh finds the
        way; it has `handshake_timeout_s` to hear of the node. Raises HandshakeError when no session comes about,
        PeerError when no way is known.
        """
        return await self._dialer.connect(address, public_key, node_id, routed=routed, profile=Profile(profile))

    async def connect_direct(
        self, node_id: int, *, public_key: bytes | str | None = None, coordinator: int | None = None
    ) -> PeerInfo:
        """Connect to a node past the NATs on both sides, or through a relay when nothing else works.

        A neighbor that knows both introduces them: `coordinator`, or one that is found. The key of a meshbus node
        follows from its announcement; that of a net-mesh 0.23 node, its Noise key, must be given. Raises PeerError
        when nothing can be tried, HandshakeError when nothing worked.
        """
        return await self._dialer.connect_direct(node_id, public_key, coordinator)

    def accept(self, node_id: int) -> None:
        """Allow a node to begin a direct handshake with us, as 0.23 nodes do when they `connect`."""
        self._live.handshakes.accept(node_id)

    def disconnect(self, node_id: int) -> None:
        """Forget a peer; it notices by our silence."""
        self._act(lambda engine, now, out: engine.disconnect(node_id, now, out))

    def send(self, node_id: int, *events: bytes) -> None:
        """Send events to one peer's inbox, straight or by way of others; nothing tells whether they arrive."""
        self._act(lambda engine, _now, out: engine.send(node_id, events, out))

    def announce(self, capabilities: CapabilitySet) -> None:
        """Tell every peer, now and in the future, what this node can do."""
        self._act(lambda engine, now, out: engine.announce(capabilities, now, out))

    # ── channels ────────────────────────────────────────────────────────────────────────────

    def set_channel_configs(self, registry: ChannelConfigRegistry | None) -> None:
        """Install the policy of our channels; subscribers are judged by it at once."""
        self._act(lambda engine, now, out: engine.set_channel_configs(registry, now, out))

    def add_token(self, token: PermissionToken | Iterable[PermissionToken]) -> None:
        """Keep a permission: presented where a channel asks for one, and used for our own publishing."""
        chain = (token,) if isinstance(token, PermissionToken) else tuple(token)
        self._use_token(chain)
        self._tokens.append(chain)

    def revoke_tokens(self, issuer: bytes, generation: int) -> None:
        """Stop believing an issuer's tokens of lower generations; whoever subscribed by one is out at once."""
        self._live.tokens.revoke_below(issuer, generation)
        self._act(lambda engine, now, out: engine.recheck(now, out))

    def publisher(self, channel: str, config: PublishConfig | None = None, **options: object) -> ChannelPublisher:
        """Give a publisher for a channel; options are the fields of PublishConfig."""
        if config is not None and options:
            raise LocalProtocolError("give either a PublishConfig or single options, not both")
        name = ChannelName(channel)
        chosen = msgspec.convert(options, PublishConfig) if config is None else config
        logs = self._log_server.logs
        log = None if logs is None else logs.of_published(name)
        self._act(lambda engine, now, out: engine.open_channel(name, now, out))
        return ChannelPublisher(name, chosen, lambda: self._both, log)

    async def subscribe_channel(
        self, publisher: int, channel: str, *, token: bytes = b"", queue_group: str = ""
    ) -> None:
        """Subscribe to one channel of one peer: one message, and its answer.

        Raises ChannelError with the publisher's reason, PeerError for a node we have no session with, Timeout without
        an answer. Events arrive at the subscriptions that match the channel.
        """
        out = Output()
        request = self._live.subscribe(
            publisher, ChannelName(channel), Driver.now(), out, token=token, queue_group=queue_group
        )
        await self._acknowledged(request, channel, out)

    async def unsubscribe_channel(self, publisher: int, channel: str) -> None:
        """End a subscription to one channel of one peer."""
        out = Output()
        request = self._live.unsubscribe(publisher, ChannelName(channel), Driver.now(), out)
        await self._acknowledged(request, channel, out)

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
        """Prepare a subscription to a channel, or to all under a prefix such as `sensors/`; `async with` starts it.

        It is live when that line returns. Without a publisher every peer is asked, those that connect later too;
        entering raises ChannelError when peers are there and all of them refuse. Prefixes reach meshbus nodes once
        they agreed with us on the profile; a plain 0.23 node knows single channels only. `token` defaults to what
        `add_token` and the configuration hold.

        With `since` the events come from the publisher's log, from that publish number or the `"first"` that is left
        on, and go on with what is new: each once and in order. That is for one channel of one meshbus publisher, which
        must log it; entering raises LogError with the first available number when the start is gone.
        """
        wish = Wish(topic, publisher, queue_group, token)

        async def start(subscription: Subscription) -> None:
            if since is not None:
                await self._replayer.start(subscription, wish, since, self._joiner.tokens_for(wish))
                return
            self._router.add(wish, subscription)
            try:
                await self._joiner.join(subscription)
            except BaseException:
                await self._joiner.leave(subscription)  # some may have been asked already
                raise

        return Subscription(
            topic,
            start=start,
            stop=self._joiner.leave if since is None else self._replayer.stop,
            hold=self._joiner.hold if since is None else self._replayer.hold,
            notice=self._notice,
            when_full=WhenFull(when_full),
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
            self._router.add_inbox(subscription)

        async def stop(subscription: Subscription) -> None:
            self._router.remove(subscription)

        return Subscription(
            "(inbox)",
            start=start,
            stop=stop,
            hold=lambda _subscription, _held: None,
            notice=self._notice,
            when_full=WhenFull(when_full),
            max_events=max_events,
            max_bytes=max_bytes,
        )

    # ── requests ────────────────────────────────────────────────────────────────────────────

    async def request(self, publisher: int, channel: str, payload: bytes, *, timeout_s: float = 5.0) -> bytes:
        """Ask a peer's responder on a channel, and give its answer.

        Raises ChannelError when there is no responder, it refuses or fails, and Timeout without an answer.
        """
        out = Output()
        question = ChannelName(channel)
        peer = self._live.peers.require(publisher)
        ask = self._live.requests.requester.ask
        request = ask(peer, question, payload, Driver.now(), out, timeout_s=timeout_s)
        waiting = self._waiting.for_("request", request)
        self._running.apply(out)
        return answer_of(await waiting, question, timeout_s)

    def respond(self, channel: str, handler: Handler) -> AbstractAsyncContextManager[None]:
        """Answer the requests of peers on a channel, for as long as the `async with` block lasts.

        `handler` is a coroutine function from question to answer; who may ask is the channel's policy.
        """
        return self._answers.serve(ChannelName(channel), handler)

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    def running(self) -> tuple[Engine, Driver] | None:
        """Give the engine and its driver, if the node is running; for the rooms above and the tests."""
        return None if self._engine is None or self._driver is None else (self._engine, self._driver)

    def held_tokens(self) -> Iterator[tuple[PermissionToken, ...]]:
        """Give the chains of tokens that this node holds."""
        return iter(self._tokens)

    @property
    def _live(self) -> Engine:
        return self._both[0]

    @property
    def _running(self) -> Driver:
        return self._both[1]

    @property
    def _both(self) -> tuple[Engine, Driver]:
        if (running := self.running()) is None:
            raise LocalProtocolError("the node is not running: use it inside `async with Node.open(...) as node`")
        return running

    def _act(self, call: Callable[[Engine, float, Output], T]) -> T:
        """Have the engine do something now, and carry out what it asks for."""
        out = Output()
        result = call(self._live, Driver.now(), out)
        self._running.apply(out)
        return result

    def matched(self, request: int) -> Awaitable[None]:
        """Wait for the answer to an interest; it counts from now on, even when it comes before this is awaited."""
        return answered(self._waiting.for_("match", request), self.config.membership_ack_timeout_s)

    async def _acknowledged(self, request: int, channel: str, out: Output) -> None:
        waiting = self._waiting.for_("ack", request)
        self._running.apply(out)
        event = await waiting
        assert isinstance(event, Acked)
        if event.timed_out:
            raise Timeout(f"publisher {event.node_id:016x} on {str(channel)!r}", self.config.membership_ack_timeout_s)
        if not event.accepted:
            reason = AckReason(event.reason).name.lower()
            problem = f"publisher {event.node_id:016x} refused: {reason}"
            raise ChannelError(ChannelFault.REJECTED, channel, problem, reason=reason)

    def _use_token(self, chain: tuple[PermissionToken, ...]) -> None:
        """Use a permission for our own publishing too, when it is one that we would trust from others."""
        try:
            self._live.tokens.insert_chain(chain)
        except AuthError as error:
            if error.fault is not AuthFault.NOT_AUTHORIZED:
                raise

    def _notice(self, event: Notice) -> None:
        if isinstance(event, SlowConsumer):
            self._live.counters.add("slow_consumer", event.subscription)
        self._notices.add(event)

    def _on_output(self, out: Output) -> None:
        for batch in out.events:
            if self._log_server.logs is not None:
                self._log_server.logs.take(batch)
            if not (self._router if batch.reading is None else self._replayer).feed(batch):
                self._live.counters.count(Reason.NOBODY_LISTENS, len(batch))
        for event in out.control:
            self._waiting.tell(event)
            match event:
                case SessionUp(node_id=node_id):
                    self._joiner.welcome(node_id)
                case Negotiated(node_id=node_id):
                    self._joiner.agreed(node_id)
                case Requested():
                    self._answers.take(event)
                case HistoryWanted():
                    self._log_server.take(event)
                    continue  # one for every page is no news
                case _:
                    self._replayer.take(event)
            self._notice(event)
