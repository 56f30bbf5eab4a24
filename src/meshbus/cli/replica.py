"""`meshbus replica`: the replicated channels of a running node: their state, their members, and whether they are equal."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from cyclopts import App, Parameter

from meshbus.cli.asking import Admin, ask, called
from meshbus.cli.exit import Exit
from meshbus.cli.options import Config
from meshbus.cli.output import Json, for_people, note, plural, show_rows

app = App(name="replica")

Channel: TypeAlias = Annotated[str, Parameter(help="Replicated channel, such as alarms/fire.")]
Member: TypeAlias = Annotated[str, Parameter(help="Name of a node, or its id of 16 hex digits.")]


@app.command
def status(*, admin: Admin = None, config: Config = None, json: Json = False) -> Exit:
    """Show the replicated channels of a node; exits with status 5 if one of them takes no appends for a majority."""
    rows = ask(admin, config, "replicas")
    for row in rows if for_people(json) else ():
        if row["waiting"] is not None:
            note(f"{row['channel']}: {row['waiting']}")
    shown = [_for_people(row) for row in rows] if for_people(json) else rows
    columns = ("channel", "role", "leader", "epoch", "committed", "tail", "acks", "members")
    show_rows(shown, columns, json=json, empty="no replicated channels; set replicas for a channel in [[channels]]")
    return Exit.PARTIAL if any(row["waiting"] is not None for row in rows) else Exit.OK


@app.command
def add(channel: Channel, member: Member, /, *, admin: Admin = None, config: Config = None) -> None:
    """Make a node a member; ask the leader. The node must run and have the channel's replicas configured."""
    ask(admin, config, "replica_change", change="add", channel=channel, node=member)
    note(f"{member} is a member of {channel}; it counts for a majority when it has caught up")


@app.command
def remove(channel: Channel, member: Member, /, *, admin: Admin = None, config: Config = None) -> None:
    """Remove a member; ask the leader. The log of the member stays on its disk."""
    ask(admin, config, "replica_change", change="remove", channel=channel, node=member)
    note(f"{member} is no longer a member of {channel}; remove it from replicas on all nodes")


@app.command
def transfer(channel: Channel, member: Member, /, *, admin: Admin = None, config: Config = None) -> None:
    """Make another member the leader, for example before this one is stopped; ask the leader."""
    ask(admin, config, "replica_change", change="transfer", channel=channel, node=member)
    note(f"{member} leads {channel}")


@app.command
def verify(
    channel: Channel,
    /,
    *,
    repair: Annotated[
        bool,
        Parameter(
            help="If the log of the asked node is wrong, move it aside and copy it again from the others.",
            show_default=False,
        ),
    ] = False,
    admin: Admin = None,
    config: Config = None,
    json: Json = False,
) -> Exit:
    """Compare the logs of the members; exits with status 1 if a majority has something else, 5 if one cannot be read."""
    rows = ask(admin, config, "replica_verify", channel=channel, repair=repair)
    own = ask(admin, config, "status")["node_id"]
    wrong = [row for row in rows if row["wrong"] or (not row["equal"] and not row["unread"])]
    repaired = repair and any(row["equal"] and own in _ids(row["wrong"]) for row in wrong)
    shown = [row | {key: _names(row[key]) for key in ("equal", "wrong", "unread")} for row in rows]
    show_rows(
        shown if for_people(json) else rows, ("first", "end", "equal", "wrong", "unread"), json=json, empty="no events"
    )
    if repaired:
        note(f"{channel}: the log of this node was moved aside and is copied again; verify it when it has caught up")
        wrong = [row for row in wrong if not row["equal"] or set(_ids(row["wrong"])) != {own}]
    if wrong:
        advice = "run `meshbus replica verify --repair` on the nodes that are wrong"
        note(f"{channel}: {plural(len(wrong), 'range')} of {len(rows)} not equal on all members; {advice}")
        return Exit.FAILED
    return Exit.PARTIAL if any(row["unread"] for row in rows) else Exit.OK


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    return row | {
        "leader": None if row["leader"] is None else called(row["leader"]),
        "members": ", ".join(_state(member) for member in row["members"]),
    }


def _state(member: dict[str, Any]) -> str:
    if not member["connected"]:
        return f"{called(member)} (no session)"
    return called(member) if member["lag"] is None else f"{called(member)} (lag {member['lag']})"


def _names(nodes: list[dict[str, Any]]) -> str:
    return ", ".join(map(called, nodes))


def _ids(nodes: list[dict[str, Any]]) -> list[str]:
    return [node["node_id"] for node in nodes]
