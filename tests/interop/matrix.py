"""Run the checks of docs/interop.md against several net-mesh versions, each in a directory of its own, and write the page.

`make interop` runs all versions, `make interop ARGS='0.23.0 0.45.1'` only some; the page holds the versions of the last run.
A check raises if it does not work, and its message becomes part of the page. One that fails is run once more, because a
busy machine may be too slow for the short times of some checks.
"""

import asyncio
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from meshbus.engine.session.dialect import RANGES_TAG, Level
from meshbus.errors import MeshError
from meshbus.names.channel import ChannelName
from meshbus.wire.messages.token import PermissionToken, Scope, encode_token
from tests.interop.lab import Lab, channel, eventually, eventually_there, registry, take
from tests.interop.lossy import LOSS, PAIRS, SILENCE_S, Pair
from tests.interop.meeting import (
    it_falls_back,
    it_is_told_its_address,
    it_punches,
    we_are_told_our_address,
    we_fall_back,
    we_punch,
)
from tests.interop.relaying import meet_around, meet_behind, publish_across, send_to_it
from tests.interop.versions import VERSIONS, install

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"
COUNT = 300
"""Events of each check: five windows of a stream."""
FEW = 50
"""Events that fit one window: they need no grant."""
SIZE = 1000
STREAM = 77
LIMIT_S = 60.0
"""The longest time of one check."""
TRIES = 2
AT_ONCE = 3
"""Versions that are examined at once: most checks wait for something."""
THREADS = 8
"""Threads for calls to the peers of one version."""
WORKS = "works"
LOSSY_COUNT = 3000
"""Events of each check with packet loss."""
NODE_ID = re.compile(r"\b[0-9a-f]{16}\b")
"""Another one in every run, so it is left out of the page."""
OPEN = {"permissive_channels": True}


def events(tag: str, count: int = COUNT) -> list[bytes]:
    """Return the events of a check."""
    return [f"{tag} {number}".encode().ljust(SIZE, b".") for number in range(count)]


def assert_same(came: list[bytes], sent: list[bytes]) -> None:
    """Check that events arrived once and in order."""
    assert came == sent, f"{len(set(came))} of {len(sent)} events arrived, or in another order"


async def handshake_ours(lab: Lab) -> None:
    """Begin a direct handshake with it."""
    peer, _ = await lab.pair(OPEN)
    assert peer.peer_count() == 1


async def handshake_routed(lab: Lab) -> None:
    """Begin a routed handshake with a running node."""
    peer, node = lab.peer(), await lab.node()
    await asyncio.to_thread(peer.start)
    await lab.join_running(node, peer)


async def handshake_theirs(lab: Lab) -> None:
    """Let it connect to our node."""
    peer, node = lab.peer(), await lab.node()
    node.accept(peer.node_id)
    await asyncio.to_thread(peer.connect, node.address, node.noise_public_key, node.node_id)
    await asyncio.to_thread(peer.start)
    await eventually(lambda: len(node.peers) == 1, "its session", 30.0)


async def publish_ours(lab: Lab, *, reliable: bool = False) -> None:
    """Publish to it."""
    peer, node = await lab.pair(OPEN)
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "matrix/ours")
    collecting = asyncio.wrap_future(peer.begin("collect", COUNT, 30.0))
    await node.publisher("matrix/ours", reliable=reliable, wait_s=30.0).publish_batch(events("ours"))
    assert_same([raw.encode() for raw, _ in await collecting], events("ours"))


async def publish_theirs(lab: Lab, *, kind: str = "fire_and_forget") -> None:
    """Let it publish to us."""
    peer, node = await lab.pair(OPEN)
    async with node.subscribe("matrix/theirs") as subscription:
        publishing = asyncio.wrap_future(peer.begin("publish_all", "matrix/theirs", events(kind), reliability=kind))
        assert_same(await take(subscription, COUNT, 30.0), events(kind))
        assert await publishing == COUNT


async def stream_theirs(lab: Lab, *, kind: str = "fire_and_forget") -> None:
    """Let it send on a stream of its own while our reader takes its time."""
    peer, node = await lab.pair(OPEN)
    async with node.inbox(when_full="block", max_events=8) as inbox:
        await asyncio.to_thread(peer.open_stream, node.node_id, STREAM, reliability=kind)
        sending = asyncio.wrap_future(peer.begin("send_all", node.node_id, STREAM, events(kind)))
        await asyncio.sleep(0.3)
        assert_same(await take(inbox, COUNT, 30.0), events(kind))
        assert inbox.stats.dropped == 0
        await sending


async def stream_ours(lab: Lab) -> None:
    """Publish to it while it is stopped, and go on when it runs again."""
    peer, node = await lab.pair(OPEN)
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "matrix/ours")
    peer.pause()
    publishing = asyncio.ensure_future(node.publisher("matrix/ours", wait_s=30.0).publish_batch(events("ours")))
    await asyncio.sleep(0.5)
    assert not publishing.done(), "its window never filled"
    peer.resume()
    await publishing
    arrived = await asyncio.to_thread(peer.collect, COUNT, 30.0)
    assert_same([event.raw.encode() for event in arrived], events("ours"))


async def tokens_theirs(lab: Lab) -> None:
    """Subscribe at its gated channel with a token that it issued."""
    peer, node = await lab.pair(OPEN)
    roots = {} if await level_of(peer, node) is Level.A else {"token_roots": [peer.entity_id]}
    await asyncio.to_thread(peer.register_channel, "matrix/gated", require_token=True, **roots)
    token = await asyncio.to_thread(peer.issue_token, node.identity.entity_id, ["subscribe"], "matrix/gated", 600)
    await node.subscribe_channel(peer.node_id, "matrix/gated", token=token)


async def tokens_ours(lab: Lab) -> None:
    """Let it subscribe at our gated channel with a token that we issued."""
    peer, node = await lab.pair(OPEN)
    node.set_channel_configs(registry(channel("matrix/gated", require_token=True)))
    await asyncio.to_thread(peer.announce_capabilities, {"tags": ["matrix"]})
    await eventually(lambda: "matrix" in node.peers[0].tags, "its announcement")
    token = PermissionToken.issue(
        node.identity,
        peer.entity_id,
        Scope.SUBSCRIBE,
        ChannelName("matrix/gated"),
        ttl_s=600,
        now=time.time(),  # noqa: TID251 - a token carries the time of the clock on the wall
        entropy=os.urandom,
    )
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "matrix/gated", encode_token(token))


async def announce_theirs(lab: Lab) -> None:
    """Read its announcement."""
    peer, node = await lab.pair(OPEN)
    await asyncio.to_thread(peer.announce_capabilities, {"tags": ["matrix"]})
    await eventually(lambda: "matrix" in node.peers[0].tags, "its announcement", 30.0)


async def announce_ours(lab: Lab) -> None:
    """Let it find our node by its tag."""
    peer, _ = await lab.pair({}, {"tags": ["matrix"]})
    await eventually_there(
        peer.find_nodes, {"require_tags": ["matrix"]}, gives=lambda found: len(found) > 0, seconds=30.0
    )


async def relay_ours(lab: Lab, *, count: int) -> None:
    """Send to it through a relay of ours."""
    near, _, far, _ = await meet_behind(lab)
    await send_to_it(near, far, events("ours", count))


async def relay_ours_back(lab: Lab, *, count: int) -> None:
    """Let it publish to us through a relay of ours."""
    near, _, far, _ = await meet_behind(lab)
    async with near.subscribe("matrix/theirs", publisher=far.node_id) as subscription:
        publishing = asyncio.wrap_future(far.begin("publish_all", "matrix/theirs", events("theirs", count)))
        assert_same(await take(subscription, count, 30.0), events("theirs", count))
        await publishing


async def relay_theirs(lab: Lab, *, back: bool) -> None:
    """Publish between two nodes of ours that have it as their relay; `back` towards the one that began."""
    _, nodes, _ = await meet_around(lab)
    publisher, subscriber = reversed(nodes) if back else nodes
    await publish_across(publisher, subscriber, events("ours"))


async def level_of(peer: Any, node: Any) -> Level | None:
    """Return the level that its first grant shows."""
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "matrix/level")
    await node.publisher("matrix/level").publish(b"x")
    await eventually(lambda: node.peers[0].dialect is not None, "a grant", 30.0)
    level: Level | None = node.peers[0].dialect
    return level


Check = Callable[[Lab], Awaitable[None]]
CHECKS: dict[str, tuple[Check, Check]] = {
    "handshake": (handshake_ours, handshake_theirs),
    "routed handshake": (handshake_routed, handshake_routed),
    "subscribe, publish": (publish_ours, publish_theirs),
    "stream with backpressure": (stream_ours, stream_theirs),
    "reliable publish": (partial(publish_ours, reliable=True), partial(publish_theirs, kind="reliable")),
    "reliable stream": (partial(publish_ours, reliable=True), partial(stream_theirs, kind="reliable")),
    "tokens": (tokens_theirs, tokens_ours),
    "announcements": (announce_ours, announce_theirs),
    "our relay": (partial(relay_ours, count=FEW), partial(relay_ours_back, count=FEW)),
    "our relay, more than a window": (partial(relay_ours, count=COUNT), partial(relay_ours_back, count=COUNT)),
    "its relay": (partial(relay_theirs, back=False), partial(relay_theirs, back=True)),
    "observed address": (it_is_told_its_address, we_are_told_our_address),
    "punch, our coordinator": (partial(we_punch, ours=True), partial(it_punches, ours=True)),
    "punch, its coordinator": (partial(we_punch, ours=False), partial(it_punches, ours=False)),
    "relay where no punch works": (we_fall_back, it_falls_back),
}
"""By name: from our node to it, and from it to our node."""


class Row(NamedTuple):
    """What was found out about a version."""

    level: str
    results: dict[str, tuple[str, str]]
    """By the name of a check: `WORKS`, or why it does not work, in both directions."""
    lossy: list[str]
    """What arrives through a network that loses packets, for each of `PAIRS`."""


async def judge(check: Check, packages: Path) -> str:
    """Run one check, and return that it works or why not."""
    problem = ""
    for _ in range(TRIES):
        lab = Lab(packages)
        try:
            async with asyncio.timeout(LIMIT_S):
                await check(lab)
        except Exception as error:  # noqa: BLE001 - every failure is an entry of the page
            first = str(error).splitlines()[0] if str(error) else "no answer"
            problem = f"{type(error).__name__}: {NODE_ID.sub('…', first)}"[:160]
        else:
            return WORKS
        finally:
            await lab.close()
    return problem


async def weigh(pair: Pair, packages: Path) -> str:
    """Return what arrives between a pair through a network that loses packets."""
    lab = Lab(packages)
    try:
        return str(await pair(lab, LOSSY_COUNT))
    except MeshError as error:
        return str(error)
    finally:
        await lab.close()


async def find_level(packages: Path) -> str:
    """Return the level of a version as our node learns it."""
    lab = Lab(packages)
    try:
        peer, node = await lab.pair(OPEN)
        await asyncio.to_thread(peer.announce_capabilities, {"tags": ["matrix"]})
        level = await level_of(peer, node)
        return f"{level}{' with ranges' if RANGES_TAG in node.peers[0].tags else ''}"
    finally:
        await lab.close()


def page(rows: dict[str, Row], when: datetime) -> str:
    """Return the page."""
    lines = [
        "# Versions of net-mesh",
        "",
        "What works between a meshbus node and published net-mesh nodes, each in its own process on loopback. `make interop`",
        "installs the versions and writes this page; [joining a net-mesh network](guide/joining-a-net-mesh-network.md)",
        f"explains the levels. In every check with events, {COUNT} of {SIZE} bytes have to arrive once and in order.",
        "",
        f"Last run: {when:%Y-%m-%d %H:%M} UTC. Each cell: from meshbus to net-mesh / from net-mesh to meshbus.",
        "",
        f"| version | level as learned | {' | '.join(CHECKS)} |",
        f"|---|---|{'---|' * len(CHECKS)}",
    ]
    notes: dict[str, list[str]] = {}
    for version, (level, results, _) in rows.items():
        cells = []
        for name, both in results.items():
            for way, result in zip(("to net-mesh", "to meshbus"), both, strict=True):
                if result != WORKS:
                    notes.setdefault(f"{name}, {way}: {result}", []).append(version)
            cells.append(" / ".join("yes" if result == WORKS else "no" for result in both))
        lines.append(f"| {version} | {level} | {' | '.join(cells)} |")
    lines += ["", "## What does not work", ""]
    lines += [f"- {note} ({spans(versions, list(rows))})" for note, versions in notes.items()] or [
        "Nothing in this run."
    ]
    lines += ["", *NOTES, "", *lossy_part(rows)]
    return "\n".join(lines)


def spans(versions: list[str], order: list[str]) -> str:
    """Spell versions, with those that follow each other in a run as one span."""
    groups = groupby(versions, key=lambda version: order.index(version) - versions.index(version))
    ends = [(members[0], members[-1]) for members in (list(group) for _, group in groups)]
    return ", ".join(first if first == last else f"{first} to {last}" for first, last in ends)


def lossy_part(rows: dict[str, Row]) -> list[str]:
    """Return the part of the page about packet loss."""
    return [
        "## With packet loss",
        "",
        f"What arrives of {LOSSY_COUNT} events if {LOSS:.0%} of all packets are lost in both directions: from a reliable channel of",
        "meshbus, from a reliable stream of net-mesh, and between two net-mesh nodes of the same version, for comparison.",
        "",
        f"| version | {' | '.join(PAIRS)} |",
        f"|---|{'---|' * len(PAIRS)}",
        *(f"| {version} | {' | '.join(row.lossy)} |" for version, row in rows.items()),
        "",
        "Level A repeats nothing: what is lost is lost. Level B hands every copy that arrives to the application, so a sender",
        "must not repeat what may have arrived; meshbus repeats a packet only when the receiver has shown that it is lost. If the",
        "network changes the order of packets, that cannot be shown, and an event may reach an application of level B twice.",
        "",
        f"*Missing* is what did not come before {SILENCE_S:g} s of silence: a stream between two nodes of level B often does not recover",
        "after its sender gave up a packet.",
        "",
    ]


NOTES = f"""\
## What the columns mean

- A routed handshake is begun by meshbus in both directions. A net-mesh node begins one only through a coordinator, as in the
  last column.
- meshbus has no stream of its own towards a net-mesh node: it publishes on channels, so the check of reliable streams towards
  it is the one of publishing.
- *Our relay*: a meshbus node and a net-mesh node exchange {FEW} events, which fit one window, through a meshbus relay. *Its
  relay*: two meshbus nodes exchange events through a net-mesh relay, in both directions.
- Up to 0.36, a net-mesh node sends what belongs to a session through a relay to the relay itself, without a routing header. So
  neither its answer to a subscribe nor its grants come back: it receives one window of 64 KiB and publishes nothing there.
- *Observed address*: each tells the other where it sees it. *Punch*: a session straight to the other node, after an
  introduction by a coordinator of either kind. *Relay where no punch works*: the coordinator relays.
- On loopback there is no NAT: the nodes are told which kind to announce.
""".splitlines()


async def examine(version: str) -> Row:
    """Run all checks against a version."""
    packages = await asyncio.to_thread(install, version)
    results = {
        name: (await judge(ours, packages), await judge(theirs, packages)) for name, (ours, theirs) in CHECKS.items()
    }
    lossy = [await weigh(pair, packages) for pair in PAIRS.values()]
    row = Row(await find_level(packages), results, lossy)
    failed = {name: both for name, both in results.items() if both != (WORKS, WORKS)}
    print(f"{version}: level {row.level}; {failed or 'all checks work'}; {lossy}", flush=True)  # noqa: T201 - a program
    return row


async def run(versions: list[str]) -> dict[str, Row]:
    """Run all checks against these versions, several at once."""
    # A call to a real peer blocks its thread; the usual number of threads would let them wait for each other.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(AT_ONCE * THREADS))
    limit = asyncio.Semaphore(AT_ONCE)

    async def take_turn(version: str) -> Row:
        async with limit:
            return await examine(version)

    return dict(zip(versions, await asyncio.gather(*map(take_turn, versions)), strict=True))


def main() -> None:
    """Run the versions that are named, or all, and write the page."""
    rows = asyncio.run(run(sys.argv[1:] or VERSIONS))
    PAGE.write_text(page(rows, datetime.now(UTC)), "utf-8")


if __name__ == "__main__":
    main()
