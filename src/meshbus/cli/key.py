"""`meshbus key`: create and show identities and mesh keys. Secrets are never printed."""

from __future__ import annotations

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
def psk(path: Annotated[Path, Parameter(help="File to create.")], /, *, json: Json = False) -> None:
    """Create the key of a new mesh; copy the file to each node."""
    from meshbus.keyfile import create_psk

    create_psk(path)
    show_facts({"psk_file": str(path)}, json=json)
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
