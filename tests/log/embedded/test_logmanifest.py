"""The manifest: is read back unchanged, refuses anything else, and is replaced in one step."""

import json
from pathlib import Path

import msgspec
import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.embedded.logmanifest import (
    MANIFEST_VERSION,
    Manifest,
    Retired,
    decode_manifest,
    encode_manifest,
    load_manifest,
    store_manifest,
)
from meshbus.log.files import Files
from meshbus.log.folder import MANIFEST
from meshbus.log.segment import Segment

SEGMENTS = (Segment("a", 3, 7, 100, 1024, 5), Segment("b", 7, 9, 100, 1024, 6))
WHOLE = Manifest("sensors/lidar", "00" * 16, 1, 4, 3, SEGMENTS, (Retired("c", 8),))


def test_it_is_read_back_unchanged() -> None:
    assert decode_manifest(encode_manifest(WHOLE), Path("m")) == WHOLE
    assert WHOLE.id_bytes == bytes(16)


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


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"meshbus":"other"}'])
def test_another_file_is_refused(content: bytes) -> None:
    with pytest.raises(LogError, match="not a manifest") as caught:
        decode_manifest(content, Path("m"))
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
