"""Charts show what they are given, bound what they show, and escape every text."""

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

from meshbus.spark.lake import charts

EVIL = "<script>alert(1)</script>\"'&"
START = datetime(2026, 11, 15, 23, 0, tzinfo=UTC)


def test_text_is_escaped_everywhere() -> None:
    drawn = [
        charts.note(EVIL),
        charts.table_of([{EVIL: EVIL}]),
        charts.bars([(EVIL, 1)]),
        charts.lines({EVIL: [(START, 1)]}, EVIL),
        charts.heat_map({(EVIL, EVIL): 1}, {(EVIL, EVIL): 0}, EVIL),
        charts.table_of([{"origin": charts.NamedId.of(5, EVIL)}]),
    ]
    for text in drawn:
        assert "<script" not in text
        assert "&lt;script&gt;" in text


def test_svg_is_well_formed_and_bounded() -> None:
    items = [(f"item {number}", number) for number in range(1, 30)]
    points = [(START + timedelta(minutes=minute), minute) for minute in range(5)]
    series = {f"item {number}": points for number in range(30)}
    cells = {(f"{row:03}", f"{column:03}"): row for row in range(60) for column in range(60)}
    assert len(ET.fromstring(charts.bars(items)).findall("rect")) == 8
    drawn, legend = charts.lines(series, "items").split("<p>")
    assert len(ET.fromstring(drawn).findall("polyline")) == 8
    assert "and 22 more items" in legend
    assert len(ET.fromstring(charts.heat_map(cells, cells, "packets")).findall("rect")) == 40 * 40


def test_a_single_point_and_a_single_value_can_be_drawn() -> None:
    assert "nan" not in charts.lines({"a": [(START, 0)]}, "channels")
    assert not charts.bars([])


def test_a_heat_map_is_the_redder_the_more_was_dropped() -> None:
    counts = {"none": (90, 0), "some": (60, 30), "most": (30, 60), "all": (0, 90)}
    passed, dropped = ({("1", name): pair[side] for name, pair in counts.items()} for side in (0, 1))
    drawn = ET.fromstring(charts.heat_map(passed, dropped, "packets"))
    colors = {}
    for cell in drawn.findall("rect"):
        name = (cell.findtext("title") or "").split(" → ")[1].split(":")[0]
        red, _, blue = (int(part) for part in cell.attrib["fill"].removeprefix("rgba(").split(",")[:3])
        colors[name] = red - blue
    assert sorted(colors, key=lambda name: colors[name]) == ["none", "some", "most", "all"]
    assert colors["some"] < 0 < colors["most"]
    said = [text.text for text in drawn.findall("text")]
    assert all(str(count) in said for pair in counts.values() for count in pair)


def test_a_heat_map_without_drops_shows_one_number_in_each_cell() -> None:
    drawn = ET.fromstring(charts.heat_map({("1", "2"): 12_345}, None, "events"))
    assert [text.text for text in drawn.findall("text")] == ["1", "12.3k", "2"]
    assert "dropped" not in (drawn.find("rect/title").text or "")  # type: ignore[union-attr]


def test_a_table_shows_its_first_rows_and_says_how_many_follow() -> None:
    rows = [{"origin": -1, "log_id": b"\x01\xff", "events": 1_234, "share": 0.25, "peer": None}] * 26
    text = charts.table_of(rows)
    named = charts.table_of([{"origin": charts.NamedId.of(-1, "west-rover")}])
    assert f"west-rover <small>{'f' * 16}</small>" in named
    assert text.count("<tr>") == 26
    assert "1 more rows are in the table" in text
    assert "<th>log id</th>" in text
    for cell in ("f" * 16, "01ff", "1,234", "0.2", "–"):
        assert f">{cell}</td>" in text


def test_subnets_are_shown_as_people_write_them() -> None:
    assert charts.subnet_label(None) == "unknown"
    assert charts.subnet_label(-(2**32) + 0xFE010000) == "254.1"
