"""`meshbus daemon`: the daemons of a running node: run, show, move and stop them, and see what happened to them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias

from cyclopts import App, Parameter

from meshbus.cli.asking import Admin, ask, called
from meshbus.cli.exit import Exit
from meshbus.cli.options import Config
from meshbus.cli.output import Json, for_people, note, show_line, show_rows, show_text

app = App(name="daemon")

Daemon: TypeAlias = Annotated[str, Parameter(help="Name of a daemon, or its origin hash of 16 hex digits.")]


@app.command
def run(
    name: Annotated[str, Parameter(help="Name of the daemon; nodes of one mesh know it by this name.")],
    factory: Annotated[str, Parameter(help="What creates it: module:factory, such as detector:Detector.")],
    /,
    *,
    inputs: Annotated[
        list[str] | None,
        Parameter("--input", help="Channel whose log it reads: CHANNEL, or CHANNEL@NODE. May be repeated."),
    ] = None,
    output: Annotated[str | None, Parameter(help="Channel for what it returns; the node must log it.")] = None,
    path: Annotated[
        list[Path] | None, Parameter(help="Directory with its module, before those of daemons_path. May be repeated.")
    ] = None,
    key: Annotated[Path | None, Parameter(help="File with its own secret, which is created on first use.")] = None,
    checkpoints: Annotated[
        str | None, Parameter(help="Replicated channel for its checkpoints, so that it survives the death of a node.")
    ] = None,
    skip_gaps: Annotated[
        bool, Parameter(help="Go on after events that are gone from an input's log.", show_default=False)
    ] = False,
    offer: Annotated[
        bool, Parameter(help="Only let it move to this node; do not start it.", show_default=False)
    ] = False,
    admin: Admin = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Run a daemon on a node, until the node is stopped; after a stop it goes on where it was.

    The node must have daemons_dir set. To run a daemon whenever the node runs, declare it in [[daemons]] of its file.
    """
    wish: dict[str, Any] = {"name": name, "factory": factory, "inputs": inputs or [], "skip_gaps": skip_gaps}
    wish |= {"output": output, "path": [str(one.absolute()) for one in path or ()], "offer": offer}
    wish["checkpoints"] = checkpoints
    wish["key"] = None if key is None else str(key.absolute())
    row = ask(admin, config, "daemon_run", daemon=wish)
    if not for_people(json):
        show_line(row)
    elif offer or row["where"] is None:
        note(f"{name} can move to this node now; run `meshbus daemon move {name}`")
    elif row["state"] == "moved":
        note(
            f"{name} was moved to {called(row['where'])} and stays there; run `meshbus daemon move {name}` to get it back"
        )
    else:
        note(f"{name} runs here; declare it in [[daemons]] so that it does after a restart of the node too")


@app.command
def ls(*, admin: Admin = None, config: Config = None, json: Json = False) -> Exit:
    """List the daemons that a node runs, offers or has a record of; exits with status 5 if something is wrong with one."""
    rows = ask(admin, config, "daemons")
    wrong = [row for row in rows if row["error"] is not None]
    for row in wrong if for_people(json) else ():
        note(f"{row['name'] or row['origin']}: {row['error']}")
    shown = [_for_people(row) for row in rows] if for_people(json) else rows
    columns = ("name", "origin", "where", "state", "phase", "inputs", "outputs", "moves", "errors")
    show_rows(shown, columns, json=json, empty="no daemons; start one with `meshbus daemon run`")
    return Exit.PARTIAL if wrong else Exit.OK


@app.command
def move(
    daemon: Daemon,
    /,
    *,
    to: Annotated[
        str | None, Parameter(help="Name or id of the node to move it to; default: the nearest that offers it.")
    ] = None,
    source: Annotated[
        str | None, Parameter("--from", help="Node that it runs on; default: where it is known to run.")
    ] = None,
    timeout_s: Annotated[float, Parameter("--timeout", help="Give up after this many seconds.")] = 60.0,
    admin: Admin = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Move a daemon to another node, wherever it runs, and wait until it runs there."""
    from meshbus.errors import ConfigError

    if not timeout_s > 0:
        raise ConfigError("--timeout", f"must be positive, got {timeout_s:g}; give a number of seconds")
    row = ask(admin, config, "daemon_move", daemon=daemon, target=to, source=source, timeout_s=timeout_s)
    if for_people(json):
        note(f"{daemon} moved from {called(row['source'])} to {called(row['target'])} in {row['seconds']:.2f} s")
    else:
        show_line(row)


@app.command
def logs(
    daemon: Daemon,
    /,
    *,
    follow: Annotated[bool, Parameter(("--follow", "-f"), help="Go on until Ctrl-C.", show_default=False)] = False,
    admin: Admin = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show what happened to a daemon on a node since that was started, and what the daemon logged itself."""
    import asyncio

    asyncio.run(_show_lines(admin, config, daemon, follow=follow, json=json))


@app.command
def stop(
    daemon: Daemon,
    /,
    *,
    withdraw: Annotated[
        bool, Parameter(help="Do not let it move to this node any more either.", show_default=False)
    ] = False,
    admin: Admin = None,
    config: Config = None,
) -> None:
    """Stop a daemon on a node after what it is doing; its checkpoint stays, and `run` goes on from it."""
    ask(admin, config, "daemon_stop", daemon=daemon, withdraw=withdraw)
    note(f"{daemon} is stopped; its checkpoint stays, and `meshbus daemon run` goes on from it")


async def _show_lines(admin: Path | None, config: Path | None, daemon: str, *, follow: bool, json: bool) -> None:
    from datetime import datetime

    from meshbus.cli.reach import follow_node

    async for line in follow_node(admin, config, "daemon_logs", daemon=daemon, follow=follow):
        if for_people(json):
            show_text(f"{datetime.fromisoformat(line['at']).astimezone():%H:%M:%S} {line['level']:8}{line['text']}")
        else:
            show_line(line)


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    return row | {
        "where": None if row["where"] is None else called(row["where"]),
        "inputs": [f"{_input(one)} from {one['next_seq']}" for one in row["inputs"]],
    }


def _input(one: dict[str, Any]) -> str:
    return str(one["channel"]) if one["publisher"] is None else f"{one['channel']}@{called(one['publisher'])}"
