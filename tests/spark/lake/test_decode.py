"""Payloads are decoded inside the JVM as strictly as by Python's own parser, and nothing fails a query."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from meshbus.log.payload import parse_fields
from meshbus.log.schemas import Version
from meshbus.spark.lake.codec import Codec, Declaration, Form, Stored
from meshbus.spark.lake.decode import decode_rows, typed_rows
from tests.spark.lake.fieldcases import BAD, CASES

HOSTILE = [
    b"{}", b"[]", b"null", b"0", b'"x"', b" {} \n", b"\t1\r\n", b'{"a":{"b":[1,2,{}]}}', b'"\\u0000"', b"-0", b"1E5",
    b"123456789012345678901234567890", b"0.1234567890123456789012345678901234567890123", b'{"note":"e1000 Infinity"}',
    b'{"a":1e300,"b":"Infinity"}', b'{"":1}', b'"\\ud83d\\ude00"', b"[" * 300 + b"]" * 300,
    b"", b" ", b"{", b"}", b"{} {}", b"{}{}", b"1 2", b"{},", b"1,2", b'1],["x"', b"[1]]", b"{}\x00", b"{}//c", b"nul",
    b'{"a":NaN}', b'{"a":Infinity}', b"-Infinity", b"{'a':1}", b"{a:1}", b'{"a":1,}', b"[1,]", b'{"a":01}', b'{"a":+1}',
    b'{"a":.5}', b'{"a":1.}', b"0x1", b'{"a":/**/1}', b'{"a":1,"a":2}', b'{"a":1,"\\u0061":2}', b'[{"b":{"k":1,"k":1}}]',
    b'"\x01"', b'"\\x41"', b'"\\ud800"', b'"\\udc00\\ud800"', b"\xef\xbb\xbf{}", b"\xff", b'"\xff"', b'"\xed\xa0\x80"',
    b"1e400", b'{"a":[-1.5e999]}', b"9" * 400, b'{"a":1e400,"b":"Infinity"}', b"[" * 100_000, b'{"a":' * 5_000 + b"1",
    b'"unterminated', b"nu", b"-", b"\xc2\xa0{}", b'{"a" 1}', b'{"a":1 "b":2}',
]  # fmt: skip


def rows_of(spark: SparkSession, events: list[tuple[str, bytes]]) -> DataFrame:
    numbered = [(number, b"L" * 16, channel, payload) for number, (channel, payload) in enumerate(events)]
    return spark.createDataFrame(numbered, "seq BIGINT, log_id BINARY, channel STRING, payload BINARY")


def decoded(rows: DataFrame, *declarations: Declaration | Stored) -> list[tuple[Any, Any, Any]]:
    found = decode_rows(rows, declarations)
    assert found.columns == [*rows.columns, "codec", "value", "problem"]
    return [(row["codec"], row["value"], row["problem"]) for row in found.orderBy("seq").collect()]


def strictly_json(payload: bytes) -> bool:
    """Whether Python's own parser takes it, with what it lets pass refused by hand."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)

    def finite(text: str) -> float:
        assert abs(float(text)) < float("inf")
        return float(text)

    def constant(_: str) -> None:
        raise AssertionError

    try:
        value = json.loads(
            payload.decode("utf-8"),
            object_pairs_hook=once,
            parse_float=finite,
            parse_int=finite,
            parse_constant=constant,
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # fails for half a surrogate pair
    except (AssertionError, ValueError, RecursionError):
        return False
    return True


def test_json_is_taken_as_it_is_or_refused_with_a_sentence(spark: SparkSession) -> None:
    found = decoded(rows_of(spark, [("j", payload) for payload in HOSTILE]), Declaration(name="j", codec=Codec.JSON))
    for payload, (codec, value, problem) in zip(HOSTILE, found, strict=True):
        assert codec == "json"
        if strictly_json(payload):
            assert (value, problem) == (payload.decode(), None), payload[:60]
        else:
            assert value is None, payload[:60]
            assert len(problem) > 20, payload[:60]
            assert "\n" not in problem


def test_text_is_utf8_or_a_problem(spark: SparkSession) -> None:
    payloads = [b"hi", b"", "é😀".encode(), b"\x00", b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xc0\x80"]
    found = decoded(rows_of(spark, [("t", payload) for payload in payloads]), Declaration(name="t", codec=Codec.UTF8))
    expected = [payload.decode("utf-8", "ignore") if number < 4 else None for number, payload in enumerate(payloads)]
    assert [value for _, value, _ in found] == expected
    assert [problem for *_, problem in found] == [None] * 4 + ["payload is not valid UTF-8"] * 4


def test_each_type_accepts_the_same_inside_spark_as_in_arrow_batches(spark: SparkSession) -> None:
    kinds = sorted({kind for kind, *_ in CASES})
    declared = [
        Declaration(name=f"c{number}", codec=Codec.JSON, schema=f"a {kind}") for number, kind in enumerate(kinds)
    ]
    events = [(f"c{kinds.index(kind)}", f'{{"a":{text}}}'.encode()) for kind, text, _ in CASES]
    found = decoded(rows_of(spark, events), *declared)
    for (kind, text, expected), (_, value, problem) in zip(CASES, found, strict=True):
        if expected is BAD:
            assert value is None, (kind, text)
            assert problem.startswith("a: expected"), (kind, text)
        else:
            assert (value, problem) == (f'{{"a":{text}}}', None), (kind, text)


def test_values_become_typed_columns(spark: SparkSession) -> None:
    for kind in ("DECIMAL(5,2)", "BINARY", "TIMESTAMP", "STRUCT<x INT NOT NULL, y STRING>", "MAP<STRING,DOUBLE>"):
        cases = [(text, expected) for name, text, expected in CASES if name == kind]
        values = [(number, f'{{"a":{text}}}') for number, (text, _) in enumerate(cases)]
        rows = spark.createDataFrame([*values, (len(cases), None)], "seq BIGINT, value STRING")
        found = typed_rows(rows, Form(Codec.JSON, parse_fields(f"a {kind}"))).orderBy("seq").collect()
        for row, (text, expected) in zip(found[:-1], cases, strict=True):
            if expected is BAD:
                assert row["data"] is None, (kind, text)
                assert row["problem"].startswith("a: expected"), (kind, text)
            else:
                data = row["data"].asDict(recursive=True)["a"]
                local = data.astimezone() if kind == "TIMESTAMP" else bytes(data) if kind == "BINARY" else data
                assert (local, row["problem"]) == (expected, None), (kind, text)
        assert (found[-1]["data"], found[-1]["problem"]) == (None, None)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b'{"temp":1.5}', None),
        (b'{"temp":1,"unit":null,"tags":[1,2],"more":{}}', None),
        (b"{}", "temp is missing"),
        (b'{"temp":null}', "temp is missing"),
        (b'{"temp":"warm"}', "temp: expected DOUBLE, got STRING"),
        (b'{"temp":1,"tags":["x"]}', "tags: expected ARRAY<INT>, got ARRAY<STRING>"),
        (b"3", "expected an object with temp, unit, tags"),
        (b"[]", "expected an object with temp, unit, tags"),
    ],
)
def test_a_payload_without_its_fields_is_refused(spark: SparkSession, payload: bytes, problem: str | None) -> None:
    declared = Declaration(prefix="", codec=Codec.JSON, schema="temp DOUBLE NOT NULL, unit STRING, tags ARRAY<INT>")
    assert decoded(rows_of(spark, [("a", payload)]), declared)[0][2] == problem


def test_a_row_has_the_codec_of_its_channel_and_raw_ones_have_none(spark: SparkSession) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("n", pa.int64())])) as writer:
        writer.write_table(pa.table({"n": [1, 2]}))
    rows = rows_of(
        spark,
        [
            ("a/json", b"{}"),
            ("a/text", b"{"),
            ("a/raw/x", b"{"),
            ("pack", msgspec.msgpack.encode({"n": 1})),
            ("pack", b"\xc1"),
            ("arrow", bytes(sink.getvalue())),
            ("z", b"z"),
        ],
    )
    found = decoded(
        rows,
        Declaration(prefix="a/", codec=Codec.JSON),
        Declaration(prefix="a/raw/"),
        Declaration(name="a/text", codec=Codec.UTF8),
        Declaration(name="pack", codec=Codec.MSGPACK),
        Declaration(name="arrow", codec=Codec.ARROW),
    )
    assert [(codec, value) for codec, value, _ in found] == [
        ("json", "{}"),
        ("utf8", "{"),
        (None, None),
        ("msgpack", '{"n":1}'),
        ("msgpack", None),
        ("arrow", '[{"n":1},{"n":2}]'),
        (None, None),
    ]
    assert [problem is None for *_, problem in found] == [True, True, True, True, False, True, True]


def test_nothing_is_decoded_without_a_declaration(spark: SparkSession) -> None:
    assert decoded(rows_of(spark, [("a", b"{}")])) == [(None, None, None)]


def test_a_stored_schema_applies_to_its_own_log_and_sequences(spark: SparkSession) -> None:
    old, new = Version(1, Codec.UTF8), Version(3, Codec.JSON, "n INT NOT NULL")
    stored = [Stored("a", b"L" * 16, old, 3), Stored("a", b"L" * 16, new), Stored("a", b"M" * 16, old)]
    rows = rows_of(spark, [("a", b'{"n":1}')] * 5 + [("a", b"{}"), ("b", b"{}")])
    codecs = [(codec, problem) for codec, _, problem in decoded(rows, *stored)]
    assert codecs == [
        (None, None), ("utf8", None), ("utf8", None), ("json", None), ("json", None), ("json", "n is missing"), (None, None),
    ]  # fmt: skip
    # A declaration of the pipeline wins.
    assert [codec for codec, *_ in decoded(rows, *stored, Declaration(prefix="a", codec=Codec.UTF8))][:6] == [
        "utf8"
    ] * 6


def test_a_missing_descriptor_file_is_reported_before_the_query(spark: SparkSession, tmp_path: Path) -> None:
    from meshbus.errors import ConfigError

    lost = Declaration(name="a", codec=Codec.PROTOBUF, descriptor=str(tmp_path / "lost"), message="x.Y")
    with pytest.raises(ConfigError, match="lost cannot be read"):
        decode_rows(rows_of(spark, []), [lost])
