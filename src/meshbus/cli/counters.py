"""`meshbus counters`: what a running node sent, received, dropped and refused, and why."""

from __future__ import annotations

from typing import Any

from meshbus.cli.options import MeshOptions
from meshbus.cli.output import Json, show_rows


def counters(options: MeshOptions | None = None, *, json: Json = False) -> None:
    """Show the counters of a running node, with the meaning of each drop and refusal."""
    import asyncio

    from meshbus.cli.reach import open_mesh
    from meshbus.policy.reason import Reason

    async def look() -> dict[str, dict[str, int]]:
        async with open_mesh(options) as mesh:
            return await mesh.counters()

    meanings = {reason.counter: reason.sentence for reason in Reason}
    rows: list[dict[str, Any]] = [
        {"counter": f"{what}.{why}", "count": count, "meaning": meanings.get((what, why))}
        for what, counts in sorted(asyncio.run(look()).items())
        for why, count in sorted(counts.items())
    ]
    show_rows(rows, ("counter", "count", "meaning"), json=json, empty="nothing was counted yet")
