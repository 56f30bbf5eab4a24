"""`meshbus up`: run a node until it is stopped."""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from meshbus.cli.options import Config, Overrides
from meshbus.cli.output import Json, for_people, note, show_facts, show_line

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from meshbus.config import NodeConfig
    from meshbus.edge.bridge import Bridge
    from meshbus.node.node import Node


def up(
    config: Config = None,
    /,
    *,
    bind: Annotated[str | None, Parameter(help="Listen on this host:port.")] = None,
    accept: Annotated[
        list[str] | None, Parameter(help="Let a plain net-mesh node with this id connect. May be repeated.")
    ] = None,
    admin: Annotated[Path | None, Parameter(help="Accept local commands on this Unix socket.")] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Run a node and its admin socket until Ctrl-C or SIGTERM; SIGHUP reads its policy, mesh key and tokens again.

    Prints the node's id and addresses, then what happens to it: peers that connect or fail, refusals and so on. On a
    terminal these are sentences with their time, otherwise one JSON object per line.
    """
    import asyncio

    from meshbus.cli.options import load_config

    # Dedicated options are turned into --set, after the others, so that they win and errors name the setting.
    typed = [f"bind={bind}"] if bind is not None else []
    typed += [f"accept={','.join(accept)}"] if accept else []
    typed += [f"admin_socket={admin.absolute()}"] if admin is not None else []
    asyncio.run(_run(load_config(config, [*(overrides or ()), *typed]), json=json))


async def _run(config: NodeConfig, *, json: bool) -> None:
    import asyncio
    from contextlib import AsyncExitStack

    from meshbus.node.admin import Admin, status_row
    from meshbus.node.logs.logs import log_bounds
    from meshbus.node.node import Node

    stop = asyncio.Event()
    reload = asyncio.Event()
    _on_signals(stop, reload)
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(Node.open(config))
        socket = config.admin_path()
        if socket is not None:
            await stack.enter_async_context(Admin(node).serve(socket))
        bridges = [await stack.enter_async_context(bridge) for bridge in _bridges(node, json=json)]
        web = await _serve_web(node, stack)
        await _export_metrics(node, stack)
        # Printed once everything listens: a program that waits for this line can connect at once.
        facts = {**status_row(node), "admin_socket": None if socket is None else str(socket)}
        if web is not None:
            facts["web"] = f"http://{web}"
        if bridges:
            facts["edge"] = list(map(_places, bridges))
        bounds = log_bounds(config)
        if bounds and not for_people(json):
            facts["log_bounds"] = bounds
        show_facts(facts, json=json)
        if for_people(json):
            for bound in bounds:
                note(bound)
        async with asyncio.TaskGroup() as tasks:
            beside = [
                tasks.create_task(_show_notices(node, json=json)),
                tasks.create_task(_reload_when(reload, node)),
            ]
            await stop.wait()
            for task in beside:
                task.cancel()
    note("stopped")


async def _serve_web(node: Node, stack: AsyncExitStack) -> str | None:
    """Serve metrics and health if that is configured, and return where."""
    entry = node.config.web
    if entry is None:
        return None
    from meshbus.web.server import WebServer

    return (await stack.enter_async_context(WebServer(node, entry))).address


async def _export_metrics(node: Node, stack: AsyncExitStack) -> None:
    """Send metrics to a collector if that is configured."""
    if node.config.otel is not None:
        from meshbus.web.export import Export

        await stack.enter_async_context(Export(node, node.config.otel))


async def _show_notices(node: Node, *, json: bool) -> None:
    """Print the notices of a node."""
    async for event in node.notices():
        _show(event, json=json, name_of=node.name_of)


def _show(event: object, *, json: bool, name_of: Callable[[int], str | None] = lambda _: None) -> None:
    from datetime import UTC, datetime

    from meshbus.cli.sentences import sentence

    now = datetime.now(UTC)
    if for_people(json):
        text = sentence(event, name_of)
        if text is not None:
            note(f"{now.astimezone():%Y-%m-%d %H:%M:%S} {text}")
        return
    row = notice_row(event)
    name = name_of(getattr(event, "node_id", 0))
    if name is not None:
        row["name"] = name
    show_line({**row, "at": now.isoformat()})


def _bridges(node: Node, *, json: bool) -> list[Bridge]:
    """Create the configured bridges of a node; their refusals are printed like notices."""
    if not node.config.edge:
        return []
    import logging

    from meshbus.edge.bridge import Bridge

    logging.getLogger("meshbus.edge.refusals").addHandler(logging.NullHandler())  # refusals are printed here already
    return [Bridge(node, entry, partial(_show, json=json)) for entry in node.config.edge]


def _places(bridge: Bridge) -> dict[str, str]:
    """Return the addresses that applications connect to."""
    places = {side: getattr(bridge, side) for side in ("publishers", "subscribers", "notices")}
    return {side: place for side, place in places.items() if place is not None}


def notice_row(event: object) -> dict[str, object]:
    """Return a notice as a JSON object: its name and its fields."""
    import re

    fields = getattr(event, "__struct_fields__", None)
    values = {name: getattr(event, name) for name in fields} if fields is not None else dict(vars(event))
    return {
        "notice": re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower(),
        **{name: _plain(name, value) for name, value in values.items()},
    }


def _plain(name: str, value: object) -> object:
    match value:
        case IntEnum():
            return value.name.lower()
        case int() if name.endswith(("node_id", "session_id", "stream_id", "publisher")):
            return f"{value:016x}"
        case bytes():
            return value.hex()
        case frozenset() | set():
            return [f"0x{item:04x}" if isinstance(item, int) else str(item) for item in sorted(value)]
        case tuple() | list():
            return [_plain(name, item) for item in value]
        case None | bool() | int() | float():
            return value
        case _:
            return str(value)


async def _reload_when(asked: asyncio.Event, node: Node) -> None:
    """Read policy, mesh key and tokens again whenever SIGHUP asks for it; what comes of it is a notice."""
    from contextlib import suppress

    from meshbus.errors import MeshError
    from meshbus.node.policies.keeper import Via

    while True:
        await asked.wait()
        asked.clear()
        with suppress(MeshError):
            await node.apply_policy(via=Via.SIGHUP)
        if node.config.psk_file is not None:
            with suppress(MeshError):
                await node.rotate_psk(via=Via.SIGHUP)
        with suppress(MeshError):
            await node.rotate_tokens(via=Via.SIGHUP)


def _on_signals(stop: asyncio.Event, reload: asyncio.Event) -> None:
    import asyncio
    import signal

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if hasattr(signal, "SIGHUP"):  # its default would end the process, for example with the terminal that started it
        loop.add_signal_handler(signal.SIGHUP, reload.set)
