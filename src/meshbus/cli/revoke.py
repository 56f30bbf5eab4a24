"""`meshbus revoke`: take the rights of a key in the whole fleet, and show what was revoked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from meshbus.cli.asking import Admin, ask
from meshbus.cli.options import Config
from meshbus.cli.output import Json, note, show_facts, show_rows
from meshbus.cli.token import Signer

if TYPE_CHECKING:
    from meshbus.wire.messages.revocation import Revoked

app = App(name="revoke")

_COLUMNS = ("at", "revoked", "name", "node_id", "public_key", "heir", "reason", "issuer", "until")


@app.default
def revoke(
    target: Annotated[
        str,
        Parameter(
            help="Public key of 64 hex digits, node id or name; with --token, a token file or - for standard input."
        ),
    ],
    /,
    *,
    reason: Annotated[str, Parameter(help="Why, in one line; every node of the fleet shows it.")],
    publish: Annotated[bool, Parameter(help="Revoke only the right to publish.", show_default=False)] = False,
    subscribe: Annotated[bool, Parameter(help="Revoke only the right to subscribe.", show_default=False)] = False,
    token: Annotated[
        bool,
        Parameter(help="Revoke one token, what was renewed from it, and what was delegated by it.", show_default=False),
    ] = False,
    identity: Signer = None,
    admin: Admin = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Revoke a node, or one of its rights, in the whole fleet. It cannot be taken back: a node that returns needs a new key.

    Your identity must be one of the policy_issuers. The record goes to a running node, which puts it into effect at once and
    passes it on; nodes that are away get it when they are back.
    """
    import time

    from meshbus.cli.audit import this_caller
    from meshbus.cli.token import signer
    from meshbus.errors import ConfigError
    from meshbus.wire.messages.revocation import Revocation, Revoked, encode_record

    rights = {Revoked.PUBLISH: publish, Revoked.SUBSCRIBE: subscribe, Revoked.TOKEN: token}
    chosen = [right for right, given in rights.items() if given]
    if len(chosen) > 1:
        raise ConfigError(
            "revoke", "give one of --publish, --subscribe and --token; without any, the whole node is revoked"
        )
    what = chosen[0] if chosen else Revoked.NODE
    named = _target(what, target, admin, config)
    record = Revocation.sign(signer(identity), what, named, at=time.time_ns() // 1_000_000_000, reason=reason)
    done = ask(admin, config, "revocations_add", record=encode_record(record).hex(), by=this_caller())
    show_facts({key: done[key] for key in ("new", *_COLUMNS)}, json=json)
    if not done["new"]:
        note("it was revoked already; nothing changed")


@app.command
def ls(*, admin: Admin = None, config: Config = None, json: Json = False) -> None:
    """List what was revoked: as a running node knows it, or the configured one that does not run."""
    show_rows(_rows(admin, config), _COLUMNS, json=json, empty="nothing was revoked")


def _target(what: Revoked, given: str, admin: Path | None, config: Path | None) -> bytes:
    from meshbus.errors import ConfigError
    from meshbus.keyfile import from_hex
    from meshbus.names.identity import KEY_BYTES
    from meshbus.wire.messages.revocation import Revoked

    if what is Revoked.TOKEN:
        from meshbus.cli.token import read_given

        return read_given(given)[-1].signed_bytes
    key = from_hex(given)
    if key is not None and len(key) == KEY_BYTES:
        return key
    known = ask(admin, config, "key_of", node=given)["public_key"]
    if known is None:
        raise ConfigError(
            "target", f"the key of {given!r} is not known to the node; give the public key, 64 hex digits"
        )
    return bytes.fromhex(known)


def _rows(admin: Path | None, config: Path | None) -> list[dict[str, Any]]:
    from meshbus.cli.options import load_config
    from meshbus.errors import ConfigError

    settings = load_config(config)
    socket = settings.admin_path()
    if admin is not None or (socket is not None and socket.exists()):
        rows: list[dict[str, Any]] = ask(admin, config, "revocations")
        return rows
    from meshbus.node.policies.revocationfile import load_revocations
    from meshbus.node.policies.revocationrows import revocation_row

    path = settings.revocations_path()
    if path is None:
        raise ConfigError("revocations", "an ephemeral node keeps no file of them; ask a running node with --admin")
    return [revocation_row(record, None) for record in load_revocations(path)]
