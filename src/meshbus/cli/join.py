"""`meshbus join`: make this machine a node of a fleet, by the token of an invite."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from meshbus.cli.output import Json, note, show_facts

_LONGEST_TOKEN = 4096


def join(
    token: Annotated[
        str,
        Parameter(
            help="What `meshbus invite` printed, or - to read it from standard input.", allow_leading_hyphen=True
        ),
    ],
    address: Annotated[str, Parameter(help="Where the inviting node listens for newcomers, host:port.")],
    config: Annotated[Path, Parameter(help="Configuration file to create.")] = Path("node.toml"),
    /,
    *,
    bind: Annotated[
        str | None, Parameter(help="Address that the new node listens on, host:port; default: any free port.")
    ] = None,
    wait: Annotated[str, Parameter(help="How long to wait for approval: a number and s, m, h or d.")] = "10m",
    json: Json = False,
) -> None:
    """Join a fleet: get a certificate, the mesh key and a configuration from the node that invited this one.

    The identity of the new node is created here, and its secret stays here. If the exchange is interrupted, run the same
    command again.
    """
    import asyncio
    from datetime import UTC, datetime

    from meshbus.cli.durations import seconds_of
    from meshbus.node.invites import newcomer
    from meshbus.node.invites.settling import identity_of

    def waiting(invite: str) -> None:
        from meshbus.keyfile import load_identity

        key = load_identity(identity_of(config)).entity_id.hex()
        note(
            f"waiting for approval; run `meshbus invite approve {invite}` at the inviting node if it shows the key {key}"
        )

    text = sys.stdin.read(_LONGEST_TOKEN) if token == "-" else token  # noqa: S105 - the name of standard input
    wait_s = seconds_of(wait, "--wait")
    joined = asyncio.run(newcomer.join(text, address, config, bind=bind, wait_s=wait_s, on_waiting=waiting))
    certificate = joined.certificate
    show_facts(
        {
            "config": str(joined.config),
            "name": certificate.name,
            "node_id": f"{joined.node_id:016x}",
            "public_key": joined.public_key.hex(),
            "subnet": str(certificate.subnet),
            "tags": list(certificate.tags),
            "issuer": certificate.issuer.hex(),
            "certified_until": datetime.fromtimestamp(certificate.not_after, UTC).isoformat(),
        },
        json=json,
    )
    note(f"start the node with `meshbus up {joined.config}`")
