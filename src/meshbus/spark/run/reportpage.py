"""The page of the report: summary, figures with their library, and tables that can be sorted.

One file: its style and script (static/) and the library that draws the figures are in it, and a content security policy keeps
a browser from asking any other host. Every text is escaped: names of channels and nodes come from other machines. Without
scripts, and in print, the tables still have the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from meshbus.spark.lake.charts import WIDTH, Chart
from meshbus.spark.lake.goldtable import Drawn, Rows
from meshbus.spark.lake.named import IDS, UNKNOWN, NamedId, hex_of
from meshbus.spark.run.readable import heading, number

_ROWS = 200
"""Rows that a table shows; the rest is in the tables."""
_ID_COLUMNS = IDS | {"publisher", "receiver", "dropped_by", "replica"}
_NONE_IS_GOOD = {"failure", "problem"}
"""Columns that say what went wrong; everywhere else, null means unknown."""
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"
"""Scripts and styles of this file only. Vega compiles the expressions of a figure, which counts as eval."""


class Part(msgspec.Struct, frozen=True):
    """One part of the report."""

    question: str
    source: str
    """Where the numbers come from."""
    shown: Drawn


class Summary(msgspec.Struct, frozen=True):
    """What stands at the top of the report."""

    made: datetime
    facts: Mapping[str, int]
    """Numbers by label; a label says its unit as a column does (spark/run/readable.py)."""
    period: tuple[datetime, datetime] | None = None
    """First and last time of the events; None if there are none."""


def page(parts: Sequence[Part], summary: Summary) -> str:
    """Return the page."""
    specs: list[str] = []
    sections = "".join(_section(place, part, specs) for place, part in enumerate(parts))
    questions = "".join(f'<li><a href="#q{place}">{escape(part.question)}</a></li>' for place, part in enumerate(parts))
    library = f"<script>{_library()}</script>" if specs else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>meshbus report</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_static('report.css')}</style></head><body>{_header(summary, questions)}<main>{sections}</main>"
        f"{''.join(specs)}{library}<script>{_static('report.js')}</script></body></html>\n"
    )


def _header(summary: Summary, questions: str) -> str:
    period = ""
    if summary.period is not None:
        first, last = map(_time, summary.period)
        period = f"Events from {first} to {last}. "
    facts = "".join(
        f"<div><dt>{escape(heading(name))}</dt><dd>{number(name, value)}</dd></div>"
        for name, value in summary.facts.items()
    )
    return (
        f'<header><h1>meshbus report</h1><p class="soft">{period}Made {_time(summary.made)}. All times are UTC.</p>'
        f'<dl class="facts">{facts}</dl><nav aria-label="Questions"><ol>{questions}</ol></nav></header>'
    )


def _section(place: int, part: Part, specs: list[str]) -> str:
    """Return one part, and add the specifications of its figures to `specs`."""
    content = [f'<section id="q{place}"><h2>{escape(part.question)}</h2><p class="soft">{escape(part.source)}</p>']
    content += [_figure(chart, part.question, specs) for chart in part.shown.charts]
    content += [f"<p>{escape(note)}</p>" for note in part.shown.notes]
    if part.shown.words:
        words = "".join(
            f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in part.shown.words.items()
        )
        content.append(f'<dl class="words">{words}</dl>')
    if part.shown.rows:
        content.append(table_of(part.shown.rows, part.question))
    return "".join(content) + "</section>"


def _figure(chart: Chart, question: str, specs: list[str]) -> str:
    spec = chart.to_dict()
    title = escape(spec["title"])
    if spec["title"] == question:  # the heading has it
        del spec["title"]
    # A chart without the usual width has one of its own, such as a matrix: a cell needs the room of its numbers.
    fits = spec.get("width") == WIDTH
    if fits:
        spec["width"] = "container"
        spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    name = f"figure{len(specs)}"
    # A `<` could end the element; in JSON it can be written otherwise.
    content = json.dumps(spec).replace("<", "\\u003c")
    specs.append(f'<script type="application/json" id="{name}">{content}</script>')
    return (
        f'<figure tabindex="0" aria-label="{title}">'
        f'<div class="chart{"" if fits else " fixed"}" data-spec="{name}"></div>'
        "<noscript><p>This figure needs JavaScript; the table below has the numbers.</p></noscript></figure>"
    )


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script that defines `vegaEmbed`."""
    import altair as alt
    import vl_convert

    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    bundle: Any = vl_convert.javascript_bundle  # its stub knows only calls with a snippet of one's own
    script: str = bundle(vl_version=version)
    return script.replace("</script", "<\\/script")


def _static(name: str) -> str:
    return (files("meshbus.spark.run") / "static" / name).read_text("utf-8")


def table_of(rows: Rows, caption: str) -> str:
    """Return the first rows as a table that can be sorted; the names of the columns are those of the first row."""
    names = list(rows[0])
    head = "".join(_head(name, rows) for name in names)
    body = "".join("<tr>" + "".join(_cell(name, row[name]) for name in names) + "</tr>" for row in rows[:_ROWS])
    more = f'<p class="soft">{len(rows) - _ROWS:,} more rows are in the table.</p>' if len(rows) > _ROWS else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table: {escape(caption)}">'
        f'<table class="sortable"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


def _head(name: str, rows: Rows) -> str:
    counts = name not in _ID_COLUMNS and any(_is_number(row[name]) for row in rows[:_ROWS])
    align = ' class="n"' if counts else ""
    return f'<th scope="col"{align}><button type="button">{escape(heading(name))}</button></th>'


def _cell(name: str, value: Any) -> str:
    match value:
        case None:
            return "<td></td>" if name in _NONE_IS_GOOD else f'<td class="unknown">{UNKNOWN}</td>'
        case bytes():
            return _text(value.hex())
        case NamedId():
            return f'<td title="{hex_of(value)}" data-v="{escape(value.name)}">{escape(value.name)}</td>'
        case int() if name in _ID_COLUMNS:
            return _text(hex_of(value))
        case bool():
            return _text("yes" if value else "no")
        case int() | float():
            return f'<td class="n" data-v="{value!r}">{number(name, value)}</td>'
        case datetime():
            return f'<td data-v="{value.isoformat()}">{_time(value)}</td>'
        case str() if name == "hour":
            return f'<td data-v="{escape(value)}">{escape(value.replace("T", " "))}:00</td>'
        case _:
            return _text(str(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool | NamedId)


def _text(text: str) -> str:
    return f'<td data-v="{escape(text)}">{escape(text)}</td>'


def _time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
