"""What a command shows: tables for people on a terminal, one JSON object a line for everything else.

Results go to standard output and nothing else does; notes and progress go to standard error, so a pipe carries only
results. Rich honors NO_COLOR and the width of the terminal, and is loaded only when there is a table to draw.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from cyclopts import Parameter

Row: TypeAlias = Mapping[str, object]

Json: TypeAlias = Annotated[
    bool, Parameter("--json", help="One JSON object a line, also on a terminal.", show_default=False)
]
"""The option that every command with results has."""


def for_people(json: bool) -> bool:
    """Say whether results are for eyes: standard output is a terminal, and nobody asked for JSON."""
    return not json and is_terminal()


def is_terminal() -> bool:
    """Say whether standard output is a terminal."""
    return sys.stdout.isatty()


def show_rows(rows: Sequence[Row], columns: Sequence[str], *, json: bool, empty: str) -> None:
    """Show a list of alike things: a table, or a line of JSON each. `empty` is what people read when there is none."""
    if not for_people(json):
        for row in rows:
            show_line(row)
    elif rows:
        show_table(rows, columns)
    else:
        note(empty)


def show_table(rows: Iterable[Row], columns: Sequence[str]) -> None:
    """Draw a table for people, also where standard output is no terminal."""
    _draw(columns, ([_text(row.get(column)) for column in columns] for row in rows), header=True)


def show_facts(facts: Row, *, json: bool) -> None:
    """Show one thing: its properties below each other, or one line of JSON."""
    if for_people(json):
        _draw(("", ""), ([name.replace("_", " "), _text(value)] for name, value in facts.items()), header=False)
    else:
        show_line(facts)


def show_line(row: Row) -> None:
    """Write one JSON object on one line, at once."""
    import json

    print(json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=str), flush=True)


def note(text: str) -> None:
    """Say something beside the results."""
    print(f"meshbus: {printable(text)}", file=sys.stderr, flush=True)


def show_text(text: str) -> None:
    """Write one line for people, at once."""
    print(printable(text), flush=True)


def printable(text: str) -> str:
    """Spell out what would move the cursor or worse: names and payloads come from other machines."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _draw(columns: Sequence[str], lines: Iterable[Sequence[str]], *, header: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table: Any = Table(box=None, show_header=header, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        # Ids and keys are for copying: better on two lines than cut off.
        table.add_column(column.replace("_", " "), overflow="fold", style="dim" if not header and index == 0 else "")
    for line in lines:
        table.add_row(*map(Text, line))
    # NO_COLOR asks for no colors; bold and dim are left out with them, as in the demo.
    Console(color_system=None if os.environ.get("NO_COLOR") else "auto").print(table)


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
