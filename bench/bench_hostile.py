"""What attackers cost a node: processor time per datagram of outsiders, and per packet of a peer.

Bias: the node is idle otherwise and has two peers, and everything that it looks at is in the processor's cache. Datagrams
are handed to the driver's own steps in drains of 64, so system calls are not in the figures, except for the answers that
the node sends; one table is through a real socket. The sender's cost is what this library needs to seal a packet whose
content was prepared before: an attacker in another language pays less, and one who also calls the system pays more.

Limits by rate are judged with a clock that the benchmark moves. While it stands still, they are used up, and the figure is
what a refused packet costs. When it moves by a second, the rest is what the limits admit in a second, as a share of a core.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Cell, Table
from bench.hostile import members, outsiders, share
from bench.hostile.members import Content, Insider
from bench.hostile.outsiders import Maker, Outsider
from bench.hostile.victim import Member, Victim, drains, victim
from meshbus.engine.base.packets import Address, PacketBatch
from meshbus.node.driving.udp import UdpSocket
from meshbus.wire.constants import Subprotocol

TIMES_JUNK = 3.0
"""Committed: what an outsider's datagram may cost, compared with plain junk of the same length."""
TIMES_SENDER = 50.0
"""Committed: what a peer's packet may cost, compared with what it costs its sender."""
CORE_SHARE = 0.1
"""Committed otherwise: the share of a core that the limits admit to one peer."""
KEPT = 0.5
"""Committed: the part of its rate that an honest stream keeps under attack."""
DRAIN = 64
"""Datagrams of a drain: what the socket returns at most, if they do not come as trains."""
WARM_PACKETS = 40 * DRAIN
OFFERED = 8 * DRAIN
"""Packets of a peer in the second that the clock moves by."""


def run(quick: bool) -> list[Table]:
    """Measure everything. Raises RuntimeError if the node and its peers do not find together."""
    with tempfile.TemporaryDirectory() as folder:
        return [*asyncio.run(_measure(Path(folder), quick)), _share_table(5.0 if quick else 30.0)]


async def _measure(folder: Path, quick: bool) -> list[Table]:
    async with victim(folder) as node:
        honest = Member(node.clock, recording=True)
        await node.meet(honest)
        who = Outsider(node, honest)
        rounds, datagrams = (3, 1024) if quick else (7, 4096)
        tables = [
            await _outsider_table(node, who, rounds, datagrams),
            await _socket_table(node, who, rounds, 16 if quick else 64),
        ]
        tables.append(await _member_table(node, rounds))
        return tables


# ── outsiders ───────────────────────────────────────────────────────────────────────────────


async def _outsider_table(node: Victim, who: Outsider, rounds: int, datagrams: int) -> Table:
    rows: list[list[Cell]] = []
    plain: dict[tuple[bool, bool], float] = {}
    for name, make in outsiders.KINDS.items():
        for many in (False, True):
            cost = await _outsider_cost(node, who, make, rounds, datagrams, many=many)
            long = "8 kB" in name
            base = plain.setdefault((many, long), cost)
            rows.append([name, "many" if many else "one", cost, cost / base, _met(cost <= TIMES_JUNK * base)])
    return Table(
        f"Datagrams of outsiders, drains of {DRAIN} (committed: ≤ {TIMES_JUNK:g}× plain junk of that length)",
        ["kind", "sources", "ns per datagram", "× junk", "met"],
        rows,
        ["handshakes: their limits are used up; within them, all strangers together get a tenth of a core"],
    )


async def _outsider_cost(node: Victim, who: Outsider, make: Maker, rounds: int, datagrams: int, *, many: bool) -> float:
    """Return nanoseconds of processor time per datagram: the median of some rounds, after one that is not counted."""

    def prepared() -> list[PacketBatch]:
        return drains([(who.any_source() if many else who.one_source(), one) for one in make(who, datagrams)], DRAIN)

    found = []
    for _ in range(rounds + 1):
        batches = prepared()
        began = time.process_time_ns()
        for batch in batches:
            node.take(batch)
        found.append((time.process_time_ns() - began) / datagrams)
        await node.settle()
    return statistics.median(found[1:])


async def _socket_table(node: Victim, who: Outsider, rounds: int, fills: int) -> Table:
    """Measure some kinds from the socket on: datagrams really arrive, and the driver's own callback reads them."""
    rows: list[list[Cell]] = []
    chosen = ("plain junk", "plain junk, 8 kB", "random session ids", "forged tags", "forged tags, 8 kB")
    plain: dict[bool, float] = {}
    with UdpSocket.bind("127.0.0.1", 0) as sender:
        for name in chosen:
            found = [await _socket_cost(node, who, sender, outsiders.KINDS[name], fills) for _ in range(rounds)]
            cost = statistics.median(found)
            base = plain.setdefault("8 kB" in name, cost)
            rows.append([name, cost, cost / base, _met(cost <= TIMES_JUNK * base)])
    return Table(
        "The same through a real socket, from one source",
        ["kind", "ns per datagram", "× junk", "met"],
        rows,
    )


async def _socket_cost(node: Victim, who: Outsider, sender: UdpSocket, make: Maker, fills: int) -> float:
    driver, spent = node.driver, 0
    # asyncio must not read them first.
    loop = asyncio.get_running_loop()
    loop.remove_reader(driver.socket.fileno())
    count = DRAIN // 2  # half a drain of long datagrams fits into any receive buffer
    for _ in range(fills):
        for datagram in make(who, count):
            sender._socket.sendto(datagram, driver.socket.address)
        began = time.process_time_ns()
        driver._readable(driver.socket)
        spent += time.process_time_ns() - began
    loop.add_reader(driver.socket.fileno(), driver._readable, driver.socket)
    return spent / (fills * count)


# ── peers ───────────────────────────────────────────────────────────────────────────────────


async def _member_table(node: Victim, rounds: int) -> Table:
    rows: list[list[Cell]] = []
    for name, kind in members.KINDS.items():
        member = Member(node.clock)
        await node.meet(member)
        who = Insider(node, member)
        make = kind(who)
        for subprotocol_id in (Subprotocol.HISTORY, Subprotocol.POLICY, Subprotocol.REQUEST):
            await _flood(node, who, [who.begin_stream(subprotocol_id)])
        for _ in range(WARM_PACKETS // DRAIN):
            await _flood(node, who, [make() for _ in range(DRAIN)])
        refused = [await _flood(node, who, [make() for _ in range(DRAIN)]) for _ in range(rounds)]
        cost = statistics.median(ours for ours, _ in refused)
        theirs = statistics.median(sealing for _, sealing in refused)
        share = await _admitted(node, who, make, cost)
        met = cost <= TIMES_SENDER * theirs and share <= CORE_SHARE
        rows.append([name, cost / 1e3, theirs / 1e3, cost / theirs, share, _met(met)])
        node.leave(member)
    return Table(
        f"Packets of a peer (committed: ≤ {TIMES_SENDER:g}× its cost to the sender, and ≤ {CORE_SHARE:g} of a core beyond)",
        ["kind", "µs per packet", "µs to seal", "× sender", "admitted, of a core", "met"],
        rows,
        [
            "µs per packet: with the limits of the peer used up; admitted: what they let through in a second on top of it",
            f"packed: as many messages as fit into 8 kB; {OFFERED} packets are offered in that second",
        ],
    )


async def _flood(node: Victim, who: Insider, contents: Sequence[Content]) -> tuple[float, float]:
    """Send packets in drains; return the processor time in nanoseconds per packet, for the node and for the sender."""
    who.catch_up()
    ready = [who.prepare(content) for content in contents]
    began = time.process_time_ns()
    sealed: list[tuple[Address, bytes]] = [(who.address, who.seal(one)) for one in ready]
    sealing = (time.process_time_ns() - began) / len(sealed)
    batches = drains(sealed, DRAIN)
    began = time.process_time_ns()
    for batch in batches:
        node.take(batch)
        await node.settle()
    return (time.process_time_ns() - began) / len(sealed), sealing


async def _admitted(node: Victim, who: Insider, make: members.Make, refused_ns: float) -> float:
    """Return which share of a core the limits of a peer admit: what packets cost in a second beyond refusing them."""
    spent = 0.0
    for _ in range(OFFERED // DRAIN):
        node.clock.now += DRAIN / OFFERED
        spent += DRAIN * (await _flood(node, who, [make() for _ in range(DRAIN)]))[0]
    return max(0.0, (spent - OFFERED * refused_ns) / 1e9)


# ── an honest stream ────────────────────────────────────────────────────────────────────────


def _share_table(seconds: float) -> Table:
    found = share.run(seconds)
    rows: list[list[Cell]] = [
        ["events per second, no attacker", found.alone_per_s],
        ["events per second, the attacker busy elsewhere", found.quiet_per_s],
        ["events per second under attack", found.attacked_per_s],
        ["kept", found.kept],
        ["events lost, repeated or changed", found.last.wrong],
        ["datagrams of the attacker per second", found.sent / seconds],
        ["growth of memory in the last third, kB", found.grown_kb],
    ]
    return Table(
        f"An honest reliable stream beside one peer and one outsider, processes of their own (committed: keeps {KEPT:g})",
        ["", "figure"],
        rows,
        [f"met: {_met(found.kept >= KEPT and not found.last.wrong)}; means little if other programs are busy"],
    )


def _met(met: bool) -> str:
    return "yes" if met else "no"
