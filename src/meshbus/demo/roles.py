"""The nodes of the demo, and their files: keys, tokens, configurations, and a proposed policy.

    3     region        gateway, control
    3.1   site west     west-rover, west-guest
    3.2   site east     east-rover, east-planner

All traffic between sites passes the gateway, which applies its own channel policies. Nodes of one site are connected
directly. The files look as if written by hand, so they can be read, and used with `meshbus up` and `meshbus pipeline`
afterwards. This module starts nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from meshbus.demo.alarms import NAMES
from meshbus.demo.messages import Flow
from meshbus.demo.replica import CHANNEL
from meshbus.keyfile import create_file, create_identity, create_psk, format_tokens
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.wire.messages.token import PermissionToken, Scope

REGION, WEST, EAST = "3", "3.1", "3.2"
POSES, ALARMS, MAPS, TRACES, NOTES = "telemetry/pose", "alarms/safety", "maps/tiles", "debug/trace", "scratch/notes"
ANOMALIES, FRAMES, ORDERS, STATE = "anomalies/pose", "cameras/front", "orders/go", "legacy/state"
GATEWAY, CONTROL, FAILING, LOSSY = "gateway", "control", "west-rover", "east-rover"
"""The node between the sites, the one with visitors, the rover whose battery fails, and the one with a bad radio."""
LOSS = 0.05
"""Share of the datagrams that the bad radio loses."""
FRAME_BYTES = 200_000
DETECTOR = "detector"
"""The daemon that finds jumps in the poses of the failing rover; it moves to the gateway."""
PROPOSED_POLICY, PIPELINE, REPORT, REPLICAS = "proposed.toml", "pipeline.toml", "report.html", "replicas"
"""Names of files in the output directory, and of the directory of the replicas of alarms."""

BOUNDARY: Mapping[str, Mapping[str, Any]] = {
    ALARMS: {"visibility": "global", "require_token": True},
    POSES: {"visibility": "parent-visible"},
    MAPS: {"visibility": "exported"},
    TRACES: {"visibility": "subnet-local"},
    ANOMALIES: {"visibility": "parent-visible", "log": "published", "reliable": True},
    FRAMES: {"visibility": "parent-visible"},
    ORDERS: {"visibility": "global"},
}
"""Channel policies of the gateway; it has none for NOTES. It publishes ANOMALIES itself after the detector has moved."""
PROPOSED: Mapping[str, Mapping[str, Any]] = {
    **BOUNDARY,
    POSES: {"visibility": "global"},
    ALARMS: {"visibility": "parent-visible", "require_token": True},
}
"""Proposed policies for the replay: poses become visible everywhere, alarms only to parent subnets."""

MAPS_PER_S = 20
"""Rate limit of MAPS in a rover's own policy, in packets to all subscribers together; lower than its flow, so that the
demo shows refusals."""
_TOKEN_S = 3600
"""Validity of the tokens; longer than the longest demo."""
_HEARTBEAT_S = 0.5
"""Short, because nodes need a few heartbeats to find each other."""
_ANSWER_S = 30.0
"""Nodes that start together on a busy machine may need longer than the default for their first answers."""


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the fleet."""

    name: str
    subnet: str
    job: str
    flows: tuple[Flow, ...] = ()
    wishes: tuple[tuple[str, str], ...] = ()
    """Subscriptions, as pairs of publisher and channel."""
    allowed: Scope | None = None
    """Permissions of its token for ALARMS; None for no token."""
    policy: tuple[Mapping[str, Any], ...] = ()
    """Its channel policies, with log settings."""
    daemon: Mapping[str, Any] | None = None
    """How it declares the detector; None if it does not."""
    edge: Mapping[str, Any] | None = None
    """Its bridge for ZeroMQ applications."""


_ROVER_CHANNELS = (
    {"name": POSES, "log": "published"},
    {"name": ALARMS, "log": "published", "require_token": True, "reliable": True},
    {"name": MAPS, "log": "published", "max_rate_pps": MAPS_PER_S},
    {"name": TRACES, "log": "published"},
    {"name": ANOMALIES, "log": "published", "reliable": True},
    {"name": FRAMES, "log": "published", "reliable": True},
)
_READER_CHANNELS = ({"prefix": "", "log": "received"},)
_EDGE = {
    "publishers": "tcp://127.0.0.1:*",
    "subscribers": "tcp://127.0.0.1:*",
    "channels_in": [ORDERS],
    "channels_out": ["telemetry/"],
}

ROLES = (
    Role(name=GATEWAY, subnet=REGION, job="applies policy, records", daemon={"run": False}),
    Role(
        name=CONTROL,
        subnet=REGION,
        job="monitors both sites, has visitors",
        wishes=(
            ("west-rover", POSES),
            ("west-rover", ALARMS),
            ("west-rover", MAPS),
            ("west-rover", FRAMES),
            ("east-rover", POSES),
            ("east-rover", ALARMS),
            (FAILING, ANOMALIES),
            (GATEWAY, ANOMALIES),
        ),
        allowed=Scope.SUBSCRIBE,
        policy=_READER_CHANNELS,
        edge=_EDGE,
    ),
    Role(
        name=FAILING,
        subnet=WEST,
        job="drives, maps, raises alarms",
        flows=(
            Flow(POSES, 60),
            Flow(ALARMS, 5, reliable=True),
            Flow(MAPS, 30),
            Flow(TRACES, 20),
            Flow(FRAMES, 2, reliable=True, bytes=FRAME_BYTES),
        ),
        allowed=Scope.PUBLISH,
        policy=_ROVER_CHANNELS,
        daemon={"inputs": [POSES]},
    ),
    Role(
        name="west-guest",
        subnet=WEST,
        job="is a peer without a token",
        flows=(Flow(ALARMS, 4), Flow(NOTES, 8)),
        wishes=(("west-rover", ALARMS), ("west-rover", "fleet/keys")),
    ),
    Role(
        name=LOSSY,
        subnet=EAST,
        job="drives, has a bad radio",
        flows=(Flow(POSES, 60), Flow(ALARMS, 5, reliable=True)),
        allowed=Scope.PUBLISH,
        policy=_ROVER_CHANNELS,
    ),
    Role(
        name="east-planner",
        subnet=EAST,
        job="subscribes to every channel",
        wishes=(
            ("east-rover", POSES),
            ("west-rover", POSES),
            ("west-rover", ALARMS),
            ("west-rover", MAPS),
            ("west-rover", TRACES),
            ("west-guest", ALARMS),
            ("west-guest", NOTES),
            (CONTROL, ORDERS),
        ),
        allowed=Scope.SUBSCRIBE,
        policy=_READER_CHANNELS,
    ),
)


class FleetFiles(msgspec.Struct, frozen=True):
    """Files of the fleet, and the identities in them."""

    folder: Path
    identities: Mapping[str, Identity]

    def config(self, name: str) -> Path:
        """Return the path of a node's configuration."""
        return self.folder / "nodes" / name / "node.toml"

    def log_dir(self, name: str) -> Path:
        """Return the directory of a node's logs and recorded packets."""
        return self.folder / "nodes" / name / "log"


def write_files(folder: Path, *, serve: bool = False) -> FleetFiles:
    """Write the files of the fleet into an empty directory; the gateway serves a web page if asked to.

    Raises ConfigError if a file exists already.
    """
    create_psk(folder / "mesh-key.toml")
    operator = create_identity(folder / "operator.toml")
    identities = {role.name: create_identity(folder / "nodes" / role.name / "identity.toml") for role in ROLES}
    files = FleetFiles(folder, identities)
    for role in ROLES:
        if role.allowed is not None:
            _permit(folder / "tokens" / f"{role.name}.token", operator, identities[role.name], role.allowed)
    for role in ROLES:
        settings = _gateway_settings(BOUNDARY) if role.name == GATEWAY else _settings(role)
        if serve and role.name == GATEWAY:
            settings["web"] = {"bind": "127.0.0.1:0"}
        trust = {"trusted_issuers": [operator.entity_id.hex()]}
        create_file(files.config(role.name), _toml(f"{role.name}: {role.job}", {**settings, **trust}), "demo")
    note = f"nodes/{GATEWAY}/node.toml with the proposed policy, for `meshbus pipeline replay`"
    create_file(folder / PROPOSED_POLICY, _toml(note, _gateway_settings(PROPOSED)), "demo")
    create_file(folder / PIPELINE, _toml("for `meshbus pipeline run`", _pipeline_settings(files)), "demo")
    return files


def _permit(path: Path, operator: Identity, subject: Identity, scope: Scope) -> None:
    token = PermissionToken.issue(
        operator,
        subject.entity_id,
        scope,
        ALARMS,
        ttl_s=_TOKEN_S,
        now=time.time_ns() / 1e9,
        entropy=os.urandom,
    )
    create_file(path, format_tokens([token]), "token")


def _settings(role: Role) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "identity": "identity.toml",
        "name": role.name,
        "psk_file": "../../mesh-key.toml",
        "subnet": role.subnet,
        "tags": [_tag(role.subnet)],
        "heartbeat_s": _HEARTBEAT_S,
        "membership_ack_timeout_s": _ANSWER_S,
    }
    if role.allowed is not None:
        settings["tokens"] = [f"../../tokens/{role.name}.token"]
    if role.policy:
        settings |= {"log_dir": "log", "channels": list(role.policy)}
    if role.edge is not None:
        settings["edge"] = [dict(role.edge)]
    if role.daemon is not None:
        detector = {"name": DETECTOR, "factory": "meshbus.demo.detector:Detector", "output": ANOMALIES}
        settings |= {"daemons_dir": "daemons", "daemons": [detector | dict(role.daemon)]}
    return settings


def _gateway_settings(channels: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    gateway = next(role for role in ROLES if role.name == GATEWAY)
    publishers = [role.name for role in ROLES if role.allowed is not None and role.allowed & Scope.PUBLISH]
    return _settings(gateway) | {
        "gateway": True,
        "peer_subnets": [WEST, EAST],
        "record_packets": True,
        "log_dir": "log",
        # The gateway checks publishers too, so it needs their tokens.
        "tokens": [f"../../tokens/{name}.token" for name in publishers],
        # A gateway learns the subnets of its peers from the tags that they announce.
        "subnet_rules": [{"match_tags": [_tag(subnet)], "target_subnet": subnet} for subnet in (REGION, WEST, EAST)],
        "exports": [{"channel": MAPS, "subnets": [EAST]}],
        "channels": [{"name": name, **rule} for name, rule in channels.items()],
    }


def _pipeline_settings(files: FleetFiles) -> dict[str, Any]:
    readers = [role for role in ROLES if role.policy == _READER_CHANNELS]
    wishes = [(files.identities[role.name].node_id, channel) for role in readers for _, channel in role.wishes]
    return {
        "tables": "tables",
        "logs": [
            *(f"nodes/{name}/log" for name in (GATEWAY, *(role.name for role in readers))),
            *(f"{REPLICAS}/{name}/logs" for name in NAMES),
        ],
        "channels": [
            {"name": ANOMALIES, "codec": "json", "schema": "n BIGINT NOT NULL, anomaly BIGINT, step_mm BIGINT"},
            {"name": CHANNEL, "codec": "json", "schema": "alarm BIGINT NOT NULL, hall BIGINT"},
            {"name": FRAMES, "codec": "raw"},
            {"name": STATE, "codec": "json", "schema": "n BIGINT NOT NULL"},
            {"name": ORDERS, "codec": "json", "schema": "n BIGINT NOT NULL"},
            {"prefix": "", "codec": "json", "schema": "n BIGINT NOT NULL, x DOUBLE, y DOUBLE, battery DOUBLE"},
        ],
        "subscriptions": [{"peer": peer, "prefix": channel} for peer, channel in dict.fromkeys(wishes)],
    }


def _tag(subnet: str) -> str:
    return f"site:{place_of(subnet)}"


def place_of(subnet: str | int | None) -> str:
    """Return the name of a subnet of the demo."""
    names = {REGION: "region", WEST: "west", EAST: "east"}
    text = subnet if isinstance(subnet, str) or subnet is None else str(SubnetId(subnet & 0xFFFFFFFF))
    return names.get(text, text) if text is not None else "–"


def _toml(note: str, settings: Mapping[str, Any]) -> str:
    """Write settings as TOML: plain values first, then tables and lists of tables."""
    tables = {key: value for key, value in settings.items() if isinstance(value, dict)}
    lists = {key: value for key, value in settings.items() if isinstance(value, list) and isinstance(value[0], dict)}
    plain = {key: value for key, value in settings.items() if key not in tables and key not in lists}
    lines = [f"# {note}", *_values(plain)]
    for key, row in tables.items():
        lines += ["", f"[{key}]", *_values(row)]
    for key, rows in lists.items():
        for row in rows:
            lines += ["", f"[[{key}]]", *_values(row)]
    return "\n".join(lines) + "\n"


def _values(row: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {json.dumps(value)}" for name, value in row.items()]
