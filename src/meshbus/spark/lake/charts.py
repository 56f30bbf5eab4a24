"""HTML tables and inline SVG charts for the report, readable without a network.

Every function escapes the text it is given: channel names come from other machines. Nothing here knows what the numbers
mean; the gold tables choose a chart (spark/lake/gold/), and spark/run/report.py writes the page around them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from meshbus.names.subnet import SubnetId

_ROWS = 25
"""Rows that a table shows: about one screen."""
_SERIES = 8
"""Lines or bars in a chart: as many as there are distinguishable colors."""
_CELLS = 40
"""Rows and columns of a heat map: more would be narrower than their labels."""
_WIDTH, _HEIGHT = 860, 220
_COLORS = ("#3366aa", "#cc5544", "#339966", "#aa7711", "#8855aa", "#2299aa", "#bb4488", "#667733")
_IDS = {"origin", "recorder", "peer"}
"""Columns with 64-bit ids, shown in hexadecimal as in `meshbus peers`."""


def note(text: str) -> str:
    """Return a paragraph of secondary text."""
    return f'<p class="note">{escape(text)}</p>'


def table_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the first rows as a table; the names of the columns are those of the first row."""
    names = list(rows[0])
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in names)
    body = "".join("<tr>" + "".join(_cell(name, row[name]) for name in names) + "</tr>" for row in rows[:_ROWS])
    more = note(f"{len(rows) - _ROWS:,} more rows are in the table") if len(rows) > _ROWS else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"


def bars(items: Iterable[tuple[str, int]]) -> str:
    """Return a horizontal bar for each of the first (label, count) pairs; an empty string if there are none."""
    chosen = list(items)[:_SERIES]
    if not chosen:
        return ""
    top = max(count for _, count in chosen)
    parts = []
    for place, (name, count) in enumerate(chosen):
        y, width = 8 + place * 24, max(count / top * (_WIDTH - 380), 1)
        parts.append(f'<text x="240" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="250" y="{y}" width="{width:.1f}" height="17" fill="{_COLORS[1]}"/>')
        parts.append(f'<text x="{256 + width:.1f}" y="{y + 13}">{count:,}</text>')
    return _svg(16 + 24 * len(chosen), "".join(parts))


def lines(series: Mapping[str, Sequence[tuple[datetime, int]]], unit: str) -> str:
    """Return a line over time for each of the series with the largest sums; `unit` names what a series is."""
    totals = {name: sum(count for _, count in points) for name, points in series.items()}
    shown = sorted(totals, key=lambda name: (-totals[name], name))[:_SERIES]
    times = [at for points in series.values() for at, _ in points]
    began, ended = min(times), max(times)
    top = max(count for name in shown for _, count in series[name])

    def place(at: datetime, count: int) -> tuple[float, float]:
        return (
            _scale(at.timestamp(), began.timestamp(), ended.timestamp(), 50, _WIDTH - 10),
            _scale(count, 0, top, _HEIGHT - 25, 10),
        )

    parts = [
        f'<text x="0" y="16">{top:,}</text>',
        f'<text x="0" y="{_HEIGHT - 22}">0</text>',
        f'<text x="50" y="{_HEIGHT - 4}">{began:%Y-%m-%d %H:%M}</text>',
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 4}" text-anchor="end">{ended:%Y-%m-%d %H:%M} UTC</text>',
    ]
    for name, color in zip(shown, _COLORS, strict=False):
        places = [place(*point) for point in sorted(series[name])]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        x, y = places[-1]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"><title>{escape(name)}</title></circle>')
    legend = " ".join(
        f'<span style="color:{color}">■</span> {escape(name)} ({totals[name]:,})'
        for name, color in zip(shown, _COLORS, strict=False)
    )
    more = f" and {len(totals) - len(shown)} more {escape(unit)}" if len(totals) > len(shown) else ""
    return f"{_svg(_HEIGHT, ''.join(parts))}<p>{legend}{more}</p>"


def heat_map(passed: Mapping[tuple[str, str], int], dropped: Mapping[tuple[str, str], int]) -> str:
    """Return a matrix of (row, column) pairs: shaded by what passed, red where everything was dropped.

    Both mappings have the same keys.
    """
    sources, dests = (sorted({pair[side] for pair in passed})[:_CELLS] for side in (0, 1))
    top = max([*passed.values(), 1])
    size = max(14, min(48, (_WIDTH - 120) // len(dests)))
    parts = []
    for y, source in enumerate(sources):
        parts.append(f'<text x="110" y="{34 + y * size + size / 2:.0f}" text-anchor="end">{escape(source)}</text>')
        for x, dest in enumerate(dests):
            count, lost = passed.get((source, dest), 0), dropped.get((source, dest), 0)
            # Logarithmic: traffic between subnets differs by orders of magnitude.
            shade = math.log1p(count) / math.log1p(top)
            fill = f"rgba(51,102,170,{shade:.2f})" if count else ("rgba(204,85,68,.5)" if lost else "none")
            parts.append(
                f'<rect x="{120 + x * size}" y="{30 + y * size}" width="{size - 1}" height="{size - 1}" fill="{fill}"'
                f' stroke="#9995"><title>{escape(source)} → {escape(dest)}: {count:,} passed, {lost:,} dropped</title></rect>'
            )
    for x, dest in enumerate(dests):
        parts.append(f'<text x="{120 + x * size}" y="22">{escape(dest)}</text>')
    return _svg(40 + size * len(sources), "".join(parts))


def subnet_label(stored: int | None) -> str:
    """Return the text form of a subnet as tables store it."""
    return "unknown" if stored is None else str(SubnetId(stored & 0xFFFFFFFF))


def _cell(name: str, value: Any) -> str:
    match value:
        case None:
            return "<td>–</td>"
        case bytes():
            return f"<td>{value.hex()}</td>"
        case int() if name in _IDS:
            return f"<td>{value & 0xFFFF_FFFF_FFFF_FFFF:016x}</td>"
        case int():
            return f"<td class=n>{value:,}</td>"
        case float():
            return f"<td class=n>{value:,.1f}</td>"
        case _:
            return f"<td>{escape(str(value))}</td>"


def _svg(height: float, content: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" width="100%" role="img">{content}</svg>'


def _scale(value: float, low: float, high: float, start: float, stop: float) -> float:
    return start + (stop - start) * ((value - low) / (high - low) if high > low else 0.5)
