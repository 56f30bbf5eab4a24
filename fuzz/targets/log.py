"""Files of logs, as somebody with access to the disk may have changed them: they are read, and opened for appending.

An input is a list of files that take the place of those of a small log: the first byte of a piece says which. Checksums are
written anew after a change, unless the second byte says otherwise: who changes a file can do that too, and only then is what
they protect reached.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import xxhash

from fuzz.pieces import cut
from fuzz.scratch import files_in, lay_out, new_folder
from fuzz.target import Run, Target
from meshbus.errors import LogError
from meshbus.log.consumers import CONSUMERS, lags, list_consumers
from meshbus.log.durability import LogConfig
from meshbus.log.embedded import block, marks
from meshbus.log.embedded.asides import list_asides, read_aside
from meshbus.log.embedded.logmanifest import Manifest, encode_manifest
from meshbus.log.folder import ASIDE, HOT, MANIFEST, MARK, folder_of, hot_name
from meshbus.log.log import Redex
from meshbus.log.packets import block as packets
from meshbus.log.packets.packed import unpack_rows
from meshbus.log.packets.policies import POLICIES, load_policies
from meshbus.log.packets.reader import PacketReader
from meshbus.log.packets.store import folder_of as recorder_folder
from meshbus.log.positions import read_marks
from meshbus.log.reader import LogReader, find_channels, read_split
from meshbus.log.replicated import ReplicatedLog
from meshbus.log.schemas import read_versions
from meshbus.names.channel import ChannelName

CHANNEL = ChannelName("sensors/lidar")
LOG_ID = bytes(range(16))
NOW = 1_700_000_000_000_000_000
_OUTSIDE = "not-a-log.txt"
"""A file beside the log that nobody may touch."""


# ── checksums ───────────────────────────────────────────────────────────────────────────────


def healed_hot(data: bytes) -> bytes:
    """Return a hot file with right checksums, as far as its lengths lead."""
    buffer = bytearray(data)
    if len(buffer) < 64:
        return data
    version, size = struct.unpack_from("<HH", buffer, 4)
    size = min(max(size, 64), len(buffer))
    buffer[8:16] = xxhash.xxh3_64_intdigest(buffer[16:size]).to_bytes(8, "little")
    key, at = block.block_key(bytes(buffer[32:48]), version), size
    while at + block.BLOCK_HEADER <= len(buffer):
        (length,) = struct.unpack_from("<I", buffer, at + 4)
        end = min(at + block.BLOCK_HEADER + length, len(buffer))
        buffer[at : at + 4] = key.magic
        buffer[at + 8 : at + 16] = xxhash.xxh3_64_intdigest(buffer[at + 16 : end], key.seed).to_bytes(8, "little")
        at = end
    return bytes(buffer)


def healed_manifest(body: bytes) -> bytes:
    """Return a manifest with this body and its checksum."""
    checksum = xxhash.xxh3_64_hexdigest(body).encode()
    return b'{"meshbus":"manifest","version":3,"checksum":"%b","body":%b}' % (checksum, body)


def healed_mark(data: bytes) -> bytes:
    """Return marks with right checksums."""
    size, after = marks._SLOT.size, marks._CHECKED_FROM
    slots = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(
        slot[: after - 8] + xxhash.xxh3_64_intdigest(slot[after:]).to_bytes(8, "little") + slot[after:]
        for slot in slots
    )


def healed_packets(data: bytes) -> bytes:
    """Return a hot file of packets with right checksums, as far as its lengths lead."""
    buffer = bytearray(data)
    head, part = packets._FILE.size, packets._BLOCK.size
    if len(buffer) < head:
        return data
    buffer[8:16] = xxhash.xxh3_64_intdigest(buffer[16:head]).to_bytes(8, "little")
    at = head
    while at + part <= len(buffer):
        *_, names, rows = packets._BLOCK.unpack_from(buffer, at)
        end = min(at + part + names + rows, len(buffer))
        buffer[at + 8 : at + 16] = xxhash.xxh3_64_intdigest(buffer[at + 16 : end]).to_bytes(8, "little")
        at = end
    return bytes(buffer)


# ── logs ────────────────────────────────────────────────────────────────────────────────────


def _changed(files: dict[str, bytes], data: bytes) -> dict[str, bytes]:
    """Return the files of a log with those of an input in their place."""
    found = dict(files)
    for piece in cut(data):
        if len(piece) < 3:
            continue
        which, right, number, content = piece[0] % 8, not piece[1], piece[2], piece[3:]
        match which:
            case 0:
                found[MANIFEST] = healed_manifest(content) if right else content
            case 1:
                hot = healed_hot(content) if right else content
                first = int.from_bytes(hot[16:24], "little") if number % 2 else 0
                found[f"{HOT}/{hot_name(first, number >> 1)}"] = hot
            case 2:
                found[MARK] = healed_mark(content) if right else content
            case 3:
                found[f"{ASIDE}/{0:020d}-{number:020d}+1.hot"] = healed_hot(content) if right else content
            case 4:
                for name in [name for name in found if name.endswith(".parquet")]:
                    found[name] = _patched(found[name], content)
            case 5:
                found["_positions.json"] = content
            case 6:
                found["_schemas.json"] = content
            case 7:
                found.pop(sorted(found)[number % len(found)])
    return found


def _patched(content: bytes, patches: bytes) -> bytes:
    """Change single bytes of a file that is too large for an input: two bytes of the place, one of the value."""
    changed = bytearray(content)
    for at in range(0, len(patches) - 2, 3):
        place = int.from_bytes(patches[at : at + 2], "little")
        changed[place % len(changed)] = patches[at + 2]
    return bytes(changed)


def _small_log(root: Path) -> None:
    """Write a log with a segment and a hot file."""
    folder = folder_of(root, CHANNEL)
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_bytes(encode_manifest(Manifest(str(CHANNEL), LOG_ID.hex(), NOW)))
    with Redex(root, clock=lambda: NOW, background=False) as logs, logs.open(CHANNEL) as log:
        log.append_batch([b"sealed %d" % number for number in range(4)])
        log.seal()
        log.append(b"hot")
        log.append_batch([b"a", b"bc", b"def"], headers={"key": b"value"})


def _small_replica(root: Path) -> None:
    """Write a replica with two turns, a side file and a mark."""
    log = ReplicatedLog.open(root, CHANNEL, LOG_ID, LogConfig(), clock=lambda: NOW, background=False)
    log.persist(b"a ballot")
    log.append(1, 0, [b"zero", b"one", b"two", b"three"])
    log.sync()
    log.commit_to(2)
    log.set_aside(3)
    log.append(2, 3, [b"another three"])
    log.sync()
    log.commit_to(4)
    log.close()


def _read(root: Path) -> None:
    """Read everything in every way."""
    folder = folder_of(root, CHANNEL)
    find_channels(root)
    reader = LogReader(root, CHANNEL)
    snapshot = reader.snapshot()
    for event in snapshot.events():
        assert event.seq >= snapshot.first
    for batch in snapshot.batches():
        batch.validate(full=True)
    for split in snapshot.splits():
        for batch in read_split(split):
            batch.validate(full=True)
    reader.verify()
    for aside in list_asides(folder):
        for event in read_aside(aside.path):
            aside.epoch_at(event.seq)
    read_marks(folder)
    read_versions(folder)


def _append(root: Path) -> None:
    """Open a log as a node does after a crash, and append: the event is there afterwards."""
    with Redex(root, clock=lambda: NOW, background=False) as logs, logs.open(CHANNEL) as log:
        seq = log.append(b"appended")
        assert [event.payload for event in log.snapshot().events(seq)] == [b"appended"]
        log.seal()
        assert [event.payload for event in log.snapshot().events(seq)] == [b"appended"]


def _append_replica(root: Path) -> None:
    log = ReplicatedLog.open(root, CHANNEL, LOG_ID, LogConfig(), clock=lambda: NOW, background=False)
    try:
        tail = log.tail
        log.append(1 << 20, tail, [b"appended"])
        log.sync()
        log.commit_to(tail + 1)
        assert [event.payload for event in log.committed.snapshot().events(tail)] == [b"appended"]
    finally:
        log.close()


def _files(write: Callable[[Path], None], use: Callable[[Path], None]) -> Callable[[], Run]:
    def make() -> Run:
        place = new_folder()
        root = place / "logs"
        write(root)
        folder = folder_of(root, CHANNEL)
        files = files_in(folder)
        outside = place / _OUTSIDE

        def run(data: bytes) -> None:
            lay_out(folder, _changed(files, data))
            outside.write_bytes(b"kept")
            try:
                use(root)
            finally:
                assert outside.read_bytes() == b"kept", "a file outside of the log was changed"

        return run

    return make


# ── other files ─────────────────────────────────────────────────────────────────────────────


def _consumers() -> Run:
    root = new_folder()

    def run(data: bytes) -> None:
        lay_out(root / "logs" / CONSUMERS, {"one.json": data})
        lags(list_consumers(root / "logs"), CHANNEL, 7)

    return run


def _recorder() -> Run:
    """Read recorded packets; the first byte says whether the input is the hot file or a policy beside it."""
    root, recorder = new_folder(), 7

    def run(data: bytes) -> None:
        folder = recorder_folder(root, recorder)
        if data[:1] == b"\0":
            lay_out(folder, {f"{POLICIES}/0000000001.json": data[1:]})
            load_policies(folder)
            return
        hot = healed_packets(data[2:]) if data[1:2] != b"\1" else data[2:]
        lay_out(folder, {f"{HOT}/{hot_name(int.from_bytes(hot[16:24], 'little'), 0)}": hot})
        with suppress(packets.UnknownFile, packets.NewerFile):
            for _, rows in packets.read_content(hot).blocks:
                if rows.length < 1000:
                    assert len(unpack_rows(rows)) == rows.length
        for batch in PacketReader(root, recorder).snapshot().batches():
            batch.validate(full=True)

    return run


TARGETS: tuple[Target, ...] = (
    Target("log-read", _files(_small_log, _read), (LogError,)),
    Target("log-append", _files(_small_log, _append), (LogError,)),
    Target("replica-read", _files(_small_replica, _read), (LogError,)),
    Target("replica-append", _files(_small_replica, _append_replica), (LogError,)),
    Target("consumers", _consumers, ()),
    Target("recorder", _recorder, (LogError,)),
)
