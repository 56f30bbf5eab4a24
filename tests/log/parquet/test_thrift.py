"""Thrift's compact encoding: the bytes of its specification."""

from __future__ import annotations

import pytest

from meshbus.log.parquet.thrift import TRUE, byte, i32, i64, sequence, struct, text, varint, zigzag


@pytest.mark.parametrize(
    ("number", "data"), [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**64 - 1, "ff" * 9 + "01")]
)
def test_numbers_take_seven_bits_a_byte(number: int, data: str) -> None:
    assert varint(number).hex() == data


@pytest.mark.parametrize(
    ("number", "data"),
    [(0, "00"), (-1, "01"), (1, "02"), (-2, "03"), (2**63 - 1, "fe" + "ff" * 8 + "01"), (-(2**63), "ff" * 9 + "01")],
)
def test_small_numbers_of_either_sign_are_short(number: int, data: str) -> None:
    assert zigzag(number).hex() == data


def test_a_structure_names_its_fields_by_their_distance() -> None:
    kind, data = struct({1: i32(3), 3: i64(-1), 4: text("ab"), 10: TRUE, 12: byte(16)})
    assert kind == 12
    assert data.hex(" ") == "15 06 26 01 18 02 61 62 61 23 10 00"


def test_a_list_names_its_kind_once() -> None:
    assert sequence([i32(1), i32(2)]) == (9, bytes([0x25, 2, 4]))
    assert sequence([text(b"a")] * 15)[1] == bytes([0xF8, 15]) + b"\x01a" * 15
    assert sequence([struct({}), struct({1: TRUE})])[1].hex(" ") == "2c 00 11 00"
