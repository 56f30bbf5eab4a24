"""Load typed settings from a file, the environment and arguments.

A setting keeps its source until it is converted, so that every error names the key as the user wrote it and where it
was written. A value from the environment or a command line is text: it is used unchanged where text is expected,
otherwise parsed as a TOML value (`5`, `true`, `["a", "b"]`, `{a = "b"}`), and a list may also be written `a,b`. This
module knows no setting by name; config/node.py defines them.
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

from meshbus.config.findings import Findings
from meshbus.errors import NOT_TOML, ConfigError, MeshError
from meshbus.formats import take_file_version

MAX_FILE_BYTES = 1 << 20
"""Largest settings file that is read. Real ones have a few kilobytes; a larger file was named by mistake."""

_S = TypeVar("_S", bound=msgspec.Struct)


class Setting(NamedTuple):
    """One value as the user wrote it, and its source."""

    value: object
    spelling: str
    """The key as the user wrote it: `heartbeat_s`, `MESHBUS_HEARTBEAT_S`."""
    source: str
    folder: Path
    """Directory that relative paths in the value are relative to."""
    is_text: bool = False
    """Whether the value is text that still has to be parsed."""


class Reader(NamedTuple):
    """How to parse a type that TOML does not have."""

    expected: str
    """Description of a valid value; it completes the sentence "expected …"."""
    read: Callable[[object, Path], object]
    """Returns the parsed value, or raises MeshError or ValueError; the message must not contain a secret."""


Readers: TypeAlias = Mapping[object, Reader]
"""Readers by type or annotation alias."""


def read_file(path: Path) -> dict[str, Setting]:
    """Read the settings of a TOML file."""
    return parse_file(read_content(path), str(path), path.absolute().parent)


def read_content(path: Path) -> bytes:
    """Read a settings file. Raises ConfigError if it cannot be read or is too large to be one."""
    name = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)  # one more, to see whether the file is too large
    except FileNotFoundError:
        raise ConfigError("config", "the file does not exist; check the path", source=name) from None
    except OSError as error:
        raise ConfigError("config", f"cannot read the file: {error.strerror or error}", source=name) from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(
            "config", f"the file is larger than {MAX_FILE_BYTES} bytes; is it a settings file?", source=name
        )
    return content


def parse_file(content: bytes, name: str, folder: Path) -> dict[str, Setting]:
    """Return the settings in the content of a TOML file; errors name it, and relative paths are relative to the folder."""
    try:
        table = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise ConfigError("config", "the file is not UTF-8 text; is it a settings file?", source=name) from None
    except NOT_TOML as error:
        problem = str(error) or "nested too deeply"
        raise ConfigError("config", f"the file is not valid TOML: {problem}; correct that place", source=name) from None
    take_file_version(table, name)
    return {key: Setting(value, key, name, folder) for key, value in table.items()}


def read_environment(environ: Mapping[str, str], prefix: str, ignored: Iterable[str] = ()) -> dict[str, Setting]:
    """Read settings from the environment variables with the prefix, except the ignored ones."""
    skip = frozenset(ignored)
    return {
        name.removeprefix(prefix).lower(): Setting(value, name, "the environment", Path.cwd(), is_text=True)
        for name, value in sorted(environ.items())
        if name.startswith(prefix) and name not in skip
    }


def read_arguments(arguments: Mapping[str, object]) -> dict[str, Setting]:
    """Read settings from keyword arguments; None counts as not given."""
    return {
        name: Setting(value, name, "an argument", Path.cwd()) for name, value in arguments.items() if value is not None
    }


def read_texts(texts: Mapping[str, str]) -> dict[str, Setting]:
    """Read settings from the command line: arguments whose values are still text."""
    return {name: Setting(text, name, "an argument", Path.cwd(), is_text=True) for name, text in texts.items()}


def build(kind: type[_S], settings: Mapping[str, Setting], readers: Readers) -> _S:
    """Build a struct from settings.

    Raises ConfigError for the first setting that is unknown, missing or invalid; the others are in it (`more`).
    """
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values, findings = {}, Findings()
    for name, setting in settings.items():
        if name not in fields:
            # Suggest names as the user would write them in this source: MESHBUS_HEARTBEAT_S, not heartbeat_s.
            prefix = setting.spelling[: len(setting.spelling) - len(name)]
            known = [prefix + (field.upper() if setting.spelling.isupper() else field) for field in fields]
            problem = "unknown setting" + suggest(setting.spelling, known)
            findings.add(ConfigError(setting.spelling, problem, source=setting.source))
            continue
        with findings.collect():
            values[name] = _Conversion(setting, readers).run(fields[name].type)
    findings.raise_first()
    try:
        return kind(**values)
    except ConfigError as error:  # from __post_init__, which knows the field but not how and where it was written
        wrong = settings.get(error.key)
        if wrong is None:
            raise
        raise ConfigError(wrong.spelling, error.problem, source=wrong.source) from None


def suggest(given: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` if a known name is similar, otherwise `; choose from …`."""
    from difflib import get_close_matches

    names = list(known)
    near = get_close_matches(given, names, n=1, cutoff=0.6) or [
        name for name in names if given and name.startswith(given)
    ]
    return f"; did you mean {near[0]!r}?" if near else f"; choose from {', '.join(names)}"


def describe(kind: Any, readers: Readers) -> str:
    """Describe a valid value of a type; the result completes the sentence "expected …"."""
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
    plain = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
    return plain.get(kind, "a table")


class _Conversion:
    """Converts one setting, and tracks the path to the current value for error messages."""

    def __init__(self, setting: Setting, readers: Readers) -> None:
        self._setting = setting
        self._readers = readers

    def run(self, kind: Any) -> object:
        setting = self._setting
        if not setting.is_text:
            return self._convert(setting.value, kind, setting.spelling)
        errors = []
        for candidate in _readings(str(setting.value), kind):
            try:
                return self._convert(candidate, kind, setting.spelling)
            except ConfigError as error:
                errors.append(error)
        # Report the reading that got furthest: the user most likely meant that one. `max` keeps the first of equals.
        raise max(errors, key=lambda error: len(error.key))

    def _convert(self, value: object, kind: Any, where: str) -> object:
        reader = self._readers.get(kind)
        if reader is not None:
            return self._read(value, reader, where)
        origin, arguments = get_origin(kind), get_args(kind)
        # msgspec converts unions itself, but not those of types that have a reader.
        if origin in {Union, UnionType} and type(None) in arguments:
            (inner,) = (part for part in arguments if part is not type(None))
            return None if value is None else self._convert(value, inner, where)
        if origin is tuple:
            if not isinstance(value, list | tuple):
                raise self._wrong(where, f"expected {describe(kind, self._readers)}, got {_show(value)}")
            return self._items(value, arguments[0], where)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return value if isinstance(value, kind) else self._table(value, kind, where)
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            raise self._wrong(where, f"expected {describe(kind, self._readers)}, got {_show(value)}") from None

    def _items(self, value: Iterable[object], kind: Any, where: str) -> object:
        items, findings = [], Findings()
        for index, item in enumerate(value):
            with findings.collect():
                items.append(self._convert(item, kind, f"{where}[{index}]"))
        findings.raise_first()
        return tuple(items)

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
        values, findings = {}, Findings()
        for key, item in value.items():
            with findings.collect():
                if key not in fields:
                    raise self._wrong(f"{where}.{key}", "unknown setting" + suggest(str(key), fields))
                values[key] = self._convert(item, fields[key].type, f"{where}.{key}")
        missing = [name for name, field in fields.items() if field.required and name not in value]
        if missing:
            expected = describe(fields[missing[0]].type, self._readers)
            findings.add(self._wrong(where, f"{missing[0]!r} is missing; expected {expected}"))
        findings.raise_first()
        try:
            return kind(**values)
        except ConfigError as error:
            raise self._wrong(f"{where}.{error.key}" if error.key in fields else where, error.problem) from None
        except MeshError as error:
            raise self._wrong(where, str(error)) from None

    def _wrong(self, where: str, problem: str) -> ConfigError:
        return ConfigError(where, problem, source=self._setting.source)


def _readings(text: str, kind: Any) -> Iterable[object]:
    """Yield the possible values of a text from the environment, the most likely one first."""
    # The text itself comes first, so that a name such as `true` or `7` needs no quotes where text is expected.
    yield text
    with suppress(*NOT_TOML):
        yield tomllib.loads(f"value = {text}")["value"]
    if get_origin(kind) is tuple:
        yield [part.strip() for part in text.split(",") if part.strip()]


def _show(value: object) -> str:
    """Return the repr of a value, shortened for an error message."""
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "…"
