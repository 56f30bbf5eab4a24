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


def decoded(channel: str, payload: bytes) -> tuple[str, Any, bool]:
    """Give codec, value and whether the payload is good, for the channels of world.py."""
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
                return "raw", None, True
    except (ValueError, msgspec.MsgspecError, pa.ArrowException):
        return (
            {"json": "json", "text": "utf8", "pack": "msgpack", "arrow": "arrow"}[channel.split("/", maxsplit=1)[0]],
            None,
            False,
        )


def gaps(rows: Iterable[Row]) -> list[Row]:
    """Compute gold.gaps of bronze rows."""
    seen: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["seq"]):
        seen["log", row["channel"], row["log_id"], None].append(row["seq"])
        if row["pub_seq"] is not None:
            seen["publisher", row["channel"], row["log_id"], row["origin"]].append(row["pub_seq"])
    found = []
    for (kind, channel, log_id, origin), numbers in seen.items():
        there = set(numbers)
        missing = sorted(set(range(min(there), max(there) + 1)) - there)
        highest, late = -1, 0
        for number in numbers:
            late += number < highest
            highest = max(highest, number)
        found.append({
            "kind": kind, "channel": channel, "log_id": log_id, "origin": origin, "first": min(there),
            "last": max(there), "events": len(there), "missing": len(missing),
            "holes": sum(number - 1 not in missing for number in missing),
            "first_missing": missing[0] if missing else None, "last_missing": missing[-1] if missing else None,
            "duplicates": len(numbers) - len(there), "reordered": late,
        })  # fmt: skip
    return found


def channel_stats(events: Iterable[Row]) -> list[Row]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in events:
        groups[hour_of(row["recv_ts_ns"]), minute_of(row["recv_ts"]), row["channel"]].append(row)
    found = []
    for (hour, minute, channel), rows in groups.items():
        size = sum(len(row["payload"]) for row in rows)
        waits = [(row["recv_ts_ns"] - row["ts_ns"]) / 1000 for row in rows]
        found.append({
            "window_start": minute, "channel": channel, "events": len(rows), "bytes": size,
            "publishers": len({row["origin"] for row in rows}), "events_per_s": len(rows) / 60,
            "bytes_per_s": size / 60, "hour": hour,
            **{f"latency_p{share}_us": float(np.percentile(waits, share)) for share in (50, 95, 99)},
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
           6: "unauthorized_publisher", 16: "no_route", 20: "crowded", 33: "replayed"}  # fmt: skip


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


def fan_out(events: Iterable[Row], subscriptions: Iterable[Any]) -> list[Row]:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for row in events:
        counts[hour_of(row["recv_ts_ns"]), row["channel"]] += 1
    wanted = list(subscriptions)
    found = []
    for (hour, channel), events_ in counts.items():
        peers = len({entry.peer for entry in wanted if channel.startswith(entry.prefix)})
        found.append(
            {"hour": hour, "channel": channel, "subscribers": peers, "events": events_, "deliveries": events_ * peers}
        )
    return found
