"""What is found to be surely valid is accepted by Spark unchanged, and ordinary payloads are found to be so."""

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from meshbus.log.payload import parse_fields
from meshbus.spark.lake import jsoncheck
from meshbus.spark.lake.codec import Codec, Declaration, Form
from meshbus.spark.lake.decode import decode_rows
from meshbus.spark.lake.jsoncheck import surely_valid
from meshbus.spark.lake.jsonplan import plan_of
from tests.seeds import for_each_seed
from tests.spark.lake.documents import SCHEMA, documents
from tests.spark.lake.fieldcases import BAD, CASES
from tests.spark.lake.test_decode import HOSTILE

LATER = {
    ("DOUBLE", "1e300"), ("BIGINT", "-9223372036854775808"), ("STRING", '"x\\u00e9\\ud83d\\ude00"'),
}  # fmt: skip
"""Valid, and left to Spark."""


def sure(payloads: list[bytes], schema: str = "", codec: Codec = Codec.JSON) -> list[bool]:
    found = surely_valid(Form(codec, parse_fields(schema)), pa.array(payloads, pa.binary()))
    return list(map(bool, found))


def by_reference(payloads: list[bytes], schema: str) -> list[bool]:
    column = pa.array(payloads, pa.binary())
    offsets, data = (
        np.frombuffer(buffer, kind) for buffer, kind in zip(column.buffers()[1:], ("<i4", "u1"), strict=True)
    )
    found = np.zeros(len(payloads), np.bool_)
    jsoncheck._check_json.reference(data, offsets, *plan_of(parse_fields(schema)), found)
    return list(map(bool, found))


@for_each_seed(range(4))
def test_the_loop_and_its_reference_agree(seed: int) -> None:
    payloads = [*documents(seed, 1500), *HOSTILE]
    for schema in (SCHEMA, ""):
        found, expected = sure(payloads, schema), by_reference(payloads, schema)
        for payload, one, other in zip(payloads, found, expected, strict=True):
            assert one == other, (schema, payload[:300])


def test_what_is_surely_valid_is_accepted_by_spark_as_it_is(spark: SparkSession) -> None:
    payloads = [*documents(100, 4000), *HOSTILE]
    declared = (Declaration(name="any", codec=Codec.JSON), Declaration(name="typed", codec=Codec.JSON, schema=SCHEMA))
    for declaration in declared:
        found = sure(payloads, declaration.schema)
        assert sum(found) > len(payloads) / 5
        chosen = [payload for payload, one in zip(payloads, found, strict=True) if one]
        rows = spark.createDataFrame(
            [(number, b"L" * 16, declaration.name, payload) for number, payload in enumerate(chosen)],
            "seq BIGINT, log_id BINARY, channel STRING, payload BINARY",
        )
        for row in decode_rows(rows, [declaration]).collect():
            assert row["problem"] is None, (row["problem"], row["payload"])
            assert row["value"].encode() == chosen[row["seq"]]


def test_each_type_is_accepted_without_spark_unless_it_is_bad() -> None:
    for kind, text, expected in CASES:
        later = expected is BAD or (kind, text) in LATER
        assert sure([f'{{"a":{text}}}'.encode()], f"a {kind}") == [not later], (kind, text)


def test_a_payload_without_a_required_field_is_left_to_spark() -> None:
    payloads = [b'{"a":1}', b'{"b":1}', b"{}", b'{"a":null}', b"null", b"[]", b"3", b'{"b":{"a":1}}']
    assert sure(payloads, "a INT NOT NULL, b INT") == [True] + [False] * 7
    assert sure([b'{"b":1}', b"{}", b'{"a":null}', b"null", b"[]"], "a INT") == [True, True, True, False, False]


def test_limits_are_the_same_from_both_sides() -> None:
    nested = [b"[" * depth + b"]" * depth for depth in (32, 33)]
    keys = [b"{%s}" % b",".join(b'"k%d":%d' % (key, key) for key in range(count)) for count in (128, 129)]
    sizes = [b'"%s"' % (b"x" * size) for size in ((1 << 20) - 2, (1 << 20) - 1)]
    digits = [b"1" * count for count in (100, 101)]
    for inside, outside in (nested, keys, sizes, digits):
        assert sure([inside, outside]) == by_reference([inside, outside], "") == [True, False]


def test_text_is_surely_valid_if_it_is_utf8() -> None:
    payloads = [b"hi", b"", "é€😀\U0010ffff".encode(), b"\x00", b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xc0\x80", b"\xe0\x9f\xbf",
                b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xe2\x82", b"a\x80"]  # fmt: skip
    column = pa.array(payloads, pa.binary())
    offsets, data = (
        np.frombuffer(buffer, kind) for buffer, kind in zip(column.buffers()[1:], ("<i4", "u1"), strict=True)
    )
    expected = np.zeros(len(payloads), np.bool_)
    jsoncheck._check_text.reference(data, offsets, expected)
    assert sure(payloads, codec=Codec.UTF8) == expected.tolist() == [True] * 4 + [False] * 9


def test_a_part_of_a_column_is_checked_by_itself() -> None:
    column = pa.array([b"{", b"{}", b"}", b"[]"], pa.binary())
    form = Form(Codec.JSON)
    assert surely_valid(form, column.slice(1, 2)).tolist() == [True, False]
    assert surely_valid(form, column.slice(1, 0)).tolist() == []
    assert surely_valid(form, pa.array([b"", b""], pa.binary())).tolist() == [False, False]


def test_nothing_is_sure_of_other_codecs_and_without_compiled_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sure([b"\x80"], codec=Codec.MSGPACK) == [False]
    assert surely_valid(Form(Codec.JSON), pa.array([b"1", None], pa.binary())).tolist() == [False, False]
    monkeypatch.setenv("MESHBUS_JIT", "0")
    assert sure([b"{}"]) == [False]
