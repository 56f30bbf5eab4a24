"""A report of the gold tables as one HTML file: tables and plots, inline, readable without a network and without Spark.

Reads the files of gold with pyarrow. Everything that comes from tables is escaped: names come from other machines.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from meshbus.names.subnet import SubnetId
from meshbus.spark.lake.tableschema import TABLES, Layer
from meshbus.spark.lake.tablestore import Store

_ROWS = 25
_LINES = 8
_CELLS = 40
_WIDTH, _HEIGHT = 860, 220
_COLORS = ("#3366aa", "#cc5544", "#339966", "#aa7711", "#8855aa", "#2299aa", "#bb4488", "#667733")
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.5em} h2{font-size:1.15em;margin-top:2em} table{border-collapse:collapse;font-size:.87em}
th,td{padding:.2em .7em;text-align:left;border-bottom:1px solid #e4e4e4} td.n{text-align:right;font-variant-numeric:tabular-nums}
p.note{color:#666} svg text{font:11px system-ui,sans-serif;fill:#444}
@media (prefers-color-scheme:dark){body{color:#ddd;background:#181818}th,td{border-color:#333}svg text{fill:#bbb}}
"""


def rows_of(store: Store, name: str) -> list[dict[str, Any]]:
    """Give all rows of a gold table."""
    import pyarrow.parquet as pq

    return [row for path in store.gold_files(name).values() for row in pq.ParquetFile(path).read().to_pylist()]


def write_report(store: Store) -> str:
    """Give the report as HTML."""
    tables = {name: rows_of(store, name) for name, spec in TABLES.items() if spec.layer is Layer.GOLD}
    parts = [
        _summary(tables),
        _section("Events a minute", _rates(tables["gold.channel_stats"])),
        _section("Traffic between subnets", _matrix(tables["gold.traffic_matrix"])),
        _section("Gaps", _gaps(tables["gold.gaps"])),
        _section("Denials", _denials(tables["gold.denials"])),
        _section("Top talkers", _talkers(tables["gold.top_talkers"])),
        _section("Replication lag", _table(tables["gold.replication_lag"], "no log with replicas was read")),
        _section("Fan-out", _table(tables["gold.fan_out"], "nothing was published")),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>meshbus report</title>'
        f"<style>{_STYLE}</style></head><body><h1>meshbus report</h1>{''.join(parts)}</body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>{content}"


def _summary(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    stats = tables["gold.channel_stats"]
    missing = sum(row["missing"] for row in tables["gold.gaps"] if row["kind"] == "publisher")
    facts = {
        "events": sum(row["events"] for row in stats),
        "bytes": sum(row["bytes"] for row in stats),
        "channels": len({row["channel"] for row in stats}),
        "hours": len({row["hour"] for row in stats}),
        "events missing": missing,
        "packets denied": sum(row["packets"] for row in tables["gold.denials"]),
    }
    cells = "".join(f"<tr><th>{name}</th><td class=n>{value:,}</td></tr>" for name, value in facts.items())
    return f"<table>{cells}</table>"


def _rates(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return _note("nothing was read")
    totals: dict[str, int] = defaultdict(int)
    for row in rows:
        totals[row["channel"]] += row["events"]
    shown = sorted(totals, key=lambda channel: (-totals[channel], channel))[:_LINES]
    times = [row["window_start"].timestamp() for row in rows]
    first, last = min(times), max(times)
    top = max(row["events"] for row in rows if row["channel"] in shown)
    lines = []
    for channel, color in zip(shown, _COLORS, strict=False):
        points = sorted((row["window_start"].timestamp(), row["events"]) for row in rows if row["channel"] == channel)
        path = " ".join(
            f"{_scale(at, first, last, 50, _WIDTH - 10):.1f},{_scale(count, 0, top, _HEIGHT - 25, 10):.1f}"
            for at, count in points
        )
        mark = points[-1]
        x, y = _scale(mark[0], first, last, 50, _WIDTH - 10), _scale(mark[1], 0, top, _HEIGHT - 25, 10)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        lines.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"><title>{escape(channel)}</title></circle>'
        )
    began = min(row["window_start"] for row in rows)
    ended = max(row["window_start"] for row in rows)
    axis = (
        f'<text x="0" y="16">{top:,}</text><text x="0" y="{_HEIGHT - 22}">0</text>'
        f'<text x="50" y="{_HEIGHT - 4}">{began:%Y-%m-%d %H:%M}</text>'
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 4}" text-anchor="end">{ended:%Y-%m-%d %H:%M} UTC</text>'
    )
    legend = " ".join(
        f'<span style="color:{color}">■</span> {escape(channel)} ({totals[channel]:,})'
        for channel, color in zip(shown, _COLORS, strict=False)
    )
    more = f" and {len(totals) - len(shown)} more channels" if len(totals) > len(shown) else ""
    return f"{_svg(_HEIGHT, axis + ''.join(lines))}<p>{legend}{more}</p>"


def _matrix(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return _note("no traffic was read")
    cells: dict[tuple[str, str], int] = defaultdict(int)
    dropped: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        pair = _subnet(row["src"]), _subnet(row["dst"])
        cells[pair] += row["events"] + row["forwarded"]
        dropped[pair] += row["dropped"]
    sources, dests = (sorted({pair[side] for pair in cells})[:_CELLS] for side in (0, 1))
    top = max([*cells.values(), 1])
    size = max(14, min(48, (_WIDTH - 120) // len(dests)))
    parts = []
    for y, source in enumerate(sources):
        parts.append(f'<text x="110" y="{34 + y * size + size / 2:.0f}" text-anchor="end">{escape(source)}</text>')
        for x, dest in enumerate(dests):
            count, lost = cells.get((source, dest), 0), dropped.get((source, dest), 0)
            shade = math.log1p(count) / math.log1p(top)
            fill = f"rgba(51,102,170,{shade:.2f})" if count else ("rgba(204,85,68,.5)" if lost else "none")
            parts.append(
                f'<rect x="{120 + x * size}" y="{30 + y * size}" width="{size - 1}" height="{size - 1}" fill="{fill}"'
                f' stroke="#9995"><title>{escape(source)} → {escape(dest)}: {count:,} passed, {lost:,} dropped</title></rect>'
            )
    for x, dest in enumerate(dests):
        parts.append(f'<text x="{120 + x * size}" y="22">{escape(dest)}</text>')
    caption = _note("rows are sources, columns destinations; blue is what passed, red where everything was dropped")
    return _svg(40 + size * len(sources), "".join(parts)) + caption


def _gaps(rows: Sequence[Mapping[str, Any]]) -> str:
    wrong = [row for row in rows if row["missing"] or row["duplicates"] or row["reordered"]]
    if not wrong:
        return _note(f"none: {len(rows)} logs and publishers are complete and in order" if rows else "nothing was read")
    wrong.sort(key=lambda row: (-row["missing"], -row["duplicates"], row["channel"]))
    return _bars(
        [(f"{row['channel']} ({row['kind']})", row["missing"]) for row in wrong[:_LINES] if row["missing"]]
    ) + _table(wrong, "")


def _denials(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return _note("none was recorded")
    reasons: dict[str, int] = defaultdict(int)
    for row in rows:
        reasons[row["reason"]] += row["packets"]
    ranked = sorted(rows, key=lambda row: -row["packets"])
    return _bars(sorted(reasons.items(), key=lambda item: -item[1])) + _table(ranked, "")


def _talkers(rows: Sequence[Mapping[str, Any]]) -> str:
    sums: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        sums[row["origin"]][0] += row["events"]
        sums[row["origin"]][1] += row["bytes"]
    ranked = sorted(sums.items(), key=lambda item: -item[1][1])
    return _table(
        [{"origin": origin, "events": events, "bytes": size} for origin, (events, size) in ranked], "nobody published"
    )


def _bars(items: Iterable[tuple[str, int]]) -> str:
    chosen = list(items)[:_LINES]
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


def _table(rows: Sequence[Mapping[str, Any]], empty: str) -> str:
    if not rows:
        return _note(empty)
    names = list(rows[0])
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in names)
    body = "".join("<tr>" + "".join(_cell(name, row[name]) for name in names) + "</tr>" for row in rows[:_ROWS])
    more = _note(f"and {len(rows) - _ROWS:,} more rows in the table") if len(rows) > _ROWS else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"


_IDS = {"origin", "recorder", "peer"}


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


def _subnet(stored: int | None) -> str:
    return "unknown" if stored is None else str(SubnetId(stored & 0xFFFFFFFF))


def _svg(height: float, content: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" width="100%" role="img">{content}</svg>'


def _scale(value: float, low: float, high: float, start: float, stop: float) -> float:
    return start + (stop - start) * ((value - low) / (high - low) if high > low else 0.5)


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'
