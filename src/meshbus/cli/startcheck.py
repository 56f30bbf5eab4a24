"""The part of `meshbus check` that looks for what `meshbus up` would refuse: its sockets and its logs.

Addresses are bound and released again; no file or folder is left behind. A node that runs with this configuration
already has its addresses and logs: that is no problem, and said in one line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshbus.cli.check import Finding, Result
from meshbus.errors import ConfigError, LogError, LogFault, MeshError

if TYPE_CHECKING:
    from pathlib import Path

    from meshbus.config import NodeConfig


def check_start(settings: NodeConfig) -> Iterator[Finding]:
    """Check that a node with these settings could start now."""
    import asyncio

    from meshbus.node.unix import is_served

    socket = settings.admin_path()
    running = socket is not None and asyncio.run(is_served(socket))
    yield _admin(socket, running=running)
    if not running:
        yield _bind(settings)
        yield from asyncio.run(_edges(settings))
    if settings.log_dir is not None:
        yield from _logs(settings.log_dir)
    if settings.daemons_dir is not None:
        yield _daemons(settings.daemons_dir)


def _admin(socket: Path | None, *, running: bool) -> Finding:
    from meshbus.node.unix import check_socket

    if socket is None:
        return Finding("admin socket", Result.GOOD, "disabled")
    if running:
        found = f"a node serves {socket}; a second one with this configuration would be refused"
        return Finding("admin socket", Result.GOOD, found)
    try:
        check_socket(socket)
    except ConfigError as error:
        return Finding("admin socket", Result.BAD, str(error), "follow the message")
    return Finding("admin socket", Result.GOOD, str(socket))


def _bind(settings: NodeConfig) -> Finding:
    from meshbus.node.driving.udp import UdpSocket

    try:
        with UdpSocket.bind(settings.bind.host, settings.bind.port):
            pass
    except ConfigError as error:
        return Finding("address", Result.BAD, str(error), "correct the setting bind, or stop the other program")
    if settings.bind.host in {"127.0.0.1", "::1", "localhost"}:
        to_do = "set bind to an address of this machine, or to 0.0.0.0:PORT, if other machines are to connect"
        return Finding("address", Result.ADVICE, f"{settings.bind} is reachable from this machine only", to_do)
    return Finding("address", Result.GOOD, str(settings.bind))


async def _edges(settings: NodeConfig) -> list[Finding]:
    from meshbus.config.edge import EdgeSecurity
    from meshbus.config.edgeaddress import parse_address
    from meshbus.edge.server import listen

    findings = []
    for number, entry in enumerate(settings.edge):
        exposed = entry.security is EdgeSecurity.CURVE
        for side in ("publishers", "subscribers", "notices"):
            text = getattr(entry, side)
            if text is None:
                continue
            try:
                (await listen(parse_address(text, listening=True), exposed=exposed)).close()
            except MeshError as error:
                problem = f"{text}: {error}"
                findings.append(Finding(f"edge[{number}].{side}", Result.BAD, problem, "choose another address"))
    return findings


def _logs(folder: Path) -> Iterator[Finding]:
    from meshbus.log.arrow import has_arrow
    from meshbus.log.reader import LogReader, find_channels, find_roots

    above = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        yield Finding("logs", Result.BAD, f"{above} is not a writable directory", "correct the setting log_dir")
        return
    problems, count = [], 0
    for root in find_roots(folder):
        entries, wrong = find_channels(root)
        problems += wrong
        for entry in entries:
            count += 1
            try:
                damage = LogReader(root, entry.channel).snapshot().damage
            except LogError as error:
                problems.append(error)
                continue
            if damage:
                problems.append(LogError(LogFault.CORRUPT, damage))
    for problem in problems:
        yield Finding("logs", Result.BAD, str(problem), "follow the message")
    if not has_arrow():
        to_do = "pip install 'meshbus[arrow]'"
        yield Finding("logs", Result.ADVICE, "events are logged, but not sealed into Parquet files", to_do)
    elif not problems:
        yield Finding("logs", Result.GOOD, f"{count} in {folder}")


def _daemons(folder: Path) -> Finding:
    from meshbus.node.daemons.daemonfiles import check_version

    try:
        check_version(folder)
    except (LogError, OSError) as error:
        return Finding("daemons", Result.BAD, str(error), "follow the message")
    return Finding("daemons", Result.GOOD, str(folder))
