"""`meshbus peers`: list the nodes that a node has sessions with."""

from __future__ import annotations

from meshbus.cli.options import MeshOptions
from meshbus.cli.output import Json, show_rows


def peers(options: MeshOptions | None = None, *, json: Json = False) -> None:
    """List the peers of a running node, or of a temporary node that connects to the configured peers."""
    import asyncio

    from meshbus.cli.reach import open_mesh

    async def look() -> list[dict[str, object]]:
        async with open_mesh(options) as mesh:
            return await mesh.peers()

    columns = ("node_id", "address", "path", "nat", "health", "subnet", "profile", "tags")
    show_rows(asyncio.run(look()), columns, json=json, empty="no peers; connect to one, or wait until one connects")
