"""`meshbus peers`: the nodes that a node has sessions with."""

from __future__ import annotations

from meshbus.cli.options import Way
from meshbus.cli.output import Json, show_rows


def peers(way: Way | None = None, *, json: Json = False) -> None:
    """List the peers of a running node, or those that the configured peers let us connect to."""
    import asyncio

    from meshbus.cli.reach import open_door

    async def look() -> list[dict[str, object]]:
        async with open_door(way) as door:
            return await door.peers()

    columns = ("node_id", "address", "path", "nat", "health", "subnet", "profile", "tags")
    show_rows(asyncio.run(look()), columns, json=json, empty="no peers yet: connect to one, or wait for one to connect")
