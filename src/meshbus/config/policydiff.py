"""Differences between two policies, in words: one sentence for each thing that changes, with what it means for nodes.

A channel is compared by the rule that applies to it, not by its entry: a new entry with the rule that its prefix already had
changes nothing. Which packets would have been decided otherwise is answered by a replay (spark/replay/), not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from meshbus.config.policy import GatewayEntry, PolicyConfig
from meshbus.names.channel import ChannelName
from meshbus.policy.assign import LevelRule, SubnetRule
from meshbus.policy.capability import CapabilityFilter
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility

_T = TypeVar("_T")

_REACH = {
    Visibility.SUBNET_LOCAL: "only nodes in the subnet of the publisher get its events",
    Visibility.PARENT_VISIBLE: "only nodes in the subnet of the publisher and in those above it get its events",
    Visibility.EXPORTED: "between subnets its events go only where an export allows it",
    Visibility.GLOBAL: "nodes in every subnet may get its events",
}
_NO_NAME = "\0"
"""Behind a prefix, it makes a text that begins with the prefix and is not the name of a channel."""


def differences(old: PolicyConfig, new: PolicyConfig) -> list[str]:
    """Return what changes from one policy to another, one sentence each; nothing if they mean the same."""
    return [
        *_channels(old, new),
        *_unlisted(old, new),
        *_issuers(old, new),
        *_subnets(old, new),
        *_gateways(old, new),
        *_exports(old, new),
    ]


# ── channels ────────────────────────────────────────────────────────────────────────────────


def _channels(old: PolicyConfig, new: PolicyConfig) -> Iterator[str]:
    before, after = _Rules(old), _Rules(new)
    for kind, text in dict.fromkeys([*before.topics(), *after.topics()]):
        was, becomes = before.of(kind, text), after.of(kind, text)
        if was != becomes:
            called = f"prefix {text!r}" if kind == "prefix" else f"channel {text}"
            yield f"{called}: {'; '.join(_rule_changes(was, becomes))}"


class _Rules:
    """The rules of one policy by name and prefix."""

    def __init__(self, policy: PolicyConfig) -> None:
        self._policy = policy
        registry = policy.channel_registry()
        # Without a registry every channel is open.
        self._registry = _open_registry() if registry is None else registry

    def topics(self) -> Iterator[tuple[str, str]]:
        """Yield what has an entry: the names and the prefixes."""
        for entry in self._policy.channels:
            for name in entry.names if entry.name is None else (entry.name,):
                yield "name", str(name)
            if entry.prefix is not None:
                yield "prefix", entry.prefix

    def of(self, kind: str, text: str) -> ChannelConfig | None:
        """Return the rule that applies to a name, or to names under a prefix; None if they are unknown."""
        found = self._registry.get_by_name(text if kind == "name" else text + _NO_NAME)
        # The name in a rule is a label only.
        return None if found is None else msgspec.structs.replace(found, name=ChannelName("x"))


def _open_registry() -> ChannelConfigRegistry:
    registry = ChannelConfigRegistry()
    registry.default = ChannelConfig(name=ChannelName("x"))
    return registry


def _rule_changes(was: ChannelConfig | None, becomes: ChannelConfig | None) -> Iterator[str]:
    if was is None:
        yield "subscriptions were refused as unknown, and are allowed"
        was = ChannelConfig(name=ChannelName("x"))
    if becomes is None:
        yield "subscriptions are refused as unknown, and those that exist end"
        return
    if was.visibility is not becomes.visibility:
        yield f"visibility {was.visibility} → {becomes.visibility}; {_REACH[becomes.visibility]}"
    if was.require_token != becomes.require_token:
        yield (
            "publishers and subscribers without a token lose access"
            if becomes.require_token
            else "publishers and subscribers no longer need a token"
        )
    yield from _caps_change("publishers", was.publish_caps, becomes.publish_caps)
    yield from _caps_change("subscribers", was.subscribe_caps, becomes.subscribe_caps)
    for field, words in _NUMBERS.items():
        before, after = getattr(was, field), getattr(becomes, field)
        if before != after:
            yield f"{words} {_shown(before)} → {_shown(after)}"


_NUMBERS = {
    "priority": "priority",
    "reliable": "reliable by default",
    "max_rate_pps": "packets per second of one node",
    "max_event_bytes": "largest event in bytes",
    "large": "large events",
}
"""Fields whose change needs no explanation, and how they are called."""


def _shown(value: object) -> str:
    match value:
        case None:
            return "no limit"
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)


def _caps_change(who: str, was: CapabilityFilter | None, becomes: CapabilityFilter | None) -> Iterator[str]:
    if was == becomes:
        return
    if becomes is None:
        yield f"{who} no longer need {_needs(was)}"
    elif was is None:
        yield f"{who} without {_needs(becomes)} lose access"
    else:
        yield f"{who} need {_needs(becomes)}, instead of {_needs(was)}"


def _needs(wanted: CapabilityFilter | None) -> str:
    """Return the conditions of a filter in words."""
    if wanted is None:
        return "any capability"
    parts = []
    if wanted.require_tags:
        kind = "capability" if len(wanted.require_tags) == 1 else "capabilities"
        parts.append(f"the {kind} {', '.join(wanted.require_tags)}")
    for things, names in (("models", wanted.require_models), ("tools", wanted.require_tools)):
        if names:
            parts.append(f"one of the {things} {', '.join(names)}")
    if wanted.min_memory_gb is not None:
        parts.append(f"{wanted.min_memory_gb} GB of memory")
    if wanted.gpu_vendor is not None or wanted.require_gpu:
        parts.append("a GPU" if wanted.gpu_vendor is None else f"a GPU of {wanted.gpu_vendor}")
    if wanted.min_vram_gb is not None:
        parts.append(f"{wanted.min_vram_gb} GB of GPU memory")
    if wanted.min_context_length is not None:
        parts.append(f"a model with a context of {wanted.min_context_length}")
    if wanted.require_modalities:
        parts.append(f"models for {', '.join(wanted.require_modalities)}")
    return " and ".join(parts) or "any capability"


def _unlisted(old: PolicyConfig, new: PolicyConfig) -> Iterator[str]:
    if old.refuses_unlisted == new.refuses_unlisted:
        return
    if new.refuses_unlisted:
        yield "channels without an entry: open → refused; subscriptions to them end"
    else:
        yield "channels without an entry: refused → open; every node may subscribe to them"


# ── issuers, subnets, gateways ──────────────────────────────────────────────────────────────


def _issuers(old: PolicyConfig, new: PolicyConfig) -> Iterator[str]:
    for key in _added(old.trusted_issuers, new.trusted_issuers):
        yield f"issuer {key.hex()}: its tokens are accepted"
    for key in _added(new.trusted_issuers, old.trusted_issuers):
        yield f"issuer {key.hex()}: its tokens are no longer accepted, and what they allowed ends"


def _subnets(old: PolicyConfig, new: PolicyConfig) -> Iterator[str]:
    yield from _rules("subnet rule", old.subnet_rules, new.subnet_rules, _subnet_rule)
    yield from _rules("level rule", old.level_rules, new.level_rules, _level_rule)
    if old.default_subnet != new.default_subnet:
        yield f"nodes that no subnet rule matches: subnet {old.default_subnet} → {new.default_subnet}"


def _rules(what: str, old: Sequence[_T], new: Sequence[_T], words: Callable[[_T], str]) -> Iterator[str]:
    gone, come = _added(new, old), _added(old, new)
    yield from (f"{what} removed: {words(rule)}" for rule in gone)
    yield from (f"{what} added: {words(rule)}" for rule in come)
    if not gone and not come and list(old) != list(new):
        yield f"{what}s: the order changes, and with it the rule that applies to a node with the tags of several"


def _subnet_rule(rule: SubnetRule) -> str:
    tags = f"nodes with {', '.join(rule.match_tags)}" if rule.match_tags else "all other nodes"
    return f"{tags} are in subnet {rule.target_subnet}"


def _level_rule(rule: LevelRule) -> str:
    values = ", ".join(f"{text} {value}" for text, value in rule.values.items())
    return f"tags {rule.tag_prefix}… set level {rule.level}: {values}"


def _gateways(old: PolicyConfig, new: PolicyConfig) -> Iterator[str]:
    before, after = ({entry.node: entry for entry in policy.gateways} for policy in (old, new))
    for node in dict.fromkeys([*before, *after]):
        was, becomes = before.get(node), after.get(node)
        if was is None:
            yield f"gateway {node}: judges the packets that it forwards between subnets"
            was = GatewayEntry(node=node)
        if becomes is None:
            yield f"gateway {node}: is a plain relay, and forwards packets without judging them"
            continue
        for subnet in _added(was.peer_subnets, becomes.peer_subnets):
            yield f"gateway {node}: packets from and to subnet {subnet} may pass"
        for subnet in _added(becomes.peer_subnets, was.peer_subnets):
            yield f"gateway {node}: packets from and to subnet {subnet} are dropped"
        if was.unknown_channels is not becomes.unknown_channels:
            yield f"gateway {node}: events on channels without an entry: {was.unknown_channels} → {becomes.unknown_channels}"
        if was.enforce_publishers != becomes.enforce_publishers:
            checks = "are dropped" if becomes.enforce_publishers else "pass"
            yield f"gateway {node}: events of publishers that the channel does not allow {checks}"


def _exports(old: PolicyConfig, new: PolicyConfig) -> Iterator[str]:
    before, after = ({entry.channel: entry.subnets for entry in policy.exports} for policy in (old, new))
    for channel in dict.fromkeys([*before, *after]):
        was, becomes = before.get(channel, ()), after.get(channel, ())
        for subnet in _added(was, becomes):
            yield f"channel {channel}: exported to subnet {subnet}"
        for subnet in _added(becomes, was):
            yield f"channel {channel}: no longer exported to subnet {subnet}"


def _added(old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """Return what is in the new list and not in the old one."""
    return [one for one in new if one not in old]
