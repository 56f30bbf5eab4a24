"""Payloads are what their channel declares, or a problem; no bytes are an exception."""

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import ConfigError
from meshbus.spark.lake.codec import Codec, Declaration, Field, choose, decode, decoder, fields_of

FIELDS = (
    Field("temp", pa.float64(), nullable=False),
    Field("unit", pa.string(), nullable=True),
    Field("tags", pa.list_(pa.int32()), nullable=True),
)


@given(st.sampled_from(Codec), st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_problem(codec: Codec, payload: bytes) -> None:
    value, problem = decode(codec, payload, FIELDS if codec in {Codec.JSON, Codec.MSGPACK, Codec.ARROW} else ())
    if codec is Codec.RAW:
        assert (value, problem) == (None, None)
    else:
        assert (value is None) != (problem is None)
    assert problem is None or "\n" not in problem


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(), st.lists))
def test_json_and_msgpack_of_the_same_value_are_the_same_text(value: object) -> None:
    texts = {decode(Codec.JSON, msgspec.json.encode(value)), decode(Codec.MSGPACK, msgspec.msgpack.encode(value))}
    assert texts == {(msgspec.json.encode(value).decode(), None)}


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b'{"temp":1.5}', None),
        (b'{"temp":1,"unit":null,"tags":[1,2],"more":{}}', None),
        (b"{}", "temp is missing"),
        (b'{"temp":null}', "temp is missing"),
        (b'{"temp":"warm"}', "temp:"),
        (b'{"temp":1,"tags":["x"]}', "tags:"),
        (b'{"temp":1,"unit":5}', "unit:"),
        (b"3", "expected an object with temp, unit, tags"),
        (b'{"temp":', "DecodeError"),
    ],
)
def test_declared_columns_are_checked(payload: bytes, problem: str | None) -> None:
    told = decode(Codec.JSON, payload, FIELDS)[1]
    assert told is None if problem is None else told is not None and problem in told


def test_a_whole_number_is_not_cut_out_of_another() -> None:
    whole = (Field("n", pa.int32(), nullable=False),)
    assert decode(Codec.JSON, b'{"n":3}', whole)[1] is None
    assert decode(Codec.JSON, b'{"n":3.5}', whole)[1] == "ValueError: n: 3.5 is not an integer"


def test_arrow_rows_become_json() -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"temp": [1.0, 2.5], "raw": [b"\0", None]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert decode(Codec.ARROW, bytes(sink.getvalue()), FIELDS[:1]) == (
        '[{"temp":1.0,"raw":"AA=="},{"temp":2.5,"raw":null}]',
        None,
    )


def test_the_longest_prefix_or_the_name_itself_decides() -> None:
    declared = [
        Declaration(prefix="a/", codec=Codec.UTF8),
        Declaration(prefix="a/b", codec=Codec.JSON),
        Declaration(name="a/b/c", codec=Codec.MSGPACK),
    ]
    chosen = {name: choose(declared, name).codec for name in ("a/x", "a/b/x", "a/b/c", "z")}
    assert chosen == {"a/x": Codec.UTF8, "a/b/x": Codec.JSON, "a/b/c": Codec.MSGPACK, "z": Codec.RAW}


def test_a_column_is_decoded_channel_by_channel() -> None:
    decode_column = decoder((Declaration(name="t", codec=Codec.UTF8), Declaration(name="j", codec=Codec.JSON)))
    found = decode_column(pa.array(["t", "j", "x"]), pa.array([b"hi", b"nope", b"\xff"]))
    assert [(row["codec"], row["value"]) for row in found.to_pylist()] == [
        ("utf8", "hi"),
        ("json", None),
        ("raw", None),
    ]
    assert found.to_pylist()[1]["problem"].startswith("DecodeError")
    assert len(decode_column(pa.array([], pa.string()), pa.array([], pa.binary()))) == 0


@pytest.mark.parametrize(
    ("given_", "problem"),
    [
        ({}, "either 'name' or 'prefix'"),
        ({"name": "a", "prefix": "b"}, "either 'name' or 'prefix'"),
        ({"name": "a", "codec": Codec.UTF8, "schema": "a INT"}, "no columns"),
    ],
)
def test_a_wrong_declaration_is_refused(given_: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Declaration(**given_)  # type: ignore[arg-type]


def test_a_schema_is_read_by_spark(spark: object) -> None:
    read = fields_of("temp DOUBLE NOT NULL, unit STRING, tags ARRAY<INT>")
    assert [(field.name, field.nullable) for field in read] == [(field.name, field.nullable) for field in FIELDS]
    assert [field.kind.id for field in read] == [field.kind.id for field in FIELDS]
    assert fields_of("") == ()
    with pytest.raises(ConfigError, match=r"cannot parse 'temp FLOATING' as columns: .+FLOATING"):
        fields_of("temp FLOATING")
