"""An honest reliable stream beside attackers, in processes of their own, with sockets and the real clock.

    publisher    publishes numbered events without pause, reliably
    victim       subscribes to it, logs what it receives, and checks that nothing is missing, doubled or changed
    attacker     sends every kind of outsiders.py and members.py in turn, as fast as one process can

The figure is the rate at which the victim receives, compared with the rate while the same attacker works as hard against
a socket that nobody reads. So the processor time that an attacker takes on this machine is not counted as an attack. The
rate without any attacker is measured too: on a machine with fewer cores than processes it is higher than both.

`python -m bench.hostile.share SECONDS` prints it; each role is started as `python -m bench.hostile.share ROLE ARGUMENTS`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.hostile import members, outsiders
from bench.hostile.members import Insider
from bench.hostile.outsiders import Outsider
from bench.hostile.victim import PSK, Member, signed_policy
from meshbus.engine.base.packets import PacketBatch
from meshbus.log.reader import LogReader
from meshbus.names.channel import ChannelName
from meshbus.node.driving.udp import UdpSocket
from meshbus.node.driving.warmup import warm
from meshbus.node.node import Node
from meshbus.wire.constants import Subprotocol

CHANNEL = "honest/stream"
EVENT_BYTES = 256
BATCH = 512
"""Events of one publish."""
BURST = 16
"""Packets of one kind before the next kind."""
SOURCES = 8
"""Addresses of the outsider."""
QUIET_S = 60.0
"""Seconds of each quiet rate, in a run that is longer: sealing and caches are at rest by then."""
_ENOUGH_S = 30.0
"""Seconds for an attacker to get its sessions."""


class Seen(msgspec.Struct, frozen=True):
    """What the victim reports, once a second."""

    at: float
    """Monotonic seconds, which all processes of a machine share."""
    events: int
    """Received so far, each of them the next one."""
    wrong: int
    """Events that were not the next one."""
    logged: int
    """Events in its log."""
    memory_kb: int
    """Memory of its process without pages of files, which the system takes back when it needs them."""
    dropped: int
    """Datagrams and messages that it dropped, for any reason."""
    exceptions: int


class Outcome(msgspec.Struct, frozen=True):
    """One run."""

    alone_per_s: float
    """Events per second without an attacker."""
    quiet_per_s: float
    """Events per second while the attacker worked against nobody."""
    attacked_per_s: float
    sent: int
    """Datagrams of the attacker to the victim."""
    last: Seen
    grown_kb: int
    """By how much the least memory of the victim in the last third of the attack exceeds that of the third before."""
    memory_mb: list[int]
    """The least in each tenth of the attack."""
    most_mb: int
    """The most at any moment of it."""

    @property
    def kept(self) -> float:
        """The part of its rate that the stream kept, beside an attacker that works as hard."""
        return self.attacked_per_s / self.quiet_per_s

    @property
    def kept_of_alone(self) -> float:
        """The part of its rate without an attacker, which needs a core for each process to mean anything."""
        return self.attacked_per_s / self.alone_per_s


# ── roles ───────────────────────────────────────────────────────────────────────────────────


async def publish() -> None:
    """Publish numbered events until the input ends."""
    async with Node.open(psk=PSK.hex(), ephemeral=True) as node:
        _say({"address": node.address, "public_key": node.public_key.hex(), "node_id": node.node_id})
        publisher = node.publisher(CHANNEL, reliable=True)
        ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
        number = 0
        while not ended.done():
            events = [(number + place).to_bytes(8, "little") + bytes(EVENT_BYTES - 8) for place in range(BATCH)]
            report = await publisher.publish_batch(events)
            number += BATCH if report.delivered else 0
            if not report.delivered:  # nobody has subscribed yet
                await asyncio.sleep(0.05)


async def suffer(address: str, public_key: str, folder: str) -> None:
    """Receive the honest stream, check it, and report once a second."""
    channels = [{"name": CHANNEL, "log": "received", "log_fsync": "never", "log_retain_bytes": 64 << 20}]
    policy = signed_policy(Path(folder))
    async with Node.open(psk=PSK.hex(), ephemeral=True, log_dir=Path(folder), channels=channels, **policy) as node:
        await node.connect(address, public_key=bytes.fromhex(public_key))
        _say({"address": node.address, "public_key": node.noise_public_key.hex(), "node_id": node.node_id})
        state = [0, 0]
        async with node.subscribe(CHANNEL) as subscription:
            reading = asyncio.ensure_future(_check(subscription, state))
            ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
            while not ended.done() and not reading.done():
                await asyncio.sleep(1.0)
                counters = node.counters
                seen = Seen(
                    at=time.monotonic(),
                    events=state[0],
                    wrong=state[1],
                    logged=LogReader(Path(folder) / "received", ChannelName(CHANNEL)).snapshot().end,
                    memory_kb=_memory_kb(),
                    dropped=sum(counters.get("drop", {}).values()),
                    exceptions=sum(counters.get("exception", {}).values()),
                )
                _say(msgspec.to_builtins(seen))
            reading.cancel()


async def _check(subscription: Any, state: list[int]) -> None:
    following: int | None = None
    async for batch in subscription.batches():
        numbers = np.frombuffer(batch.data, np.uint8).reshape(len(batch), EVENT_BYTES)[:, :8].copy().view("<u8")[:, 0]
        first = int(numbers[0])
        expected = np.arange(first, first + len(batch), dtype=np.uint64)
        wrong = int(np.count_nonzero(numbers != expected)) + int(following is not None and first != following)
        following = int(numbers[-1]) + 1
        state[0] += len(batch)
        state[1] += wrong


class Remote:
    """The victim, as attackers in another process see it."""

    def __init__(self, address: str, node_id: int, other: int) -> None:
        host, port = address.rsplit(":", 1)
        self.address = (host, int(port))
        self.node_id = node_id
        self._other = other
        self._socket = UdpSocket.bind("127.0.0.1", 0)

    def take(self, batch: PacketBatch) -> None:
        """Send datagrams to it."""
        for start, length in zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True):
            self._socket._socket.sendto(batch.data[start : start + length].tobytes(), self.address)

    def another_peer(self, _member: Member) -> int:
        """Return the honest publisher."""
        return self._other

    def next_sequence(self, _member: Member, _stream_id: int) -> int | None:
        """Return None: an attacker does not read acknowledgements."""
        return None


def attack(address: str, public_key: str, node_id: str, other: str, harmless: str) -> None:
    """Send every kind in turn until the input ends; with `harmless` set, to a socket that nobody reads."""
    import select

    remote = Remote(address, int(node_id), int(other))
    bystander, insider = Member(time.monotonic, recording=True), Member(time.monotonic)
    for member in (bystander, insider):
        _join(member, remote, bytes.fromhex(public_key))
    outsider, peer = Outsider(remote, bystander), Insider(remote, insider)
    packets = {name: kind(peer) for name, kind in members.KINDS.items()}
    sinks = [UdpSocket.bind("127.0.0.1", 0) for _ in range(SOURCES)]
    target = sinks[0].address if harmless == "harmless" else remote.address
    _say({"ready": True})
    sent = 0
    for turn in itertools.count():
        for name, maker in outsiders.KINDS.items():
            sock = sinks[turn % SOURCES]._socket
            for datagram in maker(outsider, BURST):
                with suppress(ConnectionRefusedError):  # an answer to a forged source came back
                    sock.sendto(datagram, target)
                sent += 1
            del name
        for make in packets.values():
            for _ in range(BURST):
                with suppress(ConnectionRefusedError):
                    insider.socket._socket.sendto(peer.seal(peer.prepare(make())), target)
                sent += 1
        for member in (bystander, insider):
            member.pump()
        if select.select([sys.stdin], [], [], 0)[0]:
            break
    _say({"sent": sent})


def _join(member: Member, remote: Remote, public_key: bytes) -> None:
    member.act(lambda engine, now, out: engine.connect(remote.node_id, remote.address, public_key, now, out))
    until = time.monotonic() + _ENOUGH_S
    while time.monotonic() < until:
        time.sleep(0.01)
        member.pump()
        peer = member.engine.peers.get(remote.node_id)
        if peer is not None and peer.uses(Subprotocol.HISTORY):
            return
    raise RuntimeError("an attacker got no session with the victim")


# ── the whole ───────────────────────────────────────────────────────────────────────────────


def run(seconds: float) -> Outcome:
    """Let the stream run alone, beside an attacker that works against nobody, and for `seconds` under its attack."""
    quiet_s = min(seconds, QUIET_S)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        honest = stack.enter_context(_role("publish"))
        told = _hear(honest)
        victim = stack.enter_context(_role("suffer", told["address"], told["public_key"], folder))
        target = _hear(victim)
        who = (target["address"], target["public_key"], str(target["node_id"]), str(told["node_id"]))
        _follow(victim, 2.0)
        alone = _follow(victim, quiet_s)
        with _role("attack", *who, "harmless") as harmless:
            _hear(harmless)
            before = _follow(victim, quiet_s)
            _end(harmless)
        with _role("attack", *who, "harmful") as harmful:
            _hear(harmful)
            during = _follow(victim, seconds)
            sent = _end(harmful)["sent"]
    _, middle, last = _least_kb(during, 3)
    return Outcome(
        alone_per_s=_rate(alone),
        quiet_per_s=_rate(before),
        attacked_per_s=_rate(during),
        sent=sent,
        last=during[-1],
        grown_kb=last - middle,
        memory_mb=[kb // 1024 for kb in _least_kb(during, 10)],
        most_mb=max(one.memory_kb for one in during) // 1024,
    )


def _least_kb(seen: list[Seen], parts: int) -> list[int]:
    """Return the least memory in each of some equal parts of a run: that of moments when nothing was being sealed.

    Not the most: a file that is being sealed takes tens of MB, and a seal returns them when it ends. What is never returned
    raises the least as much.
    """
    bounds = [len(seen) * part // parts for part in range(parts + 1)]
    return [min(one.memory_kb for one in seen[a:b] or seen) for a, b in itertools.pairwise(bounds)]


def _rate(seen: list[Seen]) -> float:
    return (seen[-1].events - seen[0].events) / (seen[-1].at - seen[0].at)


def _follow(victim: subprocess.Popen[str], seconds: float) -> list[Seen]:
    """Return the victim's reports of the next seconds."""
    began = time.monotonic()
    found: list[Seen] = []
    while not found or found[-1].at - found[0].at < seconds:
        seen = msgspec.convert(_hear(victim), Seen)
        if seen.at >= began:  # those before it waited in the pipe
            found.append(seen)
    return found


@contextmanager
def _role(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.hostile.share", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ours
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended")
    heard: dict[str, Any] = json.loads(line)
    return heard


def _end(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdin is not None
    process.stdin.close()
    return _hear(process)


def _say(told: object) -> None:
    print(json.dumps(told), flush=True)


def _memory_kb() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0])


def main(arguments: list[str]) -> None:
    """Play a role, or run the whole."""
    match arguments:
        case ["publish"]:
            warm()
            asyncio.run(publish())
        case ["suffer", address, public_key, folder]:
            warm()
            asyncio.run(suffer(address, public_key, folder))
        case ["attack", address, public_key, node_id, other, harmless]:
            attack(address, public_key, node_id, other, harmless)
        case [seconds]:
            outcome = run(float(seconds))
            print(
                msgspec.json.encode(outcome).decode(), f"kept {outcome.kept:.2f}, {outcome.kept_of_alone:.2f} of alone"
            )
        case _:
            raise SystemExit("usage: python -m bench.hostile.share SECONDS")


if __name__ == "__main__":
    main(sys.argv[1:])
