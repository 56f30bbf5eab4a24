"""`meshbus demo`: the main job in small. A fleet of node processes runs for some seconds, then Spark tells what happened.

This file is what people see: progress, tables, and the words for reasons. What is done is in meshbus.demo.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from meshbus.cli.output import is_terminal, show_table, show_text
from meshbus.cli.progress import Stage

if TYPE_CHECKING:
    from meshbus.demo.lake import Found
    from meshbus.demo.messages import Counts, Refused
    from meshbus.demo.roles import Cast

FOLDER = Path("meshbus-demo")
MARK = "about.txt"
_MADE = "Made by `meshbus demo`"
ABOUT = f"""\
{_MADE}; the next demo replaces this folder.

nodes/        a folder for each node: its configuration, its identity, its logs, what it recorded
tokens/       who may publish on and subscribe to alarms/safety, signed by operator.toml
proposed.toml the gateway's configuration as somebody would like it to be
pipeline.toml what the pipeline was told
tables/       bronze, silver and gold, as Parquet
report.html   the gold tables and plots of them
"""
MAX_SECONDS = 600.0

WHY = {
    "subnet_local": "the channel stays at its site, or the gateway knows no such channel",
    "not_ancestor": "the channel goes to its own site and those above, and this is neither",
    "not_exported": "the export list of the channel does not name this place",
    "unauthorized_publisher": "the channel asks for a token, and the publisher has none",
    "unauthorized": "the channel asks for a token, and none was shown",
    "unknown_channel": "the publisher has no such channel",
}
"""Reasons in words."""


def demo(
    folder: Annotated[Path, Parameter(help="Where everything goes; one of an earlier demo is replaced.")] = FOLDER,
    /,
    *,
    seconds: Annotated[float, Parameter(help="How long events flow.")] = 6.0,
) -> None:
    """Run a small fleet on this machine, and then the data pipeline over what it logged.

    Six node processes on loopback: two sites and the gateway between them. Events are published, authorized, refused,
    forwarded, dropped and logged; Spark makes tables of that, judges every verdict again, and says what another policy
    would have done. Ends by itself, and leaves only the folder.
    """
    import asyncio

    from meshbus.demo.roles import write_cast
    from meshbus.errors import ConfigError

    if not 0 < seconds <= MAX_SECONDS:
        raise ConfigError("--seconds", f"{seconds:g} is not more than 0 and at most {MAX_SECONDS:g}")
    with _ended_by_signals():
        cast = write_cast(_fresh(folder))
        asyncio.run(_run(cast, seconds))


async def _run(cast: Cast, seconds: float) -> None:
    """Run the fleet and then the pipeline, and show what came of it."""
    from contextlib import AsyncExitStack

    from meshbus.demo.fleet import Fleet
    from meshbus.demo.lake import GO, Found, Read, Ready, lake_process
    from meshbus.demo.roles import ROLES

    def news(line: Ready | Read | Found) -> bool:
        if isinstance(line, Read):
            stage.say(f"{line.rows} rows read, tables are being made")
        return isinstance(line, Read)

    async with AsyncExitStack() as processes:
        spark = lake_process(cast.folder, news)
        with Stage("fleet", f"starting {len(ROLES)} nodes, each a process") as stage:
            async with Fleet(cast) as fleet:
                stage.say("connecting to the gateway, and through it to others")
                await fleet.connect()
                stage.say("subscribing")
                refused = await fleet.subscribe()
                await processes.enter_async_context(spark)  # it can start meanwhile
                await fleet.publish(seconds, lambda counts: stage.say(_flow(counts)))
                await fleet.leave()
                stage.say(_flow(fleet.counts))
        _show_fleet(cast, fleet.counts, refused)
        with Stage("pipeline", "starting Spark") as stage:
            await spark.answer()
            stage.say("reading what was logged and recorded")
            spark.tell(GO)
            found = await spark.answer()
            assert isinstance(found, Found)
            stage.say(f"{found.rows} rows in the tables, {found.judged} verdicts judged again")
    _show_gold(cast, found)
    _show_verdicts(cast, found)
    _show_places(cast, found)


def _show_fleet(cast: Cast, counts: Mapping[str, Counts], refused: Iterable[tuple[str, Refused]]) -> None:
    """Show who is where, and what publishers themselves refused."""
    from meshbus.demo.roles import MAPS_PER_S, ROLES, place_of

    _title("The fleet", "two sites; whatever goes from one place to another passes the gateway")
    rows = [
        {
            "node": role.name,
            "place": f"{place_of(role.subnet)} {role.subnet}",
            "what it does": role.job,
            "published": sum(counts[role.name].published.values()) or None,
            "received": sum(counts[role.name].received.values()) or None,
        }
        for role in ROLES
    ]
    show_table(rows, tuple(rows[0]))
    _title("Refused by publishers", "none of this was sent")
    names = {f"{identity.node_id:016x}": name for name, identity in cast.identities.items()}
    for who, refusal in refused:
        wanted = f"{who} may not subscribe to {refusal.channel} of {names[refusal.publisher]}"
        show_text(f"{wanted}: {refusal.reason}, {WHY.get(refusal.reason, 'it did not say more')}")
    for who, one in counts.items():
        for channel, events in one.limited.items():
            tried = events + one.published.get(channel, 0)
            show_text(
                f"{who} may not publish {events} of {tried} events on {channel}: rate_limited, "
                f"the channel has {MAPS_PER_S} packets a second"
            )


def _flow(counts: Mapping[str, Counts]) -> str:
    published, limited, received = (
        sum(sum(getattr(one, what).values()) for one in counts.values())
        for what in ("published", "limited", "received")
    )
    return f"{published} events published, {limited} refused by rate, {received} received"


# ── the tables ──────────────────────────────────────────────────────────────────────────────


def _show_gold(cast: Cast, found: Found) -> None:
    """Show the gold tables, with names in place of ids."""
    from meshbus.spark.lake.tablestore import Store
    from meshbus.spark.run.report import rows_of

    for name, (about, columns) in _GOLD.items():
        rows = [_named(cast, row) for row in rows_of(Store(found.tables), name)]
        _title(name, about)
        show_table(sorted(rows, key=lambda row: [str(row[column]) for column in columns]), columns)
        for reason in sorted({row["reason"] for row in rows if "reason" in row}):
            show_text(f"{reason}: {WHY.get(reason, 'see docs/guide/flight-recorder.md')}")


_GOLD: dict[str, tuple[str, tuple[str, ...]]] = {
    "gold.channel_stats": (
        "what the readers received, by channel and minute",
        ("channel", "minute", "events", "bytes", "publishers"),
    ),
    "gold.traffic_matrix": (
        "events that arrived, and packets that the gateway let pass or not",
        ("from", "to", "channel", "events", "forwarded", "dropped"),
    ),
    "gold.denials": (
        "what the gateway dropped, and why",
        ("publisher", "channel", "reason", "packets", "bytes"),
    ),
    "gold.gaps": (
        "whether anything went missing: on its way from a publisher, or in a log before it was read",
        ("kind", "channel", "publisher", "events", "missing", "duplicates", "reordered"),
    ),
    "gold.top_talkers": ("who said most", ("rank", "publisher", "channels", "events", "bytes")),
    "gold.fan_out": ("how many wanted what", ("channel", "subscribers", "events", "deliveries")),
}


def _named(cast: Cast, row: Mapping[str, Any]) -> dict[str, Any]:
    """Give a row of a gold table as people read it."""
    from meshbus.demo.roles import place_of

    shown = {"publisher": None, **row}
    origins = {identity.origin_hash: name for name, identity in cast.identities.items()}
    if row.get("origin") is not None:
        shown["publisher"] = origins.get(row["origin"] & 0xFFFF_FFFF_FFFF_FFFF, "nobody")
    for column, name in (("src", "from"), ("dst", "to")):
        if column in row:
            shown[name] = place_of(row[column])
    if "window_start" in row:
        shown["minute"] = f"{row['window_start']:%H:%M}"
    return shown


def _show_verdicts(cast: Cast, found: Found) -> None:
    """Show whether the gateway was right, and what another policy would have done."""
    from meshbus.demo.roles import BOUNDARY, PROPOSED, PROPOSED_POLICY, place_of

    _title("Was the gateway right?", "every verdict, computed again by Spark from the policy in force then")
    show_text(f"{found.same} of {found.judged} recorded verdicts agree with the recomputed ones.")
    _title("What if?", f"somebody proposes another policy, {cast.folder / PROPOSED_POLICY}")
    for channel, rule in BOUNDARY.items():
        if PROPOSED[channel] != rule:
            show_text(f"{channel}: {rule['visibility']} → {PROPOSED[channel]['visibility']}")
    rows = [
        {
            "channel": change.channel,
            "from": place_of(change.src),
            "to": place_of(change.dst),
            "was": change.recorded,
            "would be": change.proposed,
            "packets": change.packets,
        }
        for change in found.replay.changes
        if change.recorded != change.proposed
    ]
    show_table(rows, ("channel", "from", "to", "was", "would be", "packets"))
    show_text(f"{found.replay.changed} of {found.replay.packets} packets would have been decided otherwise.")


def _show_places(cast: Cast, found: Found) -> None:
    """Show where everything is, and how to go on."""
    from meshbus.demo.roles import PROPOSED_POLICY, REPORT

    _title("Look at it")
    for what, where in {
        "report": cast.folder / REPORT,
        "tables": found.tables,
        "everything else": cast.folder / MARK,
        "replay yourself": f"{sys.argv[0]} pipeline replay {found.tables} --policy {cast.folder / PROPOSED_POLICY}",
        "look into a log": f"{sys.argv[0]} log ls {cast.log_dir('control') / 'received'}",
    }.items():
        show_text(f"{what:16}{where}")


# ── around it ───────────────────────────────────────────────────────────────────────────────


def _fresh(folder: Path) -> Path:
    """Give an empty folder; that of an earlier demo is replaced, anything else is left alone."""
    from meshbus.errors import ConfigError

    mark = folder / MARK
    if mark.is_file() and mark.read_text("utf-8").startswith(_MADE):
        shutil.rmtree(folder)
    elif folder.exists():
        raise ConfigError("folder", f"{folder} is there, and no demo made it: name another, or move it away")
    folder.mkdir(parents=True)
    mark.write_text(ABOUT, "utf-8")
    return folder


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let every usual way to end a program be Ctrl-C, so that each leaves nothing running.

    Under nohup a hangup stays what it was: nothing.
    """
    kinds = [kind for kind in signal.Signals if kind.name in {"SIGINT", "SIGTERM", "SIGHUP"}]
    before = {kind: signal.getsignal(kind) for kind in kinds}
    for kind, handler in before.items():
        if kind == signal.SIGINT:
            signal.signal(kind, signal.default_int_handler)  # a shell may have had us ignore it, with `&`
        elif handler != signal.SIG_IGN:
            signal.signal(kind, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _title(head: str, tail: str = "") -> None:
    bold, off = ("\033[1m", "\033[0m") if is_terminal() and "NO_COLOR" not in os.environ else ("", "")
    print(f"\n{bold}{head}{off}  {tail}".rstrip(), flush=True)
