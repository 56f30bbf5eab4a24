"""Run the checks of docs/interop.md against several net-mesh versions, each in a directory of its own, and write the page.

`make interop` runs all versions, `make interop ARGS='0.23.0 0.45.1'` only some; the page holds the versions of the last run.
A check raises if it does not work, and its message becomes part of the page.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from meshbus.engine.session.dialect import RANGES_TAG, Level
from meshbus.names.channel import ChannelName
from meshbus.wire.messages.token import PermissionToken, Scope, encode_token
from tests.interop.lab import Lab, channel, eventually, eventually_there, registry, take
from tests.interop.newest import installed_version

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"
DIRECTORY = Path(sys.prefix) / "net-mesh-versions"
VERSIONS = [
    "0.23.0",
    "0.24.0",
    "0.25.0",
    "0.26.0",
    "0.27.0",
    "0.27.7",
    "0.28.0",
    "0.29.0",
    "0.30.0",
    "0.31.0",
    "0.33.0",
    "0.34.0",
    "0.35.0",
    "0.36.0",
    "0.37.0",
    "0.38.2",
    "0.39.0",
    "0.40.0",
    "0.41.1",
    "0.42.0",
    "0.43.0",
    "0.44.1",
    "0.45.0",
    "0.45.1",
]
COUNT = 300
"""Events of each check: five windows of a stream."""
SIZE = 1000
STREAM = 77
LIMIT_S = 60.0
"""The longest time of one check."""
WORKS = "works"


def events(tag: str) -> list[bytes]:
    """Return the events of a check."""
    return [f"{tag} {number}".encode().ljust(SIZE, b".") for number in range(COUNT)]


class Bench:
    """A real peer of one version and a node of ours, which have joined."""

    def __init__(self, lab: Lab, packages: Path) -> None:
        self.lab = lab
        self.packages = packages

    async def pair(self, **options: Any) -> Any:
        """Make both, and return them."""
        return await self.lab.pair({"packages": self.packages, "permissive_channels": True, **options})


async def handshake_ours(bench: Bench) -> None:
    """Begin a direct handshake with it."""
    peer, _ = await bench.pair()
    assert peer.peer_count() == 1


async def handshake_routed(bench: Bench) -> None:
    """Begin a routed handshake with a running node."""
    peer, node = bench.lab.peer(packages=bench.packages), await bench.lab.node()
    await asyncio.to_thread(peer.start)
    await bench.lab.join_running(node, peer)


async def handshake_theirs(bench: Bench) -> None:
    """Let it connect to our node."""
    peer, node = bench.lab.peer(packages=bench.packages), await bench.lab.node()
    node.accept(peer.node_id)
    await asyncio.to_thread(peer.connect, node.address, node.noise_public_key, node.node_id)
    await asyncio.to_thread(peer.start)
    await eventually(lambda: len(node.peers) == 1, "its session", 30.0)


async def publish_ours(bench: Bench, *, reliable: bool = False) -> None:
    """Publish to it."""
    peer, node = await bench.pair()
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "matrix/ours")
    collecting = asyncio.wrap_future(peer.begin("collect", COUNT, 30.0))
    await node.publisher("matrix/ours", reliable=reliable, wait_s=30.0).publish_batch(events("ours"))
    assert [raw.encode() for raw, _ in await collecting] == events("ours")


async def publish_theirs(bench: Bench, *, kind: str = "fire_and_forget") -> None:
    """Let it publish to us."""
    peer, node = await bench.pair()
    async with node.subscribe("matrix/theirs") as subscription:
        publishing = asyncio.wrap_future(peer.begin("publish_all", "matrix/theirs", events(kind), reliability=kind))
        assert await take(subscription, COUNT, 30.0) == events(kind)
        assert await publishing == COUNT


async def stream_theirs(bench: Bench, *, kind: str = "fire_and_forget") -> None:
    """Let it send on a stream of its own while our reader takes its time."""
    peer, node = await bench.pair()
    async with node.inbox(when_full="block", max_events=8) as inbox:
        await asyncio.to_thread(peer.open_stream, node.node_id, STREAM, reliability=kind)
        sending = asyncio.wrap_future(peer.begin("send_all", node.node_id, STREAM, events(kind)))
        await asyncio.sleep(0.3)
        assert await take(inbox, COUNT, 30.0) == events(kind)
        assert inbox.stats.dropped == 0
        await sending


async def stream_ours(bench: Bench) -> None:
    """Publish to it while it is stopped, and go on when it runs again."""
    peer, node = await bench.pair()
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "matrix/ours")
    peer.pause()
    publishing = asyncio.ensure_future(node.publisher("matrix/ours", wait_s=30.0).publish_batch(events("ours")))
    await asyncio.sleep(0.5)
    assert not publishing.done(), "its window never filled"
    peer.resume()
    await publishing
    arrived = await asyncio.to_thread(peer.collect, COUNT, 30.0)
    assert [event.raw.encode() for event in arrived] == events("ours")


async def tokens_theirs(bench: Bench) -> None:
    """Subscribe at its gated channel with a token that it issued."""
    peer, node = await bench.pair()
    roots = {} if await level_of(bench, peer, node) is Level.A else {"token_roots": [peer.entity_id]}
    await asyncio.to_thread(peer.register_channel, "matrix/gated", require_token=True, **roots)
    token = await asyncio.to_thread(peer.issue_token, node.identity.entity_id, ["subscribe"], "matrix/gated", 600)
    await node.subscribe_channel(peer.node_id, "matrix/gated", token=token)


async def tokens_ours(bench: Bench) -> None:
    """Let it subscribe at our gated channel with a token that we issued."""
    peer, node = await bench.pair()
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


async def announce_theirs(bench: Bench) -> None:
    """Read its announcement."""
    peer, node = await bench.pair()
    await asyncio.to_thread(peer.announce_capabilities, {"tags": ["matrix"]})
    await eventually(lambda: "matrix" in node.peers[0].tags, "its announcement", 30.0)


async def announce_ours(bench: Bench) -> None:
    """Let it find our node by its tag."""
    peer, _ = await bench.lab.pair({"packages": bench.packages}, {"tags": ["matrix"]})
    await eventually_there(
        peer.find_nodes, {"require_tags": ["matrix"]}, gives=lambda found: len(found) > 0, seconds=30.0
    )


async def level_of(bench: Bench, peer: Any, node: Any) -> Level | None:
    """Return the level that its first grant shows."""
    await asyncio.to_thread(peer.subscribe_channel, node.node_id, "matrix/level")
    await node.publisher("matrix/level").publish(b"x")
    await eventually(lambda: node.peers[0].dialect is not None, "a grant", 30.0)
    level: Level | None = node.peers[0].dialect
    return level


Check = Callable[[Bench], Awaitable[None]]
CHECKS: dict[str, tuple[Check, Check]] = {
    "handshake": (handshake_ours, handshake_theirs),
    "routed handshake": (handshake_routed, handshake_routed),
    "subscribe, publish": (publish_ours, publish_theirs),
    "stream with backpressure": (stream_ours, stream_theirs),
    "reliable publish": (
        lambda bench: publish_ours(bench, reliable=True),
        lambda bench: publish_theirs(bench, kind="reliable"),
    ),
    "reliable stream": (
        lambda bench: publish_ours(bench, reliable=True),
        lambda bench: stream_theirs(bench, kind="reliable"),
    ),
    "tokens": (tokens_theirs, tokens_ours),
    "announcements": (announce_ours, announce_theirs),
}
"""By name: from our node to it, and from it to our node."""


def install(version: str) -> Path:
    """Install a version into a directory of its own, once, and return the directory."""
    packages = DIRECTORY / version
    if installed_version(packages) != version:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--target", str(packages), f"net-mesh=={version}"], check=True)
    return packages


async def judge(check: Check, packages: Path) -> str:
    """Run one check, and return that it works or why not."""
    lab = Lab()
    try:
        async with asyncio.timeout(LIMIT_S):
            await check(Bench(lab, packages))
    except Exception as error:  # noqa: BLE001 - every failure is an entry of the page
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no answer'}"[:160]
    else:
        return WORKS
    finally:
        await lab.close()


async def find_level(packages: Path) -> str:
    """Return the level of a version as our node learns it."""
    lab = Lab()
    try:
        bench = Bench(lab, packages)
        peer, node = await bench.pair()
        await asyncio.to_thread(peer.announce_capabilities, {"tags": ["matrix"]})
        level = await level_of(bench, peer, node)
        return f"{level}{' with ranges' if RANGES_TAG in node.peers[0].tags else ''}"
    finally:
        await lab.close()


def page(rows: dict[str, tuple[str, dict[str, tuple[str, str]]]], when: datetime) -> str:
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
    notes: list[str] = []
    for version, (level, results) in rows.items():
        cells = []
        for name, both in results.items():
            marks = []
            for way, result in zip(("to net-mesh", "to meshbus"), both, strict=True):
                if result != WORKS:
                    notes.append(f"- {version}, {name}, {way}: {result}")
                marks.append("yes" if result == WORKS else "no")
            cells.append(" / ".join(marks))
        lines.append(f"| {version} | {level} | {' | '.join(cells)} |")
    lines += ["", "## What does not work", "", *(notes or ["Nothing in this run."]), ""]
    lines += [
        "## Not part of this command",
        "",
        "Relays and hole punching are tested with net-mesh 0.23.0 only (`tests/interop`). A routed handshake is begun by",
        "meshbus in both columns, because a net-mesh node begins none by itself. meshbus has no stream of its own towards a",
        "net-mesh node: it publishes on channels, so the check of reliable streams towards it is the one of publishing.",
        "",
        "The checks run without packet loss. With 2 % loss, events of a reliable channel may reach a node of level B, such as",
        "0.34.0, twice (`tests/soak/test_dialects.py` shows it).",
        "",
    ]
    return "\n".join(lines)


async def run(versions: list[str]) -> dict[str, tuple[str, dict[str, tuple[str, str]]]]:
    """Run all checks against these versions."""
    rows: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {}
    for version in versions:
        packages = install(version)
        results = {
            name: (await judge(ours, packages), await judge(theirs, packages))
            for name, (ours, theirs) in CHECKS.items()
        }
        rows[version] = (await find_level(packages), results)
        failed = {name: both for name, both in results.items() if both != (WORKS, WORKS)}
        print(f"{version}: level {rows[version][0]}; {failed or 'all checks work'}", flush=True)  # noqa: T201 - a program
    return rows


def main() -> None:
    """Run the versions that are named, or all, and write the page."""
    rows = asyncio.run(run(sys.argv[1:] or VERSIONS))
    PAGE.write_text(page(rows, datetime.now(UTC)), "utf-8")


if __name__ == "__main__":
    main()
