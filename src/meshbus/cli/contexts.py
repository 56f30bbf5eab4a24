"""Named contexts: how to reach a node or a mesh, so that no command repeats addresses and keys.

    contexts.toml in the user's configuration directory

    current = "west"

    [west]
    connect = "10.0.0.7:9000"
    public_key = "…"
    set = ["psk_file=/etc/meshbus/mesh.key"]

A context holds the values of the options of cli/options.py. Options on the command line win: a command that says itself how
to reach a mesh uses no context. A context has no secrets; it names the files that do.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshbus.cli.options import MeshOptions, ways_given
from meshbus.config.node import CONTEXT_VARIABLE, default_file
from meshbus.errors import NOT_TOML, ConfigError
from meshbus.formats import FILE_VERSION, take_file_version

FILE = "contexts.toml"
CURRENT = "current"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_OPTIONS = {
    "admin": "admin",
    "config": "config",
    "connect": "connect",
    "public_key": "public_key",
    "node_id": "node_id",
    "direct": "direct",
    "set": "overrides",
}
"""The keys of a context, and the options that they stand for."""
_PATHS = ("admin", "config")


def place() -> Path:
    """Return the path of the file."""
    return default_file().with_name(FILE)


class Contexts:
    """The contexts of a user, as the file has them."""

    def __init__(self, current: str | None, tables: dict[str, dict[str, Any]]) -> None:
        self.current = current
        self.tables = tables

    @classmethod
    def read(cls) -> Contexts:
        """Read the file; one that does not exist holds none. Raises ConfigError if it is damaged."""
        path = place()
        try:
            loaded = tomllib.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return cls(None, {})
        except NOT_TOML as error:
            raise ConfigError(
                "contexts", f"is not valid TOML: {error}; correct or delete the file", source=str(path)
            ) from None
        take_file_version(loaded, str(path))
        current = loaded.pop(CURRENT, None)
        for name, table in loaded.items():
            if not isinstance(table, dict) or not set(table) <= set(_OPTIONS):
                problem = f"[{name}] may only hold {', '.join(_OPTIONS)}; correct it, or run `meshbus ctx rm {name}`"
                raise ConfigError("contexts", problem, source=str(path))
        return cls(current, loaded)

    def write(self) -> None:
        """Replace the file; others cannot read it."""
        path = place()
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [] if self.current is None else [f"{CURRENT} = {json.dumps(self.current)}"]
        for name, table in self.tables.items():
            # Strings, lists of strings and booleans are the same in JSON and in TOML.
            lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
        aside = path.with_name(f".{path.name}")
        aside.touch(mode=0o600)
        aside.write_text("\n".join(lines).lstrip("\n") + "\n", "utf-8")
        aside.replace(path)

    def get(self, name: str) -> dict[str, Any]:
        """Return a context. Raises ConfigError for an unknown name."""
        table = self.tables.get(name)
        if table is None:
            known = f"choose from {', '.join(sorted(self.tables))}" if self.tables else "there are none yet"
            raise ConfigError(
                "context", f"unknown context {name!r}; {known}, or create it with `meshbus ctx add {name}`"
            )
        return table


def check_name(name: str) -> str:
    """Return the name of a context. Raises ConfigError if it is not allowed."""
    if not _NAME.fullmatch(name) or name in {CURRENT, FILE_VERSION}:
        allowed = "use 1 to 64 letters, digits, '-' and '_', beginning with a letter or digit"
        raise ConfigError("context", f"{name!r} cannot be the name of a context; {allowed}")
    return name


def table_of(options: MeshOptions) -> dict[str, Any]:
    """Return what a context holds for these options; paths become absolute, because commands run anywhere."""
    table: dict[str, Any] = {}
    for key, option in _OPTIONS.items():
        value = getattr(options, option)
        if value:
            table[key] = str(Path(value).absolute()) if key in _PATHS else value
    return table


def applied(options: MeshOptions, environ: Mapping[str, str]) -> MeshOptions:
    """Return options with those of the chosen context: --context, $MESHBUS_CONTEXT, or the current one."""
    given = ways_given(options)
    if options.context is None and given:
        return options
    name = options.context or environ.get(CONTEXT_VARIABLE)
    if options.context is not None and given:
        raise ConfigError(
            "--context", "not allowed with --admin, --config or --connect; a context says how to reach a mesh"
        )
    contexts = Contexts.read() if name or place().exists() else Contexts(None, {})
    name = name or contexts.current
    if name is None:
        return options
    table = contexts.get(name)
    held: dict[str, Any] = {_OPTIONS[key]: Path(value) if key in _PATHS else value for key, value in table.items()}
    held["overrides"] = [*table.get("set", ()), *(options.overrides or ())] or None
    return replace(options, context=None, **held)
