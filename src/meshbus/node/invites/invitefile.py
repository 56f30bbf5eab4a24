"""Invites on disk: beside the identity of the node, so that a restart forgets none of them.

The file holds what the secrets of tokens lead to, so only its owner can read it. It is replaced as a whole at every change: a
crash leaves the old invites or the new ones. A damaged file is an error when a node starts, because an invite that was used or
withdrawn must not be open again.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from meshbus.errors import ConfigError
from meshbus.keyfile import VERSION, from_hex, read_table, replace_file
from meshbus.names.subnet import SubnetId
from meshbus.policy.invites import MAX_INVITES, Invite, InviteSpec, InviteState

_ROW_BYTES = 16 * 1024
"""An invite with as many and as long tags as are allowed takes less, in JSON inside TOML."""


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """An invite as it is written: one TOML table, bytes in hex."""

    id: str
    psk: str
    issuer: str
    expires: int
    name: str
    tags: tuple[str, ...]
    subnet: str
    ttl_s: int
    valid_s: int
    approval: bool
    state: InviteState
    subject: str | None = None


def load_invites(path: Path) -> list[Invite]:
    """Read a file of invites, the oldest first; without a file there are none. Raises ConfigError if it is damaged."""
    if not path.exists():
        return []
    rows = read_table(path, "invites", _ROW_BYTES * MAX_INVITES).get("invites", [])
    try:
        return [_invite(msgspec.convert(row, _Row)) for row in rows] if isinstance(rows, list) else _damaged(path)
    except (msgspec.ValidationError, ConfigError):
        return _damaged(path)


def save_invites(path: Path, invites: list[Invite]) -> None:
    """Replace a file of invites, completely or not at all. Raises ConfigError."""
    tables = "".join(f"\n[[invites]]\n{_lines(invite)}" for invite in invites)
    replace_file(
        path,
        "# Invites to this fleet. Keep this file private: it admits nodes as long as an invite is open.\n"
        f'# `meshbus invite ls` shows them.\nversion = {VERSION}\nkind = "invites"\n{tables}',
        "invites",
    )


def _lines(invite: Invite) -> str:
    spec = invite.spec
    row = _Row(
        id=invite.invite_id.hex(),
        psk=invite.psk.hex(),
        issuer=invite.issuer.hex(),
        expires=invite.expires,
        name=spec.name,
        tags=spec.tags,
        subnet=str(spec.subnet),
        ttl_s=spec.ttl_s,
        valid_s=spec.valid_s,
        approval=spec.approval,
        state=invite.state,
        subject=None if invite.subject is None else invite.subject.hex(),
    )
    # Texts, numbers, true, false and lists of texts look the same in JSON and in TOML.
    facts = ((key, value) for key, value in msgspec.to_builtins(row).items() if value is not None)
    return "".join(f"{key} = {msgspec.json.encode(value).decode()}\n" for key, value in facts)


def _invite(row: _Row) -> Invite:
    return Invite(
        invite_id=_bytes(row.id),
        psk=_bytes(row.psk),
        issuer=_bytes(row.issuer),
        expires=row.expires,
        spec=InviteSpec(
            name=row.name,
            tags=row.tags,
            subnet=SubnetId.parse(row.subnet),
            ttl_s=row.ttl_s,
            valid_s=row.valid_s,
            approval=row.approval,
        ),
        state=row.state,
        subject=None if row.subject is None else _bytes(row.subject),
    )


def _bytes(text: str) -> bytes:
    raw = from_hex(text)
    if not raw:
        raise ConfigError("invites", f"{text!r} is not hex")
    return raw


def _damaged(path: Path) -> list[Invite]:
    raise ConfigError(
        "invites", "is damaged; restore it from a copy, or delete it, which closes all invites", source=str(path)
    )
