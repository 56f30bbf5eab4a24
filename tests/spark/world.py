"""What two nodes wrote: events with gaps, repeats, other orders and broken payloads; replicas; packets with verdicts."""

import json
import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from meshbus.log.durability import LogConfig
from meshbus.log.log import Redex
from meshbus.log.reader import LogReader, list_channels
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.spark.lake.codec import Codec, Declaration
from meshbus.spark.lake.subscribercount import PrefixSubscription
from meshbus.spark.run.pipelineconfig import PipelineConfig
from tests.spark.packets import Clock, gateway_of, random_policy, read_record, record

RECORDERS = (2**63 + 5, 77)

DECLARATIONS = (
    Declaration(prefix="json/", codec=Codec.JSON, schema="a INT NOT NULL, b STRING"),
    Declaration(name="json/free", codec=Codec.JSON),
    Declaration(prefix="text/", codec=Codec.UTF8),
    Declaration(name="pack/state", codec=Codec.MSGPACK, schema="a BIGINT"),
    Declaration(name="arrow/rows", codec=Codec.ARROW),
)
SUBSCRIPTIONS = (
    PrefixSubscription(1, "json/"),
    PrefixSubscription(2, "json/state"),
    PrefixSubscription(2, "json"),
    PrefixSubscription(3, "raw/blob"),
)


class World(NamedTuple):
    """The folders, and what was said while they were read."""

    config: PipelineConfig
    policy: GatewayPolicy
    """Of the first node's gateway."""
    packets: pa.Table
    """All that was recorded, read without Spark."""
    lines: list[dict[str, Any]]

    @property
    def tables(self) -> Path:
        return Path(self.config.tables)

    def bronze(self) -> list[dict[str, Any]]:
        """All rows of all logs, read without Spark."""
        return [row for log in self.config.logs for row in rows_of_logs(Path(log))]


def rows_of_logs(root: Path) -> list[dict[str, Any]]:
    """Read every log below a folder, or below the log_dir of a node, by the log's own reader."""
    return [
        row
        for folder in (root, root / "published", root / "received")
        if folder.is_dir()
        for entry in list_channels(folder)
        for batch in LogReader(folder, entry.channel).snapshot().batches()
        for row in batch.to_pylist()
    ]


def payload_of(channel: str, number: int, rng: random.Random) -> bytes:
    """Payloads as their channel declares, one in ten of them not."""
    broken = rng.random() < 0.1
    match channel.partition("/")[0]:
        case "json":
            if broken:
                return rng.choice([b"{", b'{"a":"x"}', b'{"b":"y"}', b"[1]", b'{"a":1.5}', b"\xff\xfe"])
            return json.dumps({"a": number, "b": rng.choice(["ü", None]), "more": [1]}).encode()
        case "text":
            return b"\xff\xc0" if broken else f"nöte {number}".encode()
        case "pack":
            return b"\xc1" if broken else msgspec.msgpack.encode({"a": number, "raw": b"\0\1"})
        case "arrow":
            if broken:
                return b"ARROW?"
            table = pa.table({"n": [number, number + 1], "s": ["a", None]})
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            return bytes(sink.getvalue())
        case _:
            return rng.randbytes(rng.randrange(0, 40))


def fill_log(root: Path, recorder: int, channel: str, rng: random.Random, *, count: int) -> None:
    """Write a log with everything that can be odd about one, partly sealed, over two hours."""
    clock = Clock()
    origins = [11, 2**64 - 14, 2**63 + 13]
    with Redex(root, recorder=recorder, background=False, clock=clock) as redex:
        log = redex.open(channel, LogConfig())
        numbers = dict.fromkeys(origins, rng.randrange(0, 50))
        for step in range(count):
            clock.now += rng.randrange(1, 2 * 7_200_000_000_000 // count)
            origin = rng.choice(origins)
            odd = rng.random()
            if odd < 0.03:
                numbers[origin] += rng.randrange(2, 6)  # a gap
            pub_seq: int | None = numbers[origin]
            numbers[origin] += 1
            if 0.03 <= odd < 0.06 and pub_seq:
                pub_seq = rng.randrange(max(pub_seq - 8, 0), pub_seq + 1)  # a repeat, or an older one that was missing
            columns: dict[str, Any] = {
                "origin": origin,
                "ts_ns": clock.now - rng.randrange(0, 5_000_000),
                "recv_ts_ns": clock.now,
                "src": rng.choice([0x03000000, 0xFE010000]),
                "dst": 0x04000000,
            }
            if channel.startswith("raw/") and odd > 0.7:
                columns |= {"session_id": 2**63 + 1, "stream_id": 5, "packet_seq": step // 9, "event_index": step % 3}
                pub_seq = None
            if pub_seq is not None:
                log.append(payload_of(channel, step, rng), pub_seq=pub_seq, **columns)
            else:
                log.append_batch([payload_of(channel, step, rng)], pub_seq=None, **columns)
            if step in {count // 3, count // 2}:
                log.seal()


def build_world(folder: Path, *, count: int = 400, seed: int = 7) -> World:
    """Write the logs of two nodes and the packets of recorders."""
    rng = random.Random(seed)
    first, second = folder / "node1", folder / "node2"
    for channel in ("json/state", "json/free", "text/notes", "pack/state", "arrow/rows", "raw/blob"):
        fill_log(first, RECORDERS[0], channel, rng, count=count)
    # The second node has a replica of one log, and a log of its own with events that the first has too.
    second.mkdir()
    replica = next(entry.folder for entry in list_channels(first) if entry.channel == "json/state")
    shutil.copytree(replica, second / replica.name)
    copy_events(first, second, "text/notes")
    fill_log(second, RECORDERS[1], "raw/other", rng, count=count // 2)
    numbers = np.random.default_rng(seed)
    gateways = [gateway_of(random_policy(numbers)) for _ in RECORDERS]
    for log_dir, recorder, gateway, sampling in zip((first, second), RECORDERS, gateways, (1, 3), strict=True):
        record(log_dir, recorder, gateway, numbers, 2_000, sampling=sampling)
    config = PipelineConfig(
        tables=str(folder / "tables"),
        logs=(str(first), str(second)),
        channels=DECLARATIONS,
        subscriptions=SUBSCRIPTIONS,
        max_rows_per_batch=1_500,
    )
    packets = pa.concat_tables([read_record(first), read_record(second)])
    return World(config, gateways[0].snapshot(), packets, [])


def copy_events(source: Path, target: Path, channel: str) -> None:
    """Make another node record the same published events, a little later, in a log of its own."""
    rows = [row for row in rows_of_logs(source) if row["channel"] == channel]
    clock = Clock()
    with Redex(target, recorder=RECORDERS[1], background=False, clock=clock) as redex:
        log = redex.open(channel, LogConfig())
        for row in rows[::2]:
            clock.now = row["recv_ts_ns"] + 1_000
            log.append(
                row["payload"],
                pub_seq=row["pub_seq"],
                origin=row["origin"] & 0xFFFF_FFFF_FFFF_FFFF,
                ts_ns=row["ts_ns"],
                recv_ts_ns=clock.now,
            )
