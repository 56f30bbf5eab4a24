"""A type means the same in msgspec and in Arrow."""

import datetime as dt

import msgspec
import pyarrow as pa
import pytest

from meshbus.log.payload import Kind, parse_fields
from meshbus.spark.lake.fields import Instant, arrow_type, decimal_pattern, hook, largest_integer, row_type, to_array

FIELDS = parse_fields(
    "z TINYINT, a STRING NOT NULL, m MAP<STRING,ARRAY<STRUCT<x INT>>>, p DECIMAL(4,4), at TIMESTAMP, d DATE, b BOOLEAN, r BINARY,"
    " f FLOAT, g DOUBLE"
)


def test_rows_of_msgspec_and_plain_tuples_become_the_same_columns() -> None:
    text = b'{"a":"x","z":1,"m":{"k":[{"x":5},null],"n":null},"p":"0.5","at":"1970-01-01T00:00:01Z","d":"1970-01-02","f":0.5}'
    row = msgspec.json.decode(text, type=row_type(FIELDS), dec_hook=hook)
    plain = (1, "x", {"k": [(5,), None], "n": None}, "0.5", 1_000_000, dt.date(1970, 1, 2), None, None, 0.5, None)
    kind = Kind("struct", fields=FIELDS)
    assert to_array([row, None], kind).equals(to_array([plain, None], kind))
    assert to_array([plain], kind).type == arrow_type(kind)
    found = to_array([plain, None], kind).to_pylist()
    assert found[1] is None
    assert found[0]["m"] == [("k", [{"x": 5}, None]), ("n", None)]
    assert len(to_array([], kind)) == 0


def test_a_decimal_never_needs_rounding() -> None:
    assert decimal_pattern(Kind("decimal", precision=4, scale=4)) == r"^-?0(\.[0-9]{1,4})?"
    assert decimal_pattern(Kind("decimal", precision=3)) == "^-?[0-9]{1,3}"
    assert largest_integer(Kind("decimal", precision=3, scale=1)) == 99
    assert largest_integer(Kind("decimal", precision=38)) == 2**63 - 1


@pytest.mark.parametrize("kind", ["tinyint", "smallint", "int", "bigint"])
def test_whole_numbers_have_the_range_of_their_column(kind: str) -> None:
    most = largest_integer(Kind(kind))
    held = arrow_type(Kind(kind))
    assert pa.scalar(most, held).as_py() == most
    with pytest.raises((pa.ArrowInvalid, OverflowError)):
        pa.scalar(most + 1, held)


def test_a_time_has_a_zone() -> None:
    there = dt.timezone(dt.timedelta(hours=2))
    assert hook(Instant, dt.datetime(1970, 1, 1, 2, 0, 1, tzinfo=there)).us == 1_000_000
    for wrong in (dt.datetime(1970, 1, 1), "1970-01-01T00:00:00Z\n", "1970-01-01T00:00:00+19:00", 5):  # noqa: DTZ001
        with pytest.raises(ValueError, match="expected a time"):
            hook(Instant, wrong)
