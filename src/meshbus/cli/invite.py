"""`meshbus invite`: let a new node join the fleet of a running node, once and for a limited time."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from cyclopts import App, Parameter

from meshbus.cli.asking import Admin, ask
from meshbus.cli.audit import this_caller
from meshbus.cli.durations import seconds_of
from meshbus.cli.options import Config
from meshbus.cli.output import Json, note, show_facts, show_rows

app = App(name="invite")

InviteId: TypeAlias = Annotated[str, Parameter(help="Id of the invite, as `meshbus invite ls` shows it.")]


@app.default
def invite(
    *,
    name: Annotated[str, Parameter(help="Name of the new node, such as rover-7.")],
    tag: Annotated[list[str] | None, Parameter(help="Tag that the node announces. May be repeated.")] = None,
    subnet: Annotated[str, Parameter(help="Subnet of the node, such as 3.7.")] = "global",
    ttl: Annotated[str, Parameter(help="How long the invite can be used: a number and s, m, h or d.")] = "1h",
    valid: Annotated[str, Parameter(help="How long the certificate of the node is valid.")] = "365d",
    approval: Annotated[
        bool, Parameter(help="Admit the node only after `meshbus invite approve`.", show_default=False)
    ] = False,
    admin: Admin = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Make an invite on a running node that has an issuer_key, and show its token.

    On the new machine, run `meshbus join TOKEN ADDRESS`. The token is a secret until it is used: who has it can join
    instead of your node, but only one can, and you see which one.
    """
    made = ask(
        admin,
        config,
        "invite",
        name=name,
        tags=tag or [],
        subnet=subnet,
        ttl_s=seconds_of(ttl, "--ttl"),
        valid_s=seconds_of(valid, "--valid"),
        approval=approval,
        by=this_caller(),
    )
    shown = ("invite", "name", "tags", "subnet", "expires", "approval", "address", "token")
    show_facts({key: made[key] for key in shown}, json=json)
    note(f"on the new machine, run `meshbus join TOKEN {_reachable(made['address'])}`")


@app.command
def ls(*, admin: Admin = None, config: Config = None, json: Json = False) -> None:
    """List the invites of a running node, with those that are over."""
    rows: list[dict[str, Any]] = ask(admin, config, "invites")
    columns = ("invite", "name", "tags", "subnet", "state", "approval", "expires", "public_key")
    show_rows(rows, columns, json=json, empty="this node has no invites")


@app.command
def approve(invite: InviteId, /, *, admin: Admin = None, config: Config = None, json: Json = False) -> None:
    """Approve the newcomer that presented an invite; compare its public key with the one that it shows."""
    _change("approve", invite, admin, config, json)


@app.command
def withdraw(invite: InviteId, /, *, admin: Admin = None, config: Config = None, json: Json = False) -> None:
    """Withdraw an invite, so that no node can join by it."""
    _change("withdraw", invite, admin, config, json)


def _change(change: str, invite: str, admin: Admin, config: Config, json: bool) -> None:
    show_facts(ask(admin, config, "invite_change", change=change, invite=invite, by=this_caller()), json=json)


def _reachable(address: str) -> str:
    """Return an address as another machine writes it."""
    host, _, port = address.rpartition(":")
    return f"HOST:{port}" if host in {"0.0.0.0", "[::]"} else address  # noqa: S104 - recognized, not listened on
