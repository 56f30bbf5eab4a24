"""Write the gold tables as one HTML page with tables and charts, readable without a network and without Spark.

Reads the files of gold tables with pyarrow. Each table says how it is drawn (`Section` in spark/lake/goldtable.py); this
module reads the rows and writes the page around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from meshbus.spark.lake import charts
from meshbus.spark.lake.tablestore import Store

NODES = "gold.nodes"
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.5em} h2{font-size:1.15em;margin-top:2em} table{border-collapse:collapse;font-size:.87em}
th,td{padding:.2em .7em;text-align:left;border-bottom:1px solid #e4e4e4} td.n{text-align:right;font-variant-numeric:tabular-nums}
p.note{color:#666} svg text{font:11px system-ui,sans-serif;fill:#444}
@media (prefers-color-scheme:dark){body{color:#ddd;background:#181818}th,td{border-color:#333}svg text{fill:#bbb}}
"""


def rows_of(store: Store, name: str) -> list[dict[str, Any]]:
    """Return all rows of a gold table."""
    return store.rows(name)


def names_of(nodes: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Return the names of nodes by node id and by origin hash, from the rows of gold.nodes."""
    return {
        row[key]: row["name"] for row in nodes if row["name"] for key in ("node_id", "origin") if row[key] is not None
    }


def _named(row: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    """Return a row with the names of the nodes whose ids it has; gold.nodes has a column for them."""
    return {
        key: charts.NamedId.of(value, names[value])
        if key in charts.IDS and value in names and "name" not in row
        else value
        for key, value in row.items()
    }


def write_report(store: Store) -> str:
    """Return the report as HTML: a summary, then one section for each gold table."""
    facts: dict[str, int] = {}
    sections = []
    names = names_of(rows_of(store, NODES)) if NODES in store.catalog else {}
    for name, table in store.catalog.gold.items():
        rows = [_named(row, names) for row in rows_of(store, name)]
        facts |= table.section.facts(rows)
        content = table.section.draw(rows) if rows else charts.note(table.section.empty)
        sections.append(f"<h2>{escape(table.section.title)}</h2>{content}")
    cells = "".join(f"<tr><th>{escape(name)}</th><td class=n>{value:,}</td></tr>" for name, value in facts.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>meshbus report</title>'
        f"<style>{_STYLE}</style></head><body><h1>meshbus report</h1><table>{cells}</table>{''.join(sections)}"
        "</body></html>\n"
    )
