"""One process of the demo's fleet: a real node that does what it is told on standard input.

    python -m meshbus.demo.member NODE.toml

What it hears and says is demo/messages.py. It ends when its standard input does. The counterpart, which starts and stops
members, is demo/fleet.py.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import Counter
from pathlib import Path

from meshbus.config import NodeConfig
from meshbus.demo.messages import COMMAND, Counts, Done, Flow, Join, Left, Listen, Publish, Refused, Up, Wish, pack
from meshbus.demo.process import run_child, say
from meshbus.errors import ChannelError, ChannelFault, Timeout
from meshbus.node.node import Node

TELL_S = 0.2
"""How often counts are said."""
AGREE_S = 10.0


class Member:
    """A node, what it was told to do, and what it counted."""

    def __init__(self, node: Node, tasks: asyncio.TaskGroup) -> None:
        self._node = node
        self._tasks = tasks
        self._published: Counter[str] = Counter()
        self._limited: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._jobs: list[asyncio.Task[None]] = []

    @property
    def counts(self) -> Counts:
        """What was done so far."""
        return Counts(dict(self._published), dict(self._limited), dict(self._received))

    def take(self, line: bytes) -> None:
        """Begin to carry out a command."""
        self._begin(COMMAND.decode(line))

    def stop(self) -> None:
        """End whatever is under way."""
        for job in self._jobs:
            job.cancel()

    async def tell(self) -> None:
        """Say the counts from time to time."""
        while True:
            await asyncio.sleep(TELL_S)
            say(pack(self.counts))

    def _begin(self, command: Join | Listen | Publish) -> None:
        self._jobs.append(self._tasks.create_task(self._do(command)))

    async def _do(self, command: Join | Listen | Publish) -> None:
        refused: list[Refused] = []
        match command:
            case Join():
                for link in command.links:
                    await self._node.connect(link.address, public_key=link.public_key)
            case Listen():
                answers = [await self._ask(wish) for wish in command.wishes]
                refused = [answer for answer in answers if answer is not None]
            case Publish():
                await self._agree()
                async with asyncio.TaskGroup() as flows:
                    for flow in command.flows:
                        flows.create_task(self._publish(flow, command.seconds))
        say(pack(Done(tuple(refused))))

    async def _ask(self, wish: Wish) -> Refused | None:
        """Subscribe; what comes is counted until the end."""
        live: asyncio.Future[Refused | None] = asyncio.get_running_loop().create_future()
        self._jobs.append(self._tasks.create_task(self._listen(wish, live)))
        return await live

    async def _listen(self, wish: Wish, live: asyncio.Future[Refused | None]) -> None:
        publisher = int(wish.publisher, 16)
        try:
            async with self._node.subscribe(wish.channel, publisher=publisher) as subscription:
                live.set_result(None)
                async for batch in subscription.batches():
                    # The publisher is whom we ask; the events of the channel come here whoever sent them.
                    self._received[wish.channel] += len(batch) if batch.publisher == publisher else 0
        except ChannelError as error:
            if live.done() or error.fault is not ChannelFault.REJECTED:
                raise
            live.set_result(Refused(wish.publisher, wish.channel, error.reason or ""))

    async def _agree(self) -> None:
        """Wait until every peer has agreed with us on the profile: before that nothing is reliable, nor numbered."""
        changed = asyncio.Event()
        unwatch = self._node.watch(lambda _: changed.set())
        try:
            async with asyncio.timeout(AGREE_S):
                while not all(peer.profile for peer in self._node.peers):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            raise Timeout("an agreement with every peer", AGREE_S) from None
        finally:
            unwatch()

    async def _publish(self, flow: Flow, seconds: float) -> None:
        publisher = self._node.publisher(flow.channel, reliable=flow.reliable)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for number in range(round(flow.per_s * seconds)):
            await asyncio.sleep(begin + number / flow.per_s - loop.time())
            try:
                await publisher.publish(reading(number))
            except ChannelError as error:
                if error.fault is not ChannelFault.RATE_LIMITED:
                    raise
                self._limited[flow.channel] += 1
            else:
                self._published[flow.channel] += 1


def reading(number: int) -> bytes:
    """Make up what a robot reports: where it is on its round, and its battery."""
    angle = number / 50
    return (
        f'{{"n":{number},"x":{10 * math.cos(angle):.3f},"y":{10 * math.sin(angle):.3f},'
        f'"battery":{100 - number % 1000 / 20:.1f}}}'
    ).encode()


async def _run(path: Path) -> None:
    commands = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(commands)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    # The file says everything: a variable that this user has set for another node does not count here.
    async with Node.open(NodeConfig.load(path, env={})) as node, asyncio.TaskGroup() as tasks:
        member = Member(node, tasks)
        say(pack(Up(node.address)))
        telling = tasks.create_task(member.tell())
        while line := await commands.readline():
            member.take(line)
        member.stop()
        telling.cancel()
        say(pack(Left(member.counts)))


if __name__ == "__main__":
    run_child(lambda: asyncio.run(_run(Path(sys.argv[1]))))
