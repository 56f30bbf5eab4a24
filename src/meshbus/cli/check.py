"""`meshbus check`: check a configuration and this machine, one line per check, with advice."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from meshbus.cli.exit import Exit
from meshbus.cli.options import Config, Overrides
from meshbus.cli.output import Json, note, plural, show_rows
from meshbus.errors import ConfigError, MeshError

if TYPE_CHECKING:
    from meshbus.config import EdgeEntry, NodeConfig, PolicyConfig
    from meshbus.engine.settings import NamedChannels


class Result(StrEnum):
    """Result of a check."""

    GOOD = "good"
    ADVICE = "advice"
    """It works, but could be better."""
    BAD = "bad"


class Finding(NamedTuple):
    """One line of the report."""

    check: str
    result: Result
    found: str
    to_do: str = ""


def check(config: Config = None, /, *, overrides: Overrides = None, json: Json = False) -> Exit:
    """Check a configuration and this machine; exits with status 1 if a check fails."""
    from meshbus.cli.options import load_config

    findings = []
    settings = None
    try:
        settings = load_config(config, overrides)
        changed = len(settings.changed())
        found = f"{plural(changed, 'setting')} changed from the defaults"
        findings.append(Finding("configuration", Result.GOOD, found))
    except ConfigError as error:
        findings.append(Finding("configuration", Result.BAD, str(error), "correct the setting and run the check again"))
    # The machine is checked even if the configuration is invalid: both may need attention.
    if settings is not None:
        from meshbus.cli.startcheck import check_start

        findings += check_files(settings)
        findings += check_start(settings)
    findings += check_machine(settings)
    show_rows([finding._asdict() for finding in findings], Finding._fields, json=json, empty="")
    bad = [finding for finding in findings if finding.result is Result.BAD]
    if bad:
        note(f"{len(bad)} of {len(findings)} checks failed; the first is {bad[0].check}: {bad[0].found}")
    return Exit.FAILED if bad else Exit.OK


def check_files(settings: NodeConfig) -> Iterator[Finding]:
    """Check the files that a configuration names; creates nothing."""
    from meshbus.config.node import default_identity

    if settings.ephemeral:
        yield Finding("identity", Result.GOOD, "a new one at each start")
    else:
        yield _identity(settings.identity or default_identity())
    yield from _pins(settings)
    yield _mesh_key(settings)
    yield from map(_token, settings.tokens)
    yield from _membership(settings)
    yield from _policy(settings)
    yield from (_edge(number, entry) for number, entry in enumerate(settings.edge))
    if settings.compat_any_issuer:
        to_do = "set trusted_issuers instead of compat_any_issuer"
        yield Finding("issuers", Result.ADVICE, "tokens of any issuer are accepted", to_do)


def check_machine(settings: NodeConfig | None) -> Iterator[Finding]:
    """Check what this machine offers to a node."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", Result.GOOD, f"{sys.implementation.name} {version}")
    yield _kernels()
    yield from _socket(settings)


def _identity(place: Path) -> Finding:
    from meshbus.keyfile import load_identity

    if not place.exists():
        above = next(folder for folder in place.absolute().parents if folder.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            problem = f"{place} does not exist, and {above} is not writable"
            return Finding("identity", Result.BAD, problem, "set identity to a file in a folder of your own")
        return Finding("identity", Result.ADVICE, f"{place} does not exist yet", "nothing; the first start creates it")
    try:
        identity = load_identity(place)
    except MeshError as error:
        return Finding("identity", Result.BAD, str(error), "follow the message")
    return Finding("identity", Result.GOOD, f"node {identity.node_id:016x}")


def _pins(settings: NodeConfig) -> Iterator[Finding]:
    from meshbus.node.peers.pinfile import load_pins

    place = settings.pins_path()
    if place is None or not place.exists():
        return
    try:
        known = len(load_pins(place))
    except MeshError as error:
        yield Finding("pins", Result.BAD, str(error), "follow the message")
    else:
        yield Finding("pins", Result.GOOD, f"{plural(known, 'node')} seen secure")


def _mesh_key(settings: NodeConfig) -> Finding:
    try:
        settings.load_psk()
    except MeshError as error:
        return Finding("mesh key", Result.BAD, str(error), "follow the message")
    return Finding("mesh key", Result.GOOD, "exists and is private")


def _token(path: Path) -> Finding:
    from meshbus.keyfile import load_tokens

    try:
        token = load_tokens(path)[-1]
        token.verify(time.time_ns() // 1_000_000_000)
    except MeshError as error:
        return Finding("token", Result.BAD, f"{path}: {error}", "ask the issuer for a new token")
    return Finding("token", Result.GOOD, f"{path}")


def _membership(settings: NodeConfig) -> Iterator[Finding]:
    """Check what a node has from the issuer of its fleet: its certificate, and the key to certify others."""
    from meshbus.keyfile import load_certificate

    if settings.certificate is not None:
        renew = "join again with a new invite"
        try:
            certificate = load_certificate(settings.certificate)
        except MeshError as error:
            yield Finding("certificate", Result.BAD, str(error), "follow the message")
        else:
            about = f"{certificate.name}, by {certificate.issuer.hex()}"
            if certificate.valid(time.time_ns() // 1_000_000_000):
                yield Finding("certificate", Result.GOOD, about)
            else:
                yield Finding("certificate", Result.BAD, f"{about}, is not valid now", f"set the clock, or {renew}")
    if settings.issuer_key is not None:
        try:
            settings.load_issuer()
            settings.invites_path()
        except MeshError as error:
            yield Finding("issuer key", Result.BAD, str(error), "follow the message")
        else:
            yield Finding("issuer key", Result.GOOD, f"{settings.issuer_key}")


def _policy(settings: NodeConfig) -> Iterator[Finding]:
    from meshbus.config.policyfile import policy_of

    try:
        policy = policy_of(settings, 0)
    except MeshError as error:
        yield Finding("policy", Result.BAD, str(error), "follow the message")
        return
    if settings.policy_file is not None:
        yield Finding("policy", Result.GOOD, f"{settings.policy_file}")
    yield _channels(policy)
    if policy.gateways:
        yield _gateway(policy, settings.announce_channels)


def _channels(policy: PolicyConfig) -> Finding:
    from meshbus.config.policy import Unlisted

    number = len(policy.channels)
    count = "1 entry" if number == 1 else f"{number} entries"
    if not policy.refuses_unlisted:
        return Finding("channels", Result.GOOD, f"{count}; other channels are open")
    found = f"{count}; subscriptions to any other channel of this node are refused as unknown"
    if policy.unlisted_channels is Unlisted.REFUSE:
        return Finding("channels", Result.GOOD, found)
    # Nothing in the file says so: it follows from an entry that restricts a channel.
    to_do = 'set unlisted_channels to "refuse" if that is intended, otherwise to "open"'
    return Finding("channels", Result.ADVICE, found, to_do)


def _gateway(policy: PolicyConfig, announced: NamedChannels) -> Finding:
    from meshbus.engine.settings import NamedChannels
    from meshbus.policy.channels import Visibility

    names = [entry.name for entry in policy.channels if entry.name is not None]
    prefixes = [entry for entry in policy.channels if entry.prefix is not None]
    # A channel that stays in its subnet is dropped with or without its name.
    bare = [
        entry
        for entry in prefixes
        if entry.visibility is not Visibility.SUBNET_LOCAL
        and not entry.names
        and not any(name.startswith(entry.prefix or "") for name in names)
    ]
    hidden = [
        entry for entry in bare if entry.visibility is not Visibility.GLOBAL or entry.config().restricts_subscribers
    ]
    to_do = "set announce_channels to {} on the publishers, or list the channels in `names` of the entry"
    if bare and announced is NamedChannels.NONE:
        found = (
            f"names under {bare[0].prefix!r} cannot be learned: announce_channels is none, and no name is configured"
        )
        return Finding("gateway", Result.ADVICE, f"{found}; packets are dropped", to_do.format("open or all"))
    if hidden and announced is NamedChannels.OPEN:
        found = f"names under {hidden[0].prefix!r} are learned only from publishers that announce restricted channels"
        return Finding("gateway", Result.ADVICE, f"{found}; others are dropped", to_do.format("all"))
    learned = "; names for rules by prefix are learned or configured" if prefixes else ""
    return Finding("gateway", Result.GOOD, f"{plural(len(policy.channels), 'rule')}{learned}")


def _edge(number: int, entry: EdgeEntry) -> Finding:
    from meshbus.edge.bridge import security_of

    name = f"edge[{number}]"
    try:
        security_of(entry)
    except MeshError as error:
        return Finding(name, Result.BAD, str(error), "follow the message")
    # Any local user can connect to a TCP port on loopback; a Unix socket has file permissions.
    if entry.security == "null" and any("tcp://" in (place or "") for place in (entry.publishers, entry.subscribers)):
        to_do = "use ipc://, which only your user can open, or set security to plain or curve"
        return Finding(name, Result.ADVICE, "every user of this machine can publish and subscribe as this node", to_do)
    return Finding(name, Result.GOOD, f"security is {entry.security}")


def _kernels() -> Finding:
    from meshbus.jit import available

    if available():
        return Finding("kernels", Result.GOOD, "compiled by numba")
    return Finding(
        "kernels",
        Result.ADVICE,
        "not compiled: correct, but slower",
        "pip install 'meshbus[fast]', and unset MESHBUS_JIT",
    )


def _socket(settings: NodeConfig | None) -> Iterator[Finding]:
    from meshbus.config import NodeConfig
    from meshbus.node.driving.udp import UdpSocket

    wanted = settings or NodeConfig()
    try:
        # Port 0, any free port: the node itself may be running on the configured one.
        probe = UdpSocket.bind(wanted.bind.host, 0, receive_buffer=wanted.receive_buffer_bytes)
    except ConfigError as error:
        yield Finding("socket", Result.BAD, str(error), "correct the setting bind")
        return
    with probe:
        trains = {"sending": probe.sends_trains, "receiving": probe.receives_trains}
        granted = probe.receive_buffer
    missing = [name for name, there in trains.items() if not there]
    if missing:
        yield Finding(
            "trains", Result.ADVICE, f"not available for {' and '.join(missing)}: slower", "use Linux 5.0 or later"
        )
    else:
        yield Finding("trains", Result.GOOD, "UDP_SEGMENT and UDP_GRO")
    if granted < wanted.receive_buffer_bytes:
        yield Finding(
            "receive buffer",
            Result.ADVICE,
            f"{granted} of {wanted.receive_buffer_bytes} bytes granted: packets may be lost in bursts",
            f"run as root: sysctl -w net.core.rmem_max={wanted.receive_buffer_bytes}",
        )
    else:
        yield Finding("receive buffer", Result.GOOD, f"{granted} bytes")
