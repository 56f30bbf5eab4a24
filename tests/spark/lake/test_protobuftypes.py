"""A producer that changed the type of a field, with the classes that protoc generates for both sides."""

from typing import Any

import pytest

from meshbus.spark.lake.protobuftypes import parse_checked
from tests.spark.lake.messages import NEW, OLD, compile_proto

TWO = 'syntax = "proto2"; package two; enum Color { RED = 0; } message Car { optional Color color = 1; }'
MORE = TWO.replace("RED = 0;", "RED = 0; BLUE = 7;").replace("package two", "package more")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The messages as they were, and as producers have them after a change."""
    folder = tmp_path_factory.mktemp("protobuf")
    texts = {
        "old": OLD,
        "new": NEW,
        "text": OLD.replace("double temp = 1;", "string temp = 1;"),
        "short": OLD.replace("double temp = 1;", "float temp = 1;"),
        "number": OLD.replace("optional string note = 3;", "optional int32 note = 3;"),
        "inner": OLD.replace("int32 x = 1;", "string x = 1;"),
        "wider": OLD.replace("uint32 small = 12;", "uint64 small = 12;"),
    }
    found = {
        name: compile_proto(folder, text.replace("package sensors", f"package of_{name}"), f"of_{name}").module.Reading
        for name, text in texts.items()
    }
    return found | {
        "two": compile_proto(folder, TWO, "two").module.Car,
        "more": compile_proto(folder, MORE, "more").module.Car,
    }


@pytest.mark.parametrize(
    ("whose", "fields", "problem"),
    [
        ("text", {"temp": "hot"}, "temp: expected double, got text, bytes or a message"),
        ("short", {"temp": 1.5}, "temp: expected double, got 4 bytes"),
        ("number", {"note": 5}, "note: expected string, got an integer"),
        ("inner", {"place": {"x": "left"}}, "place.x: expected int32, got text, bytes or a message"),
        ("inner", {"path": [{"y": 1}, {"x": "left"}]}, "path.x: expected int32, got text, bytes or a message"),
    ],
)
def test_a_changed_type_is_a_problem_and_never_a_missing_field(
    made: dict[str, Any], whose: str, fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TypeError, match=f"^{problem}$"):
        parse_checked(made["old"], made[whose](**fields).SerializeToString())


def test_what_is_new_unset_or_fits_is_no_problem(made: dict[str, Any]) -> None:
    sent = {"temp": 1.5, "tags": ["a", "b"], "path": [{"x": 1}], "limits": {"low": 1.0}}
    for whose, more in (("old", {}), ("new", {"battery": 7}), ("wider", {"small": 3})):
        found = parse_checked(made["old"], made[whose](**sent, **more).SerializeToString())
        assert (found.temp, list(found.tags), found.path[0].x) == (1.5, ["a", "b"], 1)
    assert parse_checked(made["old"], b"").temp == 0


def test_a_value_that_an_enum_lacks_is_not_a_changed_type(made: dict[str, Any]) -> None:
    assert not parse_checked(made["two"], made["more"](color="BLUE").SerializeToString()).HasField("color")


def test_bytes_that_are_no_message_are_refused_by_the_parser(made: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="pars"):
        parse_checked(made["old"], b"\xff\xff")
