"""ReplicationCoordinator: one channel of a replica set as 0.23 nodes replicate it (0x0E00, redex.md §5 to §7).

A replica follows the leader that it believes in (belief.py), asks it for what it lacks, and elects a leader when that
one falls silent. Two leaders settle it by the longer log. This promises `acks = local` only: what one leader alone
stored can lose against another's log. leadership.py is the form that loses nothing, between meshbus members.

What differs from the reference, which leaves a channel idle for ever and stalls on backlogs above one packet:

- A replica that never heard a leader elects one too, so that replication starts by configuration.
- Heartbeats carry what is on disk, not what is only written.
- Responses fit one packet, and a replica that got one asks for the next at once.
- Backpressure is retried with growing delays, as the documentation says.
- A replica refuses appends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshbus.engine.base.boundedmap import BoundedMap
from meshbus.engine.replicas.appends import Appends
from meshbus.engine.replicas.backoff import CatchupBackoff
from meshbus.engine.replicas.base import ReplicaSettings, Seat
from meshbus.engine.replicas.belief import MISSED_BEATS, Belief, keeps_leading, silence_s
from meshbus.engine.replicas.budget import BandwidthBudget
from meshbus.engine.replicas.catchup import RESPONSE_PRICE, Fit, Retained, answer, fit, refuse, skip_target
from meshbus.engine.replicas.election import Standing, elect
from meshbus.engine.replicas.journal import Journal, Recovered
from meshbus.engine.replicas.records import Acks, Ballot, Gap, LogReader, Out, Refusal, Refused, RoleChanged, Send
from meshbus.engine.replicas.roles import Signal, Verdict, judge, tag_effect
from meshbus.names.identity import Entropy
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.column import largest_of
from meshbus.wire.messages.redex import (
    EVENT_COST,
    MAX_REPLICATED,
    RESPONSE_ROOM,
    BandwidthClass,
    NackCode,
    RedexMessage,
    Role,
    SyncHeartbeat,
    SyncNack,
    SyncRequest,
    SyncResponse,
)

REQUEST_LIFE_S = 30.0
"""A request that was not answered for as long is forgotten."""
_MAX_REQUESTS = 256
_READ_EVENTS = 1024


BOUNDS = (
    Bound(
        name="replica_requests",
        what="requests of replicas that wait for an answer",
        by=By.PEER,
        per_node=_MAX_REQUESTS,
        full="the oldest goes",
        counter="none: an answer to a forgotten request is ignored",
    ),
)


class ReplicationCoordinator:
    """One replicated channel of one node."""

    def __init__(
        self,
        channel_id: bytes,
        own: int,
        found: Recovered,
        reader: LogReader,
        settings: ReplicaSettings,
        *,
        entropy: Entropy,
        wall_ms: Callable[[float], int],
    ) -> None:
        journal = Journal(found, found.ballot or Ballot(incarnation=0), reader)
        self.seat = Seat(channel_id, own, settings, journal, entropy)
        self.role = Role.IDLE
        self.belief = Belief(round(settings.heartbeat_s * 1000))
        self._wall_ms = wall_ms
        self._others = tuple(node for node in dict.fromkeys(settings.nodes) if node != own)
        self._requests: BoundedMap[int, tuple[int, float]] = BoundedMap(_MAX_REQUESTS)
        self._empty, self._pressed = CatchupBackoff(), CatchupBackoff(free_tries=0)
        self._budget = BandwidthBudget(settings.budget_fraction)
        self._appends = Appends(settings.max_waiting_events, settings.max_waiting_bytes)
        self._rtt_us: dict[int, int] = {}
        self._beat_at = float("inf")
        self._waiting_since = float("inf")

    # ── what it knows, as a member with epochs tells it ─────────────────────────────────────

    epoch = 0
    config = lead = None

    @property
    def leader(self) -> int | None:
        """The node that leads, as far as this member believes."""
        return self.seat.own if self.role == Role.LEADER else self.belief.leader

    @property
    def committed(self) -> int:
        """Everything below this sequence is on the own disk; without epochs nobody promises more."""
        return self.seat.journal.stable_tail

    def lag_s(self, now: float) -> float | None:
        """Return for how long the slowest other member, or for a replica the leader, was not heard; None if never."""
        nodes = self._others if self.role == Role.LEADER else (self.belief.leader or 0,)
        return silence_s([self.belief.heard_at(node) for node in nodes], now)

    def retained(self, first_seq: int) -> None:
        """Record that retention removed events."""
        self.seat.journal.retained(min(first_seq, self.committed))

    # ── inputs ──────────────────────────────────────────────────────────────────────────────

    def open(self, now: float) -> Out:
        """Begin to take part."""
        out = Out()
        self.change_role(Role.REPLICA, Signal.CAPABILITY_SELECTED, out)
        self._waiting_since = now
        self._beat_at = now + self.seat.settings.heartbeat_s
        return out

    def close(self) -> Out:
        """Stop taking part."""
        out = Out()
        self._leave(Signal.CHANNEL_CLOSE, out)
        return out

    def next_timer(self) -> float | None:
        """Return when `tick` is due, or None."""
        return None if self.role == Role.IDLE else self._beat_at

    def tick(self, now: float) -> Out:
        """Send heartbeats, ask for events, and elect a leader if there is none."""
        out = Out()
        if self.role == Role.IDLE or now < self._beat_at:
            return out
        # Ticks that were missed are skipped, not made up for.
        self._beat_at = now + self.seat.settings.heartbeat_s
        self._beat(now, out)
        if self.role == Role.REPLICA:
            if self._is_leaderless(now):
                self._elect(now, out)
            else:
                self._request(now, out)
        return out

    def receive(self, sender: int, message: RedexMessage, now: float) -> Out:
        """Handle a message of a member."""
        out = Out()
        match message:
            case SyncHeartbeat():
                self._on_heartbeat(sender, message, now, out)
            case SyncRequest():
                out.sends.append(Send(sender, self._answer(message, now)))
            case SyncResponse():
                self._on_response(sender, message, now, out)
            case SyncNack():
                self._on_nack(sender, message, now, out)
        return out

    def append(self, token: int, payloads: Sequence[bytes]) -> Out:
        """Append events, if this node leads; `Acknowledged` follows when they are on disk."""
        out = Out()
        refusal = self._refusal(payloads)
        if refusal is not None:
            self.seat.counters.count(Reason.REFUSE_REPLICA_APPEND)
            out.notices.append(Refused(token, refusal))
        else:
            self._appends.add(token, self.seat.journal.tail, payloads, Acks.LOCAL)
            self.seat.journal.append(0, payloads, out)
        return out

    def durable(self, number: int) -> Out:
        """Record that a write and all before it survive a loss of power."""
        out = Out()
        self.seat.journal.durable(number)
        self._appends.reached(Acks.LOCAL, self.seat.journal.stable_tail, out, confirmed=True)
        return out

    def disk_failed(self) -> Out:
        """Withdraw, because a write failed."""
        signals = {
            Role.LEADER: Signal.LEADER_DISK_PRESSURE_WITHDRAW,
            Role.CANDIDATE: Signal.CANDIDATE_DISK_PRESSURE_WITHDRAW,
        }
        out = Out()
        self._leave(signals.get(self.role, Signal.DISK_PRESSURE_WITHDRAW), out)
        return out

    def measured(self, node: int, rtt_us: int) -> None:
        """Record the round-trip time to a member."""
        if node in self._others:
            self._rtt_us[node] = rtt_us

    def change_role(self, role: Role, signal: Signal, out: Out) -> Verdict:
        """Change the role, if the signal allows it."""
        verdict = judge(self.role, role, signal)
        if verdict == Verdict.OK and role != self.role:
            tag, self.role = tag_effect(self.role, role), role
            out.notices.append(RoleChanged(role, signal, tag, 0))
        return verdict

    # ── heartbeats and elections ────────────────────────────────────────────────────────────

    def _beat(self, now: float, out: Out) -> None:
        if self.role not in {Role.LEADER, Role.REPLICA}:
            return
        beat = SyncHeartbeat(
            channel_id=self.seat.channel_id,
            tail_seq=self.seat.journal.stable_tail,
            role=self.role,
            wall_clock_ms=self._wall_ms(now),
        )
        out.sends.extend(Send(node, beat) for node in self._others)

    def _on_heartbeat(self, sender: int, beat: SyncHeartbeat, now: float, out: Out) -> None:
        both_lead = self.role == beat.role == Role.LEADER
        if both_lead and not keeps_leading(self.seat.journal.stable_tail, self.seat.own, beat.tail_seq, sender):
            self._appends.give_up(out)
            self.change_role(Role.REPLICA, Signal.PEER_LEADER_OBSERVED, out)
        before = self.belief.leader
        self.belief.hear(sender, beat.role, beat.tail_seq, now)
        if self.belief.leader != before:
            self._forget_requests()

    def _is_leaderless(self, now: float) -> bool:
        if self.belief.leader is None:
            return now - self._waiting_since >= MISSED_BEATS * self.seat.settings.heartbeat_s
        self._waiting_since = now
        return self.belief.silent(now)

    def _elect(self, now: float, out: Out) -> None:
        self.change_role(Role.CANDIDATE, Signal.MISSED_HEARTBEATS, out)
        healthy = {*self.belief.healthy(now), self.seat.own}
        nodes = (*self._others, self.seat.own)
        winner = elect(self.seat.own, [Standing(node, self._rtt_us.get(node), node in healthy) for node in nodes])
        if winner == self.seat.own:
            self.change_role(Role.LEADER, Signal.ELECTION_WON, out)
        else:
            self.change_role(Role.REPLICA, Signal.ELECTION_LOST, out)
        self.belief.clear()
        self._forget_requests()
        self._waiting_since = now

    # ── the leader's side of catch-up ───────────────────────────────────────────────────────

    def _answer(self, request: SyncRequest, now: float) -> SyncResponse | SyncNack:
        if self.role != Role.LEADER:
            return refuse(request, NackCode.NOT_LEADER, "")
        found = answer(request, self._retained(request))
        if isinstance(found, SyncNack):
            return found
        cost = RESPONSE_PRICE + sum(EVENT_COST + len(payload) for _, payload in found.events)
        if not self._budget.admit(cost, request.bandwidth_class, now):
            self.seat.counters.count(Reason.REPLICA_OVER_BUDGET)
            return refuse(request, NackCode.BACKPRESSURE, "the bandwidth budget is used up")
        return found

    def _retained(self, request: SyncRequest) -> Retained:
        journal = self.seat.journal
        # What is not on disk yet may be lost with this leader, and its number used again: it is not served.
        first, tail = max(request.since_seq, journal.first_retained), journal.stable_tail
        payloads: Sequence[bytes] = ()
        if first < tail:
            payloads = journal.read(first, min(tail - first, _READ_EVENTS), RESPONSE_ROOM, EVENT_COST)
        return Retained(journal.first_retained, tail, tuple(enumerate(payloads, first)))

    # ── the replica's side of catch-up ──────────────────────────────────────────────────────

    def _request(self, now: float, out: Out) -> None:
        """Ask the leader for the events that it claims to have, unless it is too early."""
        leader, tail = self.belief.leader, self.seat.journal.tail
        if leader is None or (self.belief.tail_of(leader) or 0) <= tail:
            return
        if self._empty.waiting(now) or self._pressed.waiting(now):
            return
        request_id = int.from_bytes(self.seat.entropy(8), "little")
        self._requests.put(request_id, (leader, now))
        request = SyncRequest(
            channel_id=self.seat.channel_id,
            since_seq=tail,
            chunk_max=RESPONSE_ROOM,
            request_id=request_id,
            bandwidth_class=BandwidthClass.FOREGROUND,
        )
        out.sends.append(Send(leader, request))

    def _on_response(self, sender: int, response: SyncResponse, now: float, out: Out) -> None:
        # The id is used up even if the response is not wanted any more.
        if not self._asked(sender, response.request_id, now) or sender != self.belief.leader:
            self.seat.counters.count(Reason.REPLICA_UNEXPECTED)
            return
        if self.role != Role.REPLICA:
            self.seat.counters.count(Reason.REPLICA_UNEXPECTED)
            return
        match fit(response, self.seat.journal.tail):
            case Fit.APPLY:
                self._apply(response, now, out)
            case Fit.SKIP:
                self._skip_to(response.first_seq, out)
                self._apply(response, now, out)
            case Fit.NOTHING:
                self._on_nothing(sender, now)
            case Fit.STALE | Fit.BROKEN:
                self.seat.counters.count(Reason.REPLICA_UNEXPECTED)

    def _apply(self, response: SyncResponse, now: float, out: Out) -> None:
        self.seat.journal.append(0, [payload for _, payload in response.events], out)
        self._empty.progress()
        self._pressed.progress()
        self._request(now, out)

    def _on_nothing(self, leader: int, now: float) -> None:
        claims_more = (self.belief.tail_of(leader) or 0) > self.seat.journal.tail
        if claims_more and not self.belief.silent(now):
            self._empty.empty(now)

    def _on_nack(self, sender: int, nack: SyncNack, now: float, out: Out) -> None:
        if sender != self.belief.leader or not self._asked(sender, nack.request_id, now):
            self.seat.counters.count(Reason.REPLICA_UNEXPECTED)
            return
        match nack.code:
            case NackCode.NOT_LEADER:
                self.belief.clear()
                self._forget_requests()
            case NackCode.BAD_RANGE:
                self._skip_to(skip_target(nack), out)
            case NackCode.BACKPRESSURE:
                self._pressed.empty(now)
            case NackCode.CHANNEL_CLOSED:
                self._leave(Signal.CHANNEL_CLOSE, out)

    def _skip_to(self, seq: int, out: Out) -> None:
        """Continue at a later sequence, and record what is missing."""
        tail = self.seat.journal.tail
        if seq > tail:
            out.notices.append(Gap(tail, seq))
            self.seat.journal.skip_to(seq, 0, out)

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    def _asked(self, sender: int, request_id: int, now: float) -> bool:
        leader, at = self._requests.pop(request_id) or (None, 0.0)
        return leader == sender and now - at < REQUEST_LIFE_S

    def _forget_requests(self) -> None:
        self._requests = BoundedMap(_MAX_REQUESTS)
        self._empty.progress()
        self._pressed.progress()

    def _leave(self, signal: Signal, out: Out) -> None:
        self._appends.give_up(out)
        self.change_role(Role.IDLE, signal, out)

    def _refusal(self, payloads: Sequence[bytes]) -> Refusal | None:
        if self.role != Role.LEADER:
            return Refusal.NOT_LEADER
        if largest_of(payloads) > MAX_REPLICATED:
            return Refusal.TOO_LARGE
        return None if self._appends.has_room(payloads) else Refusal.BACKPRESSURE
