"""One process of the demo's fleet: a real node that executes commands from standard input.

    python -m meshbus.demo.member NODE.toml

demo/messages.py defines the commands and answers. The process exits when its standard input ends. The counterpart, which
starts and stops members, is demo/fleet.py.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from meshbus.config import NodeConfig
from meshbus.demo.messages import (
    COMMAND,
    Await,
    Command,
    Counts,
    Done,
    Fetch,
    Flow,
    Join,
    Left,
    Link,
    Listen,
    Publish,
    Refused,
    Up,
    Wish,
    pack,
)
from meshbus.demo.process import input_lines, run_child, say
from meshbus.edge.bridge import Bridge
from meshbus.errors import ChannelError, ChannelFault, Timeout
from meshbus.node.node import Node

TELL_S = 0.2
"""Time between two messages with counts."""
PATIENCE_S = 60.0
"""Longest wait for the profile agreement with all peers, and for the acknowledgements and the credit of a peer. Both
normally take a few heartbeats, but on a busy machine a process may not run for seconds."""

JUMP_EVERY = 15
"""Of so many positions one is wrong, for the detector to find."""


class Member:
    """A node, its running commands, and its event counts."""

    def __init__(self, node: Node, bridges: Sequence[Bridge], tasks: asyncio.TaskGroup) -> None:
        self._node, self._bridges = node, bridges
        self._tasks = tasks
        self._published: Counter[str] = Counter()
        self._limited: Counter[str] = Counter()
        self._received: dict[str, Counter[str]] = defaultdict(Counter)
        self._jobs: list[asyncio.Task[None]] = []

    @property
    def counts(self) -> Counts:
        """Event counts so far."""
        return Counts(
            dict(self._published),
            dict(self._limited),
            {publisher: dict(channels) for publisher, channels in self._received.items()},
            edge=_added(bridge.counters for bridge in self._bridges),
        )

    def take(self, line: bytes) -> None:
        """Start to execute a command."""
        self._begin(COMMAND.decode(line))

    def stop(self) -> None:
        """Cancel all running commands."""
        for job in self._jobs:
            job.cancel()

    async def tell(self) -> None:
        """Send the counts periodically."""
        while True:
            await asyncio.sleep(TELL_S)
            say(pack(self.counts))

    def _begin(self, command: Command) -> None:
        self._jobs.append(self._tasks.create_task(self._do(command)))

    async def _do(self, command: Command) -> None:
        refused: list[Refused] = []
        took_s: float | None = None
        match command:
            case Join():
                for link in command.links:
                    await self._join(link)
            case Listen():
                answers = [await self._ask(wish) for wish in command.wishes]
                refused = [answer for answer in answers if answer is not None]
            case Publish():
                await self._agree()
                async with asyncio.TaskGroup() as flows:
                    for flow in command.flows:
                        flows.create_task(self._publish(flow, command.seconds))
            case Fetch():
                moved = await self._node.daemons.move(
                    command.daemon, self._node.node_id, source=int(command.source, 16), timeout_s=PATIENCE_S
                )
                took_s = moved.seconds
            case Await():
                await self._await(command)
        say(pack(Done(tuple(refused), took_s)))

    async def _join(self, link: Link) -> None:
        if link.plain_id is None:
            await self._node.connect(link.address, public_key=link.public_key)
        else:  # a net-mesh node that waits for this handshake, and starts after it
            plain_id = int(link.plain_id, 16)
            await self._node.connect(link.address, node_id=plain_id, public_key=link.public_key, routed=False)

    async def _await(self, command: Await) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while [one.next_seq for one in self._node.daemons.get(command.daemon).inputs] != [command.events]:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(TELL_S)
        except TimeoutError:
            raise Timeout(f"{command.events} events at daemon {command.daemon}", PATIENCE_S) from None

    async def _ask(self, wish: Wish) -> Refused | None:
        """Subscribe and count events until the end; return the refusal, or None."""
        live: asyncio.Future[Refused | None] = asyncio.get_running_loop().create_future()
        self._jobs.append(self._tasks.create_task(self._listen(wish, live)))
        return await live

    async def _listen(self, wish: Wish, live: asyncio.Future[Refused | None]) -> None:
        publisher = int(wish.publisher, 16)
        try:
            async with self._node.subscribe(wish.channel, publisher=publisher) as subscription:
                live.set_result(None)
                async for batch in subscription.batches():
                    # The subscription asks one publisher, but also gets the channel's events from others.
                    if batch.publisher == publisher:
                        self._received[wish.publisher][wish.channel] += len(batch)
        except ChannelError as error:
            if live.done() or error.fault is not ChannelFault.REJECTED:
                raise
            live.set_result(Refused(wish.publisher, wish.channel, error.reason or ""))

    async def _agree(self) -> None:
        """Wait until every peer has agreed on the profile: before that, events are not reliable and not numbered."""
        changed = asyncio.Event()
        unwatch = self._node.watch(lambda _: changed.set())
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not all(peer.profile for peer in self._node.peers):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            raise Timeout("profile agreement with every peer", PATIENCE_S) from None
        finally:
            unwatch()

    async def _publish(self, flow: Flow, seconds: float) -> None:
        publisher = self._node.publisher(flow.channel, reliable=flow.reliable, wait_s=PATIENCE_S)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for number in range(round(flow.per_s * seconds)):
            # Sleep until an absolute time, so that delays do not add up and the rate stays constant.
            await asyncio.sleep(begin + number / flow.per_s - loop.time())
            try:
                await publisher.publish(reading(number) if flow.bytes is None else frame(number, flow.bytes))
            except ChannelError as error:
                if error.fault is not ChannelFault.RATE_LIMITED:
                    raise
                self._limited[flow.channel] += 1
            else:
                self._published[flow.channel] += 1
        if flow.reliable:
            await publisher.flush()


def reading(number: int) -> bytes:
    """Return a made-up report of a robot: its position on a circle, sometimes wrong, and its battery."""
    angle = number / 50
    radius = 13 if number % JUMP_EVERY == JUMP_EVERY - 1 else 10
    return (
        f'{{"n":{number},"x":{radius * math.cos(angle):.3f},"y":{radius * math.sin(angle):.3f},'
        f'"battery":{100 - number % 1000 / 20:.1f}}}'
    ).encode()


def frame(number: int, size: int) -> bytes:
    """Return a made-up picture of a camera."""
    return number.to_bytes(8, "little") * (size // 8)


async def _run(path: Path) -> None:
    # env={}: ignore MESHBUS_* variables, which the user may have set for another node.
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(Node.open(NodeConfig.load(path, env={})))
        bridges = [await stack.enter_async_context(Bridge(node, entry)) for entry in node.config.edge]
        web = await _serve(node, stack)
        edge = {
            side: place
            for bridge in bridges
            for side in ("publishers", "subscribers")
            if (place := getattr(bridge, side))
        }
        async with asyncio.TaskGroup() as tasks:
            member = Member(node, bridges, tasks)
            say(pack(Up(node.address, edge, web)))
            telling = tasks.create_task(member.tell())
            async for line in input_lines():
                member.take(line)
            member.stop()
            telling.cancel()
        counts, counters = member.counts, node.live.engine.counters
    # After the node has closed: until then it may drop and record packets.
    say(pack(Left(msgspec.structs.replace(counts, counters=counters.snapshot()))))


async def _serve(node: Node, stack: AsyncExitStack) -> str | None:
    """Serve the web page of the node if that is configured, and return where."""
    if node.config.web is None:
        return None
    from meshbus.web.server import WebServer

    return (await stack.enter_async_context(WebServer(node, node.config.web))).address


def _added(counters: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for one in counters:
        for what, reasons in one.items():
            sums[what].update(reasons)
    return {what: dict(reasons) for what, reasons in sums.items()}


if __name__ == "__main__":
    run_child(lambda: asyncio.run(_run(Path(sys.argv[1]))))
