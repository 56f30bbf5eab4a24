"""`meshbus channels`: the channels that a node knows."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from meshbus.cli.options import MeshOptions
from meshbus.cli.output import Json, for_people, show_rows

COLUMNS = ("channel", "here", "subscribers", "publishers", "published_events", "received_events")


def channels(
    prefix: Annotated[str, Parameter(help="Only channels whose name begins with this.")] = "",
    /,
    *,
    options: MeshOptions | None = None,
    json: Json = False,
) -> None:
    """List the channels that a node publishes, receives or heard of, with their subscribers and traffic."""
    import asyncio

    from meshbus.cli.asking import called
    from meshbus.cli.reach import open_mesh

    async def look() -> list[dict[str, object]]:
        async with open_mesh(options) as mesh:
            return [row for row in await mesh.channels() if str(row["channel"]).startswith(prefix)]

    rows = asyncio.run(look())
    if for_people(json):
        rows = [{**row, "here": here(row), "publishers": list(map(called, row["publishers"]))} for row in rows]  # type: ignore[call-overload]
    below = f" below {prefix!r}" if prefix else ""
    show_rows(rows, COLUMNS, json=json, empty=f"no channels{below}; publish on one, or subscribe to one")


def here(row: dict[str, object]) -> str:
    """Return what the node itself does with a channel, in a word or two."""
    words = [word for word, is_so in (("publishes", row["published"]), ("subscribes", row["subscribed"])) if is_so]
    return " ".join(words) or "–"
