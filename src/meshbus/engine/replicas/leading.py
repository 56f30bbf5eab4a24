"""Leading: replicate, commit, and know when not to acknowledge any more.

- Events are sent as soon as they are appended, while the own disk still writes. They are committed when a majority has
  them on disk, in the epoch of this leader. One STORED confirms everything before it, so that a single sync of a disk
  serves all appends that came in meanwhile.
- Every message carries the number of the last round. When a majority has answered a round, no other leader can have
  been elected before it was sent: reads are answered on that ground, and the lease is counted from that moment.
- Members change one at a time, and only after the config before is stored by a majority in this epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from meshbus.engine.replicas.appends import Appends
from meshbus.engine.replicas.base import Seat
from meshbus.engine.replicas.belief import MISSED_BEATS
from meshbus.engine.replicas.budget import BandwidthBudget
from meshbus.engine.replicas.pacing import Pacing
from meshbus.engine.replicas.progress import Progress, majority_value
from meshbus.engine.replicas.records import (
    Acks,
    Committed,
    ConfigChanged,
    LeftBehind,
    Out,
    ReadReady,
    Refusal,
    Refused,
    Resumed,
    Send,
)
from meshbus.engine.replicas.serving import chunk
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.column import largest_of, nbytes_of
from meshbus.wire.messages.leadership import (
    DATA_ROOM,
    MAX_REPLICATED,
    Config,
    Configure,
    Data,
    Fetch,
    Member,
    Stored,
    Transfer,
)
from meshbus.wire.messages.redex import BandwidthClass

LEASE_BEATS = 2
"""For as many heartbeat periods a leader acknowledges after a majority answered. Others wait at least three."""
_MAX_READS = 1024
_MAX_ROUNDS = 64
_MAX_CHUNKS = 16
"""Several times what is under way to a follower, so that those who are close to each other share them."""


BOUNDS = (
    Bound(
        name="replica_reads",
        what="reads that wait for a confirmed leader",
        by=By.USER,
        per_node=_MAX_READS,
        full="the call is refused",
        counter="answers busy",
    ),
)


class _Read(NamedTuple):
    token: int
    round: int


class Leading:
    """The leader of one epoch."""

    def __init__(self, seat: Seat, committed: int, now: float, out: Out) -> None:
        self._seat = seat
        self.epoch = seat.journal.ballot.promised
        self.committed = committed
        self.established = False
        """Whether a majority has stored the start of this epoch, and with it everything before."""
        self.beat_at = now
        self._round = 0
        self._rounds: deque[tuple[int, float]] = deque(maxlen=_MAX_ROUNDS)
        self._lease_until = now
        self._progress: dict[int, Progress] = {}
        self._appends = Appends(seat.settings.max_waiting_events, seat.settings.max_waiting_bytes)
        self._reads: deque[_Read] = deque()
        self._pacing = Pacing(MISSED_BEATS * seat.settings.heartbeat_s)
        self._paced = False
        """Whether an append was refused because a follower lacks too much, and waits to be tried again."""
        self._budget = BandwidthBudget(seat.settings.budget_fraction)
        self._stored_config: tuple[int, int] = (0, 0)
        self._chunks: dict[int, Data] = {}
        """Messages with events that were sent to one follower, by their first sequence; another needs the same soon."""
        self._older: dict[int, Data] = {}
        self._heir: int | None = None
        """The member that is to lead next: nothing is appended until then."""
        self._heir_until = now
        self._start = seat.journal.tail
        seat.journal.append(self.epoch, (), out)
        config = seat.config
        self._use(Config(epoch=self.epoch, version=config.version, members=config.members), out)
        self.beat(now, out)

    @property
    def config(self) -> Config:
        """The members that count."""
        return self._seat.config

    @property
    def config_stored(self) -> bool:
        """Whether a majority has stored the config in this epoch."""
        return self._stored_config == self.config.rank

    def confirmed(self) -> dict[int, int]:
        """Return how far the log of each follower that has answered is on its disk."""
        return {node: one.match for node, one in self._progress.items() if one.incarnation is not None}

    def fenced(self, now: float) -> bool:
        """Return whether no majority answered lately, so that another leader may exist."""
        return now >= self._lease_until

    # ── requests of the application ─────────────────────────────────────────────────────────

    def append(self, token: int, payloads: Sequence[bytes], acks: Acks, now: float, out: Out) -> None:
        """Append events, and replicate them."""
        refusal = self._refusal(payloads, acks, now, out)
        if refusal is not None:
            if refusal is not Refusal.BEHIND:
                self._seat.counters.count(Reason.REFUSE_REPLICA_APPEND)
            out.notices.append(Refused(token, refusal))
            return
        first = self._seat.journal.tail
        self._seat.journal.append(self.epoch, payloads, out)
        self._appends.add(token, first, payloads, acks)
        for node, progress in self._progress.items():
            self._push(node, progress, now, out, paid=True)

    def read(self, token: int, now: float, out: Out) -> None:
        """Answer with the committed tail, after a majority confirmed that this node still leads."""
        if len(self._reads) >= _MAX_READS:
            out.notices.append(Refused(token, Refusal.BACKPRESSURE))
            return
        self._reads.append(_Read(token, self._round + 1))
        self.beat(now, out)
        self.advance(now, out)

    def change(self, token: int, members: tuple[Member, ...], now: float, out: Out) -> None:
        """Replace the config by one that differs in one member."""
        # What is committed must be on a majority of the present config, which a lost disk may have broken: otherwise the
        # next config could have a majority without it.
        covered = majority_value(self.config, self._stored_by) >= self.committed
        if not self.established or not self.config_stored or not covered:
            out.notices.append(Refused(token, Refusal.CHANGING))
            return
        before = set(self._progress)
        self._use(Config(epoch=self.epoch, version=self.config.version + 1, members=members), out)
        for node in before - set(self._progress):
            # Told once: it is no longer a member, and nothing else will be sent to it.
            self._seat.send(node, self._configure(), out)
        self.beat(now, out)

    def hand_over(self, node: int, until: float, now: float, out: Out) -> None:
        """Refuse appends until a time, and ask a member to lead as soon as it has everything."""
        self._heir, self._heir_until = node, until
        self._call_heir(now, out)

    def give_up(self, out: Out) -> None:
        """Report what stays without an answer."""
        self._appends.give_up(out)
        out.notices.extend(Refused(read.token, Refusal.NOT_LEADER) for read in self._reads)
        self._reads.clear()

    # ── messages of the followers ───────────────────────────────────────────────────────────

    def on_stored(self, node: int, stored: Stored, now: float, out: Out) -> None:
        """Record how far a follower is, and send it more."""
        progress = self._progress.get(node)
        if progress is None or stored.tail > self._seat.journal.tail:
            self._seat.counters.count(Reason.REPLICA_UNEXPECTED)
            return
        if progress.incarnation is None:
            progress.incarnation = stored.incarnation
        elif progress.incarnation != stored.incarnation:
            # Another memory: what was known of this node is not true any more.
            progress = self._progress[node] = Progress(incarnation=stored.incarnation, next=stored.tail)
        progress.heard_at = now
        progress.round = max(progress.round, stored.round)
        progress.started |= stored.last_epoch == self.epoch
        progress.config_rank = max(progress.config_rank, (stored.config_epoch, stored.config_version))
        confirmed = progress.stored(stored.tail)
        self._pacing.stored(node, confirmed, self._seat.journal.lacking(progress.match), now)
        self._push(node, progress, now, out, paid=True)
        self.advance(now, out)

    def on_fetch(self, node: int, fetch: Fetch, now: float, out: Out) -> None:
        """Send events again from a sequence on."""
        progress = self._progress.get(node)
        if progress is None:
            self._seat.counters.count(Reason.REPLICA_NOT_MEMBER)
            return
        progress.resume(min(fetch.first, self._seat.journal.tail))
        self._push(node, progress, now, out, paid=False)

    # ── time and disk ───────────────────────────────────────────────────────────────────────

    def beat(self, now: float, out: Out) -> None:
        """Begin a round: a heartbeat to every follower, and the config to those that lack it."""
        self._round += 1
        self._rounds.append((self._round, now))
        self.beat_at = now + self._seat.settings.heartbeat_s
        for node, progress in self._progress.items():
            self._seat.send(node, chunk(self._seat, self._seat.journal.tail, self._round, self.committed), out)
            if progress.config_rank < self.config.rank:
                self._seat.send(node, self._configure(), out)

    def advance(self, now: float, out: Out) -> None:
        """Commit, acknowledge, answer reads and renew the lease, as far as a majority has come."""
        reached = majority_value(self.config, self._stored_by)
        if reached >= 0:
            self.established = True
            if reached > self.committed:
                self.committed = int(reached)
                out.notices.append(Committed(self.committed))
        self._renew()
        journal = self._seat.journal
        confirmed = not self.fenced(now)
        self._appends.reached(Acks.LOCAL, journal.stable_tail, out, confirmed=confirmed)
        self._appends.reached(Acks.MAJORITY, self.committed, out, confirmed=True)
        self._answer_reads(out)
        self._settle_config(out)
        self._call_heir(now, out)
        self._resume(now, out)

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    def _call_heir(self, now: float, out: Out) -> None:
        """Ask the member that is to lead next, if it has everything; repeated, because it may be lost."""
        if self._heir is None or now >= self._heir_until:
            self._heir = None
            return
        heir = self._progress.get(self._heir)
        if heir is not None and self.committed == heir.match == self._seat.journal.tail:
            self._seat.send(self._heir, Transfer(channel_id=self._seat.channel_id, epoch=self.epoch), out)

    def _refusal(self, payloads: Sequence[bytes], acks: Acks, now: float, out: Out) -> Refusal | None:
        if self._heir is not None and now < self._heir_until:
            return Refusal.NOT_LEADER
        if largest_of(payloads) > MAX_REPLICATED:
            return Refusal.TOO_LARGE
        if not self._appends.has_room(payloads):
            return Refusal.BACKPRESSURE
        if acks == Acks.MAJORITY and self.fenced(now):
            return Refusal.NO_MAJORITY
        if self._is_paced(now, out):
            self._paced = True
            return Refusal.BEHIND
        return None

    def _is_paced(self, now: float, out: Out) -> bool:
        """Return whether a live follower lacks so much that appends wait for it."""
        pacing = self._pacing
        for node, progress in self._progress.items():
            if now - progress.heard_at >= pacing.patience_s:
                pacing.lost(node)
                continue
            lacks = self._seat.journal.lacking(progress.match)
            if pacing.waits(node, lacks, now):
                return True
            if pacing.overdue(node, now):
                pacing.lost(node)
                out.notices.append(LeftBehind(node))
        return False

    def _resume(self, now: float, out: Out) -> None:
        if self._paced and not self._is_paced(now, out):
            self._paced = False
            out.notices.append(Resumed())

    def _use(self, config: Config, out: Out) -> None:
        self._seat.persist(out, config=config)
        own, tail = self._seat.own, self._seat.journal.tail
        nodes = [member.node for member in config.members if member.node != own]
        self._progress = {node: self._progress.get(node) or Progress(next=tail) for node in nodes}

    def _configure(self) -> Configure:
        return Configure(channel_id=self._seat.channel_id, epoch=self.epoch, config=self.config)

    def _push(self, node: int, progress: Progress, now: float, out: Out, *, paid: bool) -> None:
        """Send what the follower does not have, as far as the window and, for old events, the budget allow."""
        journal, window = self._seat.journal, self._seat.settings.window_bytes
        while progress.next < journal.tail and progress.in_flight_bytes < window:
            data = self._chunk(max(progress.next, journal.first_retained))
            size = nbytes_of(data.payloads)
            if not data.payloads:
                return  # not in memory: the follower asks again
            if not paid and not self._budget.admit(size, BandwidthClass.FOREGROUND, now):
                self._seat.counters.count(Reason.REPLICA_OVER_BUDGET)
                return
            self._send(node, progress, data, size, out)

    def _chunk(self, first: int) -> Data:
        """Return the events from a sequence on as one message, perhaps one that was made for another follower.

        It may be much larger than a packet: it is cut when it is written (wire/datarun.py).

        Its round and its committed tail may be earlier ones, as if it had been on its way for longer. What is retained must
        be told as it is: a follower that lacks removed events goes on at the first that is there.
        """
        journal = self._seat.journal
        most = max(DATA_ROOM, self._seat.settings.window_bytes // 2)
        data = self._chunks.get(first) or self._older.get(first)
        if data is None or data.first_retained != journal.first_retained or self._could_be_larger(data, most):
            data = chunk(self._seat, first, self._round, self.committed, most)
            if len(self._chunks) >= _MAX_CHUNKS:
                self._chunks, self._older = {}, self._chunks
            if data.payloads:
                self._chunks[first] = data
        return data

    def _could_be_larger(self, data: Data, most: int) -> bool:
        """Return whether a message was made when the log was shorter, and is so small that a new one is better.

        Followers that get the same messages stay together: from one that is shorter on, all that follow would differ.
        """
        ended_log = data.first_seq + len(data.payloads) < self._seat.journal.tail
        return ended_log and nbytes_of(data.payloads) < most // 4

    def _send(self, node: int, progress: Progress, data: Data, size: int, out: Out) -> None:
        out.sends.append(Send(node, data))
        progress.sent(data.first_seq + len(data.payloads), size)

    def _stored_by(self, member: Member) -> int:
        """Return how far a member's disk is in this epoch; -1 if it has not stored its start and all before."""
        journal = self._seat.journal
        if member == self._seat.member:
            return journal.synced.tail if journal.synced.last_epoch == self.epoch else -1
        progress = self._progress_of(member)
        # A member that was started again may have the start on its disk, and not have compared what is before it yet.
        if progress is None or not progress.started or progress.match < self._start:
            return -1
        return progress.match

    def _progress_of(self, member: Member) -> Progress | None:
        progress = self._progress.get(member.node)
        return progress if progress is not None and progress.incarnation == member.incarnation else None

    def _round_of(self, member: Member) -> int:
        if member == self._seat.member:
            return self._round
        progress = self._progress_of(member)
        return 0 if progress is None else progress.round

    def _config_of(self, member: Member) -> bool:
        if member == self._seat.member:
            stored = self._seat.journal.synced.ballot.config
            return stored is not None and stored.rank >= self.config.rank
        progress = self._progress_of(member)
        return progress is not None and progress.config_rank >= self.config.rank

    def _renew(self) -> None:
        answered = majority_value(self.config, self._round_of)
        while self._rounds and self._rounds[0][0] <= answered:
            _, sent_at = self._rounds.popleft()
            self._lease_until = sent_at + LEASE_BEATS * self._seat.settings.heartbeat_s

    def _answer_reads(self, out: Out) -> None:
        answered = majority_value(self.config, self._round_of)
        while self.established and self._reads and self._reads[0].round <= answered:
            out.notices.append(ReadReady(self._reads.popleft().token, self.committed))

    def _settle_config(self, out: Out) -> None:
        if not self.config_stored and majority_value(self.config, self._config_of):
            self._stored_config = self.config.rank
            out.notices.append(ConfigChanged(self.config))
