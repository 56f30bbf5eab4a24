"""Settings find their type, or a complaint that names the key, the place and the way out."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from meshbus.config.loader import (
    MAX_FILE_BYTES,
    Reader,
    build,
    describe,
    read_arguments,
    read_environment,
    read_file,
    suggest,
)
from meshbus.errors import ConfigError, LocalProtocolError


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Wheel(msgspec.Struct, frozen=True, kw_only=True):
    radius: Annotated[float, msgspec.Meta(gt=0, description="a length above 0")]
    color: Color = Color.RED

    def __post_init__(self) -> None:
        if self.radius == 13:
            raise ConfigError("radius", "13 brings bad luck")
        if self.radius == 14:
            raise ConfigError("elsewhere", "14 is no better")
        if self.radius == 15:
            raise LocalProtocolError("15 does not fit")


class Car(msgspec.Struct, frozen=True, kw_only=True):
    doors: int = 4
    name: str = ""
    fast: bool = False
    gear: Literal["manual", "automatic"] = "manual"
    wheels: tuple[Wheel, ...] = ()
    stickers: tuple[str, ...] = ()
    notes: dict[str, str] = {}
    spare: Wheel | None = None
    manual: Path | None = None
    code: Annotated[int, "code"] = 0

    def __post_init__(self) -> None:
        if self.doors > 5:
            raise ConfigError("doors", f"{self.doors} is a bus")
        if self.fast and not self.name:
            raise ConfigError("name", "a fast car needs one")


def _read_code(value: object, _: Path) -> object:
    if value == "refuse":
        raise LocalProtocolError("refused by the lower room")
    if value == "config":
        raise ConfigError("inner", "refused as a setting")
    if not isinstance(value, str):
        raise ValueError("expected a code")  # noqa: TRY004 - what readers do
    return int(value, 2)


READERS = {
    Path: Reader("a path", lambda value, folder: folder / str(value)),
    Annotated[int, "code"]: Reader("a code of zeros and ones", _read_code),
}


def _build(*, env: dict[str, str] | None = None, **arguments: object) -> Car:
    return build(Car, {**read_environment(env or {}, "CAR_"), **read_arguments(arguments)}, READERS)


def _complaint(*, env: dict[str, str] | None = None, **arguments: object) -> str:
    with pytest.raises(ConfigError) as caught:
        _build(env=env, **arguments)
    return str(caught.value)


def test_arguments_become_fields() -> None:
    car = _build(doors=2, name="b", gear="automatic", wheels=[{"radius": 1}, Wheel(radius=2.0)], spare={"radius": 3})
    assert car == Car(
        doors=2,
        name="b",
        gear="automatic",
        wheels=(Wheel(radius=1.0), Wheel(radius=2.0)),
        spare=Wheel(radius=3.0),
    )


def test_none_is_not_given() -> None:
    assert _build(doors=None) == Car()


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("CAR_DOORS", "3", "doors", 3),
        ("CAR_NAME", "3", "name", "3"),
        ("CAR_NAME", "[not a list]", "name", "[not a list]"),
        ("CAR_FAST", "false", "fast", False),
        ("CAR_STICKERS", "a, b,,c", "stickers", ("a", "b", "c")),
        ("CAR_STICKERS", '["a,b"]', "stickers", ("a,b",)),
        ("CAR_STICKERS", "", "stickers", ()),
        ("CAR_NOTES", '{a = "b"}', "notes", {"a": "b"}),
        ("CAR_WHEELS", "[{radius = 2}]", "wheels", (Wheel(radius=2.0),)),
        ("CAR_SPARE", "{radius = 2, color = 'blue'}", "spare", Wheel(radius=2.0, color=Color.BLUE)),
        ("CAR_CODE", "101", "code", 5),
    ],
)
def test_text_of_the_environment_is_read_as_its_field_expects(
    variable: str, text: str, field: str, value: object
) -> None:
    assert getattr(_build(env={variable: text}), field) == value


def test_the_environment_is_searched_by_prefix() -> None:
    settings = read_environment({"CAR_A": "1", "CAR_JIT": "0", "CART_B": "2", "A": "3"}, "CAR_", ["CAR_JIT"])
    assert list(settings) == ["a"]
    assert settings["a"].spelling == "CAR_A"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"dors": 2}, "dors (from an argument): unknown setting; did you mean 'doors'?"),
        ({"doors": "2"}, "doors (from an argument): expected an integer, got '2'"),
        ({"doors": True}, "doors (from an argument): expected an integer, got True"),
        ({"doors": 9}, "doors (from an argument): 9 is a bus"),
        ({"gear": "none"}, "gear (from an argument): expected one of manual, automatic, got 'none'"),
        ({"stickers": "a"}, "stickers (from an argument): expected a list, each item a string, got 'a'"),
        ({"stickers": ["a", 1]}, "stickers[1] (from an argument): expected a string, got 1"),
        ({"wheels": [1]}, "wheels[0] (from an argument): expected a table, got 1"),
        ({"wheels": [{}]}, "wheels[0] (from an argument): 'radius' is missing; expected a length above 0"),
        ({"wheels": [{"radius": 0}]}, "wheels[0].radius (from an argument): expected a length above 0, got 0"),
        (
            {"wheels": [{"radius": 1, "colour": 1}]},
            "wheels[0].colour (from an argument): unknown setting; did you mean 'color'?",
        ),
        (
            {"wheels": [{"radius": 1, "color": "x"}]},
            "wheels[0].color (from an argument): expected one of red, blue, got 'x'",
        ),
        ({"spare": {"radius": 13}}, "spare.radius (from an argument): 13 brings bad luck"),
        ({"spare": {"radius": 14}}, "spare (from an argument): 14 is no better"),
        ({"spare": {"radius": 15}}, "spare (from an argument): 15 does not fit"),
        ({"notes": {"a": 1}}, "notes (from an argument): expected a table, got {'a': 1}"),
        ({"code": "12"}, "code (from an argument): invalid literal for int() with base 2: '12'"),
        ({"code": "refuse"}, "code (from an argument): refused by the lower room"),
        ({"code": "config"}, "code (from an argument): refused as a setting"),
        ({"fast": True}, "name: a fast car needs one"),
    ],
)
def test_a_complaint_names_the_argument_and_what_was_expected(arguments: dict[str, Any], complaint: str) -> None:
    assert _complaint(**arguments) == complaint


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ({"CAR_DOOR": "2"}, "CAR_DOOR (from the environment): unknown setting; did you mean 'CAR_DOORS'?"),
        ({"CAR_DOORS": "two"}, "CAR_DOORS (from the environment): expected an integer, got 'two'"),
        ({"CAR_FAST": "yes"}, "CAR_FAST (from the environment): expected true or false, got 'yes'"),
        (
            {"CAR_WHEELS": "[{radius = 0}]"},
            "CAR_WHEELS[0].radius (from the environment): expected a length above 0, got 0",
        ),
        ({"CAR_DOORS": "9"}, "CAR_DOORS (from the environment): 9 is a bus"),
    ],
)
def test_a_complaint_names_the_variable(env: dict[str, str], complaint: str) -> None:
    assert _complaint(env=env) == complaint


def test_a_long_value_is_shortened() -> None:
    assert len(_complaint(doors="x" * 1000)) < 150


def test_a_file_is_read_with_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "car.toml"
    file.write_text('doors = 2\nmanual = "book.txt"\n[[wheels]]\nradius = 1\n', "utf-8")
    car = build(Car, read_file(file), READERS)
    assert car.manual == tmp_path / "book.txt"
    assert car.wheels == (Wheel(radius=1.0),)


def test_a_complaint_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "car.toml"
    file.write_text("[[wheels]]\nradius = 'x'\n", "utf-8")
    with pytest.raises(ConfigError) as caught:
        build(Car, read_file(file), READERS)
    assert str(caught.value) == f"wheels[0].radius (from {file}): expected a length above 0, got 'x'"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"doors = ", "the file is not valid TOML: Invalid value (at "),
        (b"doors = 1\ndoors = 2\n", "the file is not valid TOML: Cannot overwrite a value (at line 2"),
        (b"\xff\xfe", "the file is not UTF-8 text"),
        (b"a = " + b"[" * 10_000, "the file is not valid TOML"),
        (b"a = " + b"7" * 10_000, "the file is not valid TOML: Exceeds the limit"),
        (b"#" * (MAX_FILE_BYTES + 1), "the file is larger than 1048576 bytes"),
    ],
    ids=["unfinished", "twice", "binary", "deep", "long", "large"],
)
def test_a_file_that_is_not_a_settings_file_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    file = tmp_path / "car.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="config") as caught:
        read_file(file)
    assert str(caught.value).startswith(f"config (from {file}): {complaint}")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the file does not exist"):
        read_file(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot read the file"):
        read_file(tmp_path)


def test_suggestions() -> None:
    assert suggest("dors", ["doors", "name"]) == "; did you mean 'doors'?"
    assert suggest("do", ["doors_and_windows", "name"]) == "; did you mean 'doors_and_windows'?"
    assert suggest("zzz", ["doors", "name"]) == "; choose from doors, name"


def test_types_are_described_in_words() -> None:
    assert describe(Path, READERS) == "a path"
    assert describe(Annotated[int, "plain"], {}) == "an integer"
    assert describe(tuple[float, ...], {}) == "a list, each item a number"
    assert describe(int | None, {}) == "an integer"
    assert describe(int | str, {}) == "an integer or a string"
    assert describe(Wheel, {}) == "a table"
    assert describe(bool, {}) == "true or false"


def test_a_file_of_a_newer_version_is_refused_before_its_settings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text("file_version = 1\nname = 'a'\n")
    assert list(read_file(path)) == ["name"]
    path.write_text("file_version = 2\nunheard_of = 1\n")
    with pytest.raises(ConfigError, match="settings file, version 2, was written by a newer meshbus"):
        read_file(path)
