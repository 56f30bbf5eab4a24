"""Reconciling copies of one chain between two nodes (0x0801), after a partition or a gap.

    compare ──── RANGE ───────► same head: done · behind: asks · different: asks
    asks ─────── DIFF ────────► the newest point that both have ──► EVENTS after it
                                neither copy contains the other: the answering node adds nothing until it has settled
    settles ◄─── EVENTS ──────  reconcile (compute/reconcile.py): the same winner on both sides
    the loser takes the winner's events; a branch that lost is kept, reported, announced (BRANCH, 0x0701) and fetched (WANT)

Who answers stands still until it has settled, so the branches that two nodes compare are the same ones, in whatever order
the messages arrive. Of two branches the longer wins, then the first event that differs decides: that order is total, so
any number of nodes comes to the same chain, pair by pair. Everything here is pure: messages and time in, messages out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from meshbus.compute.causal import ChainFault, check_chain
from meshbus.compute.heldchain import (
    EVENT_BYTES,
    MAX_BRANCHES,
    MAX_CHAIN_BYTES,
    MAX_CHAIN_EVENTS,
    HeldChain,
    LostBranch,
    branch_of,
)
from meshbus.compute.reconcile import Catchup, Conflict, Converged, Outcome, Side, reconcile
from meshbus.engine.base.counters import Counters
from meshbus.errors import Fault, MalformedPacket
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.causal import CausalEvent, hash_event
from meshbus.wire.messages.continuity import encode_fork
from meshbus.wire.messages.reconciliation import (
    Branch,
    Diff,
    Events,
    Point,
    Range,
    ReconciliationMessage,
    Want,
    encode_reconciliation,
    pack_branches,
)

RETRY_S = 2.0
"""A question without an answer is asked again after this time."""
MAX_TRIES = 5
MAX_ANSWER_BYTES = MAX_CHAIN_BYTES + MAX_CHAIN_EVENTS * EVENT_BYTES
"""Events of one answer that is being received: as many as a chain keeps."""
MAX_ANSWERS_BYTES = 256 << 20
"""Events of all answers that are being received. Our choice: a dozen of the largest."""

BOUNDS = (
    Bound(
        name="chain_answers",
        what="events of a chain that a peer was asked for",
        by=By.PEER,
        per_node=MAX_ANSWERS_BYTES,
        per={"peer and chain": MAX_ANSWER_BYTES},
        unit="bytes",
        full="the answer is given up",
        counter=Reason.REFUSE_CHAIN_FULL,
    ),
)

Outbound: TypeAlias = tuple[int, int, bytes]
"""A node, a subprotocol and a message."""


class Diverged(msgspec.Struct, frozen=True, kw_only=True):
    """Two nodes wrote different events at the same place; one branch lost and is kept."""

    origin: int
    sequence: int
    """Number of the first event that differs."""
    peer: int
    """The node from which this was learned."""
    lost: LostBranch
    ours: bool | None
    """Whether the branch that lost was this node's own copy; None if another node reported it."""


class CaughtUp(msgspec.Struct, frozen=True, kw_only=True):
    """This node took events that it lacked."""

    origin: int
    peer: int
    events: tuple[CausalEvent, ...]


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """A peer sent events that are no history of the chain."""

    origin: int
    peer: int
    fault: ChainFault


class Incomparable(msgspec.Struct, frozen=True, kw_only=True):
    """The copies of two nodes have nothing in common that both still keep."""

    origin: int
    peer: int


Report: TypeAlias = Diverged | CaughtUp | Broken | Incomparable


class _Question:
    """What one node was asked, and what it has answered so far."""

    def __init__(self, message: Diff | Want, now: float) -> None:
        self.message = message
        self.due_at = now + RETRY_S
        self.tries = 1
        self.missed = False
        """Whether something newer passed by meanwhile."""
        self.split: int | None = None
        self.events: list[CausalEvent] = []
        self.size = 0

    def take(self, answer: Events, now: float) -> Reason | None:
        """Take the next part of the answer, or return why it is none."""
        split = answer.split if self.split is None else self.split
        expected = range(split + len(self.events) + 1, split + len(self.events) + len(answer.events) + 1)
        if answer.split != split or [event.link.sequence for event in answer.events] != list(expected):
            # The rest of an answer to the same question, asked before.
            return Reason.CHAIN_UNEXPECTED
        self.split, self.due_at = split, now + RETRY_S
        self.size += _size(answer)
        if self.size > MAX_ANSWER_BYTES:
            return Reason.REFUSE_CHAIN_FULL
        self.events += answer.events
        return None


class Reconciler:
    """All comparisons of one node."""

    def __init__(self, own: int, counters: Counters) -> None:
        self._own = own
        self._counters = counters
        self._open: dict[tuple[int, int, int], _Question] = {}
        """By chain, branch (0 for the chain itself) and node."""
        self._held_bytes = 0
        """What the answers to them have brought so far."""
        self.reports: list[Report] = []
        """What happened; whoever drives this takes them."""

    def __len__(self) -> int:
        return len(self._open)

    def greet(self, chain: HeldChain, node: int) -> list[Outbound]:
        """Begin to compare a chain with a member, and name the branches that are kept."""
        kept = (branch for one in chain.branches if (branch := chain.branches.get(one)) is not None)
        return [*self.compare(chain, node), *(_out(node, _named(branch)) for branch in kept)]

    def compare(self, chain: HeldChain, node: int) -> list[Outbound]:
        """Send a member what this node has of a chain."""
        return [_out(node, chain.range())]

    def ask(self, chain: HeldChain, node: int, now: float) -> list[Outbound]:
        """Ask a member for the events that are missing or different, unless it is asked already."""
        question = self._open.get((chain.origin, 0, node))
        if question is not None:
            question.missed = True
            return []
        return self._put(chain, node, Diff(origin=chain.origin, points=chain.points()), now)

    def is_asking(self, origin: int) -> bool:
        """Return whether a member was asked for events of a chain and has not answered."""
        return any(chain == origin and not branch for chain, branch, _ in self._open)

    def handle(self, chain: HeldChain, message: ReconciliationMessage, sender: int, now: float) -> list[Outbound]:
        """Handle a message of a member."""
        match message:
            case Range():
                return self._ranged(chain, message, sender, now)
            case Diff():
                return self._asked(chain, message, sender, now)
            case Events(branch=0):
                return self._answered(chain, message, sender, now)
            case Events():
                return self._fetched(chain, message, sender, now)
            case Branch():
                return self._announced(chain, message, sender, now)
            case Want():
                return self._wanted(chain, message, sender)

    def replace(self, chain: HeldChain, after: int) -> list[Outbound]:
        """Remove the events after a number from a chain, and keep them as a branch that lost."""
        out = self.keep(chain, chain.log.after(after))
        chain.replace_after(after, ())
        return out

    def keep(self, chain: HeldChain, events: Sequence[CausalEvent]) -> list[Outbound]:
        """Keep events of this node that do not continue a chain as a branch that lost."""
        return self._keep(chain, branch_of(chain.origin, events), self._own, ours=True)

    def gone(self, node: int, chains: Sequence[HeldChain]) -> None:
        """Drop what a node was asked; nothing is settled with it any more."""
        for key in [key for key in self._open if key[2] == node]:
            self._close(key)
        for chain in chains:
            chain.rivals.discard(node)

    def forget(self, origin: int) -> None:
        """Drop everything that was asked about a chain."""
        for key in [key for key in self._open if key[0] == origin]:
            self._close(key)

    def next_timer(self) -> float | None:
        """Return when `tick` has something to do, or None."""
        return min((question.due_at for question in self._open.values()), default=None)

    def tick(self, chains: dict[int, HeldChain], now: float) -> list[Outbound]:
        """Ask again what was not answered."""
        out = []
        for key, question in [(key, one) for key, one in self._open.items() if now >= one.due_at]:
            origin, _, node = key
            chain = chains[origin]
            self._close(key)
            if question.tries >= MAX_TRIES:
                chain.rivals.discard(node)
                continue
            fresh = question.message
            if isinstance(fresh, Diff):
                fresh = Diff(origin=origin, points=chain.points())
            out += self._put(chain, node, fresh, now)
            self._open[key].tries = question.tries + 1
        return out

    # ── questions and answers ───────────────────────────────────────────────────────────────

    def _put(self, chain: HeldChain, node: int, message: Diff | Want, now: float) -> list[Outbound]:
        branch = message.branch if isinstance(message, Want) else 0
        self._open[chain.origin, branch, node] = _Question(message, now)
        return [_out(node, message)]

    def _ranged(self, chain: HeldChain, theirs: Range, sender: int, now: float) -> list[Outbound]:
        ours = chain.range()
        if chain.log.hash_at(theirs.last) == theirs.hash:
            # Theirs is the beginning of ours, or the same. They ask when they hear of it.
            return self.compare(chain, sender) if ours.last > theirs.last else []
        if theirs.last < ours.first - 1:
            return self.compare(chain, sender)
        return self.ask(chain, sender, now)

    def _asked(self, chain: HeldChain, question: Diff, sender: int, now: float) -> list[Outbound]:
        split, head = chain.shared(question.points), chain.log.head.link.sequence
        out: list[Outbound] = []
        if split is None:
            if question.points[0].sequence:
                self._counters.count(Reason.CHAIN_UNVERIFIABLE)
                self.reports.append(Incomparable(origin=chain.origin, peer=sender))
                return []
            # They have nothing at all: what is kept here is where they begin.
            split = chain.log.anchor.link.sequence
        elif split < question.points[0].sequence:
            # They have something that is not here. Ask, and stand still if each side has something of its own.
            if split < head:
                chain.rivals.add(sender)
            out += self.ask(chain, sender, now)
        return [*out, *_answer(chain.origin, sender, split, chain.log.after(split))]

    def _take(self, chain: HeldChain, message: Events, sender: int, now: float) -> _Question | None:
        """Take a part of an answer, and return the question if the answer is complete."""
        key = chain.origin, message.branch, sender
        question = self._open.get(key)
        reason = Reason.CHAIN_UNEXPECTED if question is None else self._add(question, message, now)
        if reason is not None:
            self._counters.count(reason)
        if reason == Reason.REFUSE_CHAIN_FULL:
            self._close(key)
            chain.rivals.discard(sender)
        if reason is not None or not message.last:
            return None
        return self._close(key)

    def _add(self, question: _Question, message: Events, now: float) -> Reason | None:
        before = question.size
        reason = question.take(message, now)
        self._held_bytes += question.size - before
        return Reason.REFUSE_CHAIN_FULL if self._held_bytes > MAX_ANSWERS_BYTES else reason

    def _close(self, key: tuple[int, int, int]) -> _Question:
        question = self._open.pop(key)
        self._held_bytes -= question.size
        return question

    def _answered(self, chain: HeldChain, message: Events, sender: int, now: float) -> list[Outbound]:
        question = self._take(chain, message, sender, now)
        if question is None:
            return []
        out = self._settle(chain, message.split, tuple(question.events), sender)
        chain.rivals.discard(sender)
        return [*out, *(self.ask(chain, sender, now) if question.missed else ())]

    # ── outcomes ────────────────────────────────────────────────────────────────────────────

    def _settle(self, chain: HeldChain, split: int, theirs: tuple[CausalEvent, ...], sender: int) -> list[Outbound]:
        log = chain.log
        if theirs and log.hash_at(split) is None and log.head.link.sequence == 0:
            # A node that has nothing yet begins where the other's copy begins.
            chain.restart(Point(split, theirs[0].link.parent_hash))
            log = chain.log
        ours = tuple(log.after(split))
        outcome: Outcome | ChainFault = ChainFault.PARENT_HASH_MISMATCH
        if not theirs or theirs[0].link.parent_hash == log.hash_at(split):
            outcome = reconcile(ours, theirs, chain.origin, split)
        match outcome:
            case ChainFault():
                self._counters.count(Reason.CHAIN_BROKEN)
                self.reports.append(Broken(origin=chain.origin, peer=sender, fault=outcome))
            case Converged() if ours and theirs and theirs[-1].link.horizon < ours[-1].link.horizon:
                # The same events, except for what their last writer had seen: everyone takes the lower one.
                chain.replace_after(split, theirs)
            case Catchup(behind=Side.OURS):
                chain.replace_after(split, theirs)
                missing = theirs[len(ours) :]
                self.reports.append(CaughtUp(origin=chain.origin, peer=sender, events=missing))
            case Conflict():
                return self._decide(chain, split, ours, theirs, outcome.winner, sender)
            case _:
                pass
        return []

    def _decide(
        self,
        chain: HeldChain,
        split: int,
        ours: tuple[CausalEvent, ...],
        theirs: tuple[CausalEvent, ...],
        winner: Side,
        sender: int,
    ) -> list[Outbound]:
        lost = winner == Side.THEIRS
        # `Conflict` leaves horizons out; the branch begins with the first event that is not the same in every bit, so
        # that it follows an event that both have.
        at = next(place for place, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1])
        # Kept before anything is replaced: a losing branch is never thrown away.
        out = self._keep(chain, branch_of(chain.origin, (ours if lost else theirs)[at:]), sender, ours=lost)
        if lost:
            chain.replace_after(split, theirs)
        return out

    def _keep(self, chain: HeldChain, branch: LostBranch, sender: int, *, ours: bool | None) -> list[Outbound]:
        if not chain.keep(branch):
            return []
        lost = Diverged(origin=chain.origin, sequence=branch.record.fork_seq, peer=sender, lost=branch, ours=ours)
        self.reports.append(lost)
        message, announced = _named(branch), encode_fork(branch.record)
        return [
            out for node in sorted(chain.members) for out in ((node, Subprotocol.FORK, announced), _out(node, message))
        ]

    # ── branches that lost ──────────────────────────────────────────────────────────────────

    def _announced(self, chain: HeldChain, message: Branch, sender: int, now: float) -> list[Outbound]:
        forked = message.record.forked_origin
        if forked in chain.branches or (chain.origin, forked, sender) in self._open:
            return []
        fetching = sum(origin == chain.origin and branch != 0 for origin, branch, _ in self._open)
        # What others name never takes the place of what is kept, or two full nodes would exchange branches without end.
        if message.count > MAX_CHAIN_EVENTS or len(chain.branches) + fetching >= MAX_BRANCHES:
            self._counters.count(Reason.REFUSE_CHAIN_FULL)
            return []
        return self._put(chain, sender, Want(origin=chain.origin, branch=forked), now)

    def _wanted(self, chain: HeldChain, message: Want, sender: int) -> list[Outbound]:
        branch = chain.branches.get(message.branch)
        if branch is None:
            self._counters.count(Reason.CHAIN_UNEXPECTED)
            return []
        return list(_answer(chain.origin, sender, branch.record.fork_seq - 1, branch.events, message.branch))

    def _fetched(self, chain: HeldChain, message: Events, sender: int, now: float) -> list[Outbound]:
        question = self._take(chain, message, sender, now)
        if question is None:
            return []
        try:
            branch = _checked(chain, question.events, message.branch)
        except MalformedPacket:
            self._counters.count(Reason.CHAIN_BROKEN)
            return []
        return self._keep(chain, branch, sender, ours=None)


def _checked(chain: HeldChain, events: list[CausalEvent], forked: int) -> LostBranch:
    """Return a branch that a peer sent; raise MalformedPacket if it is none of this chain, or not the one that was asked."""
    if not events or any(event.link.origin_hash != chain.origin for event in events):
        raise MalformedPacket("branch", Fault.BAD_VALUE, "no events of this chain")
    # What its first event follows may itself be in a branch that lost, so that is not asked.
    if check_chain(events) is not None:
        raise MalformedPacket("branch", Fault.BAD_VALUE, "its events do not follow each other")
    branch = branch_of(chain.origin, events)
    if branch.record.forked_origin != forked:
        raise MalformedPacket("branch", Fault.BAD_VALUE, "another branch than the one that was asked for")
    return branch


def _size(answer: Events) -> int:
    return sum(len(event.payload) + EVENT_BYTES for event in answer.events)


def _named(branch: LostBranch) -> Branch:
    return Branch(record=branch.record, count=len(branch.events), head_hash=hash_event(*branch.events[-1]))


def _answer(origin: int, node: int, split: int, events: Sequence[CausalEvent], branch: int = 0) -> Iterator[Outbound]:
    groups = list(pack_branches(events))
    for place, group in enumerate(groups, 1):
        yield _out(node, Events(origin=origin, branch=branch, split=split, last=place == len(groups), events=group))


def _out(node: int, message: ReconciliationMessage) -> Outbound:
    return node, Subprotocol.RECONCILE, encode_reconciliation(message)
