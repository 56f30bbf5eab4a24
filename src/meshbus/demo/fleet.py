"""Start the processes of the demo's fleet, lead them through the demo, and always stop them.

Members proceed in step: all nodes listen, then all have their sessions, then all subscriptions are live, then events are
published, then nothing is in flight any more. demo/process.py stops the processes whatever happens here; demo/member.py
is the other end of their pipes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from meshbus.demo.lossy import LossyLink, Lost
from meshbus.demo.messages import (
    ANSWER,
    Await,
    Counts,
    Done,
    Fetch,
    Join,
    Left,
    Line,
    Link,
    Listen,
    Publish,
    Refused,
    Up,
    Wish,
    pack,
)
from meshbus.demo.process import Process
from meshbus.demo.roles import CONTROL, DETECTOR, FAILING, GATEWAY, LOSS, LOSSY, POSES, ROLES, FleetFiles, Role
from meshbus.demo.visitors import Visit, Visitors

_QUIET = 5
"""When every member has sent the same counts so often, all events have arrived or are lost. Not a time: on a busy machine a
member may not run for seconds, and what waits for it has not arrived."""
_MAX_SETTLE_S = 60.0
"""Longest wait for events in flight, so that the demo ends even if events keep arriving."""
_TOLD_S = 0.2
"""Time between progress updates; the same as members send their counts."""
_SEED = 7
"""Of the bad radio: the same datagrams are lost each time, counted from the start."""

Told = Callable[[dict[str, Counts]], None]


class Member:
    """The parent's side of one member process."""

    def __init__(self, name: str, config: Path) -> None:
        self.name = name
        self.up_as = Up("")
        self.counts = Counts()
        self.same = 0
        """How often it has sent the same counts in a row."""
        # Only the gateway uses compiled kernels: the others see few packets, and start in half the time without them.
        env = {} if name == GATEWAY else {"MESHBUS_JIT": "0"}
        command = ("-m", "meshbus.demo.member", str(config))
        errors = config.with_name("stderr.txt")
        self.process = Process(name, *command, says=ANSWER.decode, errors=errors, env=env, news=self._count)

    @property
    def address(self) -> str:
        """Where its node listens."""
        return self.up_as.address

    async def up(self) -> None:
        """Wait until the node listens."""
        answer = await self.process.answer()
        assert isinstance(answer, Up)
        self.up_as = answer

    async def ask(self, command: Line) -> Done:
        """Send a command and wait until it is done. Raises MeshError if the process exits instead."""
        self.process.tell(pack(command))
        answer = await self.process.answer()
        assert isinstance(answer, Done)
        return answer

    def _count(self, line: Line) -> bool:
        match line:
            case Counts():
                self.same = self.same + 1 if line == self.counts else 0
                self.counts = line
            case Left():
                self.counts = line.counts
            case _:
                return False
        return True


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to a fleet, as its processes and its bad radio counted."""

    counts: dict[str, Counts]
    refused: list[tuple[str, Refused]]
    """Subscriptions that publishers refused, each with the name of the member."""
    lost: Lost
    """Events that the bad radio lost."""
    datagrams: tuple[int, int]
    """Datagrams that it passed on and lost."""
    visit: Visit
    moved_s: float
    """How long the move of the detector took."""


class Fleet:
    """All members and visitors, used as an async context manager."""

    def __init__(self, files: FleetFiles) -> None:
        self._files = files
        self._members = {role.name: Member(role.name, files.config(role.name)) for role in ROLES}
        self._processes = AsyncExitStack()
        self._radio: LossyLink | None = None
        self._visitors: Visitors | None = None
        self._refused: list[tuple[str, Refused]] = []
        self._moved_s = 0.0

    async def __aenter__(self) -> Self:
        # The local stack stops the members that have started if a later one fails; pop_all keeps them on success.
        async with AsyncExitStack() as stack:
            for member in self._members.values():
                await stack.enter_async_context(member.process)
            await _all(member.up() for member in self._members.values())
            self._radio = await stack.enter_async_context(LossyLink(self._members[GATEWAY].address, _SEED))
            host = self._members[CONTROL]
            visitors = Visitors(self._files.folder, host, self._files.identities[CONTROL].node_id)
            self._visitors = await stack.enter_async_context(visitors)
            self._processes = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._processes.__aexit__(kind, error, trace)

    @property
    def counts(self) -> dict[str, Counts]:
        """Event counts of each member so far; exact after `leave`."""
        return {name: member.counts for name, member in self._members.items()}

    @property
    def web(self) -> str | None:
        """The address of the gateway's web server, if it has one."""
        return self._members[GATEWAY].up_as.web

    async def connect(self) -> None:
        """Connect each member to the gateway, and then to the publishers that it subscribes to; then the visitors."""
        assert self._radio is not None
        assert self._visitors is not None
        key = self._files.identities[GATEWAY].entity_id.hex()
        gateway, by_radio = Link(key, self._members[GATEWAY].address), Link(key, self._radio.address)
        others = [role for role in ROLES if role.name != GATEWAY]
        # First all to the gateway: it relays the handshakes of the second step.
        await _all(
            self._members[role.name].ask(Join((by_radio if role.name == LOSSY else gateway,))) for role in others
        )
        await _all(self._members[role.name].ask(Join(self._links(role))) for role in others)
        await self._visitors.come(self._members[CONTROL].up_as.edge)

    async def subscribe(self) -> list[tuple[str, Refused]]:
        """Subscribe all members to their channels; return the refusals, each with the name of the member."""
        ids = {name: f"{identity.node_id:016x}" for name, identity in self._files.identities.items()}

        async def ask(role: Role) -> None:
            wishes = tuple(Wish(ids[publisher], channel) for publisher, channel in role.wishes)
            answer = await self._members[role.name].ask(Listen(wishes))
            self._refused.extend((role.name, refusal) for refusal in answer.refused)

        await _all(ask(role) for role in ROLES if role.wishes)
        return self._refused

    async def publish(self, seconds: float, told: Told) -> None:
        """Publish events for `seconds`, and wait until they have arrived; `told` is called with the counts meanwhile.

        The radio of a rover is bad all the time. In the middle, the detector moves from the failing rover to the gateway.
        """
        assert self._radio is not None
        assert self._visitors is not None
        poses = sum(round(flow.per_s * seconds) for flow in _role(FAILING).flows if flow.channel == POSES)
        self._radio.lose(LOSS)
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._tell(told))
            moving = tasks.create_task(self._move_detector(poses // 2))
            visiting = tasks.create_task(self._visitors.act(seconds))
            await _all(self._members[role.name].ask(Publish(role.flows, seconds)) for role in ROLES if role.flows)
            self._moved_s = await moving
            await visiting
            await self._members[GATEWAY].ask(Await(DETECTOR, poses))
            await self._settle()
            telling.cancel()
        self._radio.lose(0.0)

    async def _move_detector(self, poses: int) -> float:
        """Move the detector when the rover has published so many poses."""
        rover = self._members[FAILING]
        while rover.counts.published.get(POSES, 0) < poses:  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(_TOLD_S)
        done = await self._members[GATEWAY].ask(Fetch(DETECTOR, f"{self._files.identities[FAILING].node_id:016x}"))
        assert done.took_s is not None
        return done.took_s

    async def leave(self) -> Outcome:
        """End the visitors, close every node, wait until all processes have exited, and return what happened.

        The gateway closes last: it counts and records what it drops of the others.
        """
        assert self._radio is not None
        assert self._visitors is not None
        visit = await self._visitors.leave()
        await _all(member.process.leave() for name, member in self._members.items() if name != GATEWAY)
        await self._members[GATEWAY].process.leave()
        return Outcome(
            counts=self.counts,
            refused=self._refused,
            lost=self._radio.lost,
            datagrams=(self._radio.passed, self._radio.dropped),
            visit=visit,
            moved_s=self._moved_s,
        )

    def _links(self, role: Role) -> tuple[Link, ...]:
        """Return the sessions that a member needs for its subscriptions; direct ones within its own site."""
        subnets = {other.name: other.subnet for other in ROLES}
        wanted = dict.fromkeys(publisher for publisher, _ in role.wishes if publisher != GATEWAY)
        return tuple(self._link(name, direct=subnets[name] == role.subnet) for name in wanted)

    def _link(self, name: str, *, direct: bool) -> Link:
        key = self._files.identities[name].entity_id.hex()
        return Link(key, self._members[name].address if direct else None)

    async def _tell(self, told: Told) -> None:
        while True:
            told(self.counts)
            await asyncio.sleep(_TOLD_S)

    async def _settle(self) -> None:
        members = self._members.values()
        for member in members:
            member.same = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_MAX_SETTLE_S):
                while any(member.same < _QUIET for member in members):  # noqa: ASYNC110 - it happens in other processes
                    await asyncio.sleep(_TOLD_S)


def _role(name: str) -> Role:
    return next(role for role in ROLES if role.name == name)


async def _all(doing: Iterable[Awaitable[object]]) -> None:
    """Run everything concurrently; the first error cancels the rest and is raised alone."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for one in doing:
                tasks.create_task(_await(one))
    except ExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


async def _await(one: Awaitable[object]) -> None:
    await one
