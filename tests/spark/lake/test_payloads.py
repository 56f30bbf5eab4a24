"""Columns of payloads are decoded as declared, or each bad one has a problem; no bytes are an exception."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.log.payload import Kind, parse_fields
from meshbus.spark.lake.codec import Codec, Form
from meshbus.spark.lake.payloads import decode_groups, decoder_of
from tests.spark.lake.fieldcases import BAD, CASES, HALF_PAST
from tests.spark.lake.messages import OLD, describe

FIELDS = parse_fields("temp DOUBLE NOT NULL, unit STRING, tags ARRAY<INT>")


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@given(st.sampled_from([Codec.JSON, Codec.MSGPACK, Codec.ARROW]), st.lists(st.binary(max_size=200), max_size=4))
def test_any_bytes_are_a_value_or_a_problem(codec: Codec, payloads: list[bytes]) -> None:
    decoder = decoder_of(Form(codec, FIELDS))
    texts, problems = decoder.texts(payloads)
    data, wrong = decoder.columns(payloads)
    assert [text is None for text in texts] == [problem is not None for problem in problems]
    assert [row is None for row in data.to_pylist()] == [problem is not None for problem in wrong]
    assert all(problem is None or ("\n" not in problem and len(problem) <= 200) for problem in [*problems, *wrong])


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(), st.lists))
def test_json_and_msgpack_of_the_same_value_are_the_same_text(value: object) -> None:
    for codec, encode in ((Codec.JSON, msgspec.json.encode), (Codec.MSGPACK, msgspec.msgpack.encode)):
        assert decoder_of(Form(codec)).texts([encode(value)]) == ([msgspec.json.encode(value).decode()], [None])


def _pairs(value: Any) -> Any:
    """What Arrow makes of a map: a list of pairs."""
    return list(value.items()) if isinstance(value, dict) else value


def test_each_type_accepts_what_it_says_of_json() -> None:
    for kind, text, expected in CASES:
        data, (problem,) = decoder_of(Form(Codec.JSON, parse_fields(f"a {kind}"))).columns([f'{{"a":{text}}}'.encode()])
        if expected is BAD:
            assert data.to_pylist() == [None], (kind, text)
            assert problem is not None, (kind, text)
            assert problem.startswith("a"), (kind, text)
        else:
            found = data.to_pylist()[0]["a"]
            assert (found, problem) == (_pairs(expected) if kind.startswith("MAP") else expected, None), (kind, text)


def test_msgpack_has_the_same_rules_and_its_own_bytes_and_times() -> None:
    for kind, text, expected in CASES:
        if kind in {"BINARY", "TIMESTAMP"} or len(text) > 25:  # msgpack has no larger numbers
            continue
        payload = msgspec.msgpack.encode({"a": json.loads(text)})
        decoder = decoder_of(Form(Codec.MSGPACK, parse_fields(f"a {kind}")))
        data, (problem,) = decoder.columns([payload])
        assert (problem is not None) == (expected is BAD) == (data.to_pylist() == [None]), (kind, text)
        assert (decoder.texts([payload])[1] == [None]) == (expected is not BAD), (kind, text)
    payload = msgspec.msgpack.encode({"b": b"\x00\x01", "t": HALF_PAST})
    native = decoder_of(Form(Codec.MSGPACK, parse_fields("b BINARY, t TIMESTAMP")))
    assert native.columns([payload])[0].to_pylist() == [{"b": b"\x00\x01", "t": HALF_PAST}]
    assert native.texts([payload]) == (['{"b":"AAE=","t":"2026-11-17T02:30:00.250000Z"}'], [None])
    assert native.texts([msgspec.msgpack.encode({"b": "AAE="})])[1] == ["b: Expected `bytes | null`, got `str`"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({}, "temp is missing"),
        ({"temp": None}, "temp is missing"),
        ({"temp": "warm"}, "temp: Expected `float`, got `str`"),
        ({"temp": 1, "tags": ["x"]}, "tags[0]: Expected `int | null`, got `str`"),
        (3, "TypeError: expected an object with temp, unit, tags"),
        ({"temp": float("nan")}, "ValueError: a number is NaN or infinite, which JSON cannot hold"),
        ({"temp": 1, "more": [{"x": float("inf")}]}, "ValueError: a number is NaN or infinite, which JSON cannot hold"),
        ({"temp": 1, "more": [{"x": None}, "null"]}, None),
    ],
)
def test_a_problem_is_one_sentence(value: object, problem: str | None) -> None:
    assert decoder_of(Form(Codec.MSGPACK, FIELDS)).texts([msgspec.msgpack.encode(value)])[1] == [problem]


def test_one_bad_payload_is_alone() -> None:
    good = b'{"temp":1.5,"unit":"C"}'
    data, problems = decoder_of(Form(Codec.JSON, FIELDS)).columns([good, b"{", good])
    assert data.to_pylist() == [
        {"temp": 1.5, "unit": "C", "tags": None},
        None,
        {"temp": 1.5, "unit": "C", "tags": None},
    ]
    assert [problem is None for problem in problems] == [True, False, True]


def test_arrow_rows_become_json_and_an_array_of_structs() -> None:
    payload = stream(pa.table({"temp": [1.0, 2.5], "raw": [b"\0", None]}))
    decoder = decoder_of(Form(Codec.ARROW, FIELDS[:1]))
    assert decoder.texts([payload]) == (['[{"temp":1.0,"raw":"AA=="},{"temp":2.5,"raw":null}]'], [None])
    assert decoder.kind == Kind("array", item=Kind("struct", fields=FIELDS[:1]))
    data, problems = decoder.columns([payload, b"", stream(pa.table({"temp": pa.array([], pa.float64())}))])
    assert data.to_pylist() == [[{"temp": 1.0}, {"temp": 2.5}], None, []]
    assert [problem is None for problem in problems] == [True, False, True]


NESTED = pa.array([{"x": 1, "l": [1]}], pa.struct([("x", pa.int64()), ("l", pa.list_(pa.int8()))]))


@pytest.mark.parametrize(
    ("kind", "array", "expected"),
    [
        ("INT", pa.array([5], pa.uint64()), 5),
        ("INT", pa.array([2**40]), BAD),
        ("INT", pa.array([5.0]), BAD),
        ("DOUBLE", pa.array([5]), 5.0),
        ("DOUBLE", pa.array([2**60 + 1]), BAD),
        ("FLOAT", pa.array([1e300]), BAD),
        ("DOUBLE", pa.array([0.5], pa.float32()), 0.5),
        ("STRING", pa.array(["x"]).dictionary_encode(), "x"),
        ("STRING", pa.array(["x"], pa.large_string()), "x"),
        ("STRING", pa.array([5]), BAD),
        ("STRING", pa.array([b"x"]), BAD),
        ("BINARY", pa.array([b"xy"], pa.binary(2)), b"xy"),
        ("BINARY", pa.array(["x"]), BAD),
        ("BOOLEAN", pa.array([1]), BAD),
        ("DATE", pa.array(["2026-01-01"]), BAD),
        ("TIMESTAMP", pa.array([1], pa.timestamp("ns", "UTC")), BAD),
        ("TIMESTAMP", pa.array([1], pa.timestamp("us")), BAD),
        ("DECIMAL(5,2)", pa.array([Decimal("1.5")]), Decimal("1.50")),
        ("DECIMAL(5,2)", pa.array([Decimal("1.234")]), BAD),
        ("DECIMAL(5,2)", pa.array([7]), BAD),
        ("ARRAY<INT>", pa.array([[1, None]], pa.list_(pa.int64())), [1, None]),
        ("ARRAY<INT>", pa.array([["x"]]), BAD),
        ("STRUCT<x INT, l ARRAY<INT>>", NESTED, {"x": 1, "l": [1]}),
        ("STRUCT<x STRING>", NESTED, BAD),
        ("MAP<STRING,INT>", pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), [("k", 1)]),
        ("MAP<STRING,INT>", pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string())), BAD),
        ("INT", pa.nulls(1), None),
    ],
)
def test_arrow_columns_are_widened_and_never_changed(kind: str, array: pa.Array, expected: object) -> None:
    decoder = decoder_of(Form(Codec.ARROW, parse_fields(f"a {kind}")))
    data, (problem,) = decoder.columns([stream(pa.table({"a": array}))])
    if expected is BAD:
        assert data.to_pylist() == [None]
        assert problem is not None
        assert "a: " in problem
    else:
        assert (data.to_pylist(), problem) == ([[{"a": expected}]], None)


def test_an_arrow_stream_must_have_its_columns_once() -> None:
    needed = decoder_of(Form(Codec.ARROW, parse_fields("a INT NOT NULL")))
    absent, null = stream(pa.table({"b": [1]})), stream(pa.table({"a": pa.array([1, None])}))
    twice = stream(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]))
    assert needed.texts([absent, null, twice])[1] == [
        "ValueError: a is missing",
        "ValueError: a is missing",
        "ValueError: two columns have the same name",
    ]


def test_payloads_of_several_declarations_are_decoded_group_by_group() -> None:
    decoders = {3: decoder_of(Form(Codec.MSGPACK)), 7: decoder_of(Form(Codec.ARROW))}
    payloads = [msgspec.msgpack.encode(1), stream(pa.table({"n": [2]})), b"\xc1", msgspec.msgpack.encode(3)]
    values, problems = decode_groups(decoders, pa.array([3, 7, 7, 3]), pa.array(payloads))
    assert values == ["1", '[{"n":2}]', None, "3"]
    assert [problem is None for problem in problems] == [True, True, False, True]
    assert decode_groups(decoders, pa.array([], pa.int32()), pa.array([], pa.binary())) == ([], [])


def test_protobuf_has_a_decoder_of_its_own(tmp_path: Path) -> None:
    made = describe(tmp_path, OLD, "mine", "--include_imports").read_bytes()
    assert decoder_of(Form(Codec.PROTOBUF, (), made, "sensors.Point")).texts([b"\x08\x05"]) == (['{"x": 5}'], [None])


def test_text_has_no_fields() -> None:
    with pytest.raises(ValueError, match="utf8 payloads have no fields"):
        decoder_of(Form(Codec.UTF8))
