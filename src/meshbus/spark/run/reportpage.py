"""The page of the report: style, summary, figures with their library, and tables that can be sorted.

One file: the library that draws the figures is in it, and a content security policy keeps a browser from asking any other
host. Every text is escaped: names of channels and nodes come from other machines. Without scripts, and in print, the tables
still have the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from typing import Any

import msgspec

from meshbus.spark.lake.charts import WIDTH, Chart
from meshbus.spark.lake.goldtable import Drawn, Rows
from meshbus.spark.lake.named import IDS, UNKNOWN, NamedId, hex_of

_ROWS = 200
"""Rows that a table shows; the rest is in the tables."""
_ID_COLUMNS = IDS | {"publisher", "receiver", "dropped_by", "replica"}
_NONE_IS_GOOD = {"failure", "problem"}
"""Columns that say what went wrong; everywhere else, null means unknown."""
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"
"""Scripts and styles of this file only. Vega compiles the expressions of a figure, which counts as eval."""

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2126;--soft:#5c6670;--line:#dfe3e8;--paper:#fff;--card:#f6f8fa}
@media (prefers-color-scheme:dark){:root{--ink:#dfe3e8;--soft:#9aa5b1;--line:#343b44;--paper:#14181d;--card:#1c2229}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:var(--ink);background:var(--paper)}
h1{font-size:1.6em;margin-bottom:.1em} h2{font-size:1.15em;margin:0 0 .2em} section{margin-top:2.6em}
p.soft{color:var(--soft);font-size:.9em;margin:.2em 0 .8em;text-align:left}
dl.facts{display:flex;flex-wrap:wrap;gap:.7em;margin:1.2em 0} dl.facts div{background:var(--card);padding:.5em .9em;border-radius:6px}
dl.facts dt{color:var(--soft);font-size:.82em} dl.facts dd{margin:0;font-size:1.25em;font-variant-numeric:tabular-nums}
nav ol{columns:2;padding-left:1.4em} a{color:inherit}
figure{margin:.8em 0;overflow-x:auto} figure .chart{width:100%} figure svg{max-width:100%;height:auto}
caption{position:absolute;clip-path:inset(50%);white-space:nowrap}
.scroll{overflow:auto;max-height:26em} table{border-collapse:collapse;font-size:.86em}
th,td{padding:.25em .8em;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap}
td.n{text-align:right;font-variant-numeric:tabular-nums} td.unknown{color:var(--soft)}
thead th{position:sticky;top:0;background:var(--paper)}
th button{font:inherit;font-weight:600;color:inherit;background:none;border:0;padding:0;cursor:pointer}
th[aria-sort=ascending] button::after{content:" ▲"} th[aria-sort=descending] button::after{content:" ▼"}
@media print{body{max-width:none;margin:0;color:#000;background:#fff} .scroll{max-height:none;overflow:visible}
nav{display:none} section{break-inside:avoid-page} figure,tr{break-inside:avoid} thead th{position:static}}
"""
_SCRIPT = """
(() => {
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
for (const place of document.querySelectorAll("div.chart")) {
  const spec = JSON.parse(document.getElementById(place.dataset.spec).textContent);
  vegaEmbed(place, spec, {renderer: "svg", actions: false, logLevel: 1, tooltip: {theme: dark ? "dark" : "light"}})
    .catch(error => { place.textContent = "This figure could not be drawn: " + error.message; });
}
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
    const falling = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const value = row => row.cells[column].dataset.v ?? "";
    const numbers = [...table.tBodies[0].rows].every(row => value(row) === "" || !isNaN(value(row)));
    const order = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const found = numbers ? x - y : x.localeCompare(y);
      return falling ? -found : found;
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
  }));
}
})();
"""


class Part(msgspec.Struct, frozen=True):
    """One part of the report."""

    question: str
    source: str
    """Where the numbers come from."""
    shown: Drawn


def page(parts: Sequence[Part], facts: Mapping[str, int], made: datetime) -> str:
    """Return the page."""
    specs: list[str] = []
    sections = "".join(_section(number, part, specs) for number, part in enumerate(parts))
    summary = "".join(f"<div><dt>{escape(name)}</dt><dd>{value:,}</dd></div>" for name, value in facts.items())
    questions = "".join(
        f'<li><a href="#q{number}">{escape(part.question)}</a></li>' for number, part in enumerate(parts)
    )
    library = f"<script>{_library()}</script>" if specs else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>meshbus report</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><header><h1>meshbus report</h1>"
        f'<p class="soft">Made {_time(made)}. All times are UTC.</p><dl class="facts">{summary}</dl>'
        f'<nav aria-label="Questions"><ol>{questions}</ol></nav></header><main>{sections}</main>'
        f"{''.join(specs)}{library}<script>{_SCRIPT}</script></body></html>\n"
    )


def _section(number: int, part: Part, specs: list[str]) -> str:
    """Return one part, and add the specifications of its figures to `specs`."""
    content = [f'<section id="q{number}"><h2>{escape(part.question)}</h2><p class="soft">{escape(part.source)}</p>']
    content += [_figure(chart, part.question, specs) for chart in part.shown.charts]
    content += [f"<p>{escape(note)}</p>" for note in part.shown.notes]
    if part.shown.rows:
        content.append(table_of(part.shown.rows, part.question))
    return "".join(content) + "</section>"


def _figure(chart: Chart, question: str, specs: list[str]) -> str:
    spec = chart.to_dict()
    title = spec["title"]
    if title == question:  # the heading has it
        del spec["title"]
    if spec.get("width") == WIDTH:
        spec["width"] = "container"
        spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    name = f"figure{len(specs)}"
    # A `<` could end the element; in JSON it can be written otherwise.
    content = json.dumps(spec).replace("<", "\\u003c")
    specs.append(f'<script type="application/json" id="{name}">{content}</script>')
    return (
        f'<figure><div class="chart" data-spec="{name}" role="img" aria-label="{escape(title)}"></div>'
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


def table_of(rows: Rows, caption: str) -> str:
    """Return the first rows as a table that can be sorted; the names of the columns are those of the first row."""
    names = list(rows[0])
    head = "".join(
        f'<th scope="col"><button type="button">{escape(name.replace("_", " "))}</button></th>' for name in names
    )
    body = "".join("<tr>" + "".join(_cell(name, row[name]) for name in names) + "</tr>" for row in rows[:_ROWS])
    more = f'<p class="soft">{len(rows) - _ROWS:,} more rows are in the table.</p>' if len(rows) > _ROWS else ""
    return (
        f'<div class="scroll" tabindex="0"><table class="sortable"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


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
            return _text(str(value))
        case int():
            return f'<td class="n" data-v="{value}">{value:,}</td>'
        case float():
            return f'<td class="n" data-v="{value!r}">{value:,.1f}</td>'
        case datetime():
            return f'<td data-v="{value.isoformat()}">{_time(value)}</td>'
        case _:
            return _text(str(value))


def _text(text: str) -> str:
    return f'<td data-v="{escape(text)}">{escape(text)}</td>'


def _time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
