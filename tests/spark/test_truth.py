"""The gold tables say what happened: they equal what the applications of a fleet sent and received.

The expected rows are computed from the ledger of tests/spark/truth.py, by code that shares nothing with the pipeline.
What an application cannot know (ids of logs and sessions) is left out; what nobody can know must be null.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from pyspark.sql import SparkSession

from meshbus.names.subnet import SubnetId
from meshbus.spark.lake.tables import tables
from meshbus.spark.lake.tablestore import Store
from meshbus.spark.run.pipelineconfig import PipelineConfig
from meshbus.spark.run.report import write_report
from meshbus.spark.run.runner import run
from tests.spark.readers import READERS, by_duckdb, by_polars_files
from tests.spark.truth import (
    FRAME_BYTES,
    LIVE,
    LOCAL,
    LOGGED,
    OLD,
    POSE,
    PUBLIC,
    SECRET,
    SUBNETS,
    Got,
    Ledger,
    Sent,
    run_fleet,
)

Row = dict[str, Any]
PUBLISHED = (LOGGED, SECRET, PUBLIC, LOCAL)
"""Channels that the robot logs; of the others there is what the readers logged."""


class Told(NamedTuple):
    """The ledger, and the tables that a pipeline made of the fleet's logs."""

    ledger: Ledger
    gold: dict[str, list[Row]]
    report: str
    config: PipelineConfig


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("truth")
    ledger = asyncio.run(run_fleet(folder))
    config = PipelineConfig(tables=str(folder / "tables"), logs=(str(folder / "site"), str(folder / "far")))
    run(spark, config, once=True)
    found = tables(spark, folder / "tables")
    gold = {name: table.toArrow().to_pylist() for name, table in found.items() if name.startswith("gold.")}
    return Told(ledger, gold, write_report(Store(Path(config.tables))), config)


def signed(number: int, bits: int = 64) -> int:
    return number - (1 << bits) if number >> bits - 1 else number


def subnet(name: str) -> int:
    return signed(int(SubnetId.parse(SUBNETS[name])), 32)


def publisher_of(channel: str) -> str:
    return "legacy" if channel == OLD else "robot"


def stored(ledger: Ledger) -> list[Sent]:
    """Every event that some log must hold, once."""
    arrived = {got.payload for got in ledger.got if got.receiver in {"base", "far"}}
    return [sent for sent in ledger.sent if sent.channel in PUBLISHED or sent.payload in arrived]


def by_channel(sent: Iterable[Sent]) -> dict[str, list[Sent]]:
    groups: dict[str, list[Sent]] = defaultdict(list)
    for one in sent:
        groups[one.channel].append(one)
    return groups


def test_the_fleet_lived_as_it_was_told(told: Told) -> None:
    """Otherwise the other tests would show nothing."""
    ledger = told.ledger
    assert ledger.runs | {"robot": 3, "base": 2} == ledger.runs
    assert len(ledger.refused) == 1
    sent, got = (len({one.payload for one in ones if one.channel == POSE}) for ones in (ledger.sent, ledger.got))
    assert sent - got > 20
    assert not [got for got in ledger.got if got.channel in {LOCAL, SECRET}]


def holes(numbers: Iterable[int]) -> tuple[int, int, int]:
    """Events, and missing ones in between, and the ranges that those form."""
    there = set(numbers)
    missing = [number for number in range(min(there), max(there) + 1) if number not in there]
    return len(there), len(missing), sum(number - 1 in there for number in missing)


def expected_gaps(ledger: Ledger) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    number = {sent.payload: place for ones in by_channel(ledger.sent).values() for place, sent in enumerate(ones)}

    def add(kind: str, channel: str, numbers: Iterable[int], *, session: bool = False) -> None:
        origin = None if kind == "log" else signed(ledger.keys[publisher_of(channel)].origin_hash)
        rows.append((kind, channel, origin, session, *holes(numbers), 0, 0))

    for channel in PUBLISHED:
        count = len(by_channel(ledger.sent)[channel])
        add("log", channel, range(count))
        add("publisher", channel, range(count))
    for reader, channel in (("base", LOGGED), ("base", LIVE), ("base", POSE), ("base", OLD), ("far", LIVE)):
        received = ledger.received(reader, channel)
        add("log", channel, range(len(received)))
        if channel == LOGGED:  # the robot numbers it by its log, so that nothing between two runs is hidden
            add("publisher", channel, (number[got.payload] for got in received))
            continue
        sessions: dict[tuple[int, int], list[Got]] = defaultdict(list)
        for got in received:
            sessions[got.session].append(got)
        kind = "publisher" if channel == LIVE else "stream"
        for ones in sessions.values():
            add(kind, channel, (number[got.payload] for got in ones), session=True)
    return sorted(rows, key=repr)


def test_gaps_are_what_was_lost_and_nothing_else(told: Told) -> None:
    names = ("events", "missing", "holes", "duplicates", "reordered")
    found = [
        (row["kind"], row["channel"], row["origin"], row["session_id"] is not None, *(row[name] for name in names))
        for row in told.gold["gold.gaps"]
    ]
    assert sorted(found, key=repr) == expected_gaps(told.ledger)
    for row in told.gold["gold.gaps"]:
        assert row["last"] - row["first"] + 1 == row["events"] + row["missing"]
        assert (row["first_missing"] is None) == (row["missing"] == 0)


def test_channels_and_publishers_are_counted_as_they_were_published(told: Told) -> None:
    expected = {
        channel: (len(ones), sum(len(sent.payload) for sent in ones))
        for channel, ones in by_channel(stored(told.ledger)).items()
    }
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in told.gold["gold.channel_stats"]:
        found[row["channel"]][0] += row["events"]
        found[row["channel"]][1] += row["bytes"]
        assert row["publishers"] == 1
        assert row["events_per_s"] == pytest.approx(row["events"] / 60)
        assert row["bytes_per_s"] == pytest.approx(row["bytes"] / 60)
        # Of the robot's own channels only one was received by a node that logs; a plain publisher's time is unknown.
        assert (row["latency_p50_us"] is None) == (row["channel"] in {SECRET, PUBLIC, LOCAL, OLD})
    assert {channel: tuple(counts) for channel, counts in found.items()} == expected
    talked: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for row in told.gold["gold.top_talkers"]:
        talked[row["origin"]][0] += row["events"]
        talked[row["origin"]][1] += row["bytes"]
    for name in ("robot", "legacy"):
        own = [expected[channel] for channel in expected if publisher_of(channel) == name]
        key = signed(told.ledger.keys[name].origin_hash)
        assert tuple(talked.pop(key)) == tuple(map(sum, zip(*own, strict=True)))
    assert not talked


def test_traffic_is_counted_in_one_unit_per_number(told: Told) -> None:
    ledger = told.ledger
    expected: dict[tuple[object, ...], tuple[int, ...]] = {}
    for channel, ones in by_channel(stored(ledger)).items():
        source = subnet(publisher_of(channel))
        dest = source if channel in PUBLISHED else subnet("base")
        expected[source, dest, channel] = (len(ones), sum(len(sent.payload) for sent in ones), 0, 0)
    for channel, place in ((PUBLIC, 2), (LOCAL, 3)):
        counts = [0, 0, 0, 0]
        counts[place] = len(by_channel(ledger.sent)[channel])
        expected[subnet("robot"), subnet("outside"), channel] = tuple(counts)
    found: dict[tuple[object, ...], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in told.gold["gold.traffic_matrix"]:
        cell = found[row["src"], row["dst"], row["channel"]]
        for place, name in enumerate(("events", "bytes", "forwarded", "dropped")):
            cell[place] += row[name]
    assert {key: tuple(cell) for key, cell in found.items()} == expected
    passed, dropped = (len(by_channel(ledger.sent)[channel]) for channel in (PUBLIC, LOCAL))
    assert f"3.1 \\u2192 9: {passed:,} packets passed, {dropped:,} dropped" in told.report


def test_denials_are_the_packets_that_the_gateway_dropped(told: Told) -> None:
    ledger = told.ledger
    local = by_channel(ledger.sent)[LOCAL]
    # Control packets for nodes that left may be dropped as well; no application knows of them.
    found = [row for row in told.gold["gold.denials"] if row["channel"] is not None]
    assert {(row["recorder"], row["reason"], row["peer"], row["channel"], row["origin"]) for row in found} == {
        (
            signed(ledger.keys["gateway"].node_id), "subnet_local", signed(ledger.keys["robot"].node_id), LOCAL,
            signed(ledger.keys["robot"].origin_hash),
        )
    }  # fmt: skip
    assert sum(row["packets"] for row in found) == len(local)
    assert sum(row["bytes"] for row in found) == sum(len(sent.payload) + FRAME_BYTES for sent in local)


def test_fan_out_is_what_publish_reported(told: Told) -> None:
    ledger = told.ledger
    found: dict[str, Row] = {}
    for row in told.gold["gold.fan_out"]:
        known = found.setdefault(row["channel"], {**row, "events": 0, "unknown": 0, "receipts": 0, "deliveries": None})
        for name in ("events", "unknown", "receipts", "deliveries"):
            if row[name] is not None:
                known[name] = (known[name] or 0) + row[name]
        if row["subscribers"] is not None:
            known["subscribers"] = max(known["subscribers"] or 0, row["subscribers"])
    for channel, ones in by_channel(stored(ledger)).items():
        receipts = [got for got in ledger.got if got.channel == channel and got.receiver in {"base", "far"}]
        is_known = publisher_of(channel) == "robot"
        assert (
            found[channel]
            | {
                "events": len(ones),
                "subscribers": max(sent.copies for sent in ones) if is_known else None,
                "deliveries": sum(sent.copies for sent in ones) if is_known else None,
                "unknown": 0 if is_known else len(ones),
                "receivers": len({got.receiver for got in receipts}),
                "receipts": len(receipts),
            }
            == found[channel]
        )
    assert found.keys() == by_channel(stored(ledger)).keys()


def test_latency_lies_within_what_the_applications_saw_and_is_null_if_unknown(told: Told) -> None:
    ledger = told.ledger
    sent = {one.payload: one.at_ns for one in ledger.sent}
    expected: dict[tuple[object, ...], list[Got]] = defaultdict(list)
    for got in ledger.got:
        if got.receiver in {"base", "far"}:
            origin = ledger.keys[publisher_of(got.channel)].origin_hash
            expected[got.channel, signed(origin), signed(ledger.keys[got.receiver].node_id)].append(got)
    rows: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in told.gold["gold.latency"]:
        rows[row["channel"], row["origin"], row["recorder"]].append(row)
    assert rows.keys() == expected.keys()
    for key, ones in expected.items():
        assert sum(row["events"] for row in rows[key]) == len(ones)
        timed = [got for got in ones if got.timed]
        assert sum(row["timed"] for row in rows[key]) == len(timed)
        for row in rows[key]:
            if key[0] == OLD:
                assert {row[name] for name in row if name.endswith("_us")} == {None}
                continue
            # Sender and receiver took their times outside of publication and receipt.
            longest = rounded_up(max((got.at_ns - sent[got.payload]) / 1000 for got in timed))
            assert 0 < row["latency_p50_us"] <= row["latency_p95_us"] <= row["latency_p99_us"] <= longest
            # All nodes of this test read one clock, so the offset is an error.
            assert abs(row["clock_offset_us"]) <= row["clock_error_us"]
            assert abs(row["delay_p50_us"] - row["latency_p50_us"]) <= row["clock_error_us"]
    whole = [got for got in ledger.got if got.channel == LOGGED]
    upper = np.percentile([(got.at_ns - sent[got.payload]) / 1000 for got in whole], 50)
    if len(rows[LOGGED, signed(ledger.keys["robot"].origin_hash), signed(ledger.keys["base"].node_id)]) == 1:
        (row,) = rows[LOGGED, signed(ledger.keys["robot"].origin_hash), signed(ledger.keys["base"].node_id)]
        assert row["latency_p50_us"] <= rounded_up(upper)


def rounded_up(time_us: float) -> float:
    """The most that a time may become when it is rounded to three digits."""
    return time_us * 1.005


def test_nodes_are_those_of_the_fleet(told: Told) -> None:
    expected = {
        (signed(key.node_id), signed(key.origin_hash), key.entity_id, subnet_known(name), name_of(name))
        for name, key in told.ledger.keys.items()
    }
    found = told.gold["gold.nodes"]
    assert {(row["node_id"], row["origin"], row["entity"], row["subnet"], row["name"]) for row in found} == expected
    robot = told.ledger.keys["robot"].origin_hash
    assert f'<td title="{robot:016x}" data-v="the-robot">the-robot</td>' in told.report
    assert all(row["first_seen"] <= row["last_seen"] for row in found)


def name_of(name: str) -> str | None:
    return None if name == "relay" else f"the-{name}"


def subnet_known(name: str) -> int | None:
    """The subnet of a node if it keeps a census, or if the gateway knew it, which has rules for subnets."""
    return subnet(name) if name in {"robot", "base", "far", "gateway", "outside"} else None


def test_no_log_is_replicated(told: Told) -> None:
    assert told.gold["gold.replication_lag"] == []


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_tables_of_every_format_say_the_same_to_every_engine(
    spark: SparkSession, told: Told, tmp_path: Path, kind: str
) -> None:
    expected = len(stored(told.ledger)), sum(len(sent.payload) for sent in stored(told.ledger))
    run(spark, msgspec.structs.replace(told.config, tables=str(tmp_path), format=kind), once=True)
    store = Store(tmp_path)
    read = {name: reader() for name, reader in READERS[kind](tmp_path / "silver" / "events").items()}
    read |= {"duckdb": by_duckdb(store.paths("silver.events")), "files": by_polars_files(store.paths("silver.events"))}
    (ours,) = store.read(spark, "silver.events").selectExpr("count(*)", "sum(octet_length(payload))").collect()
    assert {**read, "spark": tuple(ours)} == dict.fromkeys((*read, "spark"), expected)
    for name in told.gold:
        assert in_order(store.rows(name)) == in_order(told.gold[name]), name


def in_order(rows: Iterable[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)
