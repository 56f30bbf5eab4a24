"""Checksums of pages: those of zlib, for every length and every kind of buffer."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from meshbus import jit
from meshbus.log.parquet import checksum
from meshbus.log.parquet.checksum import crc32
from tests.log.kernels import references

LENGTHS = [0, 1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 1_000, 4_096, 65_537, 1 << 20]


@pytest.mark.parametrize("length", LENGTHS)
def test_the_checksum_is_that_of_zlib(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "_WORTH", 0)
    content = bytearray(np.random.default_rng(length).bytes(length))
    assert crc32(content) == zlib.crc32(content)
    assert crc32(memoryview(content)) == crc32(bytes(content)) == zlib.crc32(content)
    with references(checksum._crc32):
        assert crc32(content) == zlib.crc32(content)


@pytest.mark.skipif(not jit.can_fold(), reason="the processor cannot multiply without carries")
def test_large_pages_take_the_compiled_way_and_others_that_of_zlib(monkeypatch: pytest.MonkeyPatch) -> None:
    class Taken(Exception):
        """The compiled way was taken."""

    def take(*_: object) -> int:
        raise Taken

    large = bytearray(checksum._WORTH)
    monkeypatch.setattr(checksum._crc32, "run", take)
    with pytest.raises(Taken):
        crc32(large)
    assert crc32(large[1:]) == zlib.crc32(large[1:]), "not worth it"
    assert crc32(bytes(large)) == zlib.crc32(large), "read-only"
    monkeypatch.setenv("MESHBUS_JIT", "0")
    assert crc32(large) == zlib.crc32(large), "without compiled loops"


@pytest.mark.parametrize("start", [0, 1, 3, 17])
def test_a_page_may_begin_at_any_address(start: int) -> None:
    content = np.random.default_rng(start).integers(0, 256, 40_000, np.uint8)
    assert crc32(content.data[start:]) == zlib.crc32(content[start:].tobytes())
