"""Rows as Arrow columns: every column of the table, compared with a plain reading of the same packets."""

from __future__ import annotations

from typing import Any

from meshbus.log.arrow import wanted
from meshbus.log.packets.arrow import headers_of, to_batch
from meshbus.log.packets.fill import fill
from meshbus.log.packets.packed import BLOCK_ROWS, Arena
from meshbus.log.packets.row import NOT_ASKED
from meshbus.log.packets.runs import Piece, RecordInfo
from meshbus.log.schema import PACKETS, arrow_schema
from meshbus.names.channel import PUBLISH_STREAM_BIT
from meshbus.policy.fate import Fate
from meshbus.policy.reason import BEFORE_GATEWAY, Reason
from tests.log.packets.making import CHANNELS, NODE, arguments, some_packets
from tests.seeds import for_each_seed

NAMES = {channel.hash: str(channel) for channel in CHANNELS}


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


def expected_row(packets: dict[str, Any], number: int, sampling: int) -> dict[str, Any]:
    """Return the expected row of the table for one packet, column by column."""
    header = {name: packets["headers"][name].item(number) for name in packets["headers"].dtype.names}
    reason = packets["reasons"].item(number)
    stream = header["stream_id"]
    publication = (
        header["subprotocol_id"] == 0 and stream & PUBLISH_STREAM_BIT and stream & 0xFFFF == header["channel_hash"]
    )
    known = next((channel for channel in CHANNELS if publication and channel.stream_id == stream), None)
    looked_at = reason not in {Reason.TTL_EXPIRED.code, *BEFORE_GATEWAY}
    subnets = publication and looked_at and packets["sources"] is not None
    guard = NOT_ASKED if packets["guard"] is None else packets["guard"].item(number)
    previous = packets["previous_hops"].item(number)
    following = packets["next_hops"].item(number if len(packets["next_hops"]) > 1 else 0)
    forwarded = not reason and not packets["here"]
    route = None if packets["routes"] is None else packets["routes"][number]
    return {
        "recorder": signed(NODE, 64),
        "ts_ns": packets["ts_ns"],
        "sampling_rate": sampling,
        "previous_hop": signed(previous, 64) if previous else None,
        "next_hop": signed(following, 64) if following and forwarded else None,
        "route_src": None if route is None else signed(int(route["src_id"]), 32),
        "route_dst": None if route is None else signed(int(route["dest_id"]), 64),
        "route_ttl": None if route is None else int(route["ttl"]),
        "route_hops": None if route is None else int(route["hop_count"]),
        "route_flags": None if route is None else int(route["flags"]),
        "version": header["version"],
        "flags": header["flags"],
        "priority": header["priority"],
        "ttl": header["hop_ttl"],
        "hops": header["hop_count"],
        "frag_flags": header["frag_flags"],
        "subprotocol_id": header["subprotocol_id"],
        "chash": header["channel_hash"],
        "nonce_prefix": signed(header["nonce_prefix"], 32),
        "counter": signed(header["counter"], 64),
        "session_id": signed(header["session_id"], 64),
        "stream_id": signed(stream, 64),
        "packet_seq": signed(header["sequence"], 64),
        "origin": signed(header["origin_hash"], 64),
        "subnet_id": signed(header["subnet_id"], 32),
        "fragment_id": header["fragment_id"],
        "fragment_offset": header["fragment_offset"],
        "payload_len": header["payload_len"],
        "event_count": header["event_count"],
        "verdict": int(Fate.DROPPED if reason else Fate.DELIVERED if packets["here"] else Fate.FORWARDED),
        "reason": reason,
        "policy_version": 3,
        "channel": None if known is None else str(known),
        "chash64": None if known is None else signed(known.hash, 64),
        "src": signed(packets["sources"].item(number), 32) if subnets else None,
        "dst": signed(packets["dests"].item(number), 32) if subnets else None,
        "guard": None if guard == NOT_ASKED else guard,
    }


def rows_of(packets: dict[str, Any]) -> list[Piece]:
    arena = Arena(BLOCK_ROWS)
    places, facts = arguments(packets)
    fill.run(arena.memory, *places, facts, packets["ts_ns"])
    return [Piece(block, 0, block.length) for block in arena.blocks()]


@for_each_seed(range(8))
def test_every_column_has_the_recorded_value(seed: int) -> None:
    packets = some_packets(299 + seed % 2, seed, routed=seed % 4 != 3, judged=seed % 4 != 2)
    batch = to_batch(rows_of(packets), NAMES, RecordInfo(NODE, 10), wanted(table=PACKETS))
    assert batch.schema.equals(arrow_schema(PACKETS), check_metadata=True)
    batch.validate(full=True)
    for number, row in enumerate(batch.to_pylist()):
        ts = row.pop("ts")
        assert round(ts.timestamp() * 1_000_000) == row["ts_ns"] // 1000
        assert row == expected_row(packets, number, 10)
    assert {row["channel"] for row in batch.to_pylist()} == {None, *NAMES.values()}


def test_columns_can_be_chosen_and_text_can_be_plain() -> None:
    rows = rows_of(some_packets(50, 1))
    whole = to_batch(rows, NAMES, RecordInfo(NODE, 1), wanted(table=PACKETS))
    want = wanted(["channel", "reason", "ts"], dictionaries=False, table=PACKETS)
    part = to_batch(rows, NAMES, RecordInfo(NODE, 1), want)
    assert part.schema.equals(want.schema)
    assert part.to_pylist() == whole.select(["channel", "reason", "ts"]).to_pylist()


def test_headers_are_read_back_unchanged() -> None:
    packets = some_packets(200, 3)
    batch = to_batch(rows_of(packets), NAMES, RecordInfo(NODE, 1), wanted(table=PACKETS))
    again = headers_of(batch)
    for name in again.dtype.names or ():
        if name != "magic":
            assert again[name].tolist() == packets["headers"][name].tolist()
