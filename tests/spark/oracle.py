"""What the tables must hold, computed from rows by plain Python: no Spark, none of its functions."""

import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

Row = dict[str, Any]


def plain(row: Row) -> Row:
    """A row as the logs have it: without its hour."""
    return {key: list(value) if isinstance(value, list) else value for key, value in row.items() if key != "hour"}


def as_set(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    """Rows in an order of their own; floats as far as two ways of adding agree."""
    keyed = [
        tuple((key, round(value, 6) if isinstance(value, float) else value) for key, value in sorted(row.items()))
        for row in rows
    ]
    return sorted(keyed, key=repr)


def assert_alike(found: Iterable[Row], expected: Iterable[Row]) -> None:
    """Compare rows exactly, but measured times (`…_us`) as far as rounding to three digits allows, and to a nanosecond."""

    def split(rows: Iterable[Row]) -> tuple[list[tuple[Any, ...]], list[tuple[str, Any]]]:
        keyed = [(as_set([{key: value for key, value in row.items() if not key.endswith("_us")}]), row) for row in rows]
        keyed.sort(key=repr)
        times = [(key, row[key]) for _, row in keyed for key in sorted(row) if key.endswith("_us")]
        return [exact for (exact,), _ in keyed], times

    (exact, times), (wanted, right) = split(found), split(expected)
    assert exact == wanted
    for (name, time), (_, other) in zip(times, right, strict=True):
        assert (time is None) == (other is None), name
        assert time is None or abs(time - other) <= 0.005 * abs(other) + 0.001, name


def hour_of(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H")


def minute_of(time: datetime) -> datetime:
    return time.replace(second=0, microsecond=0)


def keys_of(row: Row) -> list[tuple[Any, ...]]:
    """Every name by which an event is known."""
    keys: list[tuple[Any, ...]] = [("log", row["log_id"], row["seq"])]
    if row["pub_seq"] is not None:
        keys.append(("published", row["origin"], row["channel"], row["pub_seq"]))
    elif row["session_id"] is not None:
        place = (row["session_id"], row["stream_id"], row["packet_seq"], row["event_index"])
        keys.append(("placed", row["channel"], row["recorder"], *place))
    return keys


def events_of(rows: Iterable[Row]) -> list[list[Row]]:
    """Put rows together that are the same event under any of their names."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found = {id(groups[key]): groups[key] for key in keys_of(row) if key in groups}
        merged = [row, *(other for group in found.values() for other in group)]
        for member in merged:
            for key in keys_of(member):
                groups[key] = merged
    return list({id(group): group for group in groups.values()}.values())


def decoded(channel: str, payload: bytes) -> tuple[str | None, Any, bool]:
    """Return codec, value and whether the payload is good, for the channels of world.py."""
    try:
        match channel:
            case "json/state":
                value = json.loads(payload.decode("utf-8"))
                good = isinstance(value, dict) and type(value.get("a")) is int
                return "json", value, good and isinstance(value.get("b"), str | None)
            case "json/free":
                return "json", json.loads(payload.decode("utf-8")), True
            case "text/notes":
                return "utf8", payload.decode("utf-8"), True
            case "pack/state":
                value = msgspec.msgpack.decode(payload)
                return "msgpack", {**value, "raw": "AAE="}, True
            case "arrow/rows":
                return "arrow", pa.ipc.open_stream(payload).read_all().to_pylist(), True
            case _:
                return None, None, True
    except (ValueError, msgspec.MsgspecError, pa.ArrowException):
        return (
            {"json": "json", "text": "utf8", "pack": "msgpack", "arrow": "arrow"}[channel.split("/", maxsplit=1)[0]],
            None,
            False,
        )


def numbering(row: Row) -> tuple[Any, ...] | None:
    """By which numbers a row is counted, and whose they are; None for the later events of a packet."""
    whose = (row["channel"], row["log_id"], row["origin"])
    if row["pub_seq"] is not None:
        return ("publisher", *whose, row["session_id"] if row["pub_seq"] >= 2**60 else None), row["pub_seq"]
    packet = row["packet_seq"]
    if row["session_id"] is None or packet is None or not 0 <= packet < 2**61 or row["event_index"] is None:
        return ("unnumbered", *whose, None), row["seq"]
    return (("stream", *whose, row["session_id"]), packet) if row["event_index"] == 0 else None


def gaps(rows: Iterable[Row]) -> list[Row]:
    """Compute gold.gaps of bronze rows."""
    seen: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["seq"]):
        seen["log", row["channel"], row["log_id"], None, None].append(row["seq"])
        if (counted := numbering(row)) is not None:
            seen[counted[0]].append(counted[1])
    found = []
    for (kind, channel, log_id, origin, session), numbers in seen.items():
        there = set(numbers)
        whose = {"kind": kind, "channel": channel, "log_id": log_id, "origin": origin, "session_id": session}
        if kind == "unnumbered":
            names = ("first", "last", "missing", "holes", "first_missing", "last_missing", "duplicates", "reordered")
            found.append(whose | dict.fromkeys(names) | {"events": len(numbers)})
            continue
        missing = sorted(set(range(min(there), max(there) + 1)) - there)
        highest, late = -1, 0
        for number in numbers:
            late += number < highest
            highest = max(highest, number)
        found.append({
            **whose, "first": min(there),
            "last": max(there), "events": len(there), "missing": len(missing),
            "holes": sum(number - 1 not in missing for number in missing),
            "first_missing": missing[0] if missing else None, "last_missing": missing[-1] if missing else None,
            "duplicates": len(numbers) - len(there), "reordered": late,
        })  # fmt: skip
    return found


def percentiles(what: str, values: list[float]) -> Row:
    return {f"{what}_p{share}_us": float(np.percentile(values, share)) if values else None for share in (50, 95, 99)}


def channel_stats(events: Iterable[Row], bronze: Iterable[Row]) -> list[Row]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in events:
        groups[hour_of(row["recv_ts_ns"]), minute_of(row["recv_ts"]), row["channel"]].append(row)
    waits: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in bronze:
        if row["session_id"] is not None and row["ts_ns"] is not None:
            place = hour_of(row["recv_ts_ns"]), minute_of(row["recv_ts"]), row["channel"]
            waits[place].append((row["recv_ts_ns"] - row["ts_ns"]) / 1000)
    found = []
    for (hour, minute, channel), rows in groups.items():
        size = sum(len(row["payload"]) for row in rows)
        found.append({
            "window_start": minute, "channel": channel, "events": len(rows), "bytes": size,
            "publishers": len({row["origin"] for row in rows}), "events_per_s": len(rows) / 60,
            "bytes_per_s": size / 60, "hour": hour, **percentiles("latency", waits[hour, minute, channel]),
        })  # fmt: skip
    return found


def latency(bronze: Iterable[Row]) -> list[Row]:
    """Compute gold.latency of rows that were received by nodes without a census."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in bronze:
        if row["session_id"] is not None:
            groups[hour_of(row["recv_ts_ns"]), row["channel"], row["origin"], row["recorder"]].append(row)
    found = []
    for (hour, channel, origin, recorder), rows in groups.items():
        timed = [(row["recv_ts_ns"] - row["ts_ns"]) / 1000 for row in rows if row["ts_ns"] is not None]
        found.append({
            "hour": hour, "channel": channel, "origin": origin, "recorder": recorder, "events": len(rows),
            "timed": len(timed), **percentiles("latency", timed), "clock_offset_us": None, "clock_error_us": None,
            **percentiles("delay", []),
        })  # fmt: skip
    return found


def traffic_matrix(events: Iterable[Row], packets: Iterable[Row]) -> list[Row]:
    sums: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in events:
        cell = sums[hour_of(row["recv_ts_ns"]), row["src"], row["dst"], row["channel"]]
        cell[0] += 1
        cell[1] += len(row["payload"])
    for row in packets:
        if row["src"] is not None and row["dst"] is not None:
            cell = sums[hour_of(row["ts_ns"]), row["src"], row["dst"], row["channel"]]
            cell[2] += row["sampling_rate"] * (row["verdict"] == 0)
            cell[3] += row["sampling_rate"] * (row["verdict"] == 2)
    names = ("events", "bytes", "forwarded", "dropped")
    return [
        {"hour": hour, "src": src, "dst": dst, "channel": channel, **dict(zip(names, cell, strict=True))}
        for (hour, src, dst, channel), cell in sums.items()
    ]


REASONS = {1: "subnet_local", 2: "not_ancestor", 3: "not_exported", 4: "unknown_subnet", 5: "ttl_expired",
           6: "unauthorized_publisher", 16: "no_route", 18: "stranger", 20: "crowded", 33: "replayed"}  # fmt: skip


def denials(packets: Iterable[Row]) -> list[Row]:
    sums: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for row in packets:
        if row["verdict"] == 2:
            key = (hour_of(row["ts_ns"]), row["recorder"], REASONS[row["reason"]], row["previous_hop"], row["channel"])
            cell = sums[*key, row["origin"]]
            cell[0] += row["sampling_rate"]
            cell[1] += row["sampling_rate"] * row["payload_len"]
    names = ("hour", "recorder", "reason", "peer", "channel", "origin")
    return [
        {**dict(zip(names, key, strict=True)), "packets": packets, "bytes": size}
        for key, (packets, size) in sums.items()
    ]


def top_talkers(events: Iterable[Row]) -> list[Row]:
    sums: dict[str, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in events:
        sums[hour_of(row["recv_ts_ns"])][row["origin"]].append(row)
    found = []
    for hour, origins in sums.items():
        talkers: list[Row] = [
            {"origin": origin, "channels": len({row["channel"] for row in rows}), "events": len(rows),
             "bytes": sum(len(row["payload"]) for row in rows), "hour": hour}
            for origin, rows in origins.items()
        ]  # fmt: skip
        talkers.sort(key=lambda row: (-row["bytes"], -row["events"], row["origin"]))
        found += [{"rank": place, **row} for place, row in enumerate(talkers, 1)]
    return found


def fan_out(events: Iterable[Row], bronze: Iterable[Row], subscriptions: Iterable[Any]) -> list[Row]:
    """Compute gold.fan_out of the events of nodes without a census, for the subscriptions of a pipeline."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for row in events:
        counts[hour_of(row["recv_ts_ns"]), row["channel"]] += 1
    receipts: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in bronze:
        if row["session_id"] is not None:
            receipts[hour_of(row["recv_ts_ns"]), row["channel"]].append(row["recorder"])
    wanted = list(subscriptions)
    found = []
    for (hour, channel), events_ in counts.items():
        peers = len({entry.peer for entry in wanted if channel.startswith(entry.prefix)})
        arrived = receipts[hour, channel]
        found.append(
            {"hour": hour, "channel": channel, "subscribers": peers, "events": events_, "deliveries": events_ * peers,
             "unknown": 0, "receivers": len(set(arrived)), "receipts": len(arrived)}
        )  # fmt: skip
    return found
