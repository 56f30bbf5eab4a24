"""Subnet ids: packing, ancestry, distance and text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import ConfigError
from meshbus.names.subnet import LEVELS, SubnetId, depth_mask
from tests.vectors import load

IDS = load("policy")["subnet_ids"]
PAIRS = load("policy")["subnet_pairs"]["rows"]
TEXTS = load("policy")["subnet_parse"]["rows"]

subnets = st.lists(st.sampled_from([0, 0, 1, 2, 255]), max_size=4).map(SubnetId.new)


@pytest.mark.parametrize("row", IDS["rows"], ids=lambda row: str(row["levels_in"]))
def test_levels_pack_as_computed(row: dict[str, Any]) -> None:
    subnet = SubnetId.new(row["levels_in"])
    assert subnet == int(row["raw"], 16)
    assert [subnet.level(n) for n in range(LEVELS)] == row["levels_out"]
    assert {subnet.level(n) for n in (-1, 4, 5, 200)} == {row["level_4_and_above"]}
    assert subnet.depth == row["depth"]
    assert subnet.parent == int(row["parent"], 16)
    assert subnet.is_global == row["is_global"]
    assert str(subnet) == row["display"]
    assert depth_mask(subnet.depth) == int(row["mask_for_depth"], 16)


def test_a_fifth_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="5 levels given, at most 4"):
        SubnetId.new(IDS["too_many_levels"]["levels_in"])


def test_relations_of_pairs() -> None:
    assert len(PAIRS) == 196
    for a_text, b_text, same, a_contains_b, b_contains_a, sibling, distance in PAIRS:
        a, b = SubnetId(int(a_text, 16)), SubnetId(int(b_text, 16))
        assert (a == b) == same
        assert a.contains(b) == a_contains_b
        assert b.contains(a) == b_contains_a
        assert a.is_sibling(b) == b.is_sibling(a) == sibling
        assert a.distance(b) == b.distance(a) == distance


@pytest.mark.parametrize("row", TEXTS, ids=lambda row: repr(row["text"]))
def test_text_is_read_as_computed(row: dict[str, Any]) -> None:
    if row["error"] is None:
        assert SubnetId.parse(row["text"]) == int(row["raw"], 16)
    else:
        with pytest.raises(ConfigError):
            SubnetId.parse(row["text"])


@pytest.mark.parametrize("text", ["²", "٣", "++3", "1" * 5000])
def test_digits_of_other_scripts_and_endless_ones_are_no_levels(text: str) -> None:
    with pytest.raises(ConfigError):
        SubnetId.parse(text)


@given(subnets)
def test_text_round_trips(subnet: SubnetId) -> None:
    assert SubnetId.parse(str(subnet)) == subnet
    assert repr(subnet) == f"SubnetId({str(subnet)!r})"


@given(subnets, subnets, subnets)
def test_containing_is_an_order(a: SubnetId, b: SubnetId, c: SubnetId) -> None:
    assert a.contains(a)
    assert SubnetId.GLOBAL.contains(a)
    assert a.parent.contains(a)
    if a.contains(b) and b.contains(a):
        assert a == b
    if a.contains(b) and b.contains(c):
        assert a.contains(c)


@given(subnets, subnets)
def test_distance_is_zero_only_to_itself(a: SubnetId, b: SubnetId) -> None:
    assert (a.distance(b) == 0) == (a == b)
    assert 0 <= a.distance(b) <= LEVELS


@pytest.mark.parametrize("raw", [-1, 1 << 32])
def test_an_id_has_32_bits(raw: int) -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        SubnetId(raw)


@pytest.mark.parametrize("level", [-1, 256])
def test_a_level_has_8_bits(level: int) -> None:
    with pytest.raises(ConfigError, match="level 1 is"):
        SubnetId.new([3, level])


def test_an_id_is_a_plain_number_too() -> None:
    assert int(SubnetId.new([3, 7])) == 0x03070000
    assert hash(SubnetId.new([3, 7])) == hash(0x03070000)
