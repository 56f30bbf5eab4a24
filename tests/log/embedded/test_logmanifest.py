"""The manifest: is read back unchanged, refuses anything else, and is replaced in one step."""

import json
from pathlib import Path

import msgspec
import pytest
import xxhash

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.logmanifest import (
    MANIFEST_VERSION,
    Manifest,
    Retired,
    decode_manifest,
    encode_manifest,
    load_manifest,
    store_manifest,
    unused_of,
    with_unused,
)
from meshbus.log.files import Files
from meshbus.log.folder import MANIFEST, segment_name
from meshbus.log.objectstore import StoredObject
from meshbus.log.segment import Segment

SEGMENTS = (Segment(segment_name(3, 7), 3, 7, 100, 1024, 5), Segment(segment_name(7, 9), 7, 9, 100, 1024, 6))
GONE = segment_name(0, 3)
COPIES = [f"s3://b/logs/sensors%2Flidar/{'0a' * 16}/{segment_name(at, at + 1)}?region=eu" for at in range(3)]
WHOLE = Manifest("sensors/lidar", "00" * 16, 1, 4, 3, SEGMENTS, (Retired(GONE, 8),))
BEFORE = Manifest(
    "sensors/lidar",
    "00" * 16,
    1,
    4,
    3,
    (Segment("a", 3, 7, 100, 1024, 5), Segment("b", 7, 9, 100, 1024, 6)),
    (Retired("c", 8),),
)
EARLIER = {
    "meshbus": "manifest",
    "version": 1,
    "checksum": "df16328a9f4f1ba1",
    "body": {
        "channel": "sensors/lidar",
        "log_id": "00000000000000000000000000000000",
        "created_ns": 1,
        "generation": 4,
        "first": 3,
        "segments": [
            {"name": "a", "first": 3, "end": 7, "bytes": 100, "group_rows": 1024, "written_ns": 5},
            {"name": "b", "first": 7, "end": 9, "bytes": 100, "group_rows": 1024, "written_ns": 6},
        ],
        "retired": [{"name": "c", "at_ns": 8, "bytes": 0}],
    },
}
"""What a meshbus that knew no object storage wrote for it."""


def test_it_is_read_back_unchanged() -> None:
    assert decode_manifest(encode_manifest(WHOLE), Path("m")) == WHOLE
    assert WHOLE.id_bytes == bytes(16)


def test_a_log_without_objects_is_written_as_by_earlier_versions() -> None:
    content = encode_manifest(BEFORE)
    assert json.loads(content) == EARLIER
    assert xxhash.xxh3_64_hexdigest(content) == "d839be7c33a16803", "byte by byte"


def test_objects_are_read_back_and_make_a_newer_version() -> None:
    stored = StoredObject(COPIES[0], 100, "00" * 16)
    first = msgspec.structs.replace(SEGMENTS[0], remote=stored)
    for changed in (
        msgspec.structs.replace(WHOLE, segments=(first, SEGMENTS[1])),
        msgspec.structs.replace(WHOLE, retired=(Retired(GONE, 8, 0, COPIES[1]),)),
        with_unused(WHOLE, (COPIES[2],)),
    ):
        content = encode_manifest(changed)
        assert decode_manifest(content, Path("m")) == changed
        assert json.loads(content)["version"] == 2
    assert unused_of(changed) == (COPIES[2],)
    assert with_unused(changed, ()) == WHOLE
    assert unused_of(WHOLE) == ()


def test_every_changed_byte_is_noticed() -> None:
    raw = encode_manifest(WHOLE)
    accepted = []
    for place in range(len(raw) - 1):
        damaged = bytearray(raw)
        damaged[place] ^= 4
        try:
            if decode_manifest(bytes(damaged), Path("m")) != WHOLE:
                accepted.append(place)
        except LogError:
            pass
    assert not accepted


def test_a_newer_version_names_the_way_out() -> None:
    raw = json.loads(encode_manifest(WHOLE)) | {"version": MANIFEST_VERSION + 1}
    with pytest.raises(LogError, match="newer meshbus") as caught:
        decode_manifest(json.dumps(raw).encode(), Path("m"))
    assert caught.value.fault is LogFault.NEWER


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"meshbus":"other"}', b'{"more":' + b"[" * 5000])
def test_another_file_is_refused(content: bytes) -> None:
    with pytest.raises(LogError, match="not a manifest") as caught:
        decode_manifest(content, Path("m"))
    assert caught.value.fault is LogFault.CORRUPT


ELSEWHERE = (
    "s3://b/payroll.csv",
    f"s3://b/{segment_name(0, 1)}",
    f"s3://b/{'0a' * 16}/_manifest.json",
    f"s3://b/other/{segment_name(0, 1)}",
    f"s3://b/payroll.csv?x={'0a' * 16}/{segment_name(0, 1)}",
    "s3://[",
    "",
)
"""Objects that are no copies of a segment."""


def changed(**fields: object) -> Manifest:
    return msgspec.structs.replace(WHOLE, **fields)


def segment(**fields: object) -> Manifest:
    return changed(segments=(msgspec.structs.replace(SEGMENTS[0], **fields), SEGMENTS[1]))


@pytest.mark.parametrize(
    "manifest",
    [
        changed(log_id="zz" * 16),
        changed(log_id="00"),
        changed(first=-1),
        changed(first=1 << 63),
        changed(retired=(Retired("../../keys/identity.toml", 8),)),
        changed(retired=(Retired(MANIFEST, 8),)),
        changed(segments=(SEGMENTS[1], SEGMENTS[0])),
        changed(segments=(SEGMENTS[0], SEGMENTS[0])),
        segment(name="../../keys/identity.toml"),
        segment(first=2),
        segment(end=1 << 62),
        segment(name=segment_name(3, 1 << 63), end=1 << 63),
        segment(name=segment_name(7, 7), first=7),
        segment(group_rows=0),
        segment(group_rows=-1),
        *(with_unused(WHOLE, (COPIES[0], uri)) for uri in ELSEWHERE),
        *(changed(retired=(Retired(GONE, 8, 0, uri),)) for uri in ELSEWHERE),
        *(segment(remote=StoredObject(uri, 100, "00" * 16)) for uri in ELSEWHERE),
    ],
)
def test_what_no_log_can_have_is_refused_behind_a_right_checksum(manifest: Manifest) -> None:
    """Names of files are opened, moved and removed, so a name of another file must not be among them."""
    with pytest.raises(LogError, match="not a manifest") as caught:
        decode_manifest(encode_manifest(manifest), Path("m"))
    assert caught.value.fault is LogFault.CORRUPT


def test_storing_counts_the_generation(tmp_path: Path) -> None:
    stored = store_manifest(Files(), tmp_path, WHOLE)
    assert stored.generation == 5
    assert load_manifest(tmp_path) == stored
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_hot_rows_start_behind_the_last_segment_and_what_expired() -> None:
    assert Manifest("c", "", 0).hot_from == 0
    assert WHOLE.hot_from == 9
    assert msgspec.structs.replace(WHOLE, first=20, segments=()).hot_from == 20
