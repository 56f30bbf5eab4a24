"""What arrives through a network that loses packets in both directions: from us to a real node, back, and between two.

The third pair shows what is a limit of net-mesh itself. `python -m tests.interop.lossy 0.34.0` prints all three.
"""

import asyncio
import contextlib
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from meshbus.errors import MeshError
from meshbus.node.channels.subscription import Subscription
from meshbus.testing.realpeer import RealPeer
from tests.interop.lab import Lab
from tests.interop.tap import Tap
from tests.interop.versions import install

LOSS = 0.02
SIZE = 1000
STREAM = 77
SILENCE_S = 10.0
"""After this time nothing more comes: longer than the pauses between the tries of every version (dialects.md §1)."""
ECHO_S = 0.5
"""How long a second copy may take when everything has arrived."""


class Arrived(NamedTuple):
    """What came of the events that were sent."""

    missing: int
    doubled: int
    """Copies of events beyond the first."""
    in_order: bool

    @classmethod
    def of(cls, sent: list[bytes], came: list[bytes]) -> "Arrived":
        """Compare."""
        counts, places = Counter(came), {event: place for place, event in enumerate(sent)}
        order = [places[event] for event in came]
        return cls(len(sent) - len(counts), len(came) - len(counts), order == sorted(order))

    def __str__(self) -> str:
        if not self.missing and not self.doubled:
            return "each once" if self.in_order else "each once, in another order"
        return f"{self.missing} missing, {self.doubled} twice"


def numbered(count: int) -> list[bytes]:
    """Return events that can be told apart."""
    return [str(number).encode().ljust(SIZE, b".") for number in range(count)]


def lose(tap: Tap, seed: int) -> None:
    """Lose packets in both directions from now on."""
    chance = random.Random(seed)
    tap.judge = lambda _datagram, _outgoing: chance.random() >= LOSS


async def all_of(count: int, receive: Callable[[float], Awaitable[list[bytes]]]) -> list[bytes]:
    """Receive until nothing comes any more."""
    came: list[bytes] = []
    different: set[bytes] = set()
    while more := await receive(ECHO_S if len(different) >= count else SILENCE_S):
        came += more
        different.update(more)
    return came


async def received_there(peer: RealPeer, count: int) -> list[bytes]:
    """Return everything that a real node receives."""

    async def receive(seconds: float) -> list[bytes]:
        return [event.raw.encode() for event in await asyncio.to_thread(peer.collect, 1, seconds)] + [
            event.raw.encode() for event in await asyncio.to_thread(peer.poll)
        ]

    return await all_of(count, receive)


async def received_here(subscription: Subscription, count: int) -> list[bytes]:
    """Return everything that a subscription of ours receives."""

    async def receive(seconds: float) -> list[bytes]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                batch = await subscription.next_batch()
                return [] if batch is None else batch.payloads()
        return []

    return await all_of(count, receive)


async def ours_to_it(lab: Lab, count: int, *, seed: int = 1) -> Arrived:
    """Publish on a reliable channel to a real node."""
    peer, node = await lab.pair()
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "lossy/ours")
    lose(lab.taps[0], seed)
    sent = numbered(count)
    publishing = asyncio.ensure_future(node.publisher("lossy/ours", reliable=True, wait_s=600.0).publish_batch(sent))
    came = await received_there(peer, count)
    publishing.cancel()
    return Arrived.of(sent, came)


async def it_to_us(lab: Lab, count: int, *, seed: int = 1) -> Arrived:
    """Let a real node send to us on a reliable stream."""
    peer, node = await lab.pair()
    lose(lab.taps[0], seed)
    sent = numbered(count)
    async with node.inbox() as inbox:
        await asyncio.to_thread(peer.open_stream, node.node_id, STREAM, reliability="reliable")
        peer.begin("send_all", node.node_id, STREAM, sent)
        return Arrived.of(sent, await received_here(inbox, count))


async def it_to_it(lab: Lab, count: int, *, seed: int = 1) -> Arrived:
    """Let a real node send to another real node on a reliable stream."""
    left, right = lab.peer(), lab.peer()
    tap = Tap(left.address, right.address)
    lab.taps.append(tap)
    accepting = asyncio.wrap_future(right.begin("accept", left.node_id))
    await asyncio.to_thread(left.connect, tap.peer_address, right.public_key, right.node_id)
    await accepting
    for peer in (left, right):
        await asyncio.to_thread(peer.start)
    lose(tap, seed)
    sent = numbered(count)
    await asyncio.to_thread(left.open_stream, right.node_id, STREAM, reliability="reliable")
    left.begin("send_all", right.node_id, STREAM, sent)
    return Arrived.of(sent, await received_there(right, count))


Pair = Callable[[Lab, int], Awaitable[Arrived]]
PAIRS: dict[str, Pair] = {
    "meshbus to net-mesh": ours_to_it,
    "net-mesh to meshbus": it_to_us,
    "net-mesh to net-mesh": it_to_it,
}


async def main(versions: list[str], count: int = 10_000) -> None:
    """Print what arrives with these versions."""
    for version in versions:
        for name, pair in PAIRS.items():
            lab = Lab(install(version))
            try:
                print(f"{version}, {name}: {await pair(lab, count)}", flush=True)  # noqa: T201 - a program
            except MeshError as error:
                print(f"{version}, {name}: {error}", flush=True)  # noqa: T201 - a program
            finally:
                await lab.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
