"""`meshbus key`: create and show identities and mesh keys. Secrets are never printed."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from meshbus.cli.output import Json, note, show_facts

if TYPE_CHECKING:
    from meshbus.names.identity import Identity

app = App(name="key")


@app.command
def new(
    path: Annotated[
        Path | None, Parameter(help="File to create; default: identity.toml in your configuration directory.")
    ] = None,
    /,
    *,
    json: Json = False,
) -> None:
    """Create an identity: a secret file from which the ids and keys of a node are derived."""
    from meshbus.config.node import default_identity
    from meshbus.keyfile import create_identity

    place = path or default_identity()
    _show(create_identity(place), place, json)
    note("keep this file private, and use it for one node only")


@app.command
def show(
    path: Annotated[Path | None, Parameter(help="Identity file; default: your own.")] = None, /, *, json: Json = False
) -> None:
    """Show the ids and public keys of an identity file.

    To connect, a meshbus node needs the public key of its peer, a plain net-mesh node the node id and the Noise key.
    """
    from meshbus.config.node import default_identity
    from meshbus.keyfile import load_identity

    place = path or default_identity()
    _show(load_identity(place), place, json)


@app.command
def psk(
    path: Annotated[Path, Parameter(help="File to create.")],
    /,
    *,
    after: Annotated[Path | None, Parameter(help="File with the mesh key that the new one replaces.")] = None,
    window: Annotated[
        str, Parameter(help="With --after: how long nodes accept both keys, such as 90s, 12h or 3d.")
    ] = "24h",
    json: Json = False,
) -> None:
    """Create the key of a new mesh, or with --after the next key of a mesh; copy the file to each node.

    Give the next key to running nodes with `meshbus rotate psk`. All of them must have it before the window is over.
    """
    from meshbus.cli.durations import seconds_of
    from meshbus.keyfile import create_next_psk, create_psk, load_mesh_key

    facts: dict[str, object] = {"psk_file": str(path)}
    if after is None:
        create_psk(path)
    else:
        until_s = time.time_ns() // 1_000_000_000 + seconds_of(window, "--window")
        create_next_psk(path, load_mesh_key(after), until_s)
        facts["both_until"] = f"{datetime.fromtimestamp(until_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
    show_facts(facts, json=json)
    note("anyone with this key can join the mesh; copy it over secure connections only")


def _show(identity: Identity, path: Path, json: bool) -> None:
    from meshbus.names.identity import noise_public_key

    show_facts(
        {
            "identity": str(path),
            "node_id": f"{identity.node_id:016x}",
            "public_key": identity.entity_id.hex(),
            "noise_public_key": noise_public_key(identity.entity_id).hex(),
            "origin_hash": f"{identity.origin_hash:016x}",
        },
        json=json,
    )
