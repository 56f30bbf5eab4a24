"""The reference part of docs/guide/tables.md, rendered from the catalog.

    python -m meshbus.spark.lake.guide docs/guide/tables.md

rewrites the page from the heading `## Bronze` on; the text above it is written by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

from meshbus.spark.lake.catalog import CATALOG, Catalog
from meshbus.spark.lake.tableschema import Layer

FIRST_HEADING = "## Bronze\n"


def render_table(catalog: Catalog, name: str) -> str:
    """Return the section of one table, in Markdown."""
    spec = catalog.spec(name)
    lines = [f"### {name}", "", spec.table.doc]
    gold = catalog.gold.get(name)
    if gold is not None:
        lines += ["", f"Computed from {' and '.join(f'`{source}`' for source in gold.sources)}."]
    lines += ["", "| column | type | null | meaning |", "|---|---|---|---|"]
    for column in spec:
        kind = f"{column.type.value}, bit-cast" if column.bit_cast else column.type.value
        lines.append(f"| `{column.name}` | {kind} | {'yes' if column.nullable else ''} | {column.doc} |")
    if gold is not None:
        lines += ["", gold.question, "", "```sql", gold.query, "```"]
    return "\n".join(lines) + "\n"


def render_tables(catalog: Catalog) -> str:
    """Return the sections of all tables, layer by layer, in Markdown."""
    parts = []
    for layer in Layer:
        parts.append(f"## {layer.value.capitalize()}\n")
        parts += [render_table(catalog, name) for name, spec in catalog.items() if spec.layer is layer]
    return "\n".join(parts)


def update(page: str, catalog: Catalog) -> str:
    """Return the text of a page with its reference part replaced."""
    return page.partition(FIRST_HEADING)[0] + render_tables(catalog)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(update(path.read_text("utf-8"), CATALOG), "utf-8")
