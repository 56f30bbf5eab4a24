"""`meshbus demo`: run a small fleet of node processes for some seconds, then the data pipeline on its logs.

This module prints progress and tables; meshbus.demo does the work.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from meshbus.cli.output import is_terminal, note, show_table, show_text
from meshbus.cli.progress import Stage

if TYPE_CHECKING:
    from meshbus.demo.alarms import Alarmed
    from meshbus.demo.balance import Line
    from meshbus.demo.fleet import Outcome
    from meshbus.demo.lake import Found, Read, Ready
    from meshbus.demo.messages import Counts
    from meshbus.demo.moving import Moved
    from meshbus.demo.roles import FleetFiles

FOLDER = Path("meshbus-demo")
MARK = "about.txt"
_MADE = "Made by `meshbus demo`"
ABOUT = f"""\
{_MADE}; the next demo replaces this directory.

nodes/        one directory per node: configuration, identity, logs, recorded packets and daemons
replicas/     three nodes that keep the log of alarms/fire together
tokens/       permission tokens for alarms/safety, signed with operator.toml
proposed.toml a proposed configuration of the gateway, for the policy replay
pipeline.toml configuration of the pipeline
tables/       bronze, silver and gold tables, as Parquet
report.html   figures and tables of all that happened; opens offline
"""
MAX_SECONDS = 600.0
"""Longest run: a demo logs everything, and this bounds the disk space."""

SERVED = "the web page of the gateway is at "

REFUSALS = {
    "unauthorized": "the channel requires a token, and none was presented",
    "unknown_channel": "the publisher does not have this channel",
}
"""Explanations of the publishers' reasons that occur in the demo; those of the gateway are in policy/reason.py."""


def demo(
    folder: Annotated[Path, Parameter(help="Output directory; that of an earlier demo is replaced.")] = FOLDER,
    /,
    *,
    seconds: Annotated[float, Parameter(help=f"How long to publish events; in (0, {MAX_SECONDS:g}].")] = 6.0,
    small: Annotated[
        bool, Parameter(help="Only the fleet, without Spark and the report; about half a minute.")
    ] = False,
    serve: Annotated[bool, Parameter(help="Serve the web page of the gateway while the fleet runs.")] = False,
) -> None:
    """Run a small fleet on this machine, then the data pipeline on its logs.

    The fleet is six node processes on loopback: two sites and a gateway between them, with a net-mesh node and ZeroMQ
    applications as visitors. Events are published, authorized, refused, forwarded, dropped, lost by a bad radio and logged. A
    daemon moves from a rover to the gateway. Three more nodes replicate a channel of alarms, and lose their leader. Spark
    makes tables of the logs, computes every verdict of the gateway again, and shows what another policy would have decided.

    At the end the books must balance: what was attempted is what was delivered and what was dropped, by every source that
    counts it. If not, the demo says which numbers differ, and exits with status 1. It stops by itself and leaves only the
    output directory.
    """
    import asyncio

    from meshbus.cli.extras import ARROW, REPORT, SPARK, WEB, needs
    from meshbus.demo.roles import write_files
    from meshbus.errors import ConfigError
    from meshbus.spark.run.java import find_java

    if not 0 < seconds <= MAX_SECONDS:
        raise ConfigError("--seconds", f"must be in (0, {MAX_SECONDS:g}], got {seconds:g}")
    # Before the fleet runs: whoever lacks a package should not learn it after a minute.
    if not small:
        needs(SPARK, "spark")
        needs(REPORT, "report")
        find_java()
    needs(ARROW, "arrow")
    if serve:
        needs(WEB, "web")
    with _ended_by_signals():
        files = write_files(_fresh(folder), serve=serve)
        asyncio.run(_run(files, seconds, small=small))


async def _run(files: FleetFiles, seconds: float, *, small: bool) -> None:
    """Run the fleet and then the pipeline, and show the results. Raises MeshError if the books do not balance."""
    import asyncio
    from contextlib import AsyncExitStack

    from meshbus.demo.alarms import run_alarms
    from meshbus.demo.balance import check, differences, lines, read_record, table_differences
    from meshbus.demo.fleet import Fleet
    from meshbus.demo.moving import check_moved
    from meshbus.demo.roles import REPLICAS, ROLES
    from meshbus.spark.lake.tablestore import Store

    async with AsyncExitStack() as processes:
        lake = None if small else Lake(files)
        with Stage("fleet", f"starting {len(ROLES)} node processes") as stage:
            async with Fleet(files) as fleet:
                if fleet.web is not None:
                    note(f"{SERVED}http://{fleet.web} while the fleet runs")
                stage.say("connecting to the gateway and through it to other nodes")
                await fleet.connect()
                stage.say("subscribing")
                await fleet.subscribe()
                if lake is not None:  # Spark starts while events are published
                    await processes.enter_async_context(lake.process)
                async with asyncio.TaskGroup() as tasks:
                    alarms = tasks.create_task(run_alarms(files.folder / REPLICAS))
                    await fleet.publish(seconds, lambda counts: stage.say(_flow(counts)))
                outcome = await fleet.leave()
                stage.say(_flow(outcome.counts))
        _show_fleet(files, outcome)
        _show_visitors(outcome)
        _show_moved(check_moved(files), outcome.moved_s)
        _show_alarms(alarms.result())
        record = read_record(files)
        balance = lines(files, outcome, record)
        _show_balance(balance)
        said = differences(files, outcome, record, balance)
        if lake is not None:
            found = await lake.run()
            _show_gold(found)
            _show_verdicts(files, found)
            store = Store(found.tables)
            gold = {name: store.rows(name) for name in ("gold.denials", "gold.latency")}
            said += table_differences(files, outcome, record, gold)
            _show_places(_places_of_tables(files, found) | _places(files))
        else:
            _show_places(_places(files))
    check(said)
    agree = "counters, recorder, logs and programs" if small else "counters, recorder, logs, programs and tables"
    note(f"the books balance: {agree} agree about {sum(line.attempted for line in balance)} events")


class Lake:
    """The Spark process of the demo, and its progress."""

    def __init__(self, files: FleetFiles) -> None:
        from meshbus.demo.lake import lake_process

        self._stage: Stage | None = None
        self.process = lake_process(files.folder, self._news)

    def _news(self, line: Ready | Read | Found) -> bool:
        from meshbus.demo.lake import Read

        if isinstance(line, Read) and self._stage is not None:
            self._stage.say(f"{line.rows} rows read, making tables")
        return isinstance(line, Read)

    async def run(self) -> Found:
        """Wait until Spark has read the logs, and return what it found."""
        from meshbus.demo.lake import GO, Found

        with Stage("pipeline", "starting Spark") as self._stage:
            await self.process.answer()
            self._stage.say("reading logs and recorded packets")
            self.process.tell(GO)
            found = await self.process.answer()
            assert isinstance(found, Found)
            self._stage.say(f"{found.rows} rows in the tables, {found.judged} verdicts recomputed")
        return found


def _show_fleet(files: FleetFiles, outcome: Outcome) -> None:
    """Show the nodes, and what publishers refused."""
    from meshbus.demo.roles import MAPS_PER_S, ROLES, place_of

    counts = outcome.counts
    _title("The fleet", "two sites; all traffic between subnets passes the gateway")
    rows = [
        {
            "node": role.name,
            "place": f"{place_of(role.subnet)} {role.subnet}",
            "what it does": role.job,
            "published": sum(counts[role.name].published.values()) or None,
            "received": counts[role.name].arrived or None,
        }
        for role in ROLES
    ]
    show_table(rows, tuple(rows[0]))
    _title("Refused by publishers", "none of these events were sent")
    names = {f"{identity.node_id:016x}": name for name, identity in files.identities.items()}
    for who, refusal in outcome.refused:
        wanted = f"{who} may not subscribe to {refusal.channel} of {names[refusal.publisher]}"
        show_text(f"{wanted}: {refusal.reason}: {REFUSALS.get(refusal.reason, 'no explanation')}")
    for who, one in counts.items():
        for channel, events in one.limited.items():
            tried = events + one.published.get(channel, 0)
            show_text(
                f"{who} could not publish {events} of {tried} events on {channel}: rate_limited: "
                f"the channel allows {MAPS_PER_S} packets per second"
            )


def _show_visitors(outcome: Outcome) -> None:
    """Show the programs that are not meshbus, and the bad radio."""
    from meshbus.demo.roles import LOSS, LOSSY
    from meshbus.demo.visitors import Visitors

    _title("Visitors", "programs that know nothing of meshbus, at the node control")
    visit = outcome.visit
    if visit.states is not None:
        show_text(
            f"A net-mesh 0.23 node published {visit.states} events, and received {visit.orders_at_legacy} orders of a ZeroMQ"
            " application."
        )
    if visit.orders is not None:
        show_text(
            f"A ZeroMQ application sent {visit.orders} orders, and {visit.forbidden} messages on a topic that is not exposed."
        )
        show_text(f"Another showed {visit.shown} messages of telemetry.")
    for package in Visitors.absent():
        show_text(f"{package} is not installed, so its programs took no part; run: pip install {package}")
    passed, dropped = outcome.datagrams
    _title("A bad radio", f"{LOSSY} loses {LOSS:.0%} of its datagrams; what is reliable is sent again")
    show_text(f"{dropped} of {passed + dropped} datagrams were lost, with {sum(outcome.lost.values())} events in them.")


def _show_balance(balance: Sequence[Line]) -> None:
    """Show what was attempted, delivered and dropped, as one sum for each subscriber."""
    _title("Balance", "events attempted = delivered + dropped, by channel, publisher and subscriber")
    names = [(line.channel, f"{line.publisher} → {line.subscriber}") for line in balance]
    wide = [max(len(name[side]) for name in names) for side in (0, 1)]
    for (channel, way), line in zip(names, balance, strict=True):
        parts = [f"{line.delivered}", *(f"{count} {reason}" for reason, count in line.dropped.items())]
        sign = "=" if line.holds else "≠"
        show_text(f"{channel:{wide[0]}}  {way:{wide[1]}}  {line.attempted:>5} {sign} {' + '.join(parts)}")


def _show_alarms(found: Alarmed) -> None:
    """Show that no alarm was lost with the leader of their channel."""
    _title("Replicated alarms", "three nodes keep their log; the one that led was killed")
    show_text(
        f"{found.killed} led and was killed; {found.leader} leads now. The slowest alarm took {found.longest_wait_s:.1f} s."
    )
    show_text(f"All {found.acknowledged} acknowledged alarms are in the logs of both others, once and in order.")
    rows = [
        {"member": name, "state": "killed" if name == found.killed else "up", "lag": lag}
        for name, lag in found.lags.items()
    ]
    show_table(rows, ("member", "state", "lag"))


def _show_moved(found: Moved, took_s: float) -> None:
    """Show that the move of the detector cost no anomaly, and repeated none."""
    from meshbus.demo.roles import FAILING, GATEWAY

    _title("A daemon that moved", f"the battery of {FAILING} fails, so its detector of anomalies goes to the {GATEWAY}")
    show_text(f"It moved in {took_s:.1f} s, while {found.poses} poses were published.")
    show_text(
        f"It published {found.before} anomalies on {FAILING} and {found.after} on the {GATEWAY}: exactly the"
        f" {found.before + found.after} that the {found.poses} poses in the rover's log lead to, once and in order."
    )


def _flow(counts: Mapping[str, Counts]) -> str:
    published, limited = (
        sum(sum(getattr(one, what).values()) for one in counts.values()) for what in ("published", "limited")
    )
    received = sum(one.arrived for one in counts.values())
    return f"{published} events published, {limited} over the rate limit, {received} received"


# ── the tables ──────────────────────────────────────────────────────────────────────────────


def _show_gold(found: Found) -> None:
    """Show the gold tables, with names in place of ids."""
    from meshbus.policy.reason import RECORDED
    from meshbus.spark.lake.named import names_of
    from meshbus.spark.lake.tablestore import Store

    sentences = {reason.word: reason.sentence for reason in RECORDED.values()}
    store = Store(found.tables)
    names = names_of(store.rows("gold.nodes"))
    for name, (about, columns) in _GOLD.items():
        rows = [_named(names, row) for row in store.rows(name)]
        _title(name, about)
        show_table(sorted(rows, key=lambda row: [str(row[column]) for column in columns]), columns)
        for reason in sorted({row["reason"] for row in rows if "reason" in row}):
            show_text(f"{reason}: {sentences[reason]}")


_GOLD: dict[str, tuple[str, tuple[str, ...]]] = {
    "gold.channel_stats": (
        "events received, by channel and minute",
        ("channel", "minute", "events", "bytes", "publishers"),
    ),
    "gold.traffic_matrix": (
        "events received, and packets that the gateway forwarded or dropped",
        ("from", "to", "channel", "events", "forwarded", "dropped"),
    ),
    "gold.denials": (
        "packets that the gateway dropped, by reason",
        ("publisher", "channel", "reason", "packets", "bytes"),
    ),
    "gold.latency": (
        "time from publication to receipt in microseconds, without the difference of the clocks",
        ("channel", "publisher", "receiver", "delay_p50", "delay_p99"),
    ),
    "gold.gaps": (
        "events and best-effort packets that are missing: lost on the way, or deleted from a log before they were read",
        ("kind", "channel", "publisher", "events", "missing", "duplicates", "reordered"),
    ),
    "gold.top_talkers": ("publishers with the most events", ("rank", "publisher", "channels", "events", "bytes")),
    "gold.fan_out": (
        "subscribers per channel, and what arrived",
        ("channel", "subscribers", "events", "deliveries", "receivers", "receipts"),
    ),
    "gold.replication_lag": (
        "how far each replica was behind the first, in microseconds",
        ("channel", "receiver", "events", "behind", "delay_p50", "delay_p99"),
    ),
    "gold.moves": ("daemons that moved from one node to another", ("daemon", "source", "target", "seconds")),
    "gold.nodes": ("nodes that others know, and by how many", ("name", "place", "recorders")),
}


def _named(names: Mapping[int, str], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a gold table with names in place of ids."""
    from meshbus.demo.roles import place_of

    shown = {"publisher": None, **row}
    for column, name in (("origin", "publisher"), ("recorder", "receiver"), ("source", "source"), ("target", "target")):
        if row.get(column) is not None:
            shown[name] = names.get(row[column], "unknown")
    shown |= {
        name.removesuffix("_us"): None if value is None else round(value)
        for name, value in row.items()
        if name.endswith("_us")
    }
    if row.get("seconds") is not None:
        shown["seconds"] = f"{row['seconds']:.1f}"
    if "subnet" in row:
        shown["place"] = place_of(row["subnet"])
    for column, name in (("src", "from"), ("dst", "to")):
        if column in row:
            shown[name] = place_of(row[column])
    if "window_start" in row:
        shown["minute"] = f"{row['window_start']:%H:%M}"
    return shown


def _show_verdicts(files: FleetFiles, found: Found) -> None:
    """Show whether the recomputed verdicts match, and what another policy would have decided."""
    from meshbus.demo.roles import BOUNDARY, PROPOSED, PROPOSED_POLICY, place_of

    _title("Verdicts of the gateway", "recomputed by Spark from the policy that was in force")
    show_text(f"{found.same} of {found.judged} recorded verdicts match the recomputed ones.")
    _title("Policy replay", f"the same packets under the proposed policy {files.folder / PROPOSED_POLICY}")
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
    show_text(f"{found.replay.changed} of {found.replay.packets} packets would get another verdict.")


def _places_of_tables(files: FleetFiles, found: Found) -> dict[str, Path | str]:
    """Return where the report and the tables are, and a command to use them."""
    from meshbus.demo.roles import PROPOSED_POLICY, REPORT

    return {
        "report": files.folder / REPORT,
        "tables": found.tables,
        "replay a policy": f"{sys.argv[0]} pipeline replay {found.tables} --policy {files.folder / PROPOSED_POLICY}",
    }


def _places(files: FleetFiles) -> dict[str, Path | str]:
    """Return where the files of the fleet are, and a command to look at them."""
    return {
        "list logs": f"{sys.argv[0]} log ls {files.log_dir('control') / 'received'}",
        "other files": files.folder / MARK,
    }


def _show_places(places: Mapping[str, Path | str]) -> None:
    _title("Results")
    for what, where in places.items():
        show_text(f"{what:16}{where}")


# ── directory and signals ───────────────────────────────────────────────────────────────────


def _fresh(folder: Path) -> Path:
    """Create the output directory; replace that of an earlier demo. Raises ConfigError for any other directory."""
    from meshbus.errors import ConfigError

    # Only a directory with the mark of an earlier demo is deleted.
    mark = folder / MARK
    if mark.is_file() and mark.read_text("utf-8").startswith(_MADE):
        shutil.rmtree(folder)
    elif folder.exists():
        raise ConfigError(
            "folder", f"{folder} exists and was not made by a demo; choose another directory, or move it away"
        )
    folder.mkdir(parents=True)
    mark.write_text(ABOUT, "utf-8")
    return folder


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt, so that every way to stop the demo also stops its processes.

    A signal that is ignored stays ignored, such as SIGHUP under nohup; SIGINT is always handled.
    """
    kinds = [kind for kind in signal.Signals if kind.name in {"SIGINT", "SIGTERM", "SIGHUP"}]
    before = {kind: signal.getsignal(kind) for kind in kinds}
    for kind, handler in before.items():
        if kind == signal.SIGINT:
            signal.signal(kind, signal.default_int_handler)  # a shell starts background jobs (`&`) with SIGINT ignored
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
