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


@app.command
def identity(
    *,
    reason: Annotated[
        str, Parameter(help="Why, in one line; every node of the fleet shows it.")
    ] = "its key was rotated",
    issuer: Annotated[
        Path | None,
        Parameter(
            name="--identity",
            help="Identity file of an issuer of the fleet, which signs for the new key; needed where nodes have policy_issuers.",
        ),
    ] = None,
    timeout: Annotated[float, Parameter(help="Seconds to wait for peers, before the change and after it.")] = 10.0,
    admin: Admin = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Replace the key of a running node by a new one. Its sessions, streams and subscriptions go on.

    The node makes the key itself, and its secret stays there. Peers refuse the old key from then on, in the whole fleet. If
    something ties the node to its key, nothing is changed, and the message says what to do first.
    """
    from meshbus.cli.token import signer
    from meshbus.node.policies.revocationrows import record_given
    from meshbus.wire.messages.revocation import encode_record

    signs = None if issuer is None else signer(issuer)
    named = None if signs is None else signs.entity_id.hex()
    record = record_given(ask(admin, config, "prepare_identity", reason=reason, issuer=named)["record"])
    if signs is not None:
        record = record.endorse(signs)
    done = ask(
        admin,
        config,
        "rotate_identity",
        record=encode_record(record).hex(),
        timeout_s=timeout,
        by=this_caller(),
    )
    _show(done, json, "nothing changed")


def _show(done: dict[str, list[str]], json: bool, empty: str) -> None:
    show_rows([{"change": one} for one in done["changes"]], ("change",), json=json, empty=empty)
