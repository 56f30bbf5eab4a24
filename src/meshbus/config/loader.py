"""Typed settings out of a file, the environment and arguments, each stronger than the one before.

A setting keeps its origin until it has its type, so every complaint names the key as it was spelled and the place where
it was written. A value of the environment or of a command line is text: taken as it stands where a text is expected,
otherwise read as a TOML value (`5`, `true`, `["a", "b"]`, `{a = "b"}`), and a list may also be written `a,b`. Knows no
setting by name: those are in config/node.py.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar, Union, get_args, get_origin

import msgspec

from meshbus.errors import ConfigError, MeshError

MAX_FILE_BYTES = 1 << 20
"""A settings file larger than this is something else."""

_S = TypeVar("_S", bound=msgspec.Struct)


class Setting(NamedTuple):
    """One value as it was written, and where."""

    value: object
    spelling: str
    """The key as the user wrote it: `heartbeat_s`, `MESHBUS_HEARTBEAT_S`."""
    source: str
    folder: Path
    """What relative paths in the value are relative to."""
    is_text: bool = False
    """Whether the value is text that still has to be read."""


class Reader(NamedTuple):
    """How to read a type that TOML does not have."""

    expected: str
    """What a good value looks like, to end the sentence "expected …"."""
    read: Callable[[object, Path], object]
    """Gives the value, or raises MeshError or ValueError whose text does not repeat a secret."""


Readers: TypeAlias = Mapping[object, Reader]
"""Readers by type or annotation."""


def read_file(path: Path) -> dict[str, Setting]:
    """Read the settings of a TOML file."""
    name = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError("config", "there is no such file: check the path", source=name) from None
    except OSError as error:
        raise ConfigError("config", f"cannot be read: {error.strerror or error}", source=name) from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError("config", f"is larger than {MAX_FILE_BYTES} bytes: is it a settings file?", source=name)
    try:
        table = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise ConfigError("config", "is not UTF-8 text: is it a settings file?", source=name) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError("config", f"is not valid TOML: {str(error) or 'nested too deeply'}", source=name) from None
    folder = path.absolute().parent
    return {key: Setting(value, key, name, folder) for key, value in table.items()}


def read_environment(environ: Mapping[str, str], prefix: str, ignored: Iterable[str] = ()) -> dict[str, Setting]:
    """Read the settings among environment variables: those with the prefix, except the ignored names."""
    skip = frozenset(ignored)
    return {
        name.removeprefix(prefix).lower(): Setting(value, name, "the environment", Path.cwd(), is_text=True)
        for name, value in sorted(environ.items())
        if name.startswith(prefix) and name not in skip
    }


def read_arguments(arguments: Mapping[str, object]) -> dict[str, Setting]:
    """Take settings from keyword arguments; None is the same as not given."""
    return {
        name: Setting(value, name, "an argument", Path.cwd()) for name, value in arguments.items() if value is not None
    }


def read_texts(texts: Mapping[str, str]) -> dict[str, Setting]:
    """Take settings that were typed on a command line: arguments, but still to be read."""
    return {name: Setting(text, name, "an argument", Path.cwd(), is_text=True) for name, text in texts.items()}


def build(kind: type[_S], settings: Mapping[str, Setting], readers: Readers) -> _S:
    """Make a struct of settings.

    Raises ConfigError for the first setting that is unknown, missing or not what its field expects.
    """
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values = {}
    for name, setting in settings.items():
        if name not in fields:
            prefix = setting.spelling[: len(setting.spelling) - len(name)]
            known = [prefix + (field.upper() if setting.spelling.isupper() else field) for field in fields]
            raise ConfigError(
                setting.spelling, "is not a known setting" + suggest(setting.spelling, known), source=setting.source
            )
        values[name] = _Conversion(setting, readers).run(fields[name].type)
    try:
        return kind(**values)
    except ConfigError as error:
        guilty = settings.get(error.key)
        if guilty is None:
            raise
        raise ConfigError(guilty.spelling, error.problem, source=guilty.source) from None


def suggest(given: str, known: Iterable[str]) -> str:
    """Give `: did you mean …?` for a near miss, or else what would be known."""
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(given, names, n=1, cutoff=0.6) or [
        name for name in names if given and name.startswith(given)
    ]
    return f": did you mean {near[0]!r}?" if near else f": known are {', '.join(names)}"


def describe(kind: Any, readers: Readers) -> str:
    """Say what a value of a type looks like, to end the sentence "expected …"."""
    if kind in readers:
        return readers[kind].expected
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        notes = [note.description for note in arguments[1:] if isinstance(note, msgspec.Meta) and note.description]
        return notes[0] if notes else describe(arguments[0], readers)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in {Union, UnionType}:
        return " or ".join(describe(part, readers) for part in arguments if part is not type(None))
    if origin is tuple:
        return f"a list, each item {describe(arguments[0], readers)}"
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "one of " + ", ".join(kind)
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    return plain.get(kind, "a table")


class _Conversion:
    """The conversion of one setting; knows the way down to the value at hand."""

    def __init__(self, setting: Setting, readers: Readers) -> None:
        self._setting = setting
        self._readers = readers

    def run(self, kind: Any) -> object:
        setting = self._setting
        if not setting.is_text:
            return self._convert(setting.value, kind, setting.spelling)
        complaints = []
        for candidate in _readings(str(setting.value), kind):
            try:
                return self._convert(candidate, kind, setting.spelling)
            except ConfigError as error:
                complaints.append(error)
        # The reading that came furthest is what was meant; among equals the text as it stands.
        raise max(complaints, key=lambda error: len(error.key))

    def _convert(self, value: object, kind: Any, where: str) -> object:
        reader = self._readers.get(kind)
        if reader is not None:
            return self._read(value, reader, where)
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in {Union, UnionType} and type(None) in arguments:
            (inner,) = (part for part in arguments if part is not type(None))
            return None if value is None else self._convert(value, inner, where)
        if origin is tuple:
            if not isinstance(value, list | tuple):
                raise self._wrong(where, f"expected {describe(kind, self._readers)}, got {_show(value)}")
            return tuple(self._convert(item, arguments[0], f"{where}[{index}]") for index, item in enumerate(value))
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return value if isinstance(value, kind) else self._table(value, kind, where)
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            raise self._wrong(where, f"expected {describe(kind, self._readers)}, got {_show(value)}") from None

    def _read(self, value: object, reader: Reader, where: str) -> object:
        try:
            return reader.read(value, self._setting.folder)
        except ConfigError as error:
            raise self._wrong(where, error.problem) from None
        except (MeshError, ValueError) as error:
            raise self._wrong(where, str(error)) from None

    def _table(self, value: object, kind: type[msgspec.Struct], where: str) -> object:
        if not isinstance(value, Mapping):
            raise self._wrong(where, f"expected a table, got {_show(value)}")
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        values = {}
        for key, item in value.items():
            if key not in fields:
                raise self._wrong(f"{where}.{key}", "is not a known setting" + suggest(str(key), fields))
            values[key] = self._convert(item, fields[key].type, f"{where}.{key}")
        missing = [name for name, field in fields.items() if field.required and name not in values]
        if missing:
            raise self._wrong(
                where, f"{missing[0]!r} is missing: it is {describe(fields[missing[0]].type, self._readers)}"
            )
        try:
            return kind(**values)
        except ConfigError as error:
            raise self._wrong(f"{where}.{error.key}" if error.key in fields else where, error.problem) from None
        except MeshError as error:
            raise self._wrong(where, str(error)) from None

    def _wrong(self, where: str, problem: str) -> ConfigError:
        return ConfigError(where, problem, source=self._setting.source)


def _readings(text: str, kind: Any) -> Iterable[object]:
    """Give what a text of the environment may mean, in the order of trust."""
    yield text
    with suppress(tomllib.TOMLDecodeError, RecursionError):
        yield tomllib.loads(f"value = {text}")["value"]
    if get_origin(kind) is tuple:
        yield [part.strip() for part in text.split(",") if part.strip()]


def _show(value: object) -> str:
    """Show a value in a sentence, shortened."""
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "…"
