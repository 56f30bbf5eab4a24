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
_READABLE = 40
"""Width of a cell of a heat map that has room for numbers."""
_LINE = 14
"""Height of a line of text in a cell."""
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_WIDTH, _HEIGHT = 860, 220
_GOOD, _BAD = (51, 102, 170), (204, 85, 68)
"""Colors of cells from which nothing and everything was dropped."""
_COLORS = ("#3366aa", "#cc5544", "#339966", "#aa7711", "#8855aa", "#2299aa", "#bb4488", "#667733")
IDS = {"origin", "recorder", "peer", "node_id", "session_id", "source", "target"}
"""Columns with 64-bit ids, shown in hexadecimal as in `meshbus peers`."""


class NamedId(int):
    """An id of a node whose name is known; counts and compares as the number."""

    name: str

    @classmethod
    def of(cls, value: int, name: str) -> NamedId:
        """Add a name to an id."""
        made = cls(value)
        made.name = name
        return made


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


def heat_map(passed: Mapping[tuple[str, str], int], dropped: Mapping[tuple[str, str], int] | None, unit: str) -> str:
    """Return a matrix of (row, column) pairs with what passed in each cell and, below it, what was dropped.

    The color goes from blue (all passed) to red (all dropped); the shade shows how much there was. Both mappings have
    the same keys and count the same `unit`; `dropped` is None if nothing is known about drops.
    """
    lost = dict.fromkeys(passed, 0) if dropped is None else dropped
    sources, dests = (sorted({pair[side] for pair in passed})[:_CELLS] for side in (0, 1))
    top = max([*(passed[pair] + lost[pair] for pair in passed), 1])
    size = max(14, min(64, (_WIDTH - 120) // len(dests)))
    parts = []
    for y, source in enumerate(sources):
        parts.append(f'<text x="110" y="{34 + y * size + size / 2:.0f}" text-anchor="end">{escape(source)}</text>')
        for x, dest in enumerate(dests):
            good, bad = passed.get((source, dest), 0), lost.get((source, dest), 0)
            said = f"{good:,} {unit} passed" + ("" if dropped is None else f", {bad:,} dropped")
            left, upper = 120 + x * size, 30 + y * size
            parts.append(
                f'<rect x="{left}" y="{upper}" width="{size - 1}" height="{size - 1}" fill="{_shade(good, bad, top)}"'
                f' stroke="#9995"><title>{escape(source)} → {escape(dest)}: {escape(said)}</title></rect>'
            )
            if size >= _READABLE and good + bad:
                lines = [good] if dropped is None else [good, bad]
                for line, count in enumerate(lines):
                    place = upper + size / 2 + (line + 0.8 - len(lines) / 2) * _LINE
                    parts.append(
                        f'<text x="{left + size / 2:.0f}" y="{place:.0f}" text-anchor="middle">{_short(count)}</text>'
                    )
    for x, dest in enumerate(dests):
        parts.append(f'<text x="{120 + x * size}" y="22">{escape(dest)}</text>')
    return _svg(40 + size * len(sources), "".join(parts))


def _shade(good: int, bad: int, top: int) -> str:
    """Return the color of a cell: its hue from the share that was dropped, its strength from the amount."""
    if not good + bad:
        return "none"
    share = bad / (good + bad)
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(_GOOD, _BAD, strict=True))
    # Logarithmic: traffic between subnets differs by orders of magnitude. Never invisible.
    return f"rgba({red},{green},{blue},{0.15 + 0.65 * math.log1p(good + bad) / math.log1p(top):.2f})"


def _short(count: int) -> str:
    """Return a count in at most five characters."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)


def subnet_label(stored: int | None) -> str:
    """Return the text form of a subnet as tables store it."""
    return "unknown" if stored is None else str(SubnetId(stored & 0xFFFFFFFF))


def _cell(name: str, value: Any) -> str:
    match value:
        case None:
            return "<td>–</td>"
        case bytes():
            return f"<td>{value.hex()}</td>"
        case NamedId():
            return f"<td>{escape(value.name)} <small>{value & _MASK:016x}</small></td>"
        case int() if name in IDS:
            return f"<td>{value & _MASK:016x}</td>"
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
