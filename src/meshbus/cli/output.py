"""Output of commands: tables on a terminal, otherwise one JSON object per line.

Only results go to standard output; notes and progress go to standard error, so a pipe carries only results. Rich draws
the tables, respects the terminal width, and is imported only when needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Parameter

if TYPE_CHECKING:
    from rich.console import RenderableType

Row: TypeAlias = Mapping[str, object]

Json: TypeAlias = Annotated[
    bool, Parameter("--json", help="Print one JSON object per line, also on a terminal.", show_default=False)
]
"""The --json option of every command that prints results."""


def for_people(json: bool) -> bool:
    """Return whether to format results for people: standard output is a terminal, and --json was not given."""
    return not json and is_terminal()


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def show_rows(rows: Sequence[Row], columns: Sequence[str], *, json: bool, empty: str) -> None:
    """Print rows as a table, or as one JSON object per line. On a terminal, print `empty` if there are none."""
    if not for_people(json):
        for row in rows:
            show_line(row)
    elif rows:
        show_table(rows, columns)
    else:
        note(empty)


def show_table(rows: Iterable[Row], columns: Sequence[str]) -> None:
    """Print a table, also if standard output is not a terminal."""
    _draw(columns, ([_text(row.get(column)) for column in columns] for row in rows), header=True)


def show_facts(facts: Row, *, json: bool) -> None:
    """Print the properties of one thing, one per line, or as one JSON object."""
    if for_people(json):
        _draw(("", ""), ([name.replace("_", " "), _text(value)] for name, value in facts.items()), header=False)
    else:
        show_line(facts)


def show_line(row: Row) -> None:
    """Print one JSON object on one line, and flush."""
    import json

    print(json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=str), flush=True)


def note(text: str) -> None:
    """Print a line to standard error, with `meshbus: ` before it."""
    print(f"meshbus: {printable(text)}", file=sys.stderr, flush=True)


def show_text(text: str) -> None:
    """Print one line of text, and flush."""
    print(printable(text), flush=True)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 log`, `2 logs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """Escape unprintable characters: names and payloads come from other machines and could control the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def table_of(rows: Iterable[Row], columns: Sequence[str], *, title: str) -> RenderableType:
    """Return rows as a table with a title, for a view that consists of several."""
    return _table(columns, ([_text(row.get(column)) for column in columns] for row in rows), header=True, title=title)


def _draw(columns: Sequence[str], lines: Iterable[Sequence[str]], *, header: bool) -> None:
    from rich.console import Console

    # With NO_COLOR, bold and dim are left out too, as in the demo.
    Console(color_system=None if os.environ.get("NO_COLOR") else "auto").print(_table(columns, lines, header=header))


def _table(
    columns: Sequence[str], lines: Iterable[Sequence[str]], *, header: bool, title: str | None = None
) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=header, header_style="bold", pad_edge=False, title=title, title_justify="left")
    for index, column in enumerate(columns):
        # Ids and keys must stay complete for copying, so they wrap rather than being cut off.
        table.add_column(column.replace("_", " "), overflow="fold", style="dim" if not header and index == 0 else "")
    for line in lines:
        table.add_row(*map(Text, line))
    return table


def _text(value: object) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(map(_text, value)) or "–"
        case dict():
            return ", ".join(f"{key}={_text(item)}" for key, item in value.items()) or "–"
        case _:
            return printable(str(value))
