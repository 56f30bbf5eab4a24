"""Publishing on a replicated channel from any node: finds the leader, hands the records over, and waits for its answer.

A refusal stores nothing, so the publish is tried again until its time is over: at the node that the refusing one follows,
or at another member. If the leader is lost after it got the records, nobody can tell at once whether they are kept. Then a
publish fails as unresolved; `publish_once` tries again, because the leader leaves out what the log has.

What is published while an append is under way goes out together with the next one, so events keep their order, and the
cost of a round trip and of a sync is shared.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from meshbus.engine.base.notices import AppendAnswered
from meshbus.engine.base.packets import Output
from meshbus.engine.channels.publish import WAIT_S
from meshbus.engine.core import Engine
from meshbus.engine.replicas.records import Acks
from meshbus.errors import DeliveryError, LocalProtocolError, PeerError, ReplicationError, ReplicationFault
from meshbus.names.channel import ChannelName
from meshbus.node.driving.driver import Driver
from meshbus.node.driving.live import Live
from meshbus.node.driving.tasks import TaskOwner
from meshbus.node.driving.waiting import Kind
from meshbus.node.replicas.replicamember import ReplicaMember
from meshbus.policy.bound import Bound, By
from meshbus.wire.column import joined, largest_of, nbytes_of
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.append import Appended, AppendFlags, Outcome
from meshbus.wire.messages.leadership import MAX_REPLICATED
from meshbus.wire.record import RECORD_COST

PAUSE_S = 0.05
"""Between two tries to find a leader. Our choice: a tenth of the default heartbeat of a replicated channel."""
GROUP_BYTES = 4 << 20
"""Bytes of publishes that go to the leader together. Our choice: a fraction of a second on a fast network."""
MAX_LINE_BYTES = 64 << 20
"""Bytes of publishes that may wait here: as many as may wait for acknowledgement at the leader."""
MAX_PAYLOAD = MAX_REPLICATED - RECORD_COST
"""7971: the largest payload of a replicated channel without headers."""

BOUNDS = (
    Bound(
        name="replica_publishes",
        what="publishes on a replicated channel that wait for their turn",
        by=By.USER,
        per_node=None,
        per={"channel": MAX_LINE_BYTES},
        unit="bytes",
        full="a publish is refused",
        counter="ReplicationError",
    ),
)

_FAULTS = {
    Outcome.NO_MAJORITY: ReplicationFault.NO_MAJORITY,
    Outcome.BACKPRESSURE: ReplicationFault.BACKPRESSURE,
    Outcome.DENIED: ReplicationFault.DENIED,
    Outcome.UNRESOLVED: ReplicationFault.UNRESOLVED,
}
_PROBLEMS = {
    ReplicationFault.NO_LEADER: "no member of the replica set leads or can be reached, so nothing was stored; see"
    " `meshbus replica status`, and try again",
    ReplicationFault.NO_MAJORITY: "the leader does not hear from a majority of the members, so nothing was stored; try again"
    " when more members are up, or publish with acks = local",
    ReplicationFault.BACKPRESSURE: "too many events wait to be acknowledged, so nothing was stored; publish more slowly",
    ReplicationFault.DENIED: "the leader's policy does not allow this node to publish, so nothing was stored; see publish_caps"
    " and require_token of the channel there",
    ReplicationFault.UNRESOLVED: "the leader was lost, or no majority confirmed in time: the events are kept or lost, which"
    " the channel's log will show; publish_once can be repeated safely",
}
_logger = logging.getLogger("meshbus.node")


class _Waiting(NamedTuple):
    """A publish that has no outcome yet."""

    records: Sequence[bytes]
    acks: Acks
    deadline: float
    outcome: asyncio.Future[Appended]

    def fail(self, error: ReplicationError) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


class ReplicaPublishing:
    """The publishes of this node on one replicated channel."""

    def __init__(
        self,
        channel: ChannelName,
        channel_id: bytes,
        live: Live,
        members: Callable[[], Sequence[int]],
        local: Callable[[], ReplicaMember | None],
    ) -> None:
        """Set up; `members` returns the nodes to ask, `local` the member that this node is, if any."""
        self.channel = channel
        self._channel_id = channel_id
        self._live = live
        self._members = members
        self._local = local
        self._leader = 0
        """The last node that was named or acknowledged as leader; 0 if there is none."""
        self._turn = 0
        self._line: deque[_Waiting] = deque()
        self._line_bytes = 0
        self._sending = False
        self._sender = TaskOwner("publishing on a replicated channel", _logger)

    async def append(self, records: Sequence[bytes], acks: Acks, wait_s: float, *, once: bool = False) -> Appended:
        """Append records through the leader, and return its answer, which is positive.

        Raises LocalProtocolError if a record is too large, and ReplicationError with the reason otherwise.
        """
        check_record_size(largest_of(records))
        deadline = Driver.now() + wait_s
        if once:
            return await self._append(records, acks, deadline, once=True)
        if self._line_bytes > MAX_LINE_BYTES:
            raise self._error(ReplicationFault.BACKPRESSURE)
        outcome: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._line.append(_Waiting(records, acks, deadline, outcome))
        self._line_bytes += nbytes_of(records)
        if not self._sending:
            self._sending = True
            self._sender.start(self._send_line())
        return await outcome

    async def close(self) -> None:
        """Stop sending; what waits has no outcome."""
        await self._sender.close()
        for waiting in self._line:
            waiting.fail(self._error(ReplicationFault.NO_LEADER))

    async def _send_line(self) -> None:
        try:
            while self._line:
                group = [self._line.popleft()]
                size = nbytes_of(group[0].records)
                while self._line and self._line[0].acks is group[0].acks and size < GROUP_BYTES:
                    group.append(self._line.popleft())
                    size += nbytes_of(group[-1].records)
                self._line_bytes -= size
                await self._send_group(group)
        finally:
            self._sending = False

    async def _send_group(self, group: Sequence[_Waiting]) -> None:
        records = joined([waiting.records for waiting in group])
        try:
            answer = await self._append(records, group[0].acks, max(waiting.deadline for waiting in group), once=False)
        except ReplicationError as error:
            for waiting in group:
                waiting.fail(error)
            return
        except asyncio.CancelledError:
            for waiting in group:
                waiting.fail(self._error(ReplicationFault.UNRESOLVED))
            raise
        first = answer.first_seq
        for waiting in group:
            count = len(waiting.records)
            if not waiting.outcome.done():
                waiting.outcome.set_result(msgspec.structs.replace(answer, first_seq=first, count=count))
            first += count

    async def _append(self, records: Sequence[bytes], acks: Acks, deadline: float, *, once: bool) -> Appended:
        """Try until the leader has acknowledged, or the time is over."""
        fault = ReplicationFault.NO_LEADER
        asked = 0
        while True:
            node = self._next_node(asked)
            if node:
                answer = await self._ask(node, records, acks, max(deadline - Driver.now(), WAIT_S), once=once)
                if answer.outcome in {Outcome.OK, Outcome.UNCONFIRMED}:
                    self._leader = node
                    return answer
                fault = _FAULTS.get(answer.outcome, ReplicationFault.NO_LEADER)
                if answer.outcome is Outcome.DENIED or (answer.outcome is Outcome.UNRESOLVED and not once):
                    break
                self._leader = answer.leader if answer.outcome is Outcome.NOT_LEADER else self._leader
                asked = node
            if Driver.now() >= deadline:
                break
            # Only a leader that was just named is asked at once: without a pause, the node would do nothing else.
            if not node or not self._leader or self._leader == asked:
                await asyncio.sleep(PAUSE_S)
        raise self._error(fault)

    def _error(self, fault: ReplicationFault) -> ReplicationError:
        return ReplicationError(fault, self.channel, _PROBLEMS[fault])

    def _next_node(self, asked: int) -> int:
        """Return whom to ask: the leader by what is known here, else one member after the other; 0 if there is none."""
        local, own = self._local(), self._live.engine.node_id
        if local is not None:
            # Its own view is the newest: it hears every heartbeat of the leader.
            known = local.core.leader or 0
            return known if known == own or self._reaches(known) else 0
        if self._leader and self._leader != asked and self._reaches(self._leader):
            return self._leader
        nodes = [node for node in self._members() if self._reaches(node)]
        self._turn += 1
        return nodes[self._turn % len(nodes)] if nodes else 0

    def _reaches(self, node: int) -> bool:
        peer = self._live.engine.peers.get(node)
        return peer is not None and peer.uses(Subprotocol.APPEND)

    def _follows_other(self, node: int) -> bool:
        """Return whether the member that this node is, if any, follows another leader than this one."""
        local = self._local()
        return local is not None and local.core.leader not in {None, node}

    async def _ask(self, node: int, records: Sequence[bytes], acks: Acks, timeout_s: float, *, once: bool) -> Appended:
        local = self._local()
        try:
            async with asyncio.timeout(timeout_s):
                if local is not None and node == self._live.engine.node_id:
                    return await local.append(records, acks, once=once)
                return await self._ask_peer(node, records, acks, once=once)
        except TimeoutError:
            return Appended(req=0, outcome=Outcome.UNRESOLVED)

    async def _ask_peer(self, node: int, records: Sequence[bytes], acks: Acks, *, once: bool) -> Appended:
        flags = (AppendFlags.LOCAL if acks is Acks.LOCAL else AppendFlags.NONE) | (
            AppendFlags.ONCE if once else AppendFlags.NONE
        )
        request = 0

        def ask(engine: Engine, now: float, out: Output) -> int:
            nonlocal request
            peer = engine.peers.require(node)
            request = engine.appending.ask(peer, self._channel_id, records, flags, now, out)
            return request

        try:
            answered = self._live.begin(Kind.APPEND, ask)
            # A leader that was killed says nothing: the next one is heard long before the session is given up.
            while not answered.done() and not self._follows_other(node):
                await asyncio.wait([answered], timeout=PAUSE_S)
            if not answered.done():
                answered.cancel()
                return Appended(req=0, outcome=Outcome.UNRESOLVED)
            report = answered.result()
        except PeerError:
            return Appended(req=0, outcome=Outcome.NOT_LEADER)
        except DeliveryError:
            return Appended(req=0, outcome=Outcome.BACKPRESSURE)
        finally:
            self._live.engine.appending.forget(request)
        assert isinstance(report, AppendAnswered)
        return report.answer


def check_record_size(size: int) -> None:
    """Raise LocalProtocolError for a record that does not fit into one packet."""
    if size > MAX_REPLICATED:
        raise LocalProtocolError(
            f"an event of {size - RECORD_COST} bytes, with its headers, cannot be replicated; the limit is"
            f" {MAX_PAYLOAD} bytes, so that it fits one packet"
        )
