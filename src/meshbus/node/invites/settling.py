"""What a newcomer writes when it was admitted: mesh key, certificate, pins, and the configuration last.

Everything is beside the configuration file, whose existence says that the join is complete. Written again after a crash, all of
it becomes what the last answer says; only a mesh key of another mesh is never replaced. The inviting node is pinned, because the
token named its key: no session with it is ever less than secure, also not the first.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from meshbus.config.node import NodeConfig
from meshbus.config.spelling import Endpoint, parse_endpoint
from meshbus.engine.settings import SecureMode
from meshbus.errors import AuthError, ConfigError, JoinError, MalformedPacket
from meshbus.keyfile import (
    PSK_BYTES,
    MeshKey,
    create_file,
    format_mesh_key,
    load_mesh_key,
    replace_file,
    save_certificate,
)
from meshbus.names.identity import Identity, derive_node_id
from meshbus.node.peers.pinfile import save_pins
from meshbus.policy.reason import Reason
from meshbus.wire.certificate import Certificate, decode_certificate
from meshbus.wire.invitation import InviteToken
from meshbus.wire.joining import Granted

MESH_KEY = "mesh.key"

_CONFIG = """\
# Configuration of a meshbus node that joined a fleet. Start it with:  meshbus up {path}
# Every setting is described in docs/settings.md; `meshbus config show {path}` lists them with their values.

name = {name}
bind = {bind}
identity = {identity}
psk_file = {psk_file}
subnet = {subnet}
tags = {tags}
secure = {secure}

# What the issuer of the fleet certified: the name, the subnet and the tags above.
certificate = {certificate}
{issuers}
{peers}"""
_PEER = """
[[peers]]
address = {address}
public_key = {key}
"""
_FIRST_POLICY = """\
# Replaced by the signed policy of the fleet as soon as a neighbor offers it.
unlisted_channels = "refuse"
trusted_issuers = {issuers}
"""


class Reached(NamedTuple):
    """How the newcomer and the inviting node reached each other."""

    host: str
    """The host at which the newcomer joined."""
    here: str
    """The address of the newcomer in that connection."""
    listen: Endpoint | None
    """Where the new node is to listen; None to choose."""

    def bind(self) -> Endpoint:
        """Return where the new node listens: on this machine only if that is where it joined."""
        if self.listen is not None:
            return self.listen
        if self.here.startswith("127.") or self.here == "::1":
            return Endpoint(self.here, 0)
        return Endpoint("::" if ":" in self.here else "0.0.0.0", 0)  # noqa: S104 - a node is there to be reached


class Joined(NamedTuple):
    """What a newcomer has now."""

    config: Path
    node_id: int
    public_key: bytes
    certificate: Certificate
    inviter: bytes
    """Entity id of the node that admitted it."""


def identity_of(place: Path) -> Path:
    """Return where the identity of the node with this configuration is."""
    return place.with_name(f"{place.stem}.identity.toml")


def settle(place: Path, token: InviteToken, identity: Identity, granted: Granted, reached: Reached) -> Joined:
    """Check what was granted, and write it. Raises JoinError if it does not fit the token, ConfigError for files."""
    certificate = _certificate_of(granted, token, identity)
    for key in (granted.psk, granted.psk_root or granted.psk):
        if len(key) != PSK_BYTES:
            raise JoinError(Reason.REFUSE_JOIN_PROOF.why, f"a mesh key must have {PSK_BYTES} bytes, got {len(key)}")
    text = _config_text(place, certificate, granted, reached, token.inviter)
    _store_psk(place.with_name(MESH_KEY), MeshKey(granted.psk, granted.psk_root or granted.psk))
    save_certificate(_beside(place, "certificate"), certificate)
    if granted.policy_issuers:
        first = _FIRST_POLICY.format(issuers=_keys(granted.trusted_issuers))
        replace_file(_beside(place, "policy.toml"), first, "policy")
    if granted.secure != SecureMode.OFF:
        save_pins(identity_of(place).with_suffix(".pins.toml"), {derive_node_id(token.inviter): token.inviter})
    _store_config(place, text)
    return Joined(place, identity.node_id, identity.entity_id, certificate, token.inviter)


def _certificate_of(granted: Granted, token: InviteToken, identity: Identity) -> Certificate:
    """Return the certificate if it is this node's, by the issuer that the token names. Raises JoinError."""
    try:
        certificate = decode_certificate(granted.certificate)
        certificate.verify()
    except (MalformedPacket, AuthError) as error:
        raise JoinError(Reason.REFUSE_JOIN_ISSUER.why, f"the certificate cannot be used: {error}") from None
    for what, found, expected in (
        ("issuer", certificate.issuer, token.issuer),
        ("subject", certificate.subject, identity.entity_id),
    ):
        if found != expected:
            raise JoinError(
                Reason.REFUSE_JOIN_ISSUER.why,
                f"the {what} of the certificate must be {expected.hex()}, got {found.hex()}; ask for a new invite",
            )
    return certificate


def _store_psk(path: Path, mesh_key: MeshKey) -> None:
    if not path.exists():
        create_file(path, format_mesh_key(mesh_key), "psk")
    elif load_mesh_key(path).key != mesh_key.key:
        raise ConfigError(
            "psk", "is the key of another mesh; move it away, or join in another directory", source=str(path)
        )


def _store_config(place: Path, text: str) -> None:
    """Write the configuration after it was checked under another name."""
    aside = place.with_name(f".{place.name}.new")
    replace_file(aside, text, "config")
    try:
        NodeConfig.load(aside, env={})
        aside.rename(place)
    except ConfigError as error:
        raise ConfigError(error.key, f"what the inviting node granted cannot be used: {error.problem}") from None
    finally:
        aside.unlink(missing_ok=True)


def _config_text(place: Path, certificate: Certificate, granted: Granted, reached: Reached, inviter: bytes) -> str:
    address = f"{_host(reached.host)}{granted.address}" if granted.address.startswith(":") else granted.address
    peers = {inviter: address}
    for one in granted.peers:
        peers.setdefault(one.public_key, one.address)
    return _CONFIG.format(
        path=place,
        name=json.dumps(certificate.name),
        bind=json.dumps(str(reached.bind())),
        identity=json.dumps(identity_of(place).name),
        psk_file=json.dumps(MESH_KEY),
        subnet=json.dumps(str(certificate.subnet)),
        tags=json.dumps(certificate.tags),
        secure=json.dumps(granted.secure),
        certificate=json.dumps(_beside(place, "certificate").name),
        issuers=_issuer_lines(place, granted),
        peers="".join(_peer(key, where) for key, where in peers.items()),
    )


def _peer(key: bytes, where: str) -> str:
    return _PEER.format(address=json.dumps(str(parse_endpoint(where))), key=json.dumps(key.hex()))


def _issuer_lines(place: Path, granted: Granted) -> str:
    if not granted.policy_issuers:
        return f"\n# Whose permission tokens this node accepts.\ntrusted_issuers = {_keys(granted.trusted_issuers)}\n"
    file = json.dumps(_beside(place, "policy.toml").name)
    return (
        "\n# The policy of the fleet, which its issuers sign.\n"
        f"policy_file = {file}\npolicy_issuers = {_keys(granted.policy_issuers)}\n"
    )


def _keys(keys: tuple[bytes, ...]) -> str:
    return json.dumps([key.hex() for key in keys])


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _beside(place: Path, what: str) -> Path:
    return place.with_name(f"{place.stem}.{what}")
