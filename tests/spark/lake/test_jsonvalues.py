"""Single values are read to their end if a type surely accepts them; here as plain functions, byte by byte."""

import numpy as np
import pytest

from meshbus.log.payload import parse_fields
from meshbus.spark.lake.jsonplan import FIRST, NODE, ROOT, plan_of
from meshbus.spark.lake.jsonvalues import character, scalar_end, skip

REFUSED = -1


def end_of(text: bytes, kind: str | None = None, *, needed: bool = False) -> int:
    """Where a value ends that begins after three other bytes and is followed by some more."""
    nodes, fields, _ = plan_of(parse_fields(f"a {kind}") if kind else ())
    node = int(fields[nodes[ROOT, FIRST], NODE]) if kind else 0
    data = np.frombuffer(b"abc" + text + b",!", np.uint8)
    end = scalar_end(data, 3, 3 + len(text) + 1, nodes, node, needed)
    return end if end == REFUSED else end - 3


@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        (None, ["0", "-0", "10", "1.5", "1e9", "1E-09", "2e+99", "9" * 100, "true", "false", "null"],
         ["", "-", "01", "1.", ".5", "1e", "1e+", "1e100", "9" * 101, "1." + "0" * 100, "tr", "nul", "x", "+1"]),
        (None, ['""', '"a\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\uD7FF\\uE000"', '"é€😀"'],
         ['"', '"\\ud800"', '"\\udfff"', '"\\u12"', '"\\u12g4"', '"\\x"', '"\x1f"', '"\\']),
        ("BOOLEAN", ["true", "false", "null"], ["1", '"true"']),
        ("TINYINT", ["-128", "127", "0"], ["-129", "128", "-0", "1.0", "1e1", '"1"', "true"]),
        ("BIGINT", ["9" * 18, "-" + "9" * 18], ["9" * 19]),
        ("FLOAT", ["0.5", "9" * 38], ["9" * 39, "1e1", '"1"']),
        ("DOUBLE", ["1", "-1.5e-3", "9" * 39], ['"1"', "true"]),
        ("DECIMAL(5,2)", ["999", "-999", '"12.5"', '"-999.99"', '"1"'],
         ["1000", "1.5", '"1000"', '"1.234"', '"1."', '".5"', '"-"', '""', '"1x"', '"1.5x"']),
        ("DECIMAL(2,2)", ['"0"', '"-0.25"', "0"], ['"1"', '"00"', "1"]),
        ("DECIMAL(3)", ['"123"'], ['"1.5"']),
        ("BINARY", ['""', '"AAE="', '"AA=="', '"+/09azAZ"'], ['"AAE"', '"A==="', '"AA=A"', '"AA-_"', '"\\u0041AA"', "5"]),
        ("DATE", ['"2024-02-29"', '"2000-02-29"', '"1000-01-31"', '"9998-04-30"'],
         ['"2023-02-29"', '"1900-02-29"', '"0999-01-01"', '"9999-01-01"', '"2024-13-01"', '"2024-00-01"', '"2024-04-31"',
          '"2024-01-00"', '"2024/01/01"', '"2024-1-01x"', '"2024-01-01T"', "20240101"]),
        ("TIMESTAMP", ['"2026-11-17T00:00:00Z"', '"2026-11-17T23:59:59.1Z"', '"2026-11-17T02:30:00.123456-17:59"'],
         ['"2026-11-17T24:00:00Z"', '"2026-11-17T00:60:00Z"', '"2026-11-17T00:00:60Z"', '"2026-11-17 00:00:00Z"',
          '"2026-11-17T00:00:00"', '"2026-11-17T00:00:00.Z"', '"2026-11-17T00:00:00.1234567Z"', '"2026-11-17T00:00:00+18:00"',
          '"2026-11-17T00:00:00+0100"', '"2026-11-17T00:00:00.5"', '"2026-11-17T00-00-00Z"', '"2026-11-17T00:00-00Z"',
          '"2026-11-17T00:00:00Z "', '"2026-02-30T00:00:00Z"']),
        ("STRING", ['"x"', "null"], ["5", "true"]),
    ],
)  # fmt: skip
def test_a_value_is_read_to_its_end_or_refused(kind: str | None, accepted: list[str], refused: list[str]) -> None:
    for text in accepted:
        assert end_of(text.encode(), kind) == len(text.encode()), text
    for text in refused:
        assert end_of(text.encode(), kind) in {REFUSED, *range(len(text.encode()))}, text


def test_null_is_refused_where_a_value_is_needed() -> None:
    assert end_of(b"null", "INT", needed=True) == REFUSED
    assert end_of(b"5", "INT", needed=True) == 1


def test_characters_have_the_size_of_their_shortest_form() -> None:
    def size(text: bytes) -> int:
        return character(np.frombuffer(text, np.uint8), 0, len(text))

    for text in ("\x80", "é", "\u0800", "\ud7ff", "\ue000", "€", "\U00010000", "\U0010ffff"):
        assert size(text.encode()) == len(text.encode()), text
    for wrong in (b"\x80", b"\xc1\x80", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5",
                  b"\xe2\x82", b"\xc3(", b"\xff"):  # fmt: skip
        assert size(wrong) == 0, wrong


def test_only_the_spaces_of_json_are_skipped() -> None:
    data = np.frombuffer(b" \t\r\n\x0bx", np.uint8)
    assert skip(data, 0, len(data)) == 4
    assert skip(data, 0, 3) == 3
