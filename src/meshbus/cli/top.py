"""`meshbus top`: a live view of one node in the terminal: peers, channels with rates, drops with reasons, replicas."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from meshbus.cli.options import MeshOptions
from meshbus.cli.output import Json, for_people, plural, printable, show_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from meshbus.cli.reach import Mesh

_ROWS = 12
"""Lines of each table: together they fit a terminal of 50 lines."""


def top(
    *,
    interval: Annotated[float, Parameter(help="Seconds between updates.")] = 1.0,
    count: Annotated[int | None, Parameter(help="Stop after this many updates.")] = None,
    options: MeshOptions | None = None,
    json: Json = False,
) -> None:
    """Show what a node does, until Ctrl-C: rates by channel, peers, and what was dropped and refused, with the reason.

    In a pipe, or with --json, each update is one JSON object.
    """
    import asyncio

    from meshbus.cli.numbers import at_least_one, positive
    from meshbus.cli.reach import open_mesh

    at_least_one("--count", count)
    pause_s = positive("--interval", interval)

    async def watch() -> None:
        async with open_mesh(options) as mesh:
            before, updates = await look(mesh), 0
            with _screen(json) as show:
                while count is None or updates < count:
                    await asyncio.sleep(pause_s)
                    after = await look(mesh)
                    show(changes(before, after))
                    before, updates = after, updates + 1

    asyncio.run(watch())


async def look(mesh: Mesh) -> dict[str, Any]:
    """Return everything that the view is made from, at one moment."""
    return {
        "at": time.monotonic(),
        "status": await mesh.status(),
        "peers": await mesh.peers(),
        "channels": await mesh.channels(),
        "counters": await mesh.counters(),
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return one update: the state now, and rates since the last one."""
    from meshbus.policy.reason import Reason

    seconds = max(after["at"] - before["at"], 1e-9)
    earlier = {row["channel"]: row for row in before["channels"]}
    channels = [_channel(row, earlier.get(row["channel"], {}), seconds) for row in after["channels"]]
    meanings = {reason.counter: reason.sentence for reason in Reason}
    lost = [
        {
            "counter": f"{kind}.{why}",
            "count": count,
            "per_s": round((count - before["counters"].get(kind, {}).get(why, 0)) / seconds, 1),
            "meaning": meanings[kind, why],
        }
        for kind, counts in after["counters"].items()
        for why, count in counts.items()
        if (kind, why) in meanings
    ]
    totals = {
        f"{way}_{what}_per_s": round((after["counters"][way][what] - before["counters"][way][what]) / seconds, 1)
        for way in ("sent", "received")
        for what in ("events", "bytes")
    }
    return {
        **{key: after["status"][key] for key in ("node_id", "name", "address", "subnet", "uptime_s")},
        **totals,
        "peers": after["peers"],
        "channels": sorted(channels, key=lambda row: -((row["published_per_s"] or 0) + (row["received_per_s"] or 0))),
        "lost": sorted(lost, key=lambda row: (-row["per_s"], -row["count"])),
    }


def _channel(now: dict[str, Any], before: dict[str, Any], seconds: float) -> dict[str, Any]:
    row = {"channel": now["channel"], "subscribers": now["subscribers"], "publishers": len(now["publishers"])}
    for way in ("published", "received"):
        events, earlier = now[f"{way}_events"], before.get(f"{way}_events", 0)
        row[f"{way}_per_s"] = None if events is None or earlier is None else round((events - earlier) / seconds, 1)
    return row


class _screen:  # noqa: N801 - used as a function: `with _screen(json) as show`
    """Shows updates: on a terminal in place, otherwise one JSON object per line."""

    def __init__(self, json: bool) -> None:
        self._people = for_people(json)
        self._live: Any = None

    def __enter__(self) -> Any:
        if not self._people:
            return show_line
        from rich.live import Live

        # The alternate screen: the terminal is as it was when the view ends.
        self._live = Live(screen=True, auto_refresh=False)
        self._live.__enter__()
        return lambda update: self._live.update(view(update), refresh=True)

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.__exit__(*error)


def view(update: dict[str, Any]) -> RenderableType:
    """Return an update as tables for people."""
    from rich.console import Group
    from rich.text import Text

    who = update["name"] or update["node_id"]
    head = (
        f"{who}  {update['address']}  subnet {update['subnet']}  up {update['uptime_s']:.0f} s   "
        f"out {update['sent_events_per_s']:,.0f} events/s  in {update['received_events_per_s']:,.0f} events/s"
    )
    peers = [{**row, "name": row["name"] or row["node_id"]} for row in update["peers"]]
    return Group(
        Text(printable(head), style="bold"),
        _table("peers", peers, ("name", "address", "health", "path", "subnet")),
        _table(
            "channels",
            update["channels"],
            ("channel", "published_per_s", "received_per_s", "subscribers", "publishers"),
        ),
        _table("dropped and refused", update["lost"], ("counter", "count", "per_s", "meaning")),
    )


def _table(title: str, rows: Sequence[dict[str, Any]], columns: tuple[str, ...]) -> RenderableType:
    from meshbus.cli.output import table_of

    more = f" (the first {_ROWS} of {plural(len(rows), 'row')})" if len(rows) > _ROWS else ""
    return table_of(rows[:_ROWS], columns, title=f"{title}{more}" if rows else f"{title}: none")
