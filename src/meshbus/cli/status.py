"""`meshbus status`: whether a node runs, and how it is, in a few lines."""

from __future__ import annotations

from typing import Any

from meshbus.cli.exit import Exit
from meshbus.cli.options import MeshOptions
from meshbus.cli.output import Json, for_people, note, show_facts


def status(options: MeshOptions | None = None, *, json: Json = False) -> Exit:
    """Show the state of a running node; exits with status 5 if a configured peer cannot be reached."""
    import asyncio

    from meshbus.cli.reach import open_mesh

    async def look() -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]], dict[str, dict[str, int]]]:
        async with open_mesh(options) as mesh:
            return await mesh.status(), await mesh.peers(), await mesh.channels(), await mesh.counters()

    row, peers, channels, counters = asyncio.run(look())
    away = [peer for peer in peers if "next_try_s" in peer]
    facts = {
        **row,
        "peers": len(peers) - len(away),
        "peers_away": len(away),
        "channels": len(channels),
        "dropped": sum(counters.get("drop", {}).values()),
        "refused": sum(counters.get("refuse", {}).values()),
        **{f"{way}_events": counters[way]["events"] for way in ("sent", "received")},
    }
    show_facts(facts, json=json)
    if for_people(json):
        for peer in away:
            note(f"{peer['name'] or peer['node_id']} is {peer['health']}: {peer['last_error']}")
    return Exit.PARTIAL if away else Exit.OK
