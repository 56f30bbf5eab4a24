"""Policy of a fleet as settings: channels, subnets, exports, gateways and the issuers of tokens, all in one value.

A policy is written in a file of its own, which the setting `policy_file` of a node names and all nodes of a fleet may share,
or in the settings of a node itself; both become a `PolicyConfig`. Only what is in it can change while a node runs.

`check` finds entries that contradict each other. config/policyfile.py reads the file, config/policydiff.py compares two
policies, and node/policies/ applies them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from meshbus.config.findings import Findings
from meshbus.config.spelling import Bytes, Key
from meshbus.engine.settings import GatewayConfig
from meshbus.errors import ChannelError, ConfigError
from meshbus.names.channel import ChannelName
from meshbus.names.nodename import MAX_NODE_NAME, is_node_name
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import Assignment, LevelPolicy, LevelRule, SubnetPolicy, SubnetRule
from meshbus.policy.capability import CapabilityFilter
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, LargeEvents, Visibility
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.policy.guard import AuthGuard
from meshbus.wire.constants import DEFAULT_LARGE_EVENT


class UnknownChannels(StrEnum):
    """What a gateway does with events on channels that it has no configuration for."""

    DROP = "drop"
    FORWARD = "forward"


class Unlisted(StrEnum):
    """What a node does with its own channels that have no `[[channels]]` entry."""

    AUTO = "auto"
    """`open`, unless an entry restricts a channel: requires a token or capabilities, or limits its visibility."""
    OPEN = "open"
    """Every peer may subscribe."""
    REFUSE = "refuse"
    """Subscriptions are refused: the channel is unknown."""


class ExportEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Subnets that a channel with visibility `exported` may be forwarded to."""

    channel: ChannelName
    """Name of the channel."""
    subnets: tuple[SubnetId, ...]
    """These subnets and all below them."""


class GatewayEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A node that applies the policy of channels to packets that it forwards between subnets."""

    node: str
    """Name of the node, as its setting `name` has it, or its id of 16 hex digits."""
    peer_subnets: tuple[SubnetId, ...] = ()
    """The subnets on the other side; packets from and to other subnets are dropped."""
    unknown_channels: UnknownChannels = UnknownChannels.DROP
    """What to do with events on channels that have no entry."""
    enforce_publishers: bool = True
    """Drop events whose publisher is not allowed on the channel."""

    def __post_init__(self) -> None:
        if not is_node_name(self.node):
            raise ConfigError(
                "node",
                f"must be the name of a node, of 1 to {MAX_NODE_NAME} letters, digits, '.', '_' or '-', or its id of 16 hex"
                f" digits, got {self.node!r}",
            )


class ChannelRule(msgspec.Struct, frozen=True, kw_only=True):
    """Policy of one channel, or of every channel with a prefix."""

    name: ChannelName | None = None
    """Name of the channel."""
    prefix: str | None = None
    """Instead of `name`; the empty prefix matches every channel."""
    names: tuple[ChannelName, ...] = ()
    """With `prefix`: channels that are configured as if each had an entry of its own with these settings. A gateway
    recognizes their packets without having to learn the names."""
    visibility: Visibility = Visibility.GLOBAL
    """How far its packets go between subnets."""
    publish_caps: CapabilityFilter | None = None
    """Capabilities that a publisher needs."""
    subscribe_caps: CapabilityFilter | None = None
    """Capabilities that a subscriber needs."""
    require_token: bool = False
    """Whether publishers and subscribers need a token, in addition to the capabilities."""
    priority: int = 0
    """Priority of the packets, 0 to 255; higher ones are sent first."""
    reliable: bool = False
    """Whether publishers retransmit lost packets by default."""
    max_rate_pps: int | None = None
    """Packets per second that one node may send on the channel."""
    max_event_bytes: Bytes = DEFAULT_LARGE_EVENT
    """The largest event that this node publishes and takes on the channel, up to 64 MiB. Events over 8104 bytes are sent in
    parts, to meshbus nodes only."""
    large: LargeEvents = LargeEvents.RELIABLE
    """Events over 8104 bytes on a channel that is not reliable: `reliable` sends them as on a reliable one, `refuse` raises an
    error."""

    def __post_init__(self) -> None:
        if (self.name is None) == (self.prefix is None):
            raise ConfigError("channel", "set exactly one of 'name' and 'prefix'")
        if self.prefix is None and self.names:
            raise ConfigError("names", "only allowed with 'prefix'; write one entry for each name, or a prefix")
        for name in self.names:
            if not name.startswith(self.prefix or ""):
                raise ConfigError("names", f"{str(name)!r} does not begin with the prefix {self.prefix!r}")
        # Build the policy now, so that an invalid entry is reported when the file is read.
        try:
            self.config()
        except ChannelError:
            raise ConfigError(
                "prefix", f"{self.prefix!r} cannot begin a channel name; use a-z, 0-9, '-', '_', '.' and '/'"
            ) from None

    def config(self) -> ChannelConfig:
        """Return the policy; a prefix is stored under a name made from it."""
        fields = set(ChannelConfig.__struct_fields__) & set(self.__struct_fields__) - {"name"}
        rest = {field: getattr(self, field) for field in fields}
        return ChannelConfig(name=self.name or ChannelName(f"{self.prefix}x"), **rest)

    @property
    def restricts(self) -> bool:
        """Whether the entry limits who may use the channel, or how far its packets go."""
        return self.visibility is not Visibility.GLOBAL or not self.config().is_open

    def rule(self) -> ChannelRule:
        """Return the policy of an entry alone, without what a node adds to it, such as its log."""
        return ChannelRule(**{field: getattr(self, field) for field in ChannelRule.__struct_fields__})


class PolicyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Policy of a fleet: what `policy_file` contains."""

    unlisted_channels: Unlisted = Unlisted.AUTO
    """Channels without a `[[channels]]` entry: `open`, `refuse`, or `auto`, which means `open` unless an entry requires a
    token or capabilities or limits the visibility of a channel."""
    trusted_issuers: tuple[Key, ...] = ()
    """Entity ids whose tokens every node accepts, besides its own."""
    default_subnet: SubnetId = SubnetId.GLOBAL
    """Subnet of peers that no subnet rule matches."""
    channels: tuple[ChannelRule, ...] = ()
    """Policies of channels, by name or prefix."""
    gateways: tuple[GatewayEntry, ...] = ()
    """Nodes that apply the policy to packets between subnets."""
    exports: tuple[ExportEntry, ...] = ()
    """The subnets that gateways may forward channels with visibility `exported` to."""
    subnet_rules: tuple[SubnetRule, ...] = ()
    """Rules that assign peers to subnets by their tags; the first match wins."""
    level_rules: tuple[LevelRule, ...] = ()
    """Rules that assign each level of the subnet separately, as net-mesh does; instead of subnet_rules."""

    def __post_init__(self) -> None:
        if self.subnet_rules and self.level_rules:
            raise ConfigError("level_rules", "subnet_rules and level_rules are both set; remove one of them")
        if self.level_rules and not self.default_subnet.is_global:
            raise ConfigError("default_subnet", "not allowed with level_rules; use subnet_rules, or remove it")

    def check(self) -> None:
        """Raise ConfigError for the first entry that contradicts another one, or has no effect; the others are in it."""
        findings = Findings()
        self._check_channels(findings)
        self._check_once(findings, "gateways", "node", [entry.node for entry in self.gateways])
        self._check_once(findings, "exports", "channel", [entry.channel for entry in self.exports])
        self._check_once(findings, "trusted_issuers", "", [key.hex() for key in self.trusted_issuers])
        findings.raise_first()  # a channel that is there twice has no visibility to compare
        self._check_exports(findings)
        findings.raise_first()

    def _check_channels(self, findings: Findings) -> None:
        first: dict[tuple[str, str], int] = {}
        for number, entry in enumerate(self.channels):
            keys = [("name", str(name)) for name in (entry.names if entry.name is None else (entry.name,))]
            if entry.prefix is not None:
                keys.append(("prefix", entry.prefix))
            for kind, text in keys:
                earlier = first.get((kind, text))
                if earlier is None:
                    first[kind, text] = number
                else:
                    problem = f"{kind} {text!r} is already in channels[{earlier}]; remove one of the entries"
                    findings.add(ConfigError(f"channels[{number}]", problem))

    @staticmethod
    def _check_once(findings: Findings, key: str, field: str, values: Iterable[str]) -> None:
        first: dict[str, int] = {}
        for number, value in enumerate(values):
            earlier = first.setdefault(value, number)
            if earlier != number:
                where = f"{key}[{number}].{field}" if field else f"{key}[{number}]"
                problem = f"{str(value)!r} is already in {key}[{earlier}]; remove one of the entries"
                findings.add(ConfigError(where, problem))

    def _check_exports(self, findings: Findings) -> None:
        registry = self.channel_registry()
        for number, entry in enumerate(self.exports):
            problem = self._problem_of_export(None if registry is None else registry.rule_of(entry.channel))
            if problem is not None:
                findings.add(ConfigError(f"exports[{number}].channel", f"{str(entry.channel)!r} {problem}"))

    def _problem_of_export(self, rule: ChannelConfig | None) -> str | None:
        """Return why the export of a channel with this rule has no effect, or None."""
        if not self.gateways:
            return "is exported, but no gateway is listed; add a [[gateways]] entry"
        wanted = repr(str(Visibility.EXPORTED))
        if rule is None:
            return f"has no [[channels]] entry; add one with visibility {wanted}, or remove the export"
        if rule.visibility is not Visibility.EXPORTED:
            return (
                f"has visibility {str(rule.visibility)!r}, so the export has no effect; set its visibility to {wanted}, or"
                " remove the export"
            )
        return None

    @property
    def refuses_unlisted(self) -> bool:
        """Whether subscriptions to channels without an entry are refused."""
        if self.unlisted_channels is Unlisted.AUTO:
            return any(entry.restricts for entry in self.channels)
        return self.unlisted_channels is Unlisted.REFUSE

    def channel_registry(self) -> ChannelConfigRegistry | None:
        """Return the policies of the channels, or None if every channel is open.

        Raises ConfigError if a channel is configured twice.
        """
        registry = ChannelConfigRegistry()
        if not self.refuses_unlisted:
            if not self.channels:
                return None
            # Not a rule by prefix: a gateway must not take it for a permission to forward.
            registry.default = ChannelConfig(name=ChannelName("x"))
        for entry in self.channels:
            config, names = entry.config(), entry.names if entry.name is None else (entry.name,)
            twice = [str(name) for name in names if registry.insert(msgspec.structs.replace(config, name=name))]
            if entry.prefix is not None and registry.insert_prefix(entry.prefix, config):
                twice.append(entry.prefix)
            if twice:
                raise ConfigError("channels", f"{twice[0]!r} is configured twice; remove one of the entries")
        return registry

    def subnet_policy(self) -> Assignment | None:
        """Return the rules that assign peers to subnets, or None if none are configured."""
        if self.level_rules:
            return LevelPolicy(rules=self.level_rules)
        if self.subnet_rules or not self.default_subnet.is_global:
            return SubnetPolicy(rules=self.subnet_rules, default_subnet=self.default_subnet)
        return None

    def gateway_of(self, node_id: int, name: str | None) -> GatewayConfig | None:
        """Return how a node judges the packets that it forwards, or None if it is not a gateway."""
        called = {f"{node_id:016x}", name}
        entry = next((entry for entry in self.gateways if entry.node in called), None)
        if entry is None:
            return None
        return GatewayConfig(
            peer_subnets=entry.peer_subnets,
            exports={export.channel: export.subnets for export in self.exports},
            forward_unknown=entry.unknown_channels is UnknownChannels.FORWARD,
            enforce_publishers=entry.enforce_publishers,
        )

    def gateway_policy(self, node_id: int, name: str | None, subnet: SubnetId) -> GatewayPolicy | None:
        """Return the rules by which a node in a subnet judges packets, as they are recorded with them; None if it does not."""
        config = self.gateway_of(node_id, name)
        if config is None:
            return None
        channels = self.channel_registry()
        return config.build(subnet, ChannelConfigRegistry() if channels is None else channels, AuthGuard()).snapshot()
