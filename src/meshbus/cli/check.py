"""`meshbus check`: is this configuration good, and is this machine? One line each, with what to do."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from meshbus.cli.exit import Exit
from meshbus.cli.options import Config, Overrides
from meshbus.cli.output import Json, note, show_rows
from meshbus.errors import ConfigError, MeshError

if TYPE_CHECKING:
    from meshbus.config import EdgeEntry, NodeConfig


class Result(StrEnum):
    """How a check ended."""

    GOOD = "good"
    ADVICE = "advice"
    """It works, and could be better."""
    BAD = "bad"


class Finding(NamedTuple):
    """One line of the report."""

    check: str
    result: Result
    found: str
    to_do: str = ""


def check(config: Config = None, /, *, overrides: Overrides = None, json: Json = False) -> Exit:
    """Check a configuration and this machine; ends with 1 when something is bad."""
    from meshbus.cli.options import load_config

    findings = []
    settings = None
    try:
        settings = load_config(config, overrides)
        findings.append(Finding("configuration", Result.GOOD, f"{len(settings.changed())} settings over the defaults"))
    except ConfigError as error:
        findings.append(Finding("configuration", Result.BAD, str(error), "correct it, and check again"))
    if settings is not None:
        findings += check_files(settings)
    findings += check_machine(settings)
    show_rows([finding._asdict() for finding in findings], Finding._fields, json=json, empty="")
    bad = [finding for finding in findings if finding.result is Result.BAD]
    if bad:
        note(f"{len(bad)} of {len(findings)} checks are bad, the first: {bad[0].check}: {bad[0].found}")
    return Exit.FAILED if bad else Exit.OK


def check_files(settings: NodeConfig) -> Iterator[Finding]:
    """Look at the files that a configuration names; nothing is created."""
    from meshbus.config.node import default_identity

    if settings.ephemeral:
        yield Finding("identity", Result.GOOD, "a fresh one at each start")
    else:
        yield _identity(settings.identity or default_identity())
    yield _mesh_key(settings)
    yield from map(_token, settings.tokens)
    yield from (_edge(number, entry) for number, entry in enumerate(settings.edge))
    if settings.compat_any_issuer:
        yield Finding("issuers", Result.ADVICE, "tokens of anyone count here", "set trusted_issuers instead")


def check_machine(settings: NodeConfig | None) -> Iterator[Finding]:
    """Look at what this machine offers to a node."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", Result.GOOD, f"{sys.implementation.name} {version}")
    yield _kernels()
    yield from _socket(settings)


def _identity(place: Path) -> Finding:
    from meshbus.keyfile import load_identity

    if not place.exists():
        return Finding("identity", Result.ADVICE, f"{place} is not there yet", "nothing: the first start makes it")
    try:
        identity = load_identity(place)
    except MeshError as error:
        return Finding("identity", Result.BAD, str(error), "correct it as said")
    return Finding("identity", Result.GOOD, f"node {identity.node_id:016x}")


def _mesh_key(settings: NodeConfig) -> Finding:
    try:
        settings.load_psk()
    except MeshError as error:
        return Finding("mesh key", Result.BAD, str(error), "correct it as said")
    return Finding("mesh key", Result.GOOD, "there, and private")


def _token(path: Path) -> Finding:
    from meshbus.keyfile import load_tokens

    try:
        token = load_tokens(path)[-1]
        token.verify(time.time_ns() // 1_000_000_000)
    except MeshError as error:
        return Finding("token", Result.BAD, f"{path}: {error}", "ask its issuer for a new one")
    return Finding("token", Result.GOOD, f"{path}")


def _edge(number: int, entry: EdgeEntry) -> Finding:
    from meshbus.edge.bridge import security_of

    name = f"edge[{number}]"
    try:
        security_of(entry)
    except MeshError as error:
        return Finding(name, Result.BAD, str(error), "correct it as said")
    if entry.security == "null" and any("tcp://" in (place or "") for place in (entry.publishers, entry.subscribers)):
        to_do = "use ipc:// for this user alone, or set security"
        return Finding(name, Result.ADVICE, "every user of this machine acts as this node", to_do)
    return Finding(name, Result.GOOD, f"security is {entry.security}")


def _kernels() -> Finding:
    from meshbus.jit import available

    if available():
        return Finding("kernels", Result.GOOD, "compiled by numba")
    return Finding(
        "kernels",
        Result.ADVICE,
        "plain Python: right, and slower",
        "pip install 'meshbus[fast]', and leave MESHBUS_JIT unset",
    )


def _socket(settings: NodeConfig | None) -> Iterator[Finding]:
    from meshbus.config import NodeConfig
    from meshbus.node.udp import UdpSocket

    wanted = settings or NodeConfig()
    try:
        # Any free port: the configured one may well be in use, by the node itself.
        probe = UdpSocket.bind(wanted.bind.host, 0, receive_buffer=wanted.receive_buffer_bytes)
    except ConfigError as error:
        yield Finding("socket", Result.BAD, str(error), "correct bind")
        return
    with probe:
        trains = {"sending": probe.sends_trains, "receiving": probe.receives_trains}
        granted = probe.receive_buffer
    missing = [name for name, there in trains.items() if not there]
    if missing:
        yield Finding(
            "trains", Result.ADVICE, f"not for {' and '.join(missing)}: slower", "Linux 5.0 or later has them"
        )
    else:
        yield Finding("trains", Result.GOOD, "UDP_SEGMENT and UDP_GRO")
    if granted < wanted.receive_buffer_bytes:
        yield Finding(
            "receive buffer",
            Result.ADVICE,
            f"{granted} bytes of {wanted.receive_buffer_bytes} granted: bursts may be lost",
            f"as root: sysctl -w net.core.rmem_max={wanted.receive_buffer_bytes}",
        )
    else:
        yield Finding("receive buffer", Result.GOOD, f"{granted} bytes")
