"""Protobuf payloads, made by classes that protoc generated, become canonical JSON and typed columns."""

import datetime as dt
import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from meshbus.errors import ConfigError
from meshbus.log.payload import ddl_of, parse_fields
from meshbus.spark.lake.codec import Codec, Declaration, Form
from meshbus.spark.lake.decode import decode_rows, typed_rows
from meshbus.spark.lake.payloads import decoder_of
from tests.spark.lake.messages import NEW, OLD, Compiled, compile_proto, describe

AT = dt.datetime(2026, 11, 17, 2, 30, 0, 250_000, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def sensors(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return compile_proto(tmp_path_factory.mktemp("proto"), OLD, "sensors")


def form(sensors: Compiled, schema: str = "", message: str = "sensors.Reading") -> Form:
    return Form(Codec.PROTOBUF, parse_fields(schema), sensors.descriptor.read_bytes(), message)


def full(sensors: Compiled) -> Any:
    reading = sensors.module.Reading(
        temp=21.5,
        unit=1,
        note="né",
        serial_number=-(2**62),
        big=2**64 - 1,
        limits={"low": 0.5},
        flags={7: True},
        raw=b"\x00\x01",
        small=2**32 - 1,
        tags=["a", ""],
    )
    reading.path.add(x=1)
    reading.place.y = -2
    reading.at.FromDatetime(AT)
    return reading


FULL = {
    "temp": 21.5,
    "unit": "CELSIUS",
    "note": "né",
    "serial_number": -(2**62),
    "big": Decimal(2**64 - 1),
    "path": [{"x": 1, "y": 0}],
    "limits": [("low", 0.5)],
    "flags": [("7", True)],
    "raw": b"\x00\x01",
    "at": AT,
    "place": {"x": 0, "y": -2},
    "small": 2**32 - 1,
    "tags": ["a", ""],
}


def test_every_kind_of_field_becomes_a_column(sensors: Compiled) -> None:
    decoder = decoder_of(form(sensors))
    assert ddl_of(decoder.kind.fields).replace("`", "") == (
        "temp DOUBLE, unit STRING, note STRING, serial_number BIGINT, big DECIMAL(20,0), path ARRAY<STRUCT<x INT, y INT>>,"
        " limits MAP<STRING,FLOAT>, flags MAP<STRING,BOOLEAN>, raw BINARY, at TIMESTAMP, place STRUCT<x INT, y INT>,"
        " small BIGINT, tags ARRAY<STRING>"
    )
    payload = full(sensors).SerializeToString()
    data, problems = decoder.columns([payload, b"", b"\xff"])
    found = data.to_pylist()
    assert found[0] == FULL
    # Not set: the default, or null where the message can tell.
    assert (found[1]["temp"], found[1]["note"], found[1]["place"], found[1]["tags"]) == (0.0, None, None, [])
    assert found[1]["unit"] == "UNKNOWN"
    assert found[2] is None
    assert problems[:2] == [None, None]
    assert problems[2] is not None
    assert problems[2].startswith("DecodeError: ")


def test_text_is_the_canonical_json_of_the_message(sensors: Compiled) -> None:
    reading = full(sensors)
    texts, problems = decoder_of(form(sensors)).texts([reading.SerializeToString(), b""])
    assert problems == [None, None]
    assert json.loads(texts[0] or "") == json_format.MessageToDict(reading)
    assert json.loads(texts[0] or "")["serialNumber"] == str(-(2**62))
    assert texts[1] == "{}"


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_problem(sensors: Compiled, payload: bytes) -> None:
    decoder = decoder_of(form(sensors))
    (text,), (problem,) = decoder.texts([payload])
    data, (wrong,) = decoder.columns([payload])
    assert (text is None) == (problem is not None)
    assert (data.to_pylist() == [None]) == (wrong is not None)


def test_fields_that_were_added_are_null_and_those_that_were_removed_are_ignored(
    sensors: Compiled, tmp_path: Path
) -> None:
    later = form(Compiled(None, describe(tmp_path, NEW, "later", "--include_imports")))
    payload = full(sensors).SerializeToString()
    data, problems = decoder_of(later).columns([payload])
    found = data.to_pylist()[0]
    assert found == {name: value for name, value in FULL.items() if name != "serial_number"} | {"battery": None}
    # A reader may keep asking for a field that no descriptor has any more.
    asked = decoder_of(form(sensors, "temp DOUBLE, gone INT")).columns([payload])
    assert asked[0].to_pylist() == [{"temp": 21.5, "gone": None}]
    assert problems == asked[1] == [None]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("temp STRING", "TypeError: temp: expected STRING, got double"),
        ("serial_number INT", "TypeError: serial_number: expected INT, got int64"),
        ("big DECIMAL(19)", "TypeError: big: expected DECIMAL(19,0), got uint64"),
        ("tags STRING", "TypeError: tags: expected STRING, got string"),
        ("place STRUCT<x STRING>", "TypeError: place.x: expected STRING, got int32"),
        ("limits MAP<STRING,INT>", "TypeError: limits: expected MAP<STRING,INT>, got float"),
        ("gone INT NOT NULL", "ValueError: gone is missing"),
    ],
)
def test_a_field_of_another_type_is_a_problem(sensors: Compiled, schema: str, problem: str) -> None:
    payload = full(sensors).SerializeToString()
    decoder = decoder_of(form(sensors, schema))
    assert decoder.texts([payload])[1] == decoder.columns([payload])[1] == [problem]


def test_a_time_that_a_column_cannot_hold_is_a_problem(sensors: Compiled) -> None:
    fine, odd = sensors.module.Reading(), sensors.module.Reading()
    fine.at.nanos = 1
    odd.at.seconds = 2**60
    found = decoder_of(form(sensors, "at TIMESTAMP")).columns([fine.SerializeToString(), odd.SerializeToString()])[1]
    assert found[0] == "ValueError: at: 1 ns cannot be stored; a TIMESTAMP has microseconds"
    assert found[1] is not None
    assert "is not a time in the years 1 to 9999" in found[1]


def test_an_unknown_enum_value_is_its_number(sensors: Compiled) -> None:
    payload = sensors.module.Reading(unit=9).SerializeToString()
    assert decoder_of(form(sensors, "unit STRING")).columns([payload])[0].to_pylist() == [{"unit": "9"}]


def test_a_required_field_of_proto2_is_needed(tmp_path: Path) -> None:
    text = 'syntax = "proto2"; package p; message Old { required int32 a = 1; optional int32 b = 2; }'
    made = compile_proto(tmp_path, text, "old")
    payload = made.module.Old(b=1).SerializePartialToString()
    assert decoder_of(form(made, message="p.Old")).columns([payload])[1] == ["ValueError: a is missing"]


def test_a_wrong_descriptor_or_message_is_a_configuration_error(sensors: Compiled, tmp_path: Path) -> None:
    lone = Compiled(None, describe(tmp_path, OLD, "lone"))
    for given_, problem in (
        (
            form(sensors, message="sensors.Nothing"),
            r"unknown message 'sensors\.Nothing'; choose from .*sensors\.Reading",
        ),
        (form(sensors, message="sensors.Tree"), r"sensors\.Tree contains itself; declare the fields"),
        (form(lone), "make it with"),
        (Form(Codec.PROTOBUF, (), b"\xff\xff", "x.Y"), "is not a complete FileDescriptorSet"),
        (Form(Codec.PROTOBUF, (), b"", "x.Y"), "contains no message"),
    ):
        with pytest.raises(ConfigError, match=problem):
            decoder_of(given_)


def test_without_the_package_the_message_says_how_to_install_it(
    sensors: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(ConfigError, match=r"pip install 'meshbus\[protobuf\]'"):
        decoder_of(form(sensors))


def test_spark_decodes_messages_as_text_and_as_columns(spark: SparkSession, sensors: Compiled) -> None:
    payloads = [full(sensors).SerializeToString(), b"\xff"]
    rows = spark.createDataFrame(
        [(n, "p", one) for n, one in enumerate(payloads)], "seq INT, channel STRING, payload BINARY"
    )
    declared = Declaration(
        name="p", codec=Codec.PROTOBUF, descriptor=str(sensors.descriptor), message="sensors.Reading"
    )
    good, bad = decode_rows(rows, [declared]).orderBy("seq").collect()
    assert json.loads(good["value"])["big"] == str(2**64 - 1)
    assert (good["codec"], bad["codec"], bad["value"]) == ("protobuf", "protobuf", None)
    assert bad["problem"].startswith("DecodeError")
    typed = typed_rows(rows, form(sensors)).orderBy("seq").select("data.temp", "data.big", "data.limits", "problem")
    assert [tuple(row) for row in typed.collect()] == [
        (21.5, Decimal(2**64 - 1), {"low": 0.5}, None),
        (None, None, None, bad["problem"]),
    ]
