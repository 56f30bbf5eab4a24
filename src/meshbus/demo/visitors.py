"""Programs in the demo that are not meshbus: a net-mesh node and two ZeroMQ applications, all at the node `control`.

    dispatcher (pyzmq) ──► control ──► east-planner, and the net-mesh node: orders/go
    net-mesh node ──► control: legacy/state
    telemetry/pose ──► control ──► dashboard (pyzmq)

A program whose package is not installed takes no part, and the demo says so. The programs are demo/netmesh.py and
demo/zeromq.py; demo/balance.py compares what they count with what the nodes count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from meshbus.demo import netmesh, zeromq
from meshbus.demo.messages import Join, Link, Listen, Wish
from meshbus.demo.process import Process
from meshbus.demo.roles import STATE

if TYPE_CHECKING:
    from meshbus.demo.fleet import Member

LEGACY = "net-mesh"
"""The name of the net-mesh node in what the demo shows."""
PER_S = 10
"""Events per second of each visitor."""
PACKAGES = {"net": "net-mesh", "zmq": "pyzmq"}
"""What the visitors need, by import name; neither is a dependency of meshbus."""


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """What the visitors did, by their own counts; None for those that took no part."""

    legacy_id: int | None = None
    """Node id of the net-mesh node."""
    states: int | None = None
    """Events that the net-mesh node published."""
    orders_at_legacy: int | None = None
    """Orders that it received."""
    orders: int | None = None
    """Orders that the dispatcher sent."""
    forbidden: int | None = None
    """Messages that it sent on a topic that the bridge does not expose."""
    shown: int | None = None
    """Messages that the dashboard received."""


class Visitors:
    """The visitors of one node, used as an async context manager."""

    def __init__(self, folder: Path, host: Member, host_id: int) -> None:
        self._folder, self._host, self._host_id = folder, host, host_id
        self._stack = AsyncExitStack()
        self._legacy: Process[netmesh.Hello | netmesh.Told] | None = None
        self._apps: dict[str, Process[zeromq.Ready | zeromq.Sent | zeromq.Shown]] = {}
        self._hello: netmesh.Hello | None = None
        self._done: list[object] = []
        """The last answers of the programs."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    @staticmethod
    def absent() -> list[str]:
        """Return the packages that are not installed."""
        return [package for module, package in PACKAGES.items() if find_spec(module) is None]

    async def come(self, edge: Mapping[str, str]) -> None:
        """Start the programs and connect them; `edge` has the addresses of the bridge."""
        if find_spec("net") is not None:
            await self._meet()
        if find_spec("zmq") is not None:
            for kind, side in (("dispatcher", "publishers"), ("dashboard", "subscribers")):
                command = ("-m", "meshbus.demo.zeromq", kind, edge[side])
                errors = self._folder / f"{kind}-stderr.txt"
                app = Process(kind, *command, says=zeromq.ANSWER.decode, errors=errors)
                self._apps[kind] = await self._stack.enter_async_context(app)
            await asyncio.gather(*(app.answer() for app in self._apps.values()))

    async def _meet(self) -> None:
        command = ("-m", "meshbus.demo.netmesh", str(self._folder / "mesh-key.toml"))
        errors = self._folder / "net-mesh-stderr.txt"
        process = Process(LEGACY, *command, says=netmesh.ANSWER.decode, errors=errors)
        legacy = self._legacy = await self._stack.enter_async_context(process)
        hello = await legacy.answer()
        assert isinstance(hello, netmesh.Hello)
        self._hello = hello
        # It answers a direct handshake only before it has started, and only then can it address the other node.
        legacy.tell(msgspec.json.encode(netmesh.Meet(self._host_id)) + b"\n")
        await self._host.ask(Join((Link(hello.public_key, hello.address, f"{hello.node_id:016x}"),)))
        await legacy.answer()
        await self._host.ask(Listen((Wish(f"{hello.node_id:016x}", STATE),)))
        legacy.tell(msgspec.json.encode(netmesh.Follow(self._host_id)) + b"\n")
        await legacy.answer()

    async def act(self, seconds: float) -> None:
        """Publish from all of them for some seconds."""
        events = round(PER_S * seconds)
        doing: list[Awaitable[object]] = []
        if self._legacy is not None:
            self._legacy.tell(msgspec.json.encode(netmesh.Tell(events, PER_S)) + b"\n")
            doing.append(self._legacy.answer())
        if "dispatcher" in self._apps:
            dispatcher = self._apps["dispatcher"]
            dispatcher.tell(msgspec.json.encode(zeromq.Order(events, PER_S)) + b"\n")
            doing.append(dispatcher.answer())
        self._done += await asyncio.gather(*doing)

    async def leave(self) -> Visit:
        """Wait until each has received what was sent to it, end all of them, and return what they did."""
        found: dict[str, int] = {}
        at_edge = self._host.counts.edge
        if self._legacy is not None:
            orders = sum(at_edge.get("publish", {}).values())
            self._legacy.tell(msgspec.json.encode(netmesh.Await(orders)) + b"\n")
            self._done.append(await self._legacy.answer())
        if (dashboard := self._apps.get("dashboard")) is not None:
            taken = at_edge.get("deliver", {}).get("taken_from_mesh", 0)
            dashboard.tell(msgspec.json.encode(zeromq.Await(taken)) + b"\n")
            self._done.append(await dashboard.answer())
        await self._stack.aclose()
        for one in self._done:
            match one:
                case netmesh.Told():
                    found |= {"states": one.published, "orders_at_legacy": one.received}
                case zeromq.Sent():
                    found |= {"orders": one.orders, "forbidden": one.forbidden}
                case zeromq.Shown():
                    found["shown"] = one.messages
        if self._hello is not None:
            found["legacy_id"] = self._hello.node_id
        return Visit(**found)
