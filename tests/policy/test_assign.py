"""Subnet assignment: ordered rules, and level rules as a reference node applies them."""

from typing import Any

import pytest

from meshbus.errors import ConfigError
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import Assignment, LevelPolicy, LevelRule, SubnetPolicy, SubnetRule
from tests.vectors import load

LEVELS = load("policy")["subnet_policy"]

EU, EU_TRUCKS, LAB = SubnetId.new([2]), SubnetId.new([2, 1]), SubnetId.new([9])


@pytest.mark.parametrize("row", LEVELS["rows"], ids=lambda row: row["case"])
def test_level_rules_as_computed(row: dict[str, Any]) -> None:
    policy = LevelPolicy(rules=tuple(LevelRule(**rule) for rule in row["rules"]))
    assert policy.assign(row["tags"]) == int(row["subnet"], 16)
    assert policy.assign(reversed(row["tags"])) == int(row["subnet"], 16), "the order of tags must not matter"


def test_levels_and_values_that_do_not_exist_are_refused() -> None:
    for row in LEVELS["rejected"]:
        with pytest.raises(ConfigError):
            LevelRule(tag_prefix="x:", level=row.get("rule_level", 0), values={"a": row.get("value", 1)})
    assert LevelRule(tag_prefix="x:", level=3, values={"a": 255}).value_of(["x:a"]) == 255
    with pytest.raises(ConfigError, match=r"level: must be in \[0, 3\], got -1"):
        LevelRule(tag_prefix="x:", level=-1, values={})
    with pytest.raises(ConfigError, match=r"the value of 'a' must be in \[1, 255\], got 256"):
        LevelRule(tag_prefix="x:", level=0, values={"a": 256})


def test_a_rule_keeps_its_values_when_the_callers_change() -> None:
    values = {"eu": 2}
    rule = LevelRule(tag_prefix="region:", level=0, values=values)
    values["eu"] = 0
    assert LevelPolicy(rules=(rule,)).assign(["region:eu"]) == EU


POLICY = SubnetPolicy(
    rules=(
        SubnetRule(match_tags=("region:eu", "kind:truck"), target_subnet=EU_TRUCKS),
        SubnetRule(match_tags=("region:eu",), target_subnet=EU),
        SubnetRule(match_tags=("kind:truck",), target_subnet=SubnetId.new([3])),
    ),
    default_subnet=LAB,
)


@pytest.mark.parametrize(
    ("tags", "subnet"),
    [
        (["region:eu", "kind:truck", "x"], EU_TRUCKS),
        (["kind:truck", "region:eu"], EU_TRUCKS),
        (["region:eu"], EU),
        (["kind:truck"], SubnetId.new([3])),
        (["region:eu:x", "kind:"], LAB),
        ([], LAB),
    ],
)
def test_the_first_rule_whose_tags_are_all_there_decides(tags: list[str], subnet: SubnetId) -> None:
    assert POLICY.assign(tags) == subnet
    assert POLICY.assign(iter(tags)) == subnet


def test_without_rules_the_default_decides_which_is_global() -> None:
    assert SubnetPolicy().assign(["x"]) == SubnetId.GLOBAL
    assert LevelPolicy().assign(["x"]) == SubnetId.GLOBAL


def test_a_rule_without_tags_matches_all() -> None:
    policy = SubnetPolicy(rules=(SubnetRule(match_tags=(), target_subnet=EU),), default_subnet=LAB)
    assert policy.assign([]) == EU


def test_lists_and_numbers_are_taken_too() -> None:
    rule = SubnetRule(match_tags=["a"], target_subnet=0x02000000)  # type: ignore[arg-type]
    policy = SubnetPolicy(rules=[rule], default_subnet=0x09000000)  # type: ignore[arg-type]
    assert (str(policy.assign(["a"])), str(policy.assign([]))) == ("2", "9")
    with pytest.raises(ConfigError, match="match_tags: must be a list of texts"):
        SubnetRule(match_tags="a", target_subnet=EU)  # type: ignore[arg-type]


def test_both_kinds_are_assignments() -> None:
    kinds: list[Assignment] = [POLICY, LevelPolicy()]
    assert [kind.assign(["region:eu"]) for kind in kinds] == [EU, SubnetId.GLOBAL]
