"""The demo as people run it: what it prints is what its fleet's own files say, and it leaves nothing running."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from meshbus.cli.demo import ABOUT, MARK, SERVED
from meshbus.cli.exit import Exit
from meshbus.demo.alarms import ALARMS as FIRES
from meshbus.demo.alarms import NAMES
from meshbus.demo.fleet import Fleet, Outcome
from meshbus.demo.replica import CHANNEL as FIRE
from meshbus.demo.roles import (
    ALARMS,
    ANOMALIES,
    FAILING,
    GATEWAY,
    LOSSY,
    ORDERS,
    POSES,
    PROPOSED_POLICY,
    REPORT,
    ROLES,
    FleetFiles,
    place_of,
)
from meshbus.keyfile import load_identity
from tests.children import child
from tests.cli.conftest import Meshbus
from tests.demo.leftover import none_with, with_mark
from tests.demo.reading import Row, dropped, judged, logged
from tests.web.scrape import Page, Stream, get

SCRIPT = Path(sys.executable).with_name("meshbus")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment without Java, with a mark that every process of the demo inherits."""
    tools = folder.parent / "bin"
    if not tools.exists():
        tools.mkdir()
        for path in Path("/bin").iterdir():
            if not path.name.startswith("java"):
                (tools / path.name).symlink_to(path)
    return {"PATH": str(tools), "HOME": str(folder.parent), "DEMO_TEST": str(folder)}


class Served(NamedTuple):
    """What a demo served while its fleet ran."""

    address: str
    page: Page
    document: dict[str, Any]
    """The first that the page shows."""


class Shown(NamedTuple):
    """What a demo printed and served."""

    files: FleetFiles
    text: str
    errors: str
    served: Served

    def table(self, title: str) -> list[list[str]]:
        """Return the rows of a table, without its head."""
        block = next(block for block in self.text.split("\n\n") if block.lstrip().startswith(f"{title}  "))
        return [re.split(r" {2,}", line.strip()) for line in block.strip().splitlines()[2:]]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    folder = tmp_path_factory.mktemp("demo") / "demo"
    printed = folder.parent / "printed.txt"
    command: list[str | Path] = [SCRIPT, "demo", folder, "--seconds", "1.5", "--serve"]
    errors: list[str] = []
    looking: Future[Served] | None = None
    with (
        printed.open("w") as out,
        child(command, env=_environment(folder), stdout=out, stderr=subprocess.PIPE, text=True) as running,
        ThreadPoolExecutor(1) as pool,
    ):
        assert running.stderr is not None
        for line in running.stderr:
            errors.append(line)
            if SERVED in line:
                looking = pool.submit(_look, line.split(SERVED)[1].split()[0].removeprefix("http://"))
        assert running.wait() == 0, errors
    assert looking is not None
    assert sys.platform != "linux" or not with_mark(f"DEMO_TEST={folder}")
    assert list(folder.parent.rglob("bin/java"))  # the wrapper of the packaged one
    identities = {role.name: load_identity(folder / "nodes" / role.name / "identity.toml") for role in ROLES}
    return Shown(FleetFiles(folder, identities), printed.read_text(), "".join(errors), looking.result())


def _look(address: str) -> Served:
    """Look at the page of the gateway until the demo ends it."""
    page = get(address, "/")
    with Stream(address, "/events") as stream:
        document = json.loads(stream.event())
        stream.rest()
    return Served(address, page, document)


pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # it starts Spark


def test_only_progress_is_on_stderr(shown: Shown) -> None:
    lines = [line for line in shown.errors.splitlines() if SERVED not in line]
    assert len(lines) >= 4
    assert lines.pop().startswith("meshbus: the books balance: counters, recorder, logs, programs and tables agree")
    assert all(line.startswith(("meshbus: fleet  ", "meshbus: pipeline  ")) for line in lines)
    assert [bool(re.search(r"\(\d+\.\d s\)$", line)) for line in lines].count(True) == 2


def test_the_page_of_the_gateway_is_served_while_the_fleet_runs_and_ends_with_it(shown: Shown) -> None:
    served = shown.served
    assert (served.page.status, served.page.kind) == (200, "text/html; charset=utf-8")
    assert served.document["about"]["name"] == GATEWAY
    with pytest.raises(ConnectionRefusedError):
        get(served.address, "/")


def test_every_node_is_listed_with_its_logs(shown: Shown) -> None:
    counts = {row[0]: row[-2:] for row in shown.table("The fleet")}
    assert set(counts) == {role.name for role in ROLES}
    for name, (published, received) in counts.items():
        for kind, count in (("published", published), ("received", received)):
            if (shown.files.log_dir(name) / kind).exists():
                log = logged(shown.files, name, kind)
                if kind == "published":
                    log.pop(ANOMALIES, None)  # what the detector publishes, which is shown by itself
                assert int(count.replace("–", "0")) == sum(map(len, log.values()))


def test_the_move_of_the_detector_is_shown_and_is_a_row(shown: Shown) -> None:
    found = re.search(
        r"It published (\d+) anomalies on west-rover and (\d+) on the gateway: exactly the (\d+)", shown.text
    )
    assert found
    before, after, total = map(int, found.groups())
    logs = [logged(shown.files, name, "published").get(ANOMALIES, []) for name in (FAILING, GATEWAY)]
    assert list(map(len, logs)) == [before, after]
    numbers = [json.loads(row.payload)["anomaly"] for log in logs for row in log]
    assert numbers == list(range(1, total + 1))
    [[name, source, target, seconds]] = shown.table("gold.moves")
    assert (name, source, target) == ("detector", FAILING, GATEWAY)
    assert float(seconds) >= 0
    report = (shown.files.folder / REPORT).read_text()
    assert "Where did daemons run, and when did they move?" in report
    assert all(f"{shown.files.identities[node].node_id:016x}" in report for node in (FAILING, GATEWAY))


def test_refusals_show_node_channel_and_reason(shown: Shown) -> None:
    assert (
        "west-guest may not subscribe to alarms/safety of west-rover: unauthorized: the channel requires" in shown.text
    )
    assert "west-guest may not subscribe to fleet/keys of west-rover: unknown_channel: the publisher" in shown.text
    found = re.search(r"west-rover could not publish (\d+) of (\d+) events on maps/tiles: rate_limited", shown.text)
    assert found
    assert int(found[2]) - int(found[1]) == len(logged(shown.files, "west-rover", "published")["maps/tiles"])


def test_the_tables_hold_what_was_logged_and_recorded(shown: Shown) -> None:
    files = shown.files
    unique = _unique(files)
    by_channel = Counter[str]()
    for channel, _minute, events, *_ in shown.table("gold.channel_stats"):
        by_channel[channel] += int(events)
    assert by_channel.pop(FIRE) == FIRES  # of the replicas, once each
    assert by_channel == {channel: len(events) for channel, events in unique.items()}

    denied = Counter[tuple[str, str | None, str]]()
    for who, channel, reason, packets, _bytes in _rows(shown, "gold.denials", 5):
        denied[who, None if channel == "–" else channel, reason] += int(packets)
    assert denied == dropped(files)

    passed = judged(files)
    ways = {
        (None if channel == "–" else channel, source, dest): (int(forwarded), int(refused))
        for source, dest, channel, _events, forwarded, refused in shown.table("gold.traffic_matrix")
        if forwarded != "0" or refused != "0"
    }
    expected = {
        (channel, place_of(source), place_of(dest)): (
            passed[channel, source, dest, "forward"],
            sum(count for way, count in passed.items() if way[:3] == (channel, source, dest) and way[3] != "forward"),
        )
        for channel, source, dest, _ in passed
    }
    assert ways == expected

    talkers = Counter[str]()
    for _rank, who, _channels, events, _bytes in shown.table("gold.top_talkers"):
        talkers[who] += int(events)
    publishers = Counter(row.publisher for events in unique.values() for _, row in events)
    assert {who: events for who, events in talkers.items() if who in files.identities} == {
        who: events for who, events in publishers.items() if who in files.identities
    }
    assert {row[0] for row in shown.table("gold.nodes")} == {*(role.name for role in ROLES), *NAMES, "–"}
    pairs = {(publisher, receiver) for _channel, publisher, receiver, *_ in shown.table("gold.latency")}
    wished = {(publisher, role.name) for role in ROLES for publisher, _ in role.wishes}
    assert {pair for pair in pairs if pair[0] in files.identities} <= wished
    # Only the bad radio loses something: best-effort packets of one rover.
    gaps = shown.table("gold.gaps")
    assert all(row[-3:] == ["0", "0", "0"] for row in gaps if row[2] != LOSSY)
    lost = sum(int(row[-3]) for row in gaps if row[2] == LOSSY)
    found = re.search(r"telemetry/pose +east-rover → control +\d+ = \d+(?: \+ (\d+) lost on the link)?", shown.text)
    assert found
    assert lost <= int(found[1] or 0)  # the last ones of a stream leave no gap
    assert {row[1] for row in shown.table("gold.replication_lag")} <= set(NAMES)


def test_the_books_balance_line_by_line(shown: Shown) -> None:
    block = next(block for block in shown.text.split("\n\n") if block.startswith("Balance  "))
    lines = block.splitlines()[1:]
    assert len(lines) == sum(len(role.wishes) for role in ROLES) - 2 + 4  # two are refused; four of visitors
    for line in lines:
        attempted, parts = re.split(r" = ", re.sub(r"^.* {2,}(?=\d)", "", line))
        assert int(attempted) == sum(int(number) for number in re.findall(r"(?:^|\+ )(\d+)", parts)), line


def test_a_small_demo_whose_books_do_not_balance_is_loud(
    meshbus: Meshbus, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One delivery that nobody attempted: the demo names it, and fails."""
    leave = Fleet.leave

    async def invent(fleet: Fleet) -> Outcome:
        outcome = await leave(fleet)
        planner = outcome.counts["east-planner"]
        received = {who: dict(channels) for who, channels in planner.received.items()}
        next(channels for channels in received.values() if ORDERS in channels)[ORDERS] += 1
        counts = {**outcome.counts, "east-planner": msgspec.structs.replace(planner, received=received)}
        return msgspec.structs.replace(outcome, counts=counts)

    monkeypatch.setattr(Fleet, "leave", invent)
    result = meshbus("demo", "out", "--small", "--seconds", "0.6")
    assert result.code == Exit.FAILED
    assert "meshbus: the balance does not hold: " in result.err
    assert "orders/go from control to east-planner: 6 attempted, but 7 delivered" in result.err
    assert "the logs of east-planner: 6 of orders/go, but 7 were counted" in result.err
    assert "≠" in result.out
    assert not (home / "out" / "tables").exists()
    assert "report" not in result.out.split("Results")[1]
    assert str(Path("out") / MARK) in result.out


def _unique(files: FleetFiles) -> dict[str, set[tuple[str | None, Row]]]:
    """Return the events that arrived: an event that two nodes have is one where its publisher numbered it."""
    found: dict[str, set[tuple[str | None, Row]]] = {}
    for name in ("control", "east-planner"):
        for channel, rows in logged(files, name, "received").items():
            found.setdefault(channel, set()).update((name if row.number is None else None, row) for row in rows)
    return found


def test_recorded_and_recomputed_verdicts_agree(shown: Shown) -> None:
    found = re.search(r"(\d+) of (\d+) recorded verdicts match", shown.text)
    assert found
    assert found[1] == found[2]
    assert int(found[2]) >= judged(shown.files).total()


def test_the_policy_replay_lists_every_packet_with_another_verdict(shown: Shown) -> None:
    passed = judged(shown.files)
    expected = {
        (POSES, "west", "east", "not_ancestor", "forward"): passed[POSES, "3.1", "3.2", "not_ancestor"],
        **{
            (ALARMS, "west", "east", was, "not_ancestor"): passed[ALARMS, "3.1", "3.2", was]
            for was in ("forward", "unauthorized_publisher")
        },
    }
    changes = {tuple(row[:5]): int(row[5]) for row in _rows(shown, "Policy replay", 6) if row[5].isdigit()}
    assert changes == expected
    assert f"{sum(expected.values())} of {passed.total()} packets would get another verdict" in shown.text


def test_the_printed_files_exist(shown: Shown) -> None:
    folder = shown.files.folder
    assert "vegaEmbed" in (folder / REPORT).read_text()
    assert (folder / MARK).read_text() == ABOUT
    for name in (MARK, REPORT, PROPOSED_POLICY, "tables"):
        assert str(folder / name) in shown.text


def _rows(shown: Shown, title: str, columns: int) -> Sequence[list[str]]:
    """Return the rows of a table that has sentences around it."""
    return [row for row in shown.table(title) if len(row) == columns]


@on_linux
@pytest.mark.parametrize(
    ("stage", "kind"),
    [
        ("connecting", signal.SIGINT),
        ("connecting", signal.SIGKILL),
        ("reading logs", signal.SIGTERM),
    ],
    ids=["Ctrl-C", "kill -9", "ended while Spark runs"],
)
def test_a_demo_that_is_interrupted_leaves_no_process(tmp_path: Path, stage: str, kind: signal.Signals) -> None:
    folder = tmp_path / "demo"
    main_end, other_end = os.openpty()  # on a terminal, so that every step is shown
    with child(
        [SCRIPT, "demo", folder, "--seconds", "1"],
        env={**_environment(folder), "TERM": "xterm"},
        stdout=subprocess.DEVNULL,
        stderr=other_end,
    ) as running:
        os.close(other_end)
        text = ""
        while stage not in text:
            text += os.read(main_end, 4096).decode()
        assert len(with_mark(f"DEMO_TEST={folder}")) > 1
        running.send_signal(kind)
        running.wait()
    os.close(main_end)
    assert none_with(f"DEMO_TEST={folder}")
    assert running.returncode == (-kind if kind is signal.SIGKILL else Exit.INTERRUPTED)


def test_a_folder_that_no_demo_made_is_left_alone(meshbus: Meshbus, home: Path) -> None:
    (home / "mine").mkdir()
    (home / "mine" / "letter.txt").write_text("dear")
    result = meshbus("demo", "mine")
    assert (result.code, result.out) == (Exit.USAGE, "")
    assert "mine exists and was not made by a demo; choose another directory, or move it away" in result.err
    assert (home / "mine" / "letter.txt").read_text() == "dear"


@pytest.mark.parametrize("seconds", ["0", "-1", "601", "nan"])
def test_an_invalid_duration_is_refused(meshbus: Meshbus, home: Path, seconds: str) -> None:
    result = meshbus("demo", "--seconds", seconds)
    assert result.code == Exit.USAGE
    assert "--seconds" in result.err
    assert not list(home.iterdir())
