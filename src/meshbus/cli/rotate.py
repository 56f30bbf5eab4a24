"""`meshbus rotate`: replace secrets of a running node without ending a session."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from meshbus.cli.asking import Admin, ask
from meshbus.cli.audit import this_caller
from meshbus.cli.options import Config
from meshbus.cli.output import Json, show_rows

app = App(name="rotate")


@app.command
def psk(
    file: Annotated[
        Path | None,
        Parameter(
            help="New mesh key, made by `meshbus key psk NEW --after OLD`; default: the node's own file, read again."
        ),
    ] = None,
    /,
    *,
    admin: Admin = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Replace the mesh key of a running node by the next one. The node accepts both keys until the window that the file names is over.

    The file is copied to the psk_file of the node, so that the next start uses it too. A key that does not follow from the
    one in force is refused.
    """
    from meshbus.keyfile import load_mesh_key

    if file is not None:
        load_mesh_key(file)  # a mistake in the file is reported even if no node runs
    path = None if file is None else str(file.absolute())
    done = ask(admin, config, "rotate_psk", path=path, by=this_caller())
    _show(done, json, "nothing changed; the node has this key already")


@app.command
def tokens(*, admin: Admin = None, config: Config = None, json: Json = False) -> None:
    """Make a running node read its token files again, after they were replaced. Its subscriptions go on."""
    done = ask(admin, config, "rotate_tokens", by=this_caller())
    _show(done, json, "nothing changed; the node has these tokens already")


def _show(done: dict[str, list[str]], json: bool, empty: str) -> None:
    show_rows([{"change": one} for one in done["changes"]], ("change",), json=json, empty=empty)
