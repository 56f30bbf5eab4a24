"""`meshbus pins`: show and reset which nodes were seen secure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from meshbus.cli.asking import Admin
from meshbus.cli.output import Json, note, show_rows

app = App(name="pins", help="Show and reset which nodes were seen secure.")

Config = Annotated[Path | None, Parameter(help="Configuration file of the node.")]


@app.command
def ls(*, admin: Admin = None, config: Config = None, json: Json = False) -> None:
    """List the pinned nodes: of a running node, or of the configured one that does not run."""
    rows = _rows(admin, config)
    show_rows(rows, ["node_id", "name", "public_key"], json=json, empty="no node was seen secure yet")


@app.command
def reset(
    node: Annotated[str | None, Parameter(help="Node id, or the name that the node announces.")] = None,
    /,
    *,
    every: Annotated[bool, Parameter(name="--all", help="Remove all pins.", show_default=False)] = False,
    admin: Admin = None,
    config: Config = None,
) -> None:
    """Remove the pin of a node, so that sessions with it need not be secure until it was seen secure again.

    Do this only if you know why the node is not secure any more: it was set up anew with an older version, or
    with secure = "off".
    """
    from meshbus.errors import ConfigError

    if (node is None) != every:
        raise ConfigError("node", "give either a node or --all; `meshbus pins ls` lists the nodes")
    if _runs(admin, config):
        from meshbus.cli.asking import ask

        removed = ask(admin, config, "pins_reset", node=node)
    else:
        removed = _reset_file(config, node)
    note(f"removed {removed} pin{'' if removed == 1 else 's'}")


def _rows(admin: Path | None, config: Path | None) -> list[dict[str, Any]]:
    if _runs(admin, config):
        from meshbus.cli.asking import ask

        rows: list[dict[str, Any]] = ask(admin, config, "pins")
        return rows
    from meshbus.node.peers.pinfile import load_pins

    path = _path(config)
    return [
        {"node_id": f"{node_id:016x}", "name": None, "public_key": entity_id.hex()}
        for node_id, entity_id in sorted(load_pins(path).items())
    ]


def _runs(admin: Path | None, config: Path | None) -> bool:
    """Return whether to ask a running node: it would write its own pins over a file that was changed meanwhile."""
    if admin is not None:
        return True
    from meshbus.cli.options import load_config

    socket = load_config(config).admin_path()
    return socket is not None and socket.exists()


def _reset_file(config: Path | None, node: str | None) -> int:
    from meshbus.errors import ConfigError
    from meshbus.node.peers.info import node_named
    from meshbus.node.peers.pinfile import load_pins, save_pins

    path = _path(config)
    if node is None:
        # Also a file that cannot be read: that is how to get rid of it.
        known = path.exists()
        save_pins(path, {})
        return int(known)
    pins = load_pins(path)
    node_id = node_named(node, {})
    if node_id is None or node_id not in pins:
        raise ConfigError("node", f"{node!r} is not pinned; give the node id as `meshbus pins ls` shows it")
    del pins[node_id]
    save_pins(path, pins)
    return 1


def _path(config: Path | None) -> Path:
    from meshbus.cli.options import load_config
    from meshbus.errors import ConfigError

    path = load_config(config).pins_path()
    if path is None:
        raise ConfigError("pins", "an ephemeral node has no file of pins; set pins, or identity")
    return path
