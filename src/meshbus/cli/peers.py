"""`meshbus peers`: list the nodes that a node has sessions with."""

from __future__ import annotations

from meshbus.cli.options import MeshOptions
from meshbus.cli.output import Json, for_people, show_rows


def peers(options: MeshOptions | None = None, *, json: Json = False) -> None:
    """List the peers of a running node, or of a temporary node that connects to the configured peers."""
    import asyncio

    from meshbus.cli.reach import open_mesh

    async def look() -> list[dict[str, object]]:
        async with open_mesh(options) as mesh:
            return await mesh.peers()

    rows = asyncio.run(look())
    columns = ["node_id", "name", "address", "path", "nat", "health", "subnet", "profile", "secure", "dialect", "tags"]
    seldom = ["revoked", "since", "next_try_s", "last_error"]
    if for_people(json):
        columns += [column for column in seldom if any(column in row for row in rows)]
        rows = [{**row, "tags": _own_tags(row.get("tags"))} for row in rows]
    else:  # a peer that is only dialed has no session to tell about: null, so that every line has the same names
        rows = [{**dict.fromkeys((*columns, *seldom)), **row} for row in rows]
    show_rows(rows, columns, json=json, empty="no peers; connect to one, or wait until one connects")


def _own_tags(tags: object) -> list[str] | None:
    """Return the tags that somebody configured, without those that every node announces about its protocol."""
    from meshbus.engine.directory.reachability import NAT_TAG
    from meshbus.wire.subprotocol import TAG_PREFIX

    if not isinstance(tags, list):
        return None
    return [tag for tag in tags if not tag.startswith((NAT_TAG, TAG_PREFIX))]
