"""The books balance if every source agrees; one event too many or too few, anywhere, is named."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshbus.demo import balance
from meshbus.demo.balance import Line, Recorded
from meshbus.demo.fleet import Outcome
from meshbus.demo.messages import Counts, Refused
from meshbus.demo.roles import (
    ANOMALIES,
    CONTROL,
    FAILING,
    GATEWAY,
    LOSSY,
    ORDERS,
    POSES,
    ROLES,
    STATE,
    FleetFiles,
    write_files,
)
from meshbus.demo.visitors import LEGACY, Visit
from meshbus.errors import MeshError
from meshbus.log.log import Redex
from meshbus.names.channel import ChannelName
from meshbus.policy.reason import Reason

LEGACY_ID = 0xABC
DENIED = Reason.NOT_ANCESTOR.word
POSE_HASH = ChannelName(POSES).wire_hash


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> FleetFiles:
    """The files of a fleet in which only poses were published, and control logged what it received."""
    made = write_files(tmp_path_factory.mktemp("files"))
    with Redex(made.log_dir(CONTROL) / "received") as log:
        log.open(POSES).append_batch([b"x"] * 19)
        log.open(STATE).append_batch([b"x"] * 4)
    with Redex(made.log_dir(FAILING) / "published") as log:
        log.open(ANOMALIES)
    with Redex(made.log_dir(GATEWAY) / "published") as log:
        log.open("other")
    return made


def outcome_of(files: FleetFiles) -> Outcome:
    ids = {name: f"{identity.node_id:016x}" for name, identity in files.identities.items()}
    counts = {role.name: Counts() for role in ROLES}
    counts[FAILING] = Counts(published={POSES: 10})
    counts[LOSSY] = Counts(published={POSES: 10})
    edge = {"publish": {"sent": 3}, "refuse_publish": {"not_exposed": 2}, "deliver": {"taken_from_mesh": 6}}
    arrived = {ids[FAILING]: {POSES: 10}, ids[LOSSY]: {POSES: 9}, f"{LEGACY_ID:016x}": {STATE: 4}}
    counts[CONTROL] = Counts(received=arrived, edge=edge)
    counts["east-planner"] = Counts(received={ids[LOSSY]: {POSES: 10}, ids[CONTROL]: {ORDERS: 3}})
    counts[GATEWAY] = Counts(counters={Reason.NOT_ANCESTOR.what: {Reason.NOT_ANCESTOR.why: 10}})
    refused = [("west-guest", Refused(ids[FAILING], "alarms/safety", "unauthorized"))]
    visit = Visit(legacy_id=LEGACY_ID, states=4, orders_at_legacy=3, orders=3, forbidden=2, shown=6)
    return Outcome(
        counts=counts,
        refused=refused,
        lost=Counter({(files.identities[CONTROL].node_id, POSE_HASH): 1}),
        datagrams=(99, 1),
        visit=visit,
        moved_s=0.1,
    )


def record_of(files: FleetFiles) -> Recorded:
    key = files.identities[FAILING].origin_hash, files.identities["east-planner"].node_id, POSE_HASH
    return Recorded({DENIED: 10}, {key: {DENIED: 10}})


def said_of(files: FleetFiles, outcome: Outcome, record: Recorded) -> list[str]:
    return balance.differences(files, outcome, record, balance.lines(files, outcome, record))


def test_books_that_balance_say_nothing(files: FleetFiles) -> None:
    outcome, record = outcome_of(files), record_of(files)
    found = balance.lines(files, outcome, record)
    assert balance.differences(files, outcome, record, found) == []
    balance.check([])
    by_way = {(line.publisher, line.channel, line.subscriber): line for line in found}
    assert by_way[LOSSY, POSES, CONTROL].dropped == {"lost on the link": 1}
    assert by_way[FAILING, POSES, "east-planner"].dropped == {DENIED: 10}
    assert by_way[LEGACY, STATE, CONTROL].delivered == 4
    assert (FAILING, "alarms/safety", "west-guest") not in by_way


def changed(outcome: Outcome, name: str, **fields: Any) -> Outcome:
    counts = {**outcome.counts, name: msgspec.structs.replace(outcome.counts[name], **fields)}
    return msgspec.structs.replace(outcome, counts=counts)


def test_an_event_too_many_or_too_few_is_named(files: FleetFiles) -> None:
    outcome, record = outcome_of(files), record_of(files)
    more = said_of(files, changed(outcome, FAILING, published={POSES: 11}), record)
    assert f"{POSES} from {FAILING} to {CONTROL}: 11 attempted, but 10 delivered and 0 dropped" in more
    assert f"{POSES} from {FAILING} to east-planner: 11 attempted, but 0 delivered and 10 {DENIED}" in more
    found = said_of(files, msgspec.structs.replace(outcome, lost=Counter()), record)
    assert found == [f"{POSES} from {LOSSY} to {CONTROL}: 10 attempted, but 9 delivered and 0 dropped"]
    less = msgspec.structs.replace(outcome, visit=msgspec.structs.replace(outcome.visit, shown=5))
    assert said_of(files, less, record) == [
        f"telemetry/ from bridge of {CONTROL} to dashboard (ZeroMQ): 6 attempted, but 5 delivered and 0 dropped"
    ]


def test_counters_that_differ_from_the_record_are_named(files: FleetFiles) -> None:
    outcome, record = changed(outcome_of(files), GATEWAY, counters={}), record_of(files)
    assert said_of(files, outcome, record) == [f"{GATEWAY} counted 0 packets as {DENIED}, and recorded 10"]


def test_logs_that_differ_from_what_was_received_are_named(files: FleetFiles) -> None:
    outcome = outcome_of(files)
    arrived = {**outcome.counts[CONTROL].received, "00": {STATE: 1}}
    found = said_of(files, changed(outcome, CONTROL, received=arrived), record_of(files))
    assert found == [f"the logs of {CONTROL}: 4 of {STATE}, but 5 were counted"]


def test_tables_that_differ_are_named(files: FleetFiles) -> None:
    outcome, record = outcome_of(files), record_of(files)
    control = files.identities[CONTROL].node_id
    signed = control - 2**64 if control >= 2**63 else control
    latency = [
        {"recorder": signed, "channel": POSES, "events": 10},
        {"recorder": signed, "channel": POSES, "events": 9},
        {"recorder": signed, "channel": STATE, "events": 4},
    ]
    gold = {
        "gold.denials": [{"reason": DENIED, "packets": 4}, {"reason": DENIED, "packets": 6}],
        "gold.latency": latency,
    }
    assert balance.table_differences(files, outcome, record, gold) == []
    gold = {"gold.denials": [], "gold.latency": latency[1:]}
    assert balance.table_differences(files, outcome, record, gold) == [
        f"gold.denials: 0 of {DENIED}, but 10 were counted",
        f"gold.latency of {CONTROL}: 9 of {POSES}, but 19 were counted",
    ]


def test_books_that_do_not_balance_are_an_error() -> None:
    with pytest.raises(MeshError, match="the balance does not hold: one; two; this is a bug"):
        balance.check(["one", "two"])


def test_a_line_holds_if_nothing_is_unaccounted_for() -> None:
    line = Line(publisher="a", channel="c", subscriber="b", attempted=5, delivered=3, dropped={"x": 2})
    assert line.holds
    assert not msgspec.structs.replace(line, delivered=4).holds
    assert not msgspec.structs.replace(line, dropped={}, delivered=3).holds


def test_reliable_channels_are_known() -> None:
    assert balance.is_reliable(FAILING, "alarms/safety")
    assert balance.is_reliable(GATEWAY, ANOMALIES)
    assert not balance.is_reliable(FAILING, POSES)


def test_the_record_of_a_gateway_that_dropped_nothing_is_empty(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    with pytest.raises(MeshError):  # it never ran
        balance.read_record(files)
