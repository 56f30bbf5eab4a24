"""`meshbus key`: identities and mesh keys. Shows public halves only; secrets stay in their files."""

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
    path: Annotated[Path | None, Parameter(help="Where; by default in your configuration folder.")] = None,
    /,
    *,
    json: Json = False,
) -> None:
    """Make an identity: one secret file, from which a node's ids and keys follow."""
    from meshbus.config.node import default_identity
    from meshbus.keyfile import create_identity

    place = path or default_identity()
    _show(create_identity(place), place, json)
    note("the file is the node: keep it private, and use it for one node only")


@app.command
def show(path: Annotated[Path | None, Parameter(help="The identity file.")] = None, /, *, json: Json = False) -> None:
    """Show the ids and public keys of an identity file, to give to others.

    A meshbus node needs the public key of its peer, a plain net-mesh node the node id and the Noise key.
    """
    from meshbus.config.node import default_identity
    from meshbus.keyfile import load_identity

    place = path or default_identity()
    _show(load_identity(place), place, json)


@app.command
def psk(path: Annotated[Path, Parameter(help="Where to write it.")], /, *, json: Json = False) -> None:
    """Make the key of a new mesh, to be copied to each of its nodes."""
    from meshbus.keyfile import create_psk

    create_psk(path)
    show_facts({"psk_file": str(path)}, json=json)
    note("whoever holds this key is inside the mesh: copy it over a secure way only")


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
