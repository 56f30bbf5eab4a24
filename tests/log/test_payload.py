"""A schema is columns as SQL writes them, and every mistake in one is named."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import ConfigError
from meshbus.log.payload import Codec, Field, Kind, check_declared, ddl_of, parse_fields


def test_columns_are_parsed_as_sql_writes_them() -> None:
    found = parse_fields("temp double NOT NULL, `odd name`: STRING COMMENT 'of it', n long, p DEC(5, 2), q NUMERIC")
    assert found == (
        Field("temp", Kind("double"), nullable=False),
        Field("odd name", Kind("string")),
        Field("n", Kind("bigint")),
        Field("p", Kind("decimal", precision=5, scale=2)),
        Field("q", Kind("decimal", precision=10)),
    )


def test_types_nest() -> None:
    (field,) = parse_fields("a ARRAY<STRUCT<x: INT NOT NULL, m MAP<STRING, ARRAY<DATE>>>> NOT NULL")
    assert not field.nullable
    struct = field.kind.item
    assert struct is not None
    assert [(inner.name, inner.nullable) for inner in struct.fields] == [("x", False), ("m", True)]
    assert field.kind.ddl == "ARRAY<STRUCT<`x` INT NOT NULL, `m` MAP<STRING,ARRAY<DATE>>>>"


_names = st.text("abc_ .é", min_size=1, max_size=8)
_plain = st.sampled_from(["boolean", "tinyint", "bigint", "double", "string", "binary", "date", "timestamp"]).map(Kind)
_kinds = st.recursive(
    _plain | st.builds(Kind, st.just("decimal"), precision=st.integers(5, 38), scale=st.integers(0, 5)),
    lambda kinds: (
        st.builds(Kind, st.sampled_from(["array", "map"]), item=kinds)
        | st.builds(
            Kind, st.just("struct"), fields=st.builds(Field, _names, kinds, st.booleans()).map(lambda one: (one,))
        )
    ),
    max_leaves=4,
)


@given(st.lists(st.builds(Field, _names, _kinds, st.booleans()), max_size=4, unique_by=lambda field: field.name))
def test_what_is_written_as_sql_is_parsed_again(fields: list[Field]) -> None:
    assert parse_fields(ddl_of(tuple(fields))) == tuple(fields)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("temp FLOATING", "unknown type FLOATING; choose from BIGINT, BINARY"),
        ("temp", "unknown type at the end"),
        ("temp DOUBLE,", "expected the name of a column, got 'the end'"),
        ("temp DOUBLE unit STRING", "expected ',' or the end"),
        ("5 INT", "expected the name of a column, got '5'"),
        ("a INT, a STRING", "a is there twice"),
        ("a ARRAY<INT", "expected '>', got 'the end'"),
        ("a ARRAY INT", "expected '<', got 'INT'"),
        ("a MAP<INT,INT>", "keys of a MAP must be STRING"),
        ("a DECIMAL(39)", "must have 1 to 38 digits"),
        ("a DECIMAL(5,x)", "expected a number, got 'x'"),
        ("a INT NOT", "expected 'null', got 'the end'"),
        ("a INT; b INT", "unexpected ';'"),
        ('`a"b` INT', "must not contain quotes"),
        ("a " + "ARRAY<" * 40 + "INT" + ">" * 40, "nested more than 16 times"),
    ],
)
def test_the_error_of_a_wrong_schema_has_the_problem(schema: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_fields(schema)
    assert problem in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_a_schema_or_a_configuration_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(parse_fields(text), tuple)


def test_an_empty_text_has_no_fields() -> None:
    assert parse_fields(" ") == ()


@pytest.mark.parametrize(
    ("codec", "schema", "descriptor", "message", "problem"),
    [
        (
            Codec.UTF8,
            "a INT",
            False,
            False,
            "utf8 payloads have no columns; choose from arrow, json, msgpack, protobuf",
        ),
        (Codec.PROTOBUF, "", True, False, "need 'descriptor'"),
        (Codec.PROTOBUF, "", False, True, "need 'descriptor'"),
        (Codec.JSON, "", False, True, "for codec protobuf only, got codec json"),
    ],
)
def test_the_parts_of_a_declaration_fit_together(
    codec: Codec, schema: str, descriptor: bool, message: bool, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_declared(codec, schema, descriptor=descriptor, message=message)
