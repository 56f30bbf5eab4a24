"""The daemons of a node, for applications: run, offer, look at, move and stop them.

    async with Node.open(psk=…, daemons_dir="daemons", log_dir="logs", channels=[…]) as node:
        await node.daemons.run("counter", Counter, inputs=["numbers"], output="counts")
        await node.daemons.move("counter", target=other)

A daemon is named by a name, from which every node of the mesh derives the same identity, or by its origin hash. What it is
and does is described in compute/daemon.py. The work is done in daemonhosting.py; here are the rules for arguments, the choice
of a target, and the course of a move as one call. The blocking twin is in meshbus.sync.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from meshbus.compute.daemon import DaemonEvent, DaemonFactory, derive_daemon, requirements_of
from meshbus.compute.migration.base import Outbound
from meshbus.compute.migration.handler import MigrationSubprotocolHandler
from meshbus.compute.migration.orchestrator import MoveEnded
from meshbus.compute.migration.source import NOT_ON_SOURCE
from meshbus.config.daemon import DaemonEntry
from meshbus.config.node import Logged
from meshbus.errors import (
    ConfigError,
    DaemonError,
    DaemonFault,
    LocalProtocolError,
    MeshError,
    MigrationError,
    MigrationFault,
    Timeout,
)
from meshbus.keyfile import load_or_create
from meshbus.log.arrow import has_arrow
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.node.channels.publisher import bytes_of
from meshbus.node.daemons.daemonhosting import DaemonHosting, DaemonSpec
from meshbus.node.daemons.daemoninfo import DaemonInfo, DaemonLine, DaemonMove
from meshbus.node.driving.driver import Driver
from meshbus.policy.capability import CapabilityFilter
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.checkpoint import InputPosition

AGREE_S = 5.0
"""How long a move waits for the other nodes to agree on the profile. Our choice: negotiation takes three tries."""
LOOK_S, LOOK_FOR_S = 0.25, 15.0
"""How often and how long a daemon is looked for: where it is, is announced at least every ten seconds."""
ASKED = 16
"""Peers that are asked for a daemon although they have not announced it."""

_logger = logging.getLogger("meshbus.node")

FindNode = Callable[[str], int | None]
Connect = Callable[[int], Awaitable[None]]


class Daemons:
    """The daemons of one node."""

    def __init__(self, hosting: DaemonHosting, psk: bytes, find_node: FindNode, connect: Connect) -> None:
        """Set up; `find_node` returns the node of a name or id, `connect` opens a session with a node by its id."""
        self._hosting = hosting
        self._psk = psk
        self._find_node = find_node
        self._connect = connect
        self._numbers = time.time_ns()

    # ── offering and running ────────────────────────────────────────────────────────────────

    async def run(
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
        spec = self._spec(name, factory, output, key, orchestrators, checkpoints, skip_gaps=skip_gaps, fresh=True)
        origin = spec.identity.origin_hash
        if all(info.origin != origin or info.moves is None for info in self.list()):
            self._check_elsewhere(spec)
            positions = tuple([self._position(text) for text in inputs])
            spec = msgspec.structs.replace(spec, inputs=positions)
        await self._hosting.declare(spec)
        return self._hosting.info(origin)

    async def offer(
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
        spec = self._spec(name, factory, output, key, orchestrators, checkpoints, skip_gaps=skip_gaps, fresh=False)
        await self._hosting.declare(spec)
        return self._hosting.info(spec.identity.origin_hash)

    async def stop(self, daemon: str | int) -> None:
        """Stop a daemon on this node after what it is doing; its checkpoint stays, and `run` goes on from it.

        Raises DaemonError if it is moving, or is not known here.
        """
        await self._hosting.stop(self._known(daemon), withdraw=False)

    async def withdraw(self, daemon: str | int) -> None:
        """Stop a daemon as `stop` does, and do not let it move here any more."""
        await self._hosting.stop(self._known(daemon), withdraw=True)

    async def deliver(
        self, daemon: str | int, payload: bytes, *, origin: int | None = None, sequence: int | None = None
    ) -> Sequence[bytes]:
        """Deliver an event without a log to a daemon of this node, and return its outputs, which are published by then.

        While it moves, the event is kept for it, and the list is empty. An event without a log is lost if the node dies
        before the call returns. `origin` and `sequence` say whose event it is, by default this node's.
        """
        if sequence is None:
            self._numbers += 1
            sequence = self._numbers
        whose = self._hosting.around.live.engine.identity.origin_hash if origin is None else origin
        runner = self._hosting.runner(self._known(daemon))
        return list(await runner.deliver(DaemonEvent(whose, sequence, bytes_of(payload))))

    # ── looking ─────────────────────────────────────────────────────────────────────────────

    def list(self) -> Sequence[DaemonInfo]:
        """Return the daemons that this node runs, offers or has a record of, and their states."""
        return self._hosting.infos()

    def get(self, daemon: str | int) -> DaemonInfo:
        """Return the state of one daemon. Raises DaemonError if it is not known here."""
        return self._hosting.info(self._known(daemon))

    def origin_of(self, name: str) -> int:
        """Return the origin hash of a daemon by its name; if it has a key of its own, only where it is offered."""
        offered = [origin for origin, spec in self._hosting.specs.items() if spec.name == name]
        return offered[0] if offered else derive_daemon(self._psk, name).origin_hash

    def logs(self, daemon: str | int) -> Sequence[DaemonLine]:
        """Return what happened to a daemon on this node, and what it logged below `meshbus.daemon`, the oldest first."""
        return self._hosting.lines(self._origin(daemon))

    # ── moving ──────────────────────────────────────────────────────────────────────────────

    async def move(
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
        began, origin = time.monotonic(), self._origin(daemon)
        aim = None if target is None else self._node(target)
        try:
            async with asyncio.timeout(timeout_s):
                ended = await self._move(origin, aim, None if source is None else self._node(source))
        except TimeoutError as error:
            if isinstance(error, MeshError):
                raise
            raise Timeout(f"the move of daemon {origin:016x}", timeout_s) from None
        return DaemonMove(origin, ended.source, ended.target, time.monotonic() - began)

    async def cancel(self, daemon: str | int) -> None:
        """Take a move back that this node drives. Raises MigrationError if there is none, or if it is too late."""
        origin = self._origin(daemon)
        await self._hosting.act(lambda handler, now: (None, handler.cancel(origin, now)))

    async def _move(self, origin: int, target: int | None, source: int | None) -> MoveEnded:
        deadline = time.monotonic() + LOOK_FOR_S
        while True:
            for place in [source] if source is not None else self._places(origin, target):
                try:
                    return await self._move_from(origin, place, target)
                except MigrationError as error:
                    # It may have moved on, and be announced elsewhere soon.
                    if source is not None or NOT_ON_SOURCE not in str(error):
                        raise
            if time.monotonic() > deadline:
                problem = "no other node says that it runs there; give the source, or connect to that node first"
                raise MigrationError(MigrationFault.DAEMON_NOT_FOUND, origin, problem)
            await asyncio.sleep(LOOK_S)

    async def _move_from(self, origin: int, source: int, target: int | None) -> MoveEnded:
        targets = [target] if target is not None else self._placed(origin, source)
        for number, place in enumerate(targets, 1):
            try:
                return await self._attempt(origin, source, place)
            except MigrationError as error:
                refused = error.fault in (MigrationFault.FACTORY_NOT_FOUND, MigrationFault.COMPUTE_NOT_SUPPORTED)
                if not refused or number == len(targets):
                    raise
        problem = "no other node announces that it can run daemons and meets its requirements; give a target"
        raise MigrationError(MigrationFault.TARGET_UNAVAILABLE, origin, problem)

    async def _attempt(self, origin: int, source: int, target: int) -> MoveEnded:
        """Move a daemon once, from one node to another."""
        self._hosting.move_begins(origin, source)
        try:
            agreed = [await self._agrees(origin, node) for node in (source, target)]
        except MigrationError as error:
            self._hosting.move_failed(origin, target, str(error))
            raise
        future = self._hosting.end_of_move(origin)
        try:
            await self._start(origin, source, target, numbered=all(agreed))
            ended = await future
        except BaseException:
            if not future.done() or future.cancelled():
                future.cancel()
                with suppress(MeshError):
                    await asyncio.shield(self._hosting.act(lambda handler, now: _canceled(handler, origin, now)))
            raise
        if ended.error is not None:
            raise ended.error
        return ended

    async def _start(self, origin: int, source: int, target: int, *, numbered: bool) -> None:
        try:
            await self._hosting.act(
                lambda handler, now: (None, handler.start(origin, source, target, now, numbered=numbered))
            )
        except MigrationError as error:
            self._hosting.move_failed(origin, target, str(error))
            raise

    async def _agrees(self, origin: int, node: int) -> bool:
        """Return whether a node numbers its moves as meshbus nodes do; there is a session with it afterwards."""
        live = self._hosting.around.live
        if node == live.engine.node_id:
            return True
        deadline = time.monotonic() + AGREE_S
        while live.engine.peers.get(node) is None:
            try:
                await self._connect(node)
            except MeshError as error:
                # It may be starting, or be dialed just now.
                if time.monotonic() > deadline:
                    raise MigrationError(MigrationFault.TARGET_UNAVAILABLE, origin, str(error)) from error
                await asyncio.sleep(LOOK_S)
        if await live.agreed(node, Subprotocol.MIGRATION, AGREE_S):
            return True
        if live.engine.peers.require(node).negotiated.compatible:
            problem = f"node {node:016x} runs no daemons; set daemons_dir there"
            raise MigrationError(MigrationFault.COMPUTE_NOT_SUPPORTED, origin, problem)
        return False

    def _places(self, origin: int, target: int | None) -> Sequence[int]:
        """Return where a daemon may run, the most likely first: a node on which it does not run says so."""
        hosting = self._hosting
        engine = hosting.around.live.engine
        own = engine.node_id
        if hosting.host(origin) is not None:
            return [own]
        seen = hosting.info(origin).node
        holders = engine.chains.find_chain_holders(origin, Driver.now())
        # Where it is, is announced a few seconds after it has moved.
        able = [peer.node_id for peer in engine.peers if peer.uses(Subprotocol.MIGRATION)][:ASKED]
        return [node for node in dict.fromkeys([seen, *holders, *able]) if node not in {None, own, target}]

    def _placed(self, origin: int, source: int) -> Sequence[int]:
        """Return the nodes that can take a daemon, the nearest first."""
        hosting = self._hosting
        engine, now = hosting.around.live.engine, Driver.now()
        host, spec = hosting.host(origin), hosting.specs.get(origin)
        needs = CapabilityFilter()
        if host is not None:
            needs = requirements_of(host.daemon)
        elif spec is not None:
            needs = requirements_of(spec.create())
        able = [node for node in engine.find_handlers(Subprotocol.MIGRATION, now, needs) if node != source]
        return sorted(able, key=lambda node: node != engine.node_id)

    # ── arguments ───────────────────────────────────────────────────────────────────────────

    def _spec(
        self,
        name: str,
        factory: DaemonFactory,
        output: str | None,
        key: str | None,
        orchestrators: Iterable[int | str] | None,
        checkpoints: str | None,
        *,
        skip_gaps: bool,
        fresh: bool,
    ) -> DaemonSpec:
        return DaemonSpec(
            name=name,
            create=factory,
            identity=self._identity(name, key),
            output=None if output is None else self._output(ChannelName(output)),
            orchestrators=None if orchestrators is None else frozenset(map(self._node, orchestrators)),
            checkpoints=None if checkpoints is None else self._checkpoints(checkpoints, output),
            skips_gaps=skip_gaps,
            fresh=fresh,
        )

    def _identity(self, name: str, key: str | None) -> Identity:
        return derive_daemon(self._psk, name) if key is None else load_or_create(Path(key))

    def _output(self, channel: ChannelName) -> ChannelName:
        around = self._hosting.around
        if not around.is_replicated(channel) and around.config.log_config(channel, Logged.PUBLISHED) is None:
            problem = f'{channel} is the output of a daemon, so it must be logged; set log = "published" for it in [[channels]]'
            raise ConfigError("log", problem)
        if not has_arrow():
            raise ConfigError("output", "a daemon with an output needs pyarrow; install meshbus with its extra 'arrow'")
        return channel

    def _checkpoints(self, channel: str, output: str | None) -> ChannelName:
        is_replicated = self._hosting.around.is_replicated
        for name, what in (
            (channel, "holds checkpoints"),
            (output, "is the output of a daemon with checkpoints there"),
        ):
            if name is not None and not is_replicated(ChannelName(name)):
                raise ConfigError(
                    "replicas", f"{name} {what}, so it must be replicated; set replicas for it in [[channels]]"
                )
        return ChannelName(channel)

    def _position(self, text: str) -> InputPosition:
        around = self._hosting.around
        name, at, where = text.partition("@")
        channel = ChannelName(name)
        if at:
            return InputPosition(self._node(where), channel)
        if around.is_replicated(channel):
            return InputPosition(0, channel)
        if around.config.log_config(channel, Logged.PUBLISHED) is None:
            problem = f'{channel} is the input of a daemon, so it must be logged; set log = "published", or name its publisher'
            raise ConfigError("log", problem + f" as {channel}@NODE")
        return InputPosition(around.live.engine.node_id, channel)

    def _check_elsewhere(self, spec: DaemonSpec) -> None:
        engine = self._hosting.around.live.engine
        origin = spec.identity.origin_hash
        others = [node for node in engine.chains.find_chain_holders(origin, Driver.now()) if node != engine.node_id]
        if others:
            problem = f"{spec.name!r} runs on node {others[0]:016x}; offer it here and move it"
            raise DaemonError(DaemonFault.DUPLICATE, origin, problem)

    def _node(self, node: int | str) -> int:
        if isinstance(node, int):
            return node
        found = self._find_node(node)
        if found is None:
            raise LocalProtocolError(f"no node, or more than one, announced the name {node!r}; give its id instead")
        return found

    def _origin(self, daemon: str | int) -> int:
        return daemon if isinstance(daemon, int) else self.origin_of(daemon)

    def _known(self, daemon: str | int) -> int:
        origin = self._origin(daemon)
        if all(info.origin != origin for info in self.list()):
            raise DaemonError(
                DaemonFault.UNKNOWN, origin, f"{daemon!r} is not known to this node; run or offer it first"
            )
        return origin


def start_configured(hosting: DaemonHosting, daemons: Daemons) -> None:
    """Run and offer the daemons that are configured. Raises ConfigError if the code of one cannot be loaded."""
    config = hosting.around.config
    for entry in config.daemons:
        hosting.start(_start(daemons, entry, entry.load_factory(config.daemons_path)))


async def _start(daemons: Daemons, entry: DaemonEntry, factory: DaemonFactory) -> None:
    key = None if entry.key is None else str(entry.key)
    output = None if entry.output is None else str(entry.output)
    allowed = entry.orchestrators or None
    shared = None if entry.checkpoints is None else str(entry.checkpoints)
    while True:
        try:
            if entry.run:
                await daemons.run(
                    entry.name,
                    factory,
                    inputs=entry.inputs,
                    output=output,
                    key=key,
                    orchestrators=allowed,
                    checkpoints=shared,
                    skip_gaps=entry.skip_gaps,
                )
            else:
                await daemons.offer(
                    entry.name,
                    factory,
                    output=output,
                    key=key,
                    orchestrators=allowed,
                    checkpoints=shared,
                    skip_gaps=entry.skip_gaps,
                )
        except LocalProtocolError as error:
            # The name of a publisher is known when that has announced itself.
            _logger.info("daemon %s waits: %s", entry.name, error)
            await asyncio.sleep(LOOK_S)
        except MeshError as error:
            _logger.warning("daemon %s is not started: %s", entry.name, error)
            return
        else:
            return


def _canceled(handler: MigrationSubprotocolHandler, origin: int, now: float) -> tuple[None, list[Outbound]]:
    with suppress(MigrationError):
        return None, handler.cancel(origin, now)
    return None, []
