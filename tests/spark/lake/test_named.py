"""Nodes and subnets are shown as people know them; what has no name keeps its number, and what is not known says so."""

from typing import Any

from meshbus.spark.lake import named


def test_a_named_id_counts_as_its_number() -> None:
    rover = named.NamedId.of(-1, "west-rover")
    assert rover == -1
    assert named.label(rover) == "west-rover"


def test_an_id_without_a_name_is_shown_in_hex_and_none_as_unknown() -> None:
    assert named.label(-1) == "f" * 16
    assert named.hex_of(5) == "0000000000000005"
    assert named.label(None) == "unknown"


def test_rows_get_the_names_of_their_nodes() -> None:
    nodes: list[dict[str, Any]] = [
        {"node_id": 1, "origin": 11, "name": "a"},
        {"node_id": 2, "origin": None, "name": None},
    ]
    names = named.names_of(nodes)
    assert names == {1: "a", 11: "a"}
    row = named.with_names({"origin": 11, "peer": 2, "events": 11, "recorder": None}, names)
    assert [named.label(row[key]) for key in ("origin", "peer", "recorder")] == ["a", f"{2:016x}", "unknown"]
    assert not isinstance(row["events"], named.NamedId)
    assert not isinstance(named.with_names({"node_id": 1, "name": "a"}, names)["node_id"], named.NamedId)


def test_subnets_are_shown_as_people_write_them() -> None:
    assert named.subnet_label(None) == "unknown"
    assert named.subnet_label(-(2**32) + 0xFE010000) == "254.1"
