"""Who plays in the demo, and the files that make them nodes: keys, tokens, a configuration each, and a proposed policy.

    3     region        gateway, control
    3.1   site west     west-rover, west-guest
    3.2   site east     east-rover, east-planner

Everything between sites passes the gateway, which judges it by its own channel list. Nodes of one site share a link. The
files are what one would write by hand, so they can be read, and used with `meshbus up` and `meshbus pipeline`
afterwards. Nothing is started here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from meshbus.demo.messages import Flow
from meshbus.keyfile import create_file, create_identity, create_psk, format_tokens
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.wire.messages.token import PermissionToken, Scope

REGION, WEST, EAST = "3", "3.1", "3.2"
POSES, ALARMS, MAPS, TRACES, NOTES = "telemetry/pose", "alarms/safety", "maps/tiles", "debug/trace", "scratch/notes"
GATEWAY = "gateway"
PROPOSED_POLICY, PIPELINE, REPORT = "proposed.toml", "pipeline.toml", "report.html"
"""Files in the folder."""

BOUNDARY: Mapping[str, Mapping[str, Any]] = {
    ALARMS: {"visibility": "global", "require_token": True},
    POSES: {"visibility": "parent-visible"},
    MAPS: {"visibility": "exported"},
    TRACES: {"visibility": "subnet-local"},
}
"""What the gateway knows about channels; of NOTES it knows nothing."""
PROPOSED: Mapping[str, Mapping[str, Any]] = {
    **BOUNDARY,
    POSES: {"visibility": "global"},
    ALARMS: {"visibility": "parent-visible", "require_token": True},
}
"""What somebody would like it to be: poses for everyone; and alarms, for tidiness, as poses were before."""

MAPS_PER_S = 20
"""What a rover's own policy lets through of MAPS, in packets to all subscribers together."""
_TOKEN_S = 3600
_HEARTBEAT_S = 0.5
"""Nodes find each other within a few of these."""


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """One member of the fleet."""

    name: str
    subnet: str
    job: str
    flows: tuple[Flow, ...] = ()
    wishes: tuple[tuple[str, str], ...] = ()
    """Publishers and their channels."""
    allowed: Scope | None = None
    """What its token for ALARMS permits; None for no token."""
    policy: tuple[Mapping[str, Any], ...] = ()
    """Its own channels, with what is logged of them."""


_ROVER_CHANNELS = (
    {"name": POSES, "log": "published"},
    {"name": ALARMS, "log": "published", "require_token": True, "reliable": True},
    {"name": MAPS, "log": "published", "max_rate_pps": MAPS_PER_S},
    {"name": TRACES, "log": "published"},
)
_READER_CHANNELS = ({"prefix": "", "log": "received"},)

ROLES = (
    Role(name=GATEWAY, subnet=REGION, job="judges what passes, records it"),
    Role(
        name="control",
        subnet=REGION,
        job="watches both sites",
        wishes=(
            ("west-rover", POSES),
            ("west-rover", ALARMS),
            ("west-rover", MAPS),
            ("east-rover", POSES),
            ("east-rover", ALARMS),
        ),
        allowed=Scope.SUBSCRIBE,
        policy=_READER_CHANNELS,
    ),
    Role(
        name="west-rover",
        subnet=WEST,
        job="drives, maps, raises alarms",
        flows=(Flow(POSES, 60), Flow(ALARMS, 5, reliable=True), Flow(MAPS, 30), Flow(TRACES, 20)),
        allowed=Scope.PUBLISH,
        policy=_ROVER_CHANNELS,
    ),
    Role(
        name="west-guest",
        subnet=WEST,
        job="is in the mesh, has no token",
        flows=(Flow(ALARMS, 4), Flow(NOTES, 8)),
        wishes=(("west-rover", ALARMS), ("west-rover", "fleet/keys")),
    ),
    Role(
        name="east-rover",
        subnet=EAST,
        job="drives, raises alarms",
        flows=(Flow(POSES, 60), Flow(ALARMS, 5, reliable=True)),
        allowed=Scope.PUBLISH,
        policy=_ROVER_CHANNELS,
    ),
    Role(
        name="east-planner",
        subnet=EAST,
        job="wants whatever it can get",
        wishes=(
            ("east-rover", POSES),
            ("west-rover", POSES),
            ("west-rover", ALARMS),
            ("west-rover", MAPS),
            ("west-rover", TRACES),
            ("west-guest", ALARMS),
            ("west-guest", NOTES),
        ),
        allowed=Scope.SUBSCRIBE,
        policy=_READER_CHANNELS,
    ),
)


class Cast(msgspec.Struct, frozen=True):
    """The fleet as files."""

    folder: Path
    identities: Mapping[str, Identity]

    def config(self, name: str) -> Path:
        """Give the configuration of a member."""
        return self.folder / "nodes" / name / "node.toml"

    def log_dir(self, name: str) -> Path:
        """Give where a member logs and records."""
        return self.folder / "nodes" / name / "log"


def write_cast(folder: Path) -> Cast:
    """Write the files of the fleet into an empty folder. Raises ConfigError when a file is there already."""
    create_psk(folder / "mesh-key.toml")
    operator = create_identity(folder / "operator.toml")
    identities = {role.name: create_identity(folder / "nodes" / role.name / "identity.toml") for role in ROLES}
    cast = Cast(folder, identities)
    for role in ROLES:
        if role.allowed is not None:
            _permit(folder / "tokens" / f"{role.name}.token", operator, identities[role.name], role.allowed)
    for role in ROLES:
        settings = _gateway_settings(BOUNDARY) if role.name == GATEWAY else _settings(role)
        trust = {"trusted_issuers": [operator.entity_id.hex()]}
        create_file(cast.config(role.name), _toml(f"{role.name}: {role.job}", {**settings, **trust}), "demo")
    note = f"nodes/{GATEWAY}/node.toml with another policy, for `meshbus pipeline replay`"
    create_file(folder / PROPOSED_POLICY, _toml(note, _gateway_settings(PROPOSED)), "demo")
    create_file(folder / PIPELINE, _toml("for `meshbus pipeline run`", _pipeline_settings(cast)), "demo")
    return cast


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
        "psk_file": "../../mesh-key.toml",
        "subnet": role.subnet,
        "tags": [_tag(role.subnet)],
        "heartbeat_s": _HEARTBEAT_S,
    }
    if role.allowed is not None:
        settings["tokens"] = [f"../../tokens/{role.name}.token"]
    if role.policy:
        settings |= {"log_dir": "log", "channels": list(role.policy)}
    return settings


def _gateway_settings(channels: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    gateway = next(role for role in ROLES if role.name == GATEWAY)
    publishers = [role.name for role in ROLES if role.allowed is not None and role.allowed & Scope.PUBLISH]
    return _settings(gateway) | {
        "gateway": True,
        "peer_subnets": [WEST, EAST],
        "record_packets": True,
        "log_dir": "log",
        "tokens": [f"../../tokens/{name}.token" for name in publishers],
        "subnet_rules": [{"match_tags": [_tag(subnet)], "target_subnet": subnet} for subnet in (REGION, WEST, EAST)],
        "exports": [{"channel": MAPS, "subnets": [EAST]}],
        "channels": [{"name": name, **rule} for name, rule in channels.items()],
    }


def _pipeline_settings(cast: Cast) -> dict[str, Any]:
    readers = [role for role in ROLES if role.policy == _READER_CHANNELS]
    wishes = [(cast.identities[role.name].node_id, channel) for role in readers for _, channel in role.wishes]
    return {
        "tables": "tables",
        "logs": [f"nodes/{name}/log" for name in (GATEWAY, *(role.name for role in readers))],
        "channels": [
            {"prefix": "", "codec": "json", "schema": "n BIGINT NOT NULL, x DOUBLE, y DOUBLE, battery DOUBLE"}
        ],
        "subscriptions": [{"peer": peer, "prefix": channel} for peer, channel in dict.fromkeys(wishes)],
    }


def _tag(subnet: str) -> str:
    return f"site:{place_of(subnet)}"


def place_of(subnet: str | int | None) -> str:
    """Give what people call a subnet of the demo."""
    names = {REGION: "region", WEST: "west", EAST: "east"}
    text = subnet if isinstance(subnet, str) or subnet is None else str(SubnetId(subnet & 0xFFFFFFFF))
    return names.get(text, text) if text is not None else "–"


def _toml(note: str, settings: Mapping[str, Any]) -> str:
    """Write settings as TOML: plain values first, then lists of tables."""
    tables = {key: value for key, value in settings.items() if isinstance(value, list) and isinstance(value[0], dict)}
    lines = [f"# {note}", *(f"{key} = {json.dumps(value)}" for key, value in settings.items() if key not in tables)]
    for key, rows in tables.items():
        for row in rows:
            lines += ["", f"[[{key}]]", *(f"{name} = {json.dumps(value)}" for name, value in row.items())]
    return "\n".join(lines) + "\n"
