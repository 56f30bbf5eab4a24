"""Writes the census of a node (log/census.py): what it knows about its peers, its subscribers and daemons that it moves.

`CensusBook` compares what is known now with what was written, and is pure. `Census` watches an engine: a change of a
roster is written with its exact time, because events are counted by it; everything else is looked at once a second.

A disk that fails never disturbs the node. What cannot be written is counted. The log is opened again every few seconds, and
what holds by then is written as a snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from meshbus.config.node import NodeConfig
from meshbus.engine.base.counters import Counters
from meshbus.engine.base.notices import Announced, Control, Subscribed, Unsubscribed
from meshbus.engine.channels.roster import SubscriberRoster
from meshbus.engine.core import Engine
from meshbus.engine.session.peer import Peer
from meshbus.errors import LogError, LogFault
from meshbus.log.census import FOLDER, Fact, FactKind, channel_of
from meshbus.log.durability import LogConfig, Retention
from meshbus.log.log import Redex, RedexFile
from meshbus.names.channel import ChannelName
from meshbus.names.identity import derive_origin_hash
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.setup import wall
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.peers.info import name_in
from meshbus.policy.bound import Bound, By, forgotten
from meshbus.seldom import SeldomWarning

LOOK_S = 1.0
"""How often peers and their clocks are looked at."""
RETRY_S = 5.0
"""Seconds before a census that could not be written is tried again."""
SNAPSHOT_NS = 3_600 * 10**9
"""A snapshot is written in each hour: the tables are made hour by hour."""
MAX_CHANGES = 1_024
"""Changes of rosters that are written between two looks, as a bound; of more, only what they led to is written."""
CONFIG = LogConfig(retention=Retention(max_age_s=90 * 86_400.0, max_bytes=64 << 20), seal_bytes=8 << 20)
"""Three months, or about a million facts."""

_logger = logging.getLogger("meshbus.node")


BOUNDS = (
    Bound(
        name="census_changes",
        what="changes of rosters that are written in one look",
        by=By.PEER,
        per_node=MAX_CHANGES,
        full="further ones are written with the next look",
        counter=forgotten("census_changes"),
    ),
)


class CensusBook:
    """What was written, so that only changes are."""

    def __init__(self) -> None:
        self._nodes: dict[int, Fact] = {}
        self._rosters: dict[str, Fact] = {}

    def snapshot(self, own: Fact, nodes: Iterable[Fact], rosters: Iterable[Fact]) -> list[Fact]:
        """Return everything that is known, whatever was written before."""
        self._nodes.clear()
        self._rosters.clear()
        return [own, *self.nodes(nodes), *(fact for roster in rosters for fact in self.roster(roster))]

    def nodes(self, nodes: Iterable[Fact]) -> list[Fact]:
        """Return what is new about the peers; one that left is described again when it comes back."""
        there = {fact.node_id: fact for fact in nodes if fact.node_id is not None}
        for gone in self._nodes.keys() - there.keys():
            del self._nodes[gone]
        return [new for fact in there.values() for new in self.node(fact)]

    def node(self, fact: Fact) -> list[Fact]:
        """Return what is known about a peer if it is new."""
        assert fact.node_id is not None
        if not _differs(self._nodes.get(fact.node_id), fact):
            return []
        self._nodes[fact.node_id] = fact
        return [fact]

    def roster(self, roster: Fact) -> list[Fact]:
        """Return a roster if it has changed."""
        assert roster.channel is not None
        known = self._rosters.get(roster.channel)
        if roster.subscribers:
            self._rosters[roster.channel] = roster
        elif self._rosters.pop(roster.channel, None) is None:
            return []  # a channel without a row has no subscribers
        return [] if known == roster else [roster]

    def rosters(self, rosters: Iterable[Fact]) -> list[Fact]:
        """Return the changes to all rosters, given those with subscribers."""
        there = {roster.channel: roster for roster in rosters}
        gone = [name for name in self._rosters if name not in there]
        empty = [Fact(FactKind.ROSTER, channel=name, subscribers=0, copies=0) for name in gone]
        return [fact for roster in (*empty, *there.values()) for fact in self.roster(roster)]


def _differs(known: Fact | None, fact: Fact) -> bool:
    if known is None:
        return True
    blank = {"clock_offset_ns": None, "clock_error_ns": None}
    if msgspec.structs.replace(known, **blank) != msgspec.structs.replace(fact, **blank):
        return True
    if known.clock_offset_ns is None or fact.clock_offset_ns is None:
        return known.clock_offset_ns != fact.clock_offset_ns
    assert known.clock_error_ns is not None
    assert fact.clock_error_ns is not None
    # Each sample differs a little. It says more only if both cannot be true, or if it is much more exact.
    apart = abs(known.clock_offset_ns - fact.clock_offset_ns) > known.clock_error_ns + fact.clock_error_ns
    return apart or fact.clock_error_ns * 2 < known.clock_error_ns


class CensusLog:
    """The log of a census, which can be opened again if its disk fails."""

    def __init__(self, redex: Redex, node_id: int) -> None:
        """Open nothing yet; `redex` has the folder of censuses, and is closed with this log."""
        self._redex = redex
        self._channel = channel_of(node_id)
        self._file: RedexFile | None = None

    @property
    def works(self) -> bool:
        """Whether facts can be written, unless the disk refuses them."""
        return self._file is not None and not self._file.failed

    def open(self) -> None:
        """Open the log, also one that failed; blocks. Raises LogError if that is not possible yet."""
        if self._file is not None:
            with suppress(LogError):
                self._file.close()
            self._file = None
        self._file = self._redex.open(self._channel, CONFIG)

    def write(self, facts: Sequence[tuple[int, Fact]]) -> None:
        """Append facts with their times, all or none. Raises LogError."""
        if self._file is None:
            raise LogError(LogFault.FAILED, f"the log of {self._channel} could not be opened; check the disk")
        times = [at for at, _ in facts]
        self._file.write_batch([msgspec.json.encode(fact) for _, fact in facts], ts_ns=times, recv_ts_ns=times)

    def close(self) -> None:
        """Sync and close it; blocks. Raises LogError if it cannot be synced."""
        self._redex.close()


class Census:
    """The census of one open node."""

    def __init__(self, engine: Engine, config: NodeConfig, log: CensusLog) -> None:
        """Write the first snapshot, and watch the engine from now on; `log` need not be open yet."""
        self._engine = engine
        self._log = log
        self._opening = TaskOwner(
            "opening the census again", _logger, on_failure=partial(engine.counters.add, "fail", "task")
        )
        self._own = own_fact(engine, config)
        self._book = CensusBook()
        self._waiting: list[tuple[int, Fact]] = []
        """Facts that are written at the end of this loop iteration, with their times."""
        self._retry_at: float | None = None if log.works else Driver.now() + RETRY_S
        """When writing is tried again, because the log lacks something; None while it lacks nothing."""
        self._changes = 0
        self._version = -1
        self._hour = -1
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._warn = SeldomWarning(_logger)
        self._look()

    def take(self, event: Control) -> None:
        """Write what a notice is about: a change of a roster, or the announcement of a peer that may leave soon."""
        match event:
            case Subscribed(channel=channel) | Unsubscribed(channel=channel):
                self._changes += 1
                if self._changes <= MAX_CHANGES:
                    self._add(self._book.roster(roster_fact(self._engine.admission.roster, channel)))
                else:
                    self._engine.counters.add("forget", "census_changes")
            case Announced(node_id=node_id):
                peer = self._engine.peers.get(node_id)
                if peer is not None:
                    self._add(self._book.node(self._describe(peer)))
            case _:
                pass

    async def close(self) -> None:
        """Write what has changed, and close the log."""
        if self._timer is not None:
            self._timer.cancel()
        await self._opening.close()
        self._note()
        self._flush()
        self._closed = True
        try:
            await asyncio.to_thread(self._log.close)
        except LogError as error:
            _logger.warning("the last of what this node knew about others may be lost: %s", error)

    def daemon_moves(self, kind: FactKind, origin: int, name: str | None, node_id: int, reason: str | None) -> None:
        """Write that a daemon is about to leave a node, or has arrived on one, or has not, for a reason."""
        self._add([Fact(kind, node_id, origin=origin, name=name, failure=reason)])

    def _look(self) -> None:
        if self._retry_at is not None and Driver.now() >= self._retry_at and not len(self._opening):
            if self._log.works:
                self._resume()
            else:
                self._opening.start(self._open_again())
        self._note()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    async def _open_again(self) -> None:
        try:
            await asyncio.to_thread(self._log.open)
        except LogError:
            self._engine.counters.add("fail", "census_open")
            self._retry_at = Driver.now() + RETRY_S
        else:
            self._resume()

    def _resume(self) -> None:
        self._retry_at, self._hour = None, -1  # the next look writes a snapshot

    def _note(self) -> None:
        engine, roster = self._engine, self._engine.admission.roster
        hour = wall(Driver.now()) // SNAPSHOT_NS
        nodes = map(self._describe, engine.peers)
        if hour != self._hour:
            self._add(self._book.snapshot(self._own, nodes, _rosters_of(roster)))
        else:
            self._add(self._book.nodes(nodes))
            if roster.version != self._version:
                self._add(self._book.rosters(_rosters_of(roster)))
        self._hour, self._version, self._changes = hour, roster.version, 0

    def _describe(self, peer: Peer) -> Fact:
        return node_fact(peer, placed=self._engine.directory.assigns)

    def _add(self, facts: Sequence[Fact]) -> None:
        now_ns = wall(Driver.now())
        if facts and not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting += [(now_ns, fact) for fact in facts]

    def _flush(self) -> None:
        facts, self._waiting = self._waiting, []
        if not facts or self._closed:
            return
        if self._retry_at is None:
            try:
                self._log.write(facts)
            except LogError as error:
                self._warn("what this node knows about others is not recorded for now: %s", error)
                self._retry_at = Driver.now() + RETRY_S
        if self._retry_at is not None:
            self._engine.counters.add("fail", "log_census", len(facts))


def own_fact(engine: Engine, config: NodeConfig) -> Fact:
    """Describe a node itself."""
    identity = engine.identity
    return Fact(
        FactKind.SNAPSHOT,
        identity.node_id,
        identity.origin_hash,
        identity.entity_id,
        name_in(config.capabilities()),
        int(config.subnet),
        clock_offset_ns=0,
        clock_error_ns=0,
    )


def node_fact(peer: Peer, *, placed: bool) -> Fact:
    """Describe a peer: what it announced, its clock, and its subnet if this node has rules that place it."""
    entity, clock = peer.claims.entity_id, peer.clock
    return Fact(
        FactKind.NODE,
        peer.node_id,
        origin=None if entity is None else derive_origin_hash(entity),
        entity=entity,
        name=name_in(peer.claims.capabilities),
        subnet=int(peer.claims.subnet) if placed and entity is not None else None,
        clock_offset_ns=None if clock is None else clock.offset_ns,
        clock_error_ns=None if clock is None else clock.error_ns,
    )


def roster_fact(roster: SubscriberRoster, channel: ChannelName) -> Fact:
    """Describe the subscribers of a channel."""
    members, groups = roster.members(channel), roster.groups(channel)
    grouped = sum(map(len, groups.values()))
    return Fact(
        FactKind.ROSTER, channel=str(channel), subscribers=len(members), copies=len(members) - grouped + len(groups)
    )


def _rosters_of(roster: SubscriberRoster) -> list[Fact]:
    return [roster_fact(roster, channel) for channel in roster.channels()]


async def open_census(config: NodeConfig, node_id: int, counters: Counters) -> CensusLog | None:
    """Return the census of a node that keeps logs, opened if that is possible now; None if it keeps none."""
    if config.log_dir is None:
        return None
    log = CensusLog(Redex(Path(config.log_dir) / FOLDER, recorder=node_id), node_id)
    try:
        await asyncio.to_thread(log.open)
    except LogError as error:
        _logger.warning("what this node knows about others is not recorded for now: %s", error)
        counters.add("fail", "census_open")
    return log
