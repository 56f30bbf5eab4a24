"""What nodes wrote about each other is read back as columns, whatever their ids are."""

from pathlib import Path

import msgspec

from meshbus.log.census import FOLDER, CensusReader, Fact, FactKind, channel_of, list_censuses, names_in
from meshbus.log.durability import Retention
from meshbus.log.log import Redex
from meshbus.log.schema import CENSUS, arrow_schema

NODE = 2**64 - 2
FACTS = [
    Fact(FactKind.SNAPSHOT, NODE, 2**63 + 5, b"K" * 32, "base", 0xFE010000, 0, 0),
    Fact(FactKind.NODE, 7, clock_offset_ns=-5, clock_error_ns=3),
    Fact(FactKind.ROSTER, channel="sensors/lidar", subscribers=3, copies=2),
    Fact("weather", name="of a later version"),
]


def written(root: Path) -> None:
    with Redex(root / FOLDER, recorder=NODE, background=False) as redex:
        payloads = [msgspec.json.encode(fact) for fact in FACTS]
        redex.open(channel_of(NODE)).append_batch(payloads, ts_ns=[1_000, 2_000, 3_000, 4_999])


def test_facts_come_back_as_columns(tmp_path: Path) -> None:
    written(tmp_path)
    assert list_censuses(tmp_path) == {NODE: channel_of(NODE)}
    table = CensusReader(tmp_path, channel_of(NODE)).read({})
    assert table.schema == arrow_schema(CENSUS, dictionaries=False)
    rows = table.to_pylist()
    assert [row["recorder"] for row in rows] == [-2] * 4
    assert [(row["seq"], row["ts_ns"], row["ts"].microsecond) for row in rows] == [
        (0, 1_000, 1), (1, 2_000, 2), (2, 3_000, 3), (3, 4_999, 4)
    ]  # fmt: skip
    assert [row["kind"] for row in rows] == ["snapshot", "node", "roster", "weather"]
    names = ("node_id", "origin", "entity", "name", "subnet", "clock_offset_ns")
    assert [rows[0][name] for name in names] == [-2, 5 - 2**63, b"K" * 32, "base", 0xFE010000 - 2**32, 0]
    assert [rows[1][name] for name in names] == [7, None, None, None, None, -5]
    assert [rows[2][name] for name in ("channel", "subscribers", "copies")] == ["sensors/lidar", 3, 2]


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    written(tmp_path)
    reader = CensusReader(tmp_path, channel_of(NODE))
    log_id = reader.read({}).column("log_id")[0].as_py()
    assert reader.read({log_id: 3}).column("name").to_pylist() == ["of a later version"]
    assert len(reader.read({log_id: 4})) == 0
    assert len(reader.read({b"another census..": 4})) == 4


def test_what_expired_before_it_was_read_is_left_out(tmp_path: Path) -> None:
    with Redex(tmp_path / FOLDER, recorder=NODE, background=False) as redex:
        log = redex.open(channel_of(NODE), retention=Retention(max_events=1))
        for fact in FACTS:
            log.append(msgspec.json.encode(fact))
            log.seal()
        log.expire()
    assert CensusReader(tmp_path, channel_of(NODE)).read({}).column("kind").to_pylist() == ["weather"]


def test_a_folder_without_a_census_has_none(tmp_path: Path) -> None:
    assert list_censuses(tmp_path) == {}


def test_the_latest_name_of_a_node_counts(tmp_path: Path) -> None:
    for recorder, facts in (
        (1, [(5, 7, "old"), (9, 7, "new"), (6, 7, None)]),
        (2, [(7, 7, "between"), (1, NODE, "b")]),
    ):
        with Redex(tmp_path / FOLDER, recorder=recorder, background=False) as redex:
            for at, node_id, name in facts:
                payload = msgspec.json.encode(Fact(FactKind.NODE, node_id, name=name))
                redex.open(channel_of(recorder)).append(payload, ts_ns=at)
    assert names_in(tmp_path) == {7: "new", NODE: "b"}
