"""A policy as a value: what it means for channels, subnets and gateways, and which entries contradict each other."""

from collections.abc import Callable

import pytest

from meshbus.config.node import ChannelEntry, Logged
from meshbus.config.policy import ChannelRule, ExportEntry, GatewayEntry, PolicyConfig, UnknownChannels, Unlisted
from meshbus.errors import ConfigError
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import LevelPolicy, LevelRule, SubnetPolicy, SubnetRule
from meshbus.policy.capability import CapabilityFilter
from meshbus.policy.channels import Visibility

A, WEST, EAST = ChannelName("a"), SubnetId.parse("3.7"), SubnetId.parse("4")
LIMITED = ChannelRule(name=A, subscribe_caps=CapabilityFilter(require_tags=("x",)))


@pytest.mark.parametrize(
    ("unlisted", "rules", "refuses"),
    [
        (Unlisted.AUTO, (), False),
        (Unlisted.AUTO, (ChannelRule(name=A),), False),
        (Unlisted.AUTO, (LIMITED,), True),
        (Unlisted.OPEN, (LIMITED,), False),
        (Unlisted.REFUSE, (), True),
    ],
)
def test_channels_without_an_entry(unlisted: Unlisted, rules: tuple[ChannelRule, ...], refuses: bool) -> None:
    policy = PolicyConfig(unlisted_channels=unlisted, channels=rules)
    assert policy.refuses_unlisted is refuses
    registry = policy.channel_registry()
    unknown = registry is not None and registry.get_by_name("other") is None
    assert unknown is refuses


def test_a_prefix_also_configures_its_names() -> None:
    rule = ChannelRule(prefix="p/", names=(ChannelName("p/one"),), priority=5)
    registry = PolicyConfig(channels=(rule,)).channel_registry()
    assert registry is not None
    assert [config.name for config in registry] == ["p/one"]
    found = registry.get_by_name("p/two")
    assert found is not None
    assert found.priority == 5


def test_subnets_are_assigned_by_the_rules() -> None:
    assert PolicyConfig().subnet_policy() is None
    rule = SubnetRule(match_tags=("w",), target_subnet=WEST)
    by_tags = PolicyConfig(subnet_rules=(rule,), default_subnet=EAST).subnet_policy()
    assert isinstance(by_tags, SubnetPolicy)
    assert (by_tags.assign(["w"]), by_tags.assign([])) == (WEST, EAST)
    levels = PolicyConfig(level_rules=(LevelRule(tag_prefix="r:", level=0, values={"eu": 2}),)).subnet_policy()
    assert isinstance(levels, LevelPolicy)


def test_a_gateway_is_known_by_its_name_or_its_id() -> None:
    entries = (
        GatewayEntry(node="west", peer_subnets=(EAST,), unknown_channels=UnknownChannels.FORWARD),
        GatewayEntry(node="00000000000000ff", enforce_publishers=False),
    )
    policy = PolicyConfig(gateways=entries, exports=(ExportEntry(channel=A, subnets=(EAST,)),))
    by_name, by_id = policy.gateway_of(1, "west"), policy.gateway_of(0xFF, None)
    assert by_name is not None
    assert by_id is not None
    assert (by_name.peer_subnets, by_name.forward_unknown, by_name.enforce_publishers) == ((EAST,), True, True)
    assert by_id.enforce_publishers is False
    assert by_id.exports == by_name.exports == {A: (EAST,)}
    assert policy.gateway_of(2, None) is None
    assert policy.gateway_policy(2, None, WEST) is None


def test_what_a_gateway_judges_by_is_what_it_would_record() -> None:
    exported = ChannelRule(name=A, visibility=Visibility.EXPORTED, require_token=True)
    entry = GatewayEntry(node="west", peer_subnets=(EAST,))
    policy = PolicyConfig(channels=(exported,), gateways=(entry,), exports=(ExportEntry(channel=A, subnets=(EAST,)),))
    rules = policy.gateway_policy(1, "west", WEST)
    assert rules is not None
    assert (rules.local_subnet, rules.peer_subnets) == (int(WEST), (int(EAST),))
    (rule,) = rules.channels
    assert (rule.name, rule.visibility, rule.enforced, rule.exports) == ("a", Visibility.EXPORTED, True, (int(EAST),))


@pytest.mark.parametrize(
    ("policy", "key"),
    [
        (PolicyConfig(channels=(ChannelRule(name=A), ChannelRule(name=A))), "channels[1]"),
        (PolicyConfig(channels=(ChannelRule(prefix="a", names=(A, A)),)), "channels[0]"),
        (PolicyConfig(channels=(ChannelRule(prefix="p"), ChannelRule(prefix="p"))), "channels[1]"),
        (PolicyConfig(gateways=(GatewayEntry(node="g"), GatewayEntry(node="g"))), "gateways[1].node"),
        (PolicyConfig(trusted_issuers=(b"k" * 32, b"k" * 32)), "trusted_issuers[1]"),
        (PolicyConfig(exports=(ExportEntry(channel=A, subnets=(EAST,)),)), "exports[0].channel"),
    ],
)
def test_entries_that_contradict_each_other(policy: PolicyConfig, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy.check()
    assert caught.value.key == key


def test_exports_need_a_channel_that_is_exported() -> None:
    export, gateway = (ExportEntry(channel=A, subnets=(EAST,)),), (GatewayEntry(node="g"),)
    with pytest.raises(ConfigError, match=r"has no \[\[channels\]\] entry"):
        PolicyConfig(exports=export, gateways=gateway).check()
    with pytest.raises(ConfigError, match="so the export has no effect"):
        PolicyConfig(exports=export, gateways=gateway, channels=(ChannelRule(name=A),)).check()
    PolicyConfig(
        exports=export, gateways=gateway, channels=(ChannelRule(name=A, visibility=Visibility.EXPORTED),)
    ).check()


LEVEL = LevelRule(tag_prefix="r:", level=0, values={"eu": 2})


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: GatewayEntry(node="a b"), "node"),
        (ChannelRule, "channel"),
        (lambda: ChannelRule(name=A, names=(A,)), "names"),
        (lambda: ChannelRule(prefix="b", names=(A,)), "names"),
        (lambda: ChannelRule(prefix="B"), "prefix"),
        (lambda: PolicyConfig(level_rules=(LEVEL,), default_subnet=EAST), "default_subnet"),
        (
            lambda: PolicyConfig(level_rules=(LEVEL,), subnet_rules=(SubnetRule(match_tags=(), target_subnet=EAST),)),
            "level_rules",
        ),
    ],
)
def test_entries_that_are_wrong_by_themselves(make: Callable[[], object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.key == key


def test_twice_is_also_refused_without_the_check_of_a_file() -> None:
    policy = PolicyConfig(channels=(ChannelRule(prefix="p"), ChannelRule(prefix="p")))
    with pytest.raises(ConfigError, match="'p' is configured twice"):
        policy.channel_registry()


def test_an_entry_of_a_node_has_a_policy_of_its_own() -> None:
    entry = ChannelEntry(name=A, priority=3, log=Logged.PUBLISHED)
    assert entry.rule() == ChannelRule(name=A, priority=3)


def test_a_name_may_also_be_a_prefix() -> None:
    PolicyConfig(channels=(ChannelRule(name=A), ChannelRule(prefix="a"))).check()
