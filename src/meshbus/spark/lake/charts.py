"""Figures of the report and of notebooks, as Altair objects (docs/decisions/0067).

Nothing here knows what the numbers mean; the gold tables choose a chart (spark/lake/gold/), spark/run/figures.py returns it
to notebooks and spark/run/report.py writes it into a page. Every chart has the question that it answers as its title. Names
of channels and nodes come from other machines: they are data of a chart and never markup.

Text is drawn in `currentColor`, so that a figure can be read on a light and on a dark page, and on paper.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final, TypeAlias

import msgspec

Chart: TypeAlias = Any
"""An Altair chart; Altair is imported when one is drawn."""

WIDTH: Final = 760
"""Width of a figure in a notebook; a report has it as wide as the page."""
SERIES: Final = 8
"""Lines or colors in a chart: as many as can be told apart."""
BARS: Final = 30
"""Rows of a bar chart or timeline: about one screen."""
CELLS: Final = 40
"""Rows and columns of a matrix: more cannot be read."""
STEPS_S: Final = (1, 5, 10, 30, 60, 300, 900, 3600, 6 * 3600, 86400, 7 * 86400)
"""Widths of the time steps of a chart, from seconds to weeks."""
_POINTS: Final = 300
"""Steps in a chart over time: more would be narrower than a few pixels."""
_BAND: Final = 28
"""Height of a row of bars."""
_BEHIND: Final = 1.5
"""Width of a chart with words behind its bars, by the longest bar."""
_INK, _FAINT = "currentColor", "#8888883f"
_FATES: Final = ("passed", "dropped")
GOOD: Final = "#3b74b8"
BAD: Final = "#cf5a47"
"""Colors of what passed and of what was dropped; they differ in brightness too."""
PALETTE: Final = ("#3b74b8", "#c4620a", "#2f8a4e", "#cf4a47", "#8f63c2", "#16858f", "#8a6d3b", "#c9539b")
"""Colors of series: each can be seen on a light and on a dark page."""
_TEXT: Mapping[str, int] = {"labelFontSize": 12, "titleFontSize": 12}
_CONFIG: Mapping[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {"labelColor": _INK, "titleColor": _INK, "gridColor": _FAINT, "domainColor": _FAINT, "tickColor": _FAINT,
             "labelLimit": 260, "titleFontWeight": "normal", **_TEXT},
    "legend": {"labelColor": _INK, "titleColor": _INK, "labelLimit": 260, "titleFontWeight": "normal", "orient": "bottom",
               "columns": 4, **_TEXT},
    "title": {"color": _INK, "anchor": "start", "fontSize": 15},
    "text": {"color": _INK, "fontSize": 12},
    "range": {"category": list(PALETTE)},
}  # fmt: skip


class Count(msgspec.Struct, frozen=True):
    """So many of a series at a time."""

    name: str
    at_s: float
    """Seconds since 1970."""
    count: int


class Span(msgspec.Struct, frozen=True):
    """A stretch of time in a row of a timeline."""

    row: str
    begin: datetime
    end: datetime
    kind: str
    """What it was; has a color of its own."""
    detail: str = ""


class Percentiles(msgspec.Struct, frozen=True):
    """How long something took, in milliseconds; None where it is not known."""

    name: str
    p50: float | None
    p95: float | None
    p99: float | None


class Cell(msgspec.Struct, frozen=True):
    """What passed from one place to another, and what did not."""

    source: str
    dest: str
    passed: int
    dropped: int | None = None
    """None if nothing is known about drops."""


# ── over time ───────────────────────────────────────────────────────────────────────────────


def step_of(span_s: float, finest_s: int) -> int:
    """Return the width of the time steps of a chart of so many seconds, whose data has a resolution of `finest_s`."""
    fit = [step for step in STEPS_S if step >= finest_s and span_s / step <= _POINTS]
    return fit[0] if fit else STEPS_S[-1]


def rates(counts: Iterable[Count], finest_s: int, *, title: str, unit: str, what: str) -> Chart:
    """Return a line of counts per second for each of the largest series; a line stops where there was nothing."""
    found = list(counts)
    times = [one.at_s for one in found]
    step = step_of(max(times) - min(times), finest_s)
    kept = _largest((one.name, one.count) for one in found)
    sums: dict[str, dict[float, int]] = defaultdict(lambda: defaultdict(int))
    for one in found:
        sums[_kept_or_others(one.name, kept)][int(one.at_s // step) * step] += one.count
    rows = []
    for name, series in sums.items():
        rows += _broken({at: count / step for at, count in series.items()}, step, name)
    return _lines(rows, "linear", title=title, unit=f"{unit} per second ({_words(step)} each)", what=what)


def levels(points: Mapping[str, Mapping[float, float]], step_s: int, *, title: str, unit: str, what: str) -> Chart:
    """Return steps over time for each of the series with the highest values; a line stops where nothing is known."""
    kept = _largest((name, round(max(series.values()))) for name, series in points.items())
    rows = [row for name in kept for row in _broken(points[name], step_s, name)]
    return _lines(rows, "step-after", title=title, unit=unit, what=what)


def _broken(series: Mapping[float, float], step: int, name: str) -> list[dict[str, Any]]:
    """Return the points of a series in order, with an unknown value after each that no other follows at once."""
    times = sorted(series)
    rows: list[dict[str, Any]] = []
    for at, following in pairwise([*times, None]):
        assert at is not None
        rows.append(_point(at, name, series[at]))
        if following is not None and following > at + step:
            rows.append(_point(at + step, name, None))
    return rows


def _point(at: float, name: str, value: float | None) -> dict[str, Any]:
    return {"time": round(at * 1000), "at": _utc(datetime.fromtimestamp(at, UTC)), "name": name, "value": value}


def _lines(rows: Sequence[Mapping[str, Any]], shape: str, *, title: str, unit: str, what: str) -> Chart:
    alt = _altair()
    chart = (
        alt.Chart(_data(rows), height=240, width=WIDTH)
        # A single point between silences has no line to either side.
        .mark_line(point={"size": 16}, invalid="break-paths-show-path-domains", interpolate=shape)
        .encode(
            x=_time(alt, "time", (row["time"] for row in rows)),
            y=alt.Y("value:Q", title=unit),
            color=alt.Color("name:N", title=what, legend=alt.Legend(symbolType="stroke", symbolSize=400)),
            # For those who cannot tell the colors apart.
            strokeDash=alt.StrokeDash("name:N", title=what),
            tooltip=[
                _tip(alt, "name", what),
                _tip(alt, "at", "time"),
                alt.Tooltip("value:Q", title=unit, format=",.4~g"),
            ],
        )
    )
    return _styled(chart, title)


def timeline(spans: Iterable[Span], *, title: str, what: str) -> Chart:
    """Return a row for each name with the stretches of time in it; short ones are still visible."""
    alt = _altair()
    spans = list(spans)
    shown = list(dict.fromkeys(span.row for span in spans))[:BARS]
    rows: list[dict[str, Any]] = [
        {"row": span.row, "begin": _ms(span.begin), "end": _ms(span.end), "kind": span.kind, "detail": span.detail,
         "from": _utc(span.begin), "to": _utc(span.end)}
        for span in spans
        if span.row in shown
    ]  # fmt: skip
    base = alt.Chart(_data(rows)).encode(
        x=_time(alt, "begin", (row[side] for row in rows for side in ("begin", "end"))),
        y=alt.Y("row:N", title=None, sort=shown),
        color=alt.Color("kind:N", title=what),
        tooltip=[_tip(alt, name) for name in ("row", "kind", "detail", "from", "to")],
    )
    layers = alt.layer(base.mark_bar(height=12).encode(x2="end:T"), base.mark_tick(thickness=3, height=12))
    return _styled(layers.properties(width=WIDTH, height=_BAND * len(shown)), title)


# ── amounts ─────────────────────────────────────────────────────────────────────────────────


def stacked_bars(parts: Mapping[tuple[str, str], int], *, title: str, unit: str, what: str) -> Chart:
    """Return a bar for each first name of the pairs, longest first, made of a part for each second name."""
    alt = _altair()
    sums: dict[str, int] = defaultdict(int)
    for (name, _), count in parts.items():
        sums[name] += count
    ranked = sorted(sums, key=lambda name: (-sums[name], name))[:BARS]
    kept = _largest((part, count) for (_, part), count in parts.items())
    merged: dict[tuple[str, str], int] = defaultdict(int)
    for (name, part), count in parts.items():
        if name in ranked:
            merged[name, _kept_or_others(part, kept)] += count
    rows = [{"name": name, "part": part, "count": count} for (name, part), count in merged.items()]
    bars = (
        alt.Chart(_data(rows))
        .mark_bar()
        .encode(
            x=alt.X("count:Q", title=unit),
            y=alt.Y("name:N", title=None, sort=ranked),
            color=alt.Color("part:N", title=what),
            tooltip=[_tip(alt, "name"), _tip(alt, "part", what), alt.Tooltip("count:Q", title=unit, format=",")],
        )
    )
    totals = [{"name": name, "count": sums[name], "text": f"{sums[name]:,}"} for name in ranked]
    numbers = (
        alt.Chart(_data(totals))
        .mark_text(align="left", dx=4)
        .encode(x="count:Q", y=alt.Y("name:N", title=None, sort=ranked), text="text:N")
    )
    return _styled(alt.layer(bars, numbers).properties(width=WIDTH, height=_BAND * len(ranked)), title)


def percentiles(found: Iterable[Percentiles], *, title: str, unit: str = "milliseconds") -> Chart:
    """Return a line from the median to the 99th percentile for each name, slowest first; unknown ones have none."""
    alt = _altair()
    known = [one for one in found if one.p50 is not None]
    shown = sorted(known, key=lambda one: (-(one.p99 or 0.0), one.name))[:BARS]
    order = [one.name for one in shown]
    values: list[dict[str, Any]] = [
        {"name": one.name, "percentile": which, "value": value, "text": f"{value:,.3g}"}
        for one in shown
        for which, value in (("p50", one.p50), ("p95", one.p95), ("p99", one.p99))
        if value is not None
    ]
    spans = [{"name": one.name, "low": one.p50, "high": one.p99 or one.p50} for one in shown]
    # Times differ by orders of magnitude; a difference of two clocks may even be negative, which has no logarithm.
    scale = alt.Scale(type="log" if min(row["value"] for row in values) > 0 else "linear", nice=True)
    y = alt.Y("name:N", title=None, sort=order)
    rules = (
        alt.Chart(_data(spans))
        .mark_rule(color=_INK, opacity=0.5)
        .encode(x=alt.X("low:Q", title=unit, scale=scale), x2="high:Q", y=y)
    )
    dots = (
        alt.Chart(_data(values))
        .mark_point(filled=True, size=70, opacity=1)
        .encode(
            x=alt.X("value:Q", title=unit, scale=scale),
            y=y,
            color=alt.Color("percentile:N", title="percentile"),
            shape=alt.Shape("percentile:N", title="percentile"),
            tooltip=[_tip(alt, "name"), _tip(alt, "percentile"), _tip(alt, "text", unit)],
        )
    )
    return _styled(alt.layer(rules, dots).properties(width=WIDTH, height=_BAND * len(order)), title)


def matrix(cells: Iterable[Cell], *, title: str, unit: str) -> Chart:
    """Return a matrix with what passed in each cell and, below it, what was dropped.

    The color goes from blue (all passed) to red (all dropped); the strength shows how much there was.
    """
    alt = _altair()
    found = list(cells)
    sources, dests = (sorted({getattr(cell, side) for cell in found})[:CELLS] for side in ("source", "dest"))
    rows = [_cell(cell, unit) for cell in found if cell.source in sources and cell.dest in dests]
    # Logarithmic: traffic differs by orders of magnitude. Never invisible, and never so strong that the numbers, which are
    # black or white, could not be read on it.
    top = max(10, *(row["amount"] for row in rows))
    strength = alt.Scale(type="log", domain=[1, top], range=[0.15, 0.55], clamp=True)
    base = alt.Chart(_data(rows)).encode(
        x=alt.X("dest:N", title="to", sort=dests, axis=alt.Axis(orient="top", labelAngle=0)),
        y=alt.Y("source:N", title="from", sort=sources),
    )
    squares = base.mark_rect(stroke=_FAINT).encode(
        color=alt.Color(
            "share:Q",
            title="share dropped",
            scale=alt.Scale(domain=[0, 1], range=[GOOD, BAD]),
            legend=None if all(cell.dropped is None for cell in found) else alt.Legend(format="%"),
        ),
        opacity=alt.Opacity("amount:Q", scale=strength, legend=None),
        tooltip=[_tip(alt, "said", "packets or events")],
    )
    numbers = base.mark_text(lineBreak="\n", lineHeight=14, dy=-6 if rows[0]["lines"] > 1 else 0).encode(text="text:N")
    return _styled(alt.layer(squares, numbers).properties(width=alt.Step(92), height=alt.Step(46)), title)


def _cell(cell: Cell, unit: str) -> dict[str, Any]:
    dropped = cell.dropped or 0
    amount = cell.passed + dropped
    lines = (
        [short(cell.passed)] if cell.dropped is None else [f"{short(cell.passed)} passed", f"{short(dropped)} dropped"]
    )
    said = f"{cell.source} → {cell.dest}: {cell.passed:,} {unit} passed"
    return {
        "source": cell.source,
        "dest": cell.dest,
        "amount": max(amount, 1),
        "share": dropped / amount if amount else 0.0,
        "text": "\n".join(lines),
        "lines": len(lines),
        "said": said if cell.dropped is None else f"{said}, {dropped:,} dropped",
    }


def before_after(counts: Mapping[tuple[str, str, str], int], *, title: str, unit: str, order: Sequence[str]) -> Chart:
    """Return two bars for each name: what passed and what was dropped in each of two cases.

    `counts` is by name, case and `passed` or `dropped`; `order` has the two cases.
    """
    alt = _altair()
    sums: dict[str, int] = defaultdict(int)
    for (name, _, _), count in counts.items():
        sums[name] += count
    ranked = sorted(sums, key=lambda name: (-sums[name], name))[:BARS]
    rows = [
        {"name": name, "case": case, "fate": fate, "count": count}
        for (name, case, fate), count in counts.items()
        if name in ranked
    ]
    said = [_case(name, case, counts) for name in ranked for case in order]
    longest = max(row["total"] for row in said)
    places = {
        "y": alt.Y("name:N", title=None, sort=ranked, scale=alt.Scale(paddingInner=0.25)),
        "yOffset": alt.YOffset("case:N", sort=list(order)),
    }
    bars = (
        alt.Chart(_data(rows))
        .mark_bar()
        .encode(
            x=alt.X("count:Q", title=unit, scale=alt.Scale(domain=[0, _BEHIND * longest], nice=False)),
            color=alt.Color("fate:N", title=None, scale=alt.Scale(domain=list(_FATES), range=[GOOD, BAD])),
            tooltip=[
                _tip(alt, "name"),
                _tip(alt, "case", "policy"),
                _tip(alt, "fate"),
                alt.Tooltip("count:Q", title=unit, format=","),
            ],
            **places,
        )
    )
    words = alt.Chart(_data(said)).mark_text(align="left", dx=4).encode(x="total:Q", text="text:N", **places)
    return _styled(alt.layer(bars, words).properties(width=WIDTH, height=2 * _BAND * len(ranked)), title)


def _case(name: str, case: str, counts: Mapping[tuple[str, str, str], int]) -> dict[str, Any]:
    """Return one case in words, and where its bar ends."""
    amounts = {fate: counts.get((name, case, fate), 0) for fate in _FATES}
    words = ", ".join(f"{short(amount)} {fate}" for fate, amount in amounts.items() if amount)
    return {"name": name, "case": case, "total": sum(amounts.values()), "text": f"{case}: {words or 'nothing'}"}


def sentence(text: str, *, title: str) -> Chart:
    """Return a figure that has nothing to draw, and says why."""
    alt = _altair()
    chart = (
        alt.Chart(_data([{"text": text}]), width=WIDTH, height=30).mark_text(align="left", x=0).encode(text="text:N")
    )
    return _styled(chart, title)


# ── parts of charts ─────────────────────────────────────────────────────────────────────────


def short(count: int) -> str:
    """Return a count in at most five characters."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)


def _altair() -> Any:
    import altair as alt

    return alt


def _data(rows: Iterable[Mapping[str, Any]]) -> Any:
    return _altair().InlineData(values=[dict(row) for row in rows])


def _styled(chart: Chart, title: str) -> Chart:
    # The description is what a screen reader says.
    return chart.properties(title=title, description=title).configure(**_CONFIG)


def _time(alt: Any, field: str, times_ms: Iterable[int]) -> Any:
    """Return the axis of time, with labels that fit its span."""
    known = list(times_ms)
    span_s = (max(known) - min(known)) / 1000
    form = (
        "%H:%M:%S"
        if span_s < 900
        else "%H:%M"
        if span_s < 86400
        else "%m-%d %H:%M"
        if span_s < 7 * 86400
        else "%Y-%m-%d"
    )
    axis = alt.Axis(format=form, tickCount=8, tickMinStep=1000, labelOverlap=True, labelSeparation=12)
    return alt.X(f"{field}:T", title="time (UTC)", scale=alt.Scale(type="utc"), axis=axis)


def _tip(alt: Any, field: str, title: str | None = None) -> Any:
    return alt.Tooltip(f"{field}:N", title=title or field)


def _largest(counts: Iterable[tuple[str, int]]) -> list[str]:
    """Return the names with the largest sums; if there are too many for a chart, room is left for the others."""
    sums: dict[str, int] = defaultdict(int)
    for name, count in counts:
        sums[name] += count
    ranked = sorted(sums, key=lambda name: (-sums[name], name))
    return ranked if len(ranked) <= SERIES else ranked[: SERIES - 1]


def _kept_or_others(name: str, kept: Sequence[str]) -> str:
    return name if name in kept else "all others"


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _utc(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _words(seconds: int) -> str:
    """Return a width of a time step as people say it."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
