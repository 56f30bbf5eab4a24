"""A world of nodes that share a ledger, and do with it what node/daemons/daemonledger.py and the runner of a daemon do.

Each node is a generator that stops wherever another node, a crash or a late entry may come between. Appends may arrive much
later, twice, or only after their writer has died. Nodes are taken for dead when they are not, are stopped in the middle of
everything, move the daemon among each other, and read ledgers whose beginning is gone. A state is the list of all batches of
outputs so far, each with a name of its own, so that a batch that was published twice, left out or divided differently shows.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

import msgspec

from meshbus.compute.ledger import Entry, Kind, Ledger, split_checkpoint

ORIGIN = 2**64 - 1
FILLER = bytes(9_000)
"""Makes a checkpoint one of two parts."""

State = tuple[str, ...]
Steps = Iterator[None]


class Wrong(AssertionError):
    """Something was published twice, left out, or replaced."""


class Record(NamedTuple):
    """What a node has on disk about the daemon."""

    term: int
    state: State
    is_active: bool = True
    attempt: int = 0
    """The move in which it was handed over, if it was."""


class Move(NamedTuple):
    """A daemon that was handed over and has not begun at its target."""

    attempt: int
    source: Member
    target: Member
    record: Record


class Member:
    """One node."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.record: Record | None = None
        self.is_staged = False
        self.lives = 0
        self.crash()
        self.boot()

    def crash(self) -> None:
        """Lose everything that is in memory."""
        self.steps: Steps | None = None
        self.can_leave = False
        self.is_up = False

    def boot(self) -> None:
        """Read the ledger from the beginning, or from what is left of it."""
        self.is_up = True
        self.lives += 1
        self.written = 0
        self.view = self.world.ledger()
        self.place = self.world.chance.choice([0, self.world.first_kept()])

    def catch_up(self, end: int) -> None:
        """Read the ledger up to a place."""
        for entry in self.world.log[self.place : end]:
            self.view.read(entry)
        self.place = max(self.place, end)

    def step(self) -> None:
        """Go on with what the node is doing."""
        if self.steps is None and self.record is not None and self.record.is_active:
            self.steps = self.run(self.record)
        if self.steps is not None and next(self.steps, self) is self:
            self.steps, self.can_leave = None, False

    def append(self, entries: Sequence[Entry]) -> Steps:
        """Append entries until it is known to have worked, and read them back."""
        yield
        while self.world.chance.random() < self.world.trouble:
            self.world.late.append(list(entries))  # it may arrive yet
            yield
        self.world.log += entries
        end = len(self.world.log)
        yield
        self.catch_up(end)

    def run(self, record: Record) -> Steps:
        """Run the daemon from a record, as long as it belongs to this node."""
        yield from self.append([Entry(Kind.CLAIM, 0, 0, self.number)])
        term = 0
        while not self.view.holds(term, self.number) or not term:
            if self.world.is_old(self.view, record):
                self.record = record._replace(is_active=False)
                return
            claim = self.view.claim(self.number)
            term = claim.term
            yield from self.append([claim])
        if self.world.is_old(self.view, record):
            self.record = record._replace(is_active=False)
            return
        state = record.state
        while True:
            self.record = Record(term, state)
            yield
            if not (yield from self.share(term, state)):
                self.record = self.record._replace(is_active=False)
                return
            yield  # here it may be stopped for long
            self.world.publish(state)
            self.can_leave = True
            yield
            self.can_leave = False
            state = (*state, f"{self.number}.{self.lives}.{len(self.world.log)}")

    def share(self, term: int, state: State) -> Generator[None, None, bool]:
        """Write a checkpoint, and return whether it counts."""
        snapshot = msgspec.msgpack.encode((term, state, FILLER))
        while self.view.holds(term, self.number):
            self.written += 1
            which = term, self.written
            yield from self.append(list(split_checkpoint(ORIGIN, term, self.number, self.written, snapshot)))
            if self.view.counted == which:
                return True
        return False

    def take_over(self) -> Steps:
        """Claim the daemon of a node that seems to be dead, and go on from its last checkpoint."""
        claim = self.view.claim(self.number)
        yield from self.append([claim])
        if self.view.holds(claim.term, self.number) and self.is_free and self.view.snapshot is not None:
            term, state, _ = msgspec.msgpack.decode(self.view.snapshot)
            yield
            self.record = Record(term, tuple(state))

    @property
    def is_free(self) -> bool:
        """Whether the node neither runs the daemon nor waits for it."""
        return self.is_up and not self.is_staged and (self.record is None or not self.record.is_active)


class World:
    """Some nodes, the log that they share, and what was published."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.chance = random.Random(seed)
        self.trouble = self.chance.choice([0.0, 0.1, 0.4])
        self.log: list[Entry] = []
        self.late: list[list[Entry]] = []
        self.published: list[str] = []
        self.moves: list[Move] = []
        self.attempts = 0
        self.members = [Member(self, number) for number in range(1, nodes + 1)]
        self.members[0].record = Record(0, ())

    def ledger(self) -> Ledger:
        """Return a ledger of which nothing was read."""
        return Ledger(ORIGIN)

    def is_old(self, view: Ledger, record: Record) -> bool:
        """Return whether a daemon must not go on from a record."""
        return view.supersedes(record.term)

    def first_kept(self) -> int:
        """Return from where on the log is needed: the last checkpoint that counted, and what follows it."""
        whole, first, kept = self.ledger(), 0, 0
        before = None
        for place, entry in enumerate(self.log):
            first = place if entry.kind is Kind.CHECKPOINT and entry.part == 0 else first
            whole.read(entry)
            if whole.counted != before:
                before, kept = whole.counted, max(0, first - 1)
        return kept

    def publish(self, state: State) -> None:
        """Publish the last batch of a state under its number, as publish_once does."""
        known = self.published[: len(state)]
        if known != list(state[: len(known)]) or len(state) > len(self.published) + 1:
            raise Wrong(f"{state[-3:]} does not follow from {self.published[-3:]}")
        self.published[len(known) :] += state[len(known) :]

    def act(self) -> None:
        """Let one thing happen."""
        chance, member = self.chance, self.chance.choice(self.members)
        event = chance.random()
        if event < 0.02:
            member.crash()
        elif event < 0.06 and not member.is_up:
            member.boot()
        elif event < 0.09 and self.late:
            self.log += self.late.pop(chance.randrange(len(self.late)))
        elif event < 0.10 and member.is_free and member.steps is None and member.view.snapshot is not None:
            member.steps = member.take_over()
        elif event < 0.25:
            self.hand_over(member, chance.choice(self.members))
        elif event < 0.35 and self.moves:
            self.end_move(self.moves.pop(chance.randrange(len(self.moves))))
        elif event < 0.40 and member.is_up:
            member.catch_up(min(len(self.log), member.place + chance.randrange(5)))
        elif member.is_up:
            # Long stretches, so that others are stopped meanwhile.
            for _ in range(chance.choice([1, 2, 10, 60])):
                member.step()

    def hand_over(self, source: Member, target: Member) -> None:
        """Begin the end of a move: the source has stopped, the target is prepared."""
        if source is target or not source.can_leave or not target.is_free or target.steps is not None:
            return
        assert source.record is not None
        self.attempts += 1
        self.moves.append(Move(self.attempts, source, target, source.record))
        source.record = source.record._replace(is_active=False, attempt=self.attempts)
        source.steps, source.can_leave = None, False
        target.is_staged = True

    def end_move(self, move: Move) -> None:
        """Let the target begin, or take the move back."""
        move.target.is_staged = False
        if self.chance.random() < 0.7:
            move.target.record = move.record
        elif move.source.record is not None and move.source.record.attempt == move.attempt:
            move.source.record = move.record

    def play(self, steps: int) -> None:
        """Let many things happen, and then nothing bad any more: the daemon must go on."""
        for _ in range(steps):
            self.act()
        self.trouble = 0.0
        for entries in self.late:
            self.log += entries
        for move in self.moves:
            self.end_move(move)
        for member in self.members:
            if not member.is_up:
                member.boot()
        self.settle()

    def settle(self) -> None:
        """Let everything go on without faults until new outputs are published by the only node that runs the daemon."""
        goal = len(self.published) + 3
        for _ in range(200):
            for member in self.members:
                for _ in range(40):
                    member.step()
                member.catch_up(len(self.log))
            running = [one for one in self.members if one.steps is not None]
            if len(self.published) >= goal and len(running) == 1:
                return
            if not running:
                member = self.chance.choice(self.members)
                member.steps = member.take_over()
        raise Wrong("the daemon does not go on")
