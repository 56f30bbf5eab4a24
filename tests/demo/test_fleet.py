"""The fleet for real: what it counts is what its logs and its gateway's record hold, and nothing is left running."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from meshbus.demo.balance import differences, lines, read_record
from meshbus.demo.fleet import Fleet
from meshbus.demo.messages import Counts
from meshbus.demo.moving import check_moved
from meshbus.demo.roles import (
    ALARMS,
    ANOMALIES,
    FAILING,
    FRAME_BYTES,
    FRAMES,
    GATEWAY,
    MAPS,
    NOTES,
    ORDERS,
    POSES,
    ROLES,
    STATE,
    TRACES,
    FleetFiles,
    write_files,
)
from meshbus.errors import MeshError
from meshbus.names.channel import ChannelName
from tests.demo.leftover import none_with
from tests.demo.reading import Row, judged, logged

WEST, EAST, REGION = "3.1", "3.2", "3"


def _said(rows: list[Row]) -> list[tuple[str, bytes]]:
    return [(row.publisher, row.payload) for row in rows]


@pytest.mark.slow
async def test_what_is_counted_is_what_was_logged_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMO_TEST", str(tmp_path))
    files = write_files(tmp_path)
    seen: list[dict[str, Counts]] = []
    async with Fleet(files) as fleet:
        await fleet.connect()
        refused = await fleet.subscribe()
        await fleet.publish(1.5, seen.append)
        outcome = await fleet.leave()
    assert sys.platform != "linux" or none_with(f"DEMO_TEST={tmp_path}")

    assert sorted((who, refusal.channel, refusal.reason) for who, refusal in refused) == [
        ("west-guest", ALARMS, "unauthorized"),
        ("west-guest", "fleet/keys", "unknown_channel"),
    ]
    counts, took_s = outcome.counts, outcome.moved_s
    record = read_record(files)
    assert differences(files, outcome, record, lines(files, outcome, record)) == []
    assert fleet.web is None
    published = {role.name: counts[role.name].published for role in ROLES}
    for role in ROLES:
        tried = {flow.channel: round(flow.per_s * 1.5) for flow in role.flows}
        limited = counts[role.name].limited
        assert {channel: events + limited.get(channel, 0) for channel, events in published[role.name].items()} == tried
    assert set(counts["west-rover"].limited) == {MAPS}
    assert published["west-rover"][MAPS]
    assert len({str(step) for step in seen}) > 3  # progress was told

    for name in ("west-rover", "east-rover"):
        log = logged(files, name, "published")
        flows = {channel: len(events) for channel, events in log.items() if events and channel != ANOMALIES}
        assert flows == published[name]
    west, east = (logged(files, name, "published") for name in ("west-rover", "east-rover"))
    control, planner = (logged(files, name, "received") for name in ("control", "east-planner"))
    for reader, log in (("control", control), ("east-planner", planner)):
        received = sum((Counter(channels) for channels in counts[reader].received.values()), Counter[str]())
        assert {channel: len(events) for channel, events in log.items()} == received
    # The bad radio of the rover in the east loses some of what is not reliable.
    lost = outcome.lost[files.identities["control"].node_id, ChannelName(POSES).wire_hash]
    assert lost < len(east[POSES]) / 3
    poses = Counter(_said(west[POSES] + east[POSES]))
    assert not Counter(_said(control[POSES])) - poses
    assert len(control[POSES]) == poses.total() - lost
    assert sorted(control[ALARMS]) == sorted(west[ALARMS] + east[ALARMS])  # reliable, so they keep their numbers
    assert control[FRAMES] == west[FRAMES]  # large, and reliable
    assert {len(row.payload) for row in west[FRAMES]} == {FRAME_BYTES}
    assert set(control) == {POSES, ALARMS, ANOMALIES, FRAMES, STATE}
    # The detector was on two nodes; its subscriber got each anomaly once. On a busy machine it finds nothing before it moves.
    before, after = west.get(ANOMALIES, []), logged(files, GATEWAY, "published")[ANOMALIES]
    assert took_s > 0
    assert {row.publisher for row in before} <= {FAILING}
    assert {row.publisher for row in after} == {GATEWAY}
    assert sorted(control[ANOMALIES]) == sorted(before + after)
    moved = check_moved(files)
    assert (moved.before, moved.after) == (len(before), len(after))
    assert moved.poses == published[FAILING][POSES]
    assert planner[ALARMS] == west[ALARMS]
    assert (_said(planner[POSES]), _said(planner[MAPS])) == (_said(east[POSES]), _said(west[MAPS]))
    assert set(planner) == {POSES, ALARMS, MAPS, ORDERS}
    _check_verdicts(files, published, lost)


def _check_verdicts(files: FleetFiles, published: dict[str, dict[str, int]], lost: int) -> None:
    passed = judged(files)
    sent, guest = published["west-rover"], published["west-guest"]
    passed.pop((ANOMALIES, WEST, REGION, "forward"), 0)  # of those that were found before the detector moved
    for way in ((FRAMES, WEST, REGION), (ORDERS, REGION, EAST)):
        assert passed.pop((*way, "forward")) > 0
    alarms = [(ALARMS, source, dest, "forward") for source, dest in ((WEST, REGION), (WEST, EAST), (EAST, REGION))]
    assert all(passed.pop(way) >= sent[ALARMS] for way in alarms)  # a slow machine repeats reliable packets
    assert passed == {
        (POSES, WEST, REGION, "forward"): sent[POSES],
        (POSES, EAST, REGION, "forward"): published["east-rover"][POSES] - lost,
        (POSES, WEST, EAST, "not_ancestor"): sent[POSES],
        (MAPS, WEST, EAST, "forward"): sent[MAPS],
        (MAPS, WEST, REGION, "not_exported"): sent[MAPS],
        (TRACES, WEST, EAST, "subnet_local"): sent[TRACES],
        (ALARMS, WEST, EAST, "unauthorized_publisher"): guest[ALARMS],
        (None, WEST, EAST, "subnet_local"): guest[NOTES],
    }


@pytest.mark.slow
async def test_a_member_that_cannot_start_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMO_TEST", str(tmp_path))
    files = write_files(tmp_path)
    with files.config(GATEWAY).open("a") as file:
        file.write("nonsense = 1\n")
    with pytest.raises(MeshError, match=r"the process of gateway has exited: .*nonsense.*; see .*stderr\.txt"):
        async with Fleet(files):
            raise AssertionError
    assert sys.platform != "linux" or none_with(f"DEMO_TEST={tmp_path}")
