"""A hot file of packets is read from its path, and one of a newer build is refused by its name and left as it is."""

from pathlib import Path

import pytest

from meshbus.errors import LogError, LogFault
from meshbus.log.packets.block import FORMAT_VERSION, UnknownFile, pack_file_header
from meshbus.log.packets.hotfile import read_hot
from meshbus.log.packets.runs import RecordInfo


def test_a_file_is_read_from_its_path(tmp_path: Path) -> None:
    path = tmp_path / "0.hot"
    path.write_bytes(pack_file_header(7, RecordInfo(1, 1), 5))
    assert read_hot(path).end == 7
    path.write_bytes(b"MB")
    with pytest.raises(UnknownFile):
        read_hot(path)


def test_a_newer_file_is_refused_by_name_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "0.hot"
    newer = bytearray(pack_file_header(7, RecordInfo(1, 1), 5))
    newer[4] = FORMAT_VERSION + 1
    path.write_bytes(newer)
    with pytest.raises(
        LogError, match=rf"0\.hot: hot file of packets, version {FORMAT_VERSION + 1}, .* newer"
    ) as caught:
        read_hot(path)
    assert caught.value.fault is LogFault.NEWER
    assert path.read_bytes() == newer
