"""The replicated channels of a node: opens them as configured, routes what the engine reports, and shows their state.

A channel is replicated by the members that its configuration names: node ids, or names that are known once their nodes
announced themselves. With a number instead of names, members are chosen (replicaplacement.py), and the leader replaces
those that are lost. A node that is no member stores nothing, and publishes through the members. A member whose disk failed
stays readable, and is opened again after a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from meshbus.config.node import ChannelEntry, NodeConfig
from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.base.notices import AppendAsked, Control, ReplicaWork
from meshbus.engine.base.packets import Output
from meshbus.engine.core import Engine
from meshbus.engine.replicas.base import ReplicaSettings
from meshbus.engine.replicas.placement import Add, Change
from meshbus.engine.replicas.records import Acks, Ballot
from meshbus.engine.session.negotiate import Profile
from meshbus.errors import ConfigError, LogError, RemoteProtocolError, ReplicationError, ReplicationFault
from meshbus.names.channel import ChannelName
from meshbus.names.identity import derive_origin_hash
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.live import Live
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.logs.logs import Logs
from meshbus.node.peers.info import node_named
from meshbus.node.replicas.plainmember import PlainMember, PlainReader
from meshbus.node.replicas.replicadisk import ReplicaDisk
from meshbus.node.replicas.replicamember import ReplicaMember
from meshbus.node.replicas.replicaplacement import Placing, Plan, replica_tag
from meshbus.node.replicas.replicapublish import ReplicaPublishing
from meshbus.node.replicas.replicastatus import NO_MEMBER, ReplicaMemberStatus, ReplicaStatus, progress_of, role_of
from meshbus.policy.reason import Reason
from meshbus.wire.messages.append import Appended, AppendFlags, Outcome
from meshbus.wire.messages.redex import channel_id
from meshbus.wire.record import unpack_record

PLACE_S = 0.5
"""Between two looks at the placement of a channel. Our choice: little work, and soon enough for people."""
CHANGE_S = 10.0
"""How long the leader waits for a change of its members before it looks again. Our choice."""
REOPEN_S = 5.0
"""Pause before a member whose disk failed is opened again. Our choice, as for other logs."""

_logger = logging.getLogger("meshbus.node")


class ReplicatedChannel:
    """One replicated channel of this node, as configured."""

    def __init__(self, entry: ChannelEntry, live: Live, find: Callable[[str], int | None]) -> None:
        assert entry.name is not None
        self.channel: ChannelName = entry.name
        self.channel_id = channel_id(entry.name)
        self.entry = entry
        self.acks = Acks.MAJORITY if entry.acks is None else entry.acks
        self.named = () if isinstance(entry.replicas, int) else entry.replicas
        self.placing: Placing | None = None
        """Set if the configuration gives a number of replicas."""
        if isinstance(entry.replicas, int):
            tags, replace_s = entry.replica_tags, entry.replica_replace_s
            self.placing = Placing(self.channel_id, live, entry.replicas, tags, replace_s)
        self.opening = asyncio.Lock()
        """Held while the member of this node is opened or closed."""
        self.member: ReplicaMember | None = None
        self.disk: ReplicaDisk | None = None
        self.problem: str | None = None
        """Why the member of this node is not open, as a sentence."""
        self._find = find
        self._live = live
        self.publishing = ReplicaPublishing(self.channel, self.channel_id, live, self.members, lambda: self.member)

    def is_plain(self) -> bool:
        """Return whether it is replicated without epochs, because a 0.23 node is a member."""
        return isinstance(self.member, PlainMember)

    def settings(self, ballot: Ballot | None) -> ReplicaSettings | None:
        """Return how this node takes part, from its memory and the configuration; None as long as it does not."""
        config = None if ballot is None else ballot.config
        if self.placing is None:
            plan = self._pinned()
            if plan is None and config is not None:
                plan = Plan(tuple(member.node for member in config.members), founds=False)
        elif config is not None:
            plan = Plan(tuple(member.node for member in config.members), founds=False)
        elif ballot is not None and ballot.founders:
            plan = Plan(ballot.founders, founds=True)
        else:
            plan = self.placing.plan()
        if plan is None:
            return None
        chosen, heartbeat_s = self.placing is not None, self.entry.replica_heartbeat_s
        return ReplicaSettings(nodes=plan.nodes, founds=plan.founds, chosen=chosen, heartbeat_s=heartbeat_s)

    def _pinned(self) -> Plan | None:
        found = [self._find(name) for name in self.named]
        return Plan(tuple(node for node in found if node is not None), founds=True) if None not in found else None

    def unknown(self) -> list[str]:
        """Return the configured members that are not known yet."""
        return [name for name in self.named if self._find(name) is None]

    def members(self) -> Sequence[int]:
        """Return the members: those of the stored config, or those that are to found the set, as far as known."""
        config = None if self.member is None else self.member.core.config
        if config is not None:
            return [member.node for member in config.members]
        if self.placing is not None:
            return self.placing.members()
        return [node for name in self.named if (node := self._find(name)) is not None]


class Replicas:
    """All replicated channels of a node."""

    def __init__(self, live: Live, config: NodeConfig, logs: Logs | None, names: BoundedMap[int, str]) -> None:
        """Set up; `names` are those that nodes announced."""
        self._live = live
        self._config = config
        self._logs = logs
        self._names = names
        self._tasks = TaskOwner("a replicated channel", _logger)
        self._channels: dict[ChannelName, ReplicatedChannel] = {
            entry.name: ReplicatedChannel(entry, live, self.find)
            for entry in config.channels
            if entry.name is not None and entry.replicas
        }
        self._by_id = {one.channel_id: one for one in self._channels.values()}

    def __getitem__(self, channel: str) -> ReplicatedChannel:
        found = self._channels.get(ChannelName(channel))
        if found is None:
            raise ConfigError("replicas", f"{channel!r} is not replicated; set replicas for it in [[channels]]")
        return found

    def get(self, channel: ChannelName) -> ReplicatedChannel | None:
        """Return a replicated channel, or None."""
        return self._channels.get(channel)

    def members_of(self, channel: ChannelName) -> Sequence[int]:
        """Return the members of a channel, as far as they are known; none if it is not replicated."""
        one = self._channels.get(channel)
        return () if one is None else one.members()

    # ── opening and closing ─────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Open the channels whose members are known; the others follow when they are."""
        for one in self._channels.values():
            if self._is_plain(one) and one.acks is not Acks.LOCAL:
                problem = (
                    f"must be local for {one.channel}, because a net-mesh 0.23 node replicates it, which has no epochs"
                )
                raise ConfigError("acks", problem)
            if one.placing is not None:
                if self._logs is not None:
                    self._tasks.start(self._keep_placed(one, one.placing))
                continue
            if not self._is_member(one):
                continue
            if self._logs is None:
                raise ConfigError(
                    "log_dir", f"required because {one.channel} is replicated here; set it to a directory"
                )
            self._tasks.start(self._open(one))

    async def close(self) -> None:
        """Stop taking part, and close the logs."""
        await self._tasks.close()
        for one in self._channels.values():
            await one.publishing.close()
            await self._shut(one)

    def take(self, event: Control) -> bool:
        """Handle a report of the engine, and return whether it was one for replicated channels alone."""
        match event:
            case ReplicaWork(channel_id=channel_id):
                member = self._by_id[channel_id].member
                if member is not None:
                    member.take(event)
                return True
            case AppendAsked():
                self._serve(event)
                return True
        return False

    def announced(self) -> None:
        """Begin with the channels for which the name of a member was missing."""
        for one in self._channels.values():
            if one.disk is not None and one.member is None and one.placing is None:
                self._begin(one, one.disk)

    def tags(self) -> list[str]:
        """Return the tags that tell other nodes for which channels this one can be chosen."""
        placed = [one for one in self._channels.values() if one.placing is not None and self._logs is not None]
        return [replica_tag(one.channel_id) for one in placed]

    async def _keep_placed(self, one: ReplicatedChannel, placing: Placing) -> None:
        """Take part when this node is chosen, and replace lost members while it leads."""
        assert self._logs is not None
        if await asyncio.to_thread(self._logs.has_replica, one.channel):
            await self._open(one)  # it took part before
        while True:
            async with one.opening:
                if one.problem is None:
                    await self._place(one, placing)
            await asyncio.sleep(PLACE_S)

    async def _place(self, one: ReplicatedChannel, placing: Placing) -> None:
        if one.disk is None:
            if placing.plan() is not None:
                await self._open(one)
        elif one.member is None:
            self._begin(one, one.disk)
        else:
            await self._keep_members(one, one.member, placing)

    async def _keep_members(self, one: ReplicatedChannel, member: ReplicaMember, placing: Placing) -> None:
        seat, config = member.core.seat, member.core.config
        if config is None:
            plan = placing.plan()
            if not seat.journal.ballot.founders and plan != (seat.settings.nodes, seat.settings.founds):
                await self._shut(one)  # other nodes are chosen now, and nobody agreed to the earlier choice
        elif seat.member not in config.members:
            for node in placing.holders():
                member.welcome(node)
        elif member.core.lead is not None:
            await self._change(member, placing.change(member))

    async def _change(self, member: ReplicaMember, change: Change | None) -> None:
        """Make one change, which is refused while another is under way or the new member has not shown itself."""
        if change is None:
            return
        what = "add" if isinstance(change, Add) else "remove"
        if what == "add":
            member.welcome(change.node)
        with suppress(TimeoutError):
            async with asyncio.timeout(CHANGE_S):
                if await member.change(what, change.node) is None:
                    text = "%s: %016x was %s the members, to have as many as are configured"
                    _logger.warning(text, member.channel, change.node, "added to" if what == "add" else "removed from")

    async def _open(self, one: ReplicatedChannel) -> None:
        assert self._logs is not None
        try:
            log = await asyncio.to_thread(self._logs.open_replicated, one.channel)
        except LogError as error:
            self._reopen_later(one, str(error))
            return
        one.problem = None
        one.disk = ReplicaDisk(log)
        self._begin(one, one.disk)

    def _begin(self, one: ReplicatedChannel, disk: ReplicaDisk) -> None:
        """Take part, if the members are known: from the disk, by placement, or because all have announced themselves."""
        found = disk.recovered
        settings = one.settings(found.ballot)
        if settings is None:
            return
        plain = self._is_plain(one)
        make = PlainMember if plain else ReplicaMember
        member = make(one.channel, one.channel_id, self._live, disk, lambda problem: self._reopen_later(one, problem))
        one.member = member
        disk.on_durable, disk.on_failure = member.durable, member.disk_failed

        def begin(engine: Engine, now: float, out: Output) -> None:
            engine.appending.serve(one.channel_id, one.channel)
            engine.open_channel(one.channel, now, out)
            if plain:
                engine.replication.open(one.channel_id, settings, found, PlainReader(disk), now, out)
            else:
                engine.replication.admit(one.channel_id, settings.nodes)
                engine.replicas.open(one.channel_id, settings, found, disk, now, out)

        self._live.act(begin)

    def _reopen_later(self, one: ReplicatedChannel, problem: str) -> None:
        one.problem = problem
        _logger.warning("%s: this replica stopped: %s; it is tried again in %g s", one.channel, problem, REOPEN_S)
        self._tasks.start(self._reopen(one))

    async def _reopen(self, one: ReplicatedChannel) -> None:
        await asyncio.sleep(REOPEN_S)
        async with one.opening:
            await self._shut(one)
            await self._open(one)

    async def _shut(self, one: ReplicatedChannel) -> None:
        member, disk = one.member, one.disk
        one.member = one.disk = None
        if member is not None:
            self._live.engine.replicas.close(one.channel_id)
            self._live.engine.replication.close(one.channel_id)
            member.close()
        if disk is not None:
            try:
                await disk.close()
            except LogError as error:
                _logger.warning("%s: cannot close the log: %s", one.channel, error)

    # ── changes ─────────────────────────────────────────────────────────────────────────────

    def member_of(self, channel: str) -> ReplicaMember:
        """Return this node's member of a channel. Raises ConfigError or ReplicationError if there is none."""
        member = self[channel].member
        if member is None:
            problem = "this node stores nothing of the channel; ask one of its members"
            raise ReplicationError(ReplicationFault.REFUSED, channel, problem)
        return member

    async def copy_again(self, channel: str) -> None:
        """Move the log of this node's replica aside, and copy it again from the other members.

        The leader replaces this member by the one without memory, so the set has one member less until it has caught up.
        """
        assert self._logs is not None, "only a member copies, and a member has logs"
        one = self[channel]
        async with one.opening:
            await self._shut(one)
            await asyncio.to_thread(self._logs.put_replica_aside, one.channel)
            await self._open(one)

    # ── appends of other nodes ──────────────────────────────────────────────────────────────

    def _serve(self, asked: AppendAsked) -> None:
        member = self._by_id[asked.channel_id].member
        if member is None:
            self._answer(asked, Appended(req=0, outcome=Outcome.NOT_LEADER))
            return
        if not self._is_sound(asked):
            self._live.engine.counters.count(Reason.REPLICATION_MALFORMED)
            self._answer(asked, Appended(req=0, outcome=Outcome.DENIED))
            return
        self._tasks.start(self._append(member, asked))

    def _is_sound(self, asked: AppendAsked) -> bool:
        """Return whether all records can be read, and name the node that sends them as their origin."""
        peer = self._live.engine.peers.get(asked.node_id)
        entity = None if peer is None else peer.claims.entity_id
        try:
            origins = {unpack_record(record).origin for record in asked.records}
        except RemoteProtocolError:
            return False
        return entity is None or origins <= {derive_origin_hash(entity)}

    async def _append(self, member: ReplicaMember, asked: AppendAsked) -> None:
        flags = AppendFlags(asked.flags)
        acks = Acks.LOCAL if AppendFlags.LOCAL in flags else Acks.MAJORITY
        answer = await member.append(asked.records, acks, once=AppendFlags.ONCE in flags)
        self._answer(asked, answer)

    def _answer(self, asked: AppendAsked, answer: Appended) -> None:
        told = msgspec.structs.replace(answer, req=asked.request)
        self._live.act(lambda engine, now, out: engine.appending.answer(asked.node_id, told, now, out))

    # ── members ─────────────────────────────────────────────────────────────────────────────

    def find(self, name: str) -> int | None:
        """Return the node that a configured member is, or None as long as no node of that name announced itself."""
        engine = self._live.engine
        if name == self._config.name:
            return engine.node_id
        return node_named(name, dict(self._names.items()), engine.revocations.nodes)

    def _is_member(self, one: ReplicatedChannel) -> bool:
        """Return whether this node is named or chosen as a member."""
        if one.placing is not None:
            return self._logs is not None and self._live.engine.node_id in one.members()
        return any(self.find(name) == self._live.engine.node_id for name in one.named)

    def _is_plain(self, one: ReplicatedChannel) -> bool:
        """Return whether a member is a 0.23 node, by its entry in `peers`."""
        plain = {entry.peer_id() for entry in self._config.peers if entry.profile is Profile.PLAIN}
        return any(self.find(name) in plain for name in one.named)

    # ── state ───────────────────────────────────────────────────────────────────────────────

    def status(self) -> list[ReplicaStatus]:
        """Return the state of every replicated channel."""
        return [self._status(one) for one in self._channels.values()]

    def _status(self, one: ReplicatedChannel) -> ReplicaStatus:
        core = None if one.member is None else one.member.core
        progress = {} if core is None else progress_of(core)
        tail = 0 if core is None else core.seat.journal.tail
        members = tuple(self._member_status(node, progress, core, tail) for node in one.members())
        return ReplicaStatus(
            channel=str(one.channel),
            role=role_of(core) if core is not None else "idle" if self._is_member(one) else NO_MEMBER,
            epoch=0 if core is None else core.epoch,
            leader=None if core is None else core.leader,
            members=members,
            tail=tail,
            committed=0 if core is None else core.committed,
            lag_s=None if core is None else core.lag_s(Driver.now()),
            acks=one.acks,
            waiting=self._waiting(one),
        )

    def _member_status(self, node: int, progress: dict[int, int], core: object, tail: int) -> ReplicaMemberStatus:
        engine = self._live.engine
        own = node == engine.node_id
        connected = own or engine.peers.get(node) is not None
        stored = tail if own and core is not None else progress.get(node)
        return ReplicaMemberStatus(
            node, self._name_of(node), connected, stored, None if stored is None or not progress else tail - stored
        )

    def _waiting(self, one: ReplicatedChannel) -> str | None:
        if one.problem is not None:
            return one.problem
        if one.member is None:
            # A member that is open knows the others by their ids.
            unknown = one.unknown()
            if one.placing is not None:
                return one.placing.shortage()
            return f"no node named {', '.join(unknown)} has announced itself" if unknown else None
        core = one.member.core
        gone = [self._name_of(node) or f"{node:016x}" for node in one.members() if not self._reaches(node)]
        if core.config is None and not one.is_plain():
            rest = f"; there is no session with {', '.join(gone)}" if gone else ""
            return f"the set is not founded: all its members must be up once{rest}"
        if core.leader is None:
            return f"no leader is known{'; there is no session with ' + ', '.join(gone) if gone else ''}"
        if one.member.fenced():
            return "this leader does not hear from a majority of the members"
        return None

    def _name_of(self, node: int) -> str | None:
        return self._config.name if node == self._live.engine.node_id else self._names.get(node)

    def _reaches(self, node: int) -> bool:
        return node == self._live.engine.node_id or self._live.engine.peers.get(node) is not None
