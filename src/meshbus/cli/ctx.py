"""`meshbus ctx`: named contexts, so that no command repeats addresses and keys."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from meshbus.cli.options import MeshOptions
from meshbus.cli.output import Json, note, show_facts, show_rows

app = App(name="ctx")

Name: TypeAlias = Annotated[str, Parameter(help="Name of the context, such as west.")]


@app.command
def add(name: Name, /, *, options: MeshOptions | None = None) -> None:
    """Save how to reach a node under a name; the first context becomes the current one."""
    from meshbus.cli.contexts import Contexts, check_name, table_of
    from meshbus.cli.options import ways_given
    from meshbus.errors import ConfigError

    chosen = options or MeshOptions()
    check_name(name)
    if chosen.context is not None:
        raise ConfigError("--context", "not allowed here; give the options that the context is to hold")
    if not ways_given(chosen):
        raise ConfigError("context", "give one of --admin, --config and --connect, which a context is for")
    contexts = Contexts.read()
    replaced = name in contexts.tables
    contexts.tables[name] = table_of(chosen)
    contexts.current = contexts.current or name
    contexts.write()
    note(f"context {name} {'replaced' if replaced else 'added'}; the current context is {contexts.current}")


@app.command
def use(name: Name, /) -> None:
    """Make a context the one that commands use by default."""
    from meshbus.cli.contexts import Contexts

    contexts = Contexts.read()
    contexts.get(name)
    contexts.current = name
    contexts.write()
    note(f"the current context is {name}")


@app.command
def ls(*, json: Json = False) -> None:
    """List the contexts."""
    from meshbus.cli.contexts import Contexts

    contexts = Contexts.read()
    rows: list[dict[str, object]] = [
        {"context": name, "current": name == contexts.current, **table}
        for name, table in sorted(contexts.tables.items())
    ]
    columns = [
        "context",
        "current",
        *(key for key in ("admin", "config", "connect") if any(key in row for row in rows)),
    ]
    show_rows(rows, columns, json=json, empty="no contexts; create one with `meshbus ctx add NAME --admin SOCKET`")


@app.command
def show(
    name: Annotated[str | None, Parameter(help="Name of the context; default: the current one.")] = None,
    /,
    *,
    json: Json = False,
) -> None:
    """Show what a context holds."""
    from meshbus.cli.contexts import Contexts
    from meshbus.errors import ConfigError

    contexts = Contexts.read()
    chosen = name or contexts.current
    if chosen is None:
        raise ConfigError("context", "no context is in use; name one, or choose one with `meshbus ctx use NAME`")
    show_facts({"context": chosen, **contexts.get(chosen)}, json=json)


@app.command
def rm(name: Name, /) -> None:
    """Delete a context."""
    from meshbus.cli.contexts import Contexts

    contexts = Contexts.read()
    contexts.get(name)
    del contexts.tables[name]
    if contexts.current == name:
        contexts.current = None
        note(f"context {name} deleted; it was the current one, choose another with `meshbus ctx use NAME`")
    else:
        note(f"context {name} deleted")
    contexts.write()


@app.command
def off() -> None:
    """Use no context by default."""
    from meshbus.cli.contexts import Contexts

    contexts = Contexts.read()
    contexts.current = None
    contexts.write()
    note("no context is in use")
