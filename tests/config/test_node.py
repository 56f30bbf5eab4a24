"""A configuration is whole and consistent, or it is not made; what it gives are domain objects."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from meshbus.config import node as subject
from meshbus.config.node import ChannelEntry, Logged, NodeConfig, PeerEntry, Unknown, gather
from meshbus.config.policy import Unlisted
from meshbus.config.spelling import Endpoint
from meshbus.config.subscription import SubscriptionEntry
from meshbus.engine.session.negotiate import Profile
from meshbus.engine.settings import GatewayConfig, SecureMode
from meshbus.errors import ConfigError
from meshbus.keyfile import create_psk, format_tokens
from meshbus.log.durability import LogConfig, Retention, Tiering, every_n
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.names.subnet import SubnetId
from meshbus.policy.assign import LevelPolicy, SubnetPolicy
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import Visibility
from meshbus.wire.messages.token import PermissionToken, Scope

HEX = "0123456789abcdef" * 4
FULL = f"""
name = "west-rover"
bind = "[::1]:9000"
public_address = "[2001:db8::7]:9000"
identity = "keys/identity.toml"
psk_file = "keys/mesh.key"
subnet = "3.7"
tags = ["hardware.gpu", "role:lidar"]
heartbeat_s = 1
session_timeout_s = 6.5
handshake_timeout_s = 2
handshake_attempts = 5
membership_ack_timeout_s = 1
max_channels_per_peer = 16
token_sweep_s = 10
trusted_issuers = ["{HEX}"]
renew_tokens_s = 86400
renew_issuers = ["{HEX}"]
compat_any_issuer = false
announce_channels = "all"
require_signed_announcements = true
pingwave_radius = 16
gateway = true
peer_subnets = ["1", "2.1"]
unknown_channels = "forward"
enforce_publishers = false
unknown_subprotocols = "deliver"
max_packet = 1452
receive_buffer_bytes = 1048576
poll_us = 200
window_bytes = 131072
profile = false
secure = "off"
pins = "keys/pins.toml"
revocations = "keys/revocations.toml"
audit_log = "node.audit"
issuer_key = "keys/issuer.toml"
join_bind = "127.0.0.1:9001"
certificate = "node.certificate"
log_dir = "logs"
record_packets = true
record_sampling = 10
record_retain_bytes = 33554432
record_retain_hours = 24
daemons_dir = "daemons"
daemons_path = ["modules"]
admin_socket = "run/admin.sock"
default_subnet = "9"
tokens = ["tokens/lidar.token", "/etc/meshbus/other.token"]
accept = ["00000000000000fe"]
unlisted_channels = "refuse"

[metadata]
site = "north"

[web]
bind = "127.0.0.1:9000"

[otel]
interval_s = 5

[[channels]]
name = "sensors/lidar"
visibility = "parent-visible"
publish_caps = {{ require_tags = ["role:lidar"] }}
subscribe_caps = {{ min_memory_gb = 4, gpu_vendor = "nvidia" }}
require_token = true
priority = 7
reliable = true
max_rate_pps = 1000

log = "both"
log_fsync = "every 10"
log_retain_s = 86400
log_retain_bytes = 1000000
log_retain_events = 5000
log_seal_bytes = 65536
log_seal_age_s = 60

[[channels]]
prefix = "debug/"
visibility = "subnet-local"

[[peers]]
address = "10.0.0.7:9000"
node_id = "00000000000000ff"
public_key = "{HEX}"
profile = "plain"
routed = false

[[subscriptions]]
prefix = "robot/"
publisher = "00000000000000ff"

[[daemons]]
name = "detector"
factory = "detector:Detector"

[[exports]]
channel = "sensors/lidar"
subnets = ["1", "global"]

[[subnet_rules]]
match_tags = ["region:eu", "fleet:1"]
target_subnet = "2.1"

[[edge]]
publishers = "ipc:///run/meshbus/in.sock"
channels_in = ["sensors/"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(FULL, "utf-8")
    return path


def _load(**arguments: object) -> NodeConfig:
    return NodeConfig.load(None, {}, **arguments)


def _complaint(path: Path | None = None, **arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        NodeConfig.load(path, {}, **arguments)
    return str(caught.value)


def test_defaults_are_the_documented_ones() -> None:
    config = _load()
    assert config == NodeConfig()
    assert config.bind == ("127.0.0.1", 0)
    assert (config.heartbeat_s, config.session_timeout_s) == (5, 30)
    assert (config.handshake_timeout_s, config.handshake_attempts) == (5, 3)
    assert (config.membership_ack_timeout_s, config.max_channels_per_peer, config.token_sweep_s) == (5, 1024, 30)
    assert (config.receive_buffer_bytes, config.window_bytes) == (4 * 1024 * 1024, 512 * 1024)
    assert config.max_packet is None
    assert config.unknown_subprotocols is Unknown.DROP
    assert (config.compat_any_issuer, config.require_signed_announcements, config.profile) == (False, True, True)
    assert config.subnet == config.default_subnet == SubnetId.GLOBAL


def test_a_file_sets_everything(file: Path) -> None:
    config = NodeConfig.load(file, {})
    assert config.bind == Endpoint("::1", 9000)
    assert config.public_address == Endpoint("2001:db8::7", 9000)
    assert config.identity == file.parent / "keys/identity.toml"
    assert config.psk_file == file.parent / "keys/mesh.key"
    assert config.secure is SecureMode.OFF
    assert config.pins_path() == file.parent / "keys/pins.toml"
    assert config.revocations_path() == file.parent / "keys/revocations.toml"
    assert config.admin_path() == file.parent / "run/admin.sock"
    assert config.tokens == (file.parent / "tokens/lidar.token", Path("/etc/meshbus/other.token"))
    assert config.log_dir == file.parent / "logs"
    assert config.trusted_issuers == (bytes.fromhex(HEX),)
    assert config.unknown_subprotocols is Unknown.DELIVER
    assert config.max_packet == 1452
    assert config.peers == (
        PeerEntry(
            address=Endpoint("10.0.0.7", 9000),
            node_id=255,
            public_key=bytes.fromhex(HEX),
            profile=Profile.PLAIN,
            routed=False,
        ),
    )
    assert config.subscriptions == (SubscriptionEntry(prefix="robot/", publisher=255),)
    assert (config.accept, config.unlisted_channels) == ((254,), Unlisted.REFUSE)
    assert config.own_policy().gateway_of(0, None) == GatewayConfig(
        peer_subnets=(SubnetId.new([1]), SubnetId.new([2, 1])),
        exports={ChannelName("sensors/lidar"): (SubnetId.new([1]), SubnetId.GLOBAL)},
        forward_unknown=True,
        enforce_publishers=False,
    )
    unset = {
        "ephemeral", "psk", "level_rules", "compat_any_issuer", "compat_open_relay", "require_signed_announcements",
        "compat_unannounced_global", "compat_short_sync", "policy_file", "policy_issuers",
    }  # fmt: skip
    assert set(config.changed()) == set(NodeConfig.__struct_fields__) - unset


@pytest.mark.parametrize(
    ("key", "value"),
    [("peer_subnets", ["3"]), ("exports", [{"channel": "a", "subnets": ["3"]}])],
)
def test_what_belongs_to_a_gateway_needs_one(key: str, value: object) -> None:
    assert f"{key} (from an argument): only allowed for a gateway" in _complaint(None, **{key: value})
    assert _load(**{key: value, "gateway": True}).own_policy().gateway_of(0, None) is not None
    assert _load().own_policy().gateway_of(0, None) is None


def test_channels_become_a_registry(file: Path) -> None:
    registry = NodeConfig.load(file, {}).own_policy().channel_registry()
    assert registry is not None
    lidar = registry.get_by_name("sensors/lidar")
    assert lidar is not None
    assert lidar.visibility is Visibility.PARENT_VISIBLE
    assert lidar.publish_caps == CapabilityFilter(require_tags=("role:lidar",))
    assert lidar.subscribe_caps is not None
    assert lidar.subscribe_caps.require_gpu
    assert (lidar.require_token, lidar.priority, lidar.reliable, lidar.max_rate_pps) == (True, 7, True, 1000)
    debug = registry.get_by_name("debug/anything")
    assert debug is not None
    assert debug.visibility is Visibility.SUBNET_LOCAL
    assert registry.get_by_name("other") is None


def test_tags_and_metadata_become_capabilities(file: Path) -> None:
    expected = CapabilitySet(["hardware.gpu", "role:lidar"], {"site": "north", "name": "west-rover"})
    assert NodeConfig.load(file, {}).capabilities() == expected


def test_subnet_rules_become_a_policy(file: Path) -> None:
    policy = NodeConfig.load(file, {}).own_policy().subnet_policy()
    assert isinstance(policy, SubnetPolicy)
    assert policy.assign(["region:eu", "fleet:1", "x"]) == SubnetId.new([2, 1])
    assert policy.assign([]) == SubnetId.new([9])


def test_level_rules_become_a_policy() -> None:
    policy = (
        _load(level_rules=[{"tag_prefix": "region:", "level": 0, "values": {"eu": 2}}]).own_policy().subnet_policy()
    )
    assert isinstance(policy, LevelPolicy)
    assert policy.assign(["region:eu"]) == SubnetId.new([2])


def test_without_rules_there_is_no_policy_and_with_a_default_alone_there_is() -> None:
    assert _load().own_policy().subnet_policy() is None
    policy = _load(default_subnet="5").own_policy().subnet_policy()
    assert policy is not None
    assert policy.assign(["x"]) == SubnetId.new([5])


def test_arguments_win_over_the_environment_over_the_file(file: Path) -> None:
    env = {"MESHBUS_HEARTBEAT_S": "1.5", "MESHBUS_TAGS": "a,b", "MESHBUS_JIT": "0", "HEARTBEAT_S": "9"}
    config = NodeConfig.load(file, env, heartbeat_s=2, subnet=None)
    assert config.heartbeat_s == 2
    assert config.tags == ("a", "b")
    assert config.subnet == SubnetId.new([3, 7])
    sources = {key: setting.source for key, setting in gather(file, env, heartbeat_s=2).items()}
    assert (sources["heartbeat_s"], sources["tags"], sources["subnet"]) == ("an argument", "the environment", str(file))


def test_the_name_is_announced_with_the_metadata() -> None:
    assert dict(_load(name="west-rover", metadata={"wheels": "6"}).capabilities().metadata) == {
        "name": "west-rover",
        "wheels": "6",
    }
    assert "name" not in _load().capabilities().metadata


def test_every_setting_has_an_environment_name() -> None:
    variables = {f"MESHBUS_{name.upper()}": "x" for name in NodeConfig.__struct_fields__}
    assert sorted(gather(None, variables)) == sorted(NodeConfig.__struct_fields__)


def test_the_environment_names_the_file_and_is_the_default(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NodeConfig.load(None, {"MESHBUS_CONFIG": str(file)}).heartbeat_s == 1
    monkeypatch.setenv("MESHBUS_CONFIG", str(file))
    assert NodeConfig.load().heartbeat_s == 1
    assert NodeConfig.load(env={}).heartbeat_s == 5


def test_finished_values_are_taken_as_they_are() -> None:
    entry = ChannelEntry(name=ChannelName("a"))
    assert _load(channels=[entry], subnet=SubnetId.new([1]), max_packet="auto").channels == (entry,)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"hartbeat_s": 1}, "hartbeat_s (from an argument): unknown setting; did you mean 'heartbeat_s'?"),
        ({"heartbeat_s": 0}, "heartbeat_s (from an argument): expected a number of seconds in (0, 86400], got 0"),
        ({"heartbeat_s": float("nan")}, "heartbeat_s (from an argument): expected a number of seconds"),
        ({"heartbeat_s": 12}, "session_timeout_s: must be at least 3 × heartbeat_s, which is 36 s, got 30"),
        ({"public_address": "robot.local:9000"}, "public_address (from an argument): must be a numeric address and a port other than 0"),
        ({"public_address": "203.0.113.9:0"}, "public_address (from an argument): must be a numeric address and a port other than 0"),
        ({"handshake_attempts": 0}, "handshake_attempts (from an argument): expected an integer from 1"),
        ({"window_bytes": 100}, "window_bytes (from an argument): expected an integer number of bytes from 65536"),
        ({"psk": HEX, "psk_file": "x"}, "psk_file (from an argument): psk and psk_file are both set; remove one of them"),
        ({"psk": "5ecre7"}, "psk (from an argument): expected 64 hex digits; create a key with"),
        ({"tags": ["scope:x"]}, "tags (from an argument): 'scope:x' has a prefix that is reserved"),
        ({"tags": [""]}, "tags (from an argument): a tag must not be empty"),
        ({"channels": [{}]}, "channels[0] (from an argument): set exactly one of 'name' and 'prefix'"),
        ({"channels": [{"name": "a", "prefix": "b"}]}, "channels[0] (from an argument): set exactly one"),
        ({"channels": [{"prefix": "A/"}]}, "channels[0].prefix (from an argument): 'A/' cannot begin a channel name"),
        (
            {"peers": [{"address": f"127.0.0.1:{port}", "public_key": HEX, "node_id": "07"} for port in (1, 2)]},
            "peers (from an argument): node 0000000000000007 is configured twice",
        ),
        ({"name": "west rover"}, "name (from an argument): must have 1 to 63 letters"),
        ({"name": "x" * 64}, "name (from an argument): must have 1 to 63 letters"),
        ({"name": "a", "metadata": {"name": "b"}}, "name (from an argument): metadata also has a key"),
        ({"channels": [{"name": "A"}]}, "channels[0].name (from an argument): channel 'A': upper case"),
        ({"channels": [{"name": "a", "priority": 256}]}, "channels[0].priority (from an argument): must be in [0, 255], got 256"),
        ({"channels": [{"name": "a"}, {"name": "a"}]}, "channels (from an argument): 'a' is configured twice"),
        ({"channels": [{"prefix": ""}, {"prefix": ""}]}, "channels (from an argument): '' is configured twice"),
        (
            {"channels": [{"name": "a", "publish_caps": {"require_tag": []}}]},
            "channels[0].publish_caps.require_tag (from an argument): unknown setting; did you mean 'require_tags'?",
        ),
        ({"peers": [{"address": "h:1"}]}, "peers[0] (from an argument): 'public_key' is missing; expected 64 hex digits"),
        ({"unknown_subprotocols": "x"}, "unknown_subprotocols (from an argument): expected one of drop, deliver"),
        (
            {
                "subnet_rules": [{"match_tags": [], "target_subnet": "1"}],
                "level_rules": [{"tag_prefix": "a", "level": 0, "values": {}}],
            },
            "level_rules (from an argument): subnet_rules and level_rules are both set",
        ),
        (
            {"default_subnet": "1", "level_rules": [{"tag_prefix": "a", "level": 0, "values": {}}]},
            "default_subnet (from an argument): not allowed with level_rules",
        ),
        (
            {"level_rules": [{"tag_prefix": "a", "level": 4, "values": {}}]},
            "level_rules[0].level (from an argument): must be in [0, 3], got 4",
        ),
        (
            {"subnet_rules": [{"match_tags": ["a"], "target": "1"}]},
            "subnet_rules[0].target (from an argument): unknown setting; did you mean 'target_subnet'?",
        ),
    ],
)  # fmt: skip
def test_complaints(arguments: dict[str, Any], complaint: str) -> None:
    assert _complaint(**arguments).startswith(complaint)


def test_a_mesh_key_in_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(f'psk = "{HEX}"', "utf-8")
    file.chmod(0o644)
    assert _complaint(file).startswith(f"psk (from {file}): other users can read this file (mode 0644); run `chmod 600")
    file.chmod(0o600)
    assert NodeConfig.load(file, {}).load_psk() == bytes.fromhex(HEX)


def test_the_mesh_key_is_shown_nowhere() -> None:
    config = _load(psk=HEX)
    for text in (repr(config), str(config), str(config.__rich_repr__())):
        assert HEX not in text
        assert repr(bytes.fromhex(HEX)) not in text
        assert "(hidden)" in text


def test_keys_come_from_the_identity_file_made_on_first_use(tmp_path: Path) -> None:
    config = _load(identity=tmp_path / "new" / "identity.toml")
    keys = config.load_identity()
    assert keys == config.load_identity()
    assert _load(identity=str(tmp_path / "new" / "identity.toml"), ephemeral=True).load_identity() != keys


def test_an_ephemeral_identity_is_written_nowhere(tmp_path: Path) -> None:
    config = _load(ephemeral=True, identity=tmp_path / "identity.toml")
    assert config.load_identity() != config.load_identity()
    assert not list(tmp_path.iterdir())


def test_the_mesh_key_comes_from_its_file_or_is_asked_for(tmp_path: Path) -> None:
    key = create_psk(tmp_path / "mesh.key")
    assert _load(psk_file=tmp_path / "mesh.key").load_psk() == key
    with pytest.raises(ConfigError, match="no mesh key is configured; create one with `meshbus key psk FILE`"):
        _load().load_psk()


def test_token_files_are_read(tmp_path: Path) -> None:
    issuer = Identity.generate(os.urandom)
    token = PermissionToken.issue(
        issuer, issuer.entity_id, Scope.SUBSCRIBE, "a", ttl_s=9, now=1_000, entropy=os.urandom
    )
    (tmp_path / "a.token").write_text(format_tokens([token]), "utf-8")
    assert _load(tokens=[tmp_path / "a.token"]).load_tokens() == ((token,),)


def test_default_places_are_under_the_folders_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for place in (subject.default_file(), subject.default_identity(), subject.default_admin_socket()):
        assert "meshbus" in place.parts
    assert _load().admin_path() == subject.default_admin_socket()
    assert _load(admin_socket="").admin_path() is None
    if sys.platform == "linux":
        assert subject.default_identity() == tmp_path / "config" / "meshbus" / "identity.toml"
        assert _load().load_identity() == _load(identity=tmp_path / "config/meshbus/identity.toml").load_identity()


def test_how_a_channel_is_logged(file: Path) -> None:
    config = NodeConfig.load(file, {})
    for what in (Logged.PUBLISHED, Logged.RECEIVED):
        expected = LogConfig(every_n(10), Retention(86400, 1_000_000, 5000), 65_536, 60)
        assert config.log_config("sensors/lidar", what) == expected
        assert config.log_config("debug/x", what) is None
        assert config.log_config("other", what) is None


def test_when_the_segments_of_a_channel_move_to_object_storage(tmp_path: Path) -> None:
    tier = {"log_tier_uri": "s3://b/p?region=r", "log_tier_after_s": 60, "log_tier_local_bytes": 1_000_000}
    config = _load(log_dir=str(tmp_path), channels=[{"name": "a", "log": "both", **tier}])
    found = config.log_config("a", Logged.PUBLISHED)
    assert found is not None
    assert found.tier == Tiering("s3://b/p?region=r", 60, 1_000_000)
    assert config.without_logs().channels[0].log_tier_uri is None


def test_the_longest_prefix_says_how_a_channel_is_logged(tmp_path: Path) -> None:
    channels = [
        {"prefix": "", "log": "received"},
        {"prefix": "a/", "log": "published"},
        {"prefix": "a/b/"},
        {"name": "a/b/c", "log": "both"},
    ]
    config = _load(log_dir=str(tmp_path), channels=channels)
    found = {
        name: [what for what in (Logged.PUBLISHED, Logged.RECEIVED) if config.log_config(name, what) is not None]
        for name in ("x", "a/x", "a/b/x", "a/b/c")
    }
    assert found == {
        "x": [Logged.RECEIVED],
        "a/x": [Logged.PUBLISHED],
        "a/b/x": [],
        "a/b/c": [Logged.PUBLISHED, Logged.RECEIVED],
    }


@pytest.mark.parametrize(
    ("channel", "complaint"),
    [
        ({"log": "published"}, "log_dir: required because"),
        ({"log": "everything"}, "channels[0].log"),
        ({"log_fsync": "every 1"}, "channels[0].log (from an argument): required because"),
        ({"log": "both", "log_fsync": "sometimes"}, "expected 'never', 'every 100'"),
        ({"log": "both", "log_retain_events": 0}, "channels[0].log_retain_events"),
        ({"log": "both", "log_seal_bytes": 1}, "channels[0].log_seal_bytes"),
        ({"log_tier_uri": "s3://b", "log_tier_after_s": 9}, "channels[0].log (from an argument): required because"),
        ({"log": "both", "log_tier_after_s": 9}, "log_tier_uri (from an argument): required because"),
        ({"log": "both", "log_tier_uri": "s3://b"}, "log_tier_after_s (from an argument): required because"),
        ({"log": "both", "log_tier_uri": "b", "log_tier_after_s": 9}, "write s3://bucket/prefix or file:///directory"),
        ({"log_codec": "json"}, "channels[0].log (from an argument): required because"),
        ({"log": "both", "log_codec": "xml"}, "channels[0].log_codec"),
        ({"log": "both", "log_schema": "n INT"}, "required because log_schema is set"),
        ({"log": "both", "log_codec": "json", "log_schema": "n WHAT"}, "unknown type WHAT"),
        ({"log": "both", "log_codec": "protobuf"}, "run 'meshbus log schema' for protobuf"),
    ],
)
def test_contradicting_log_settings_are_refused(channel: dict[str, object], complaint: str) -> None:
    assert complaint in _complaint(channels=[{"name": "a", **channel}])


def test_a_configuration_without_its_logs_is_otherwise_the_same(file: Path) -> None:
    config = NodeConfig.load(file, {})
    bare = config.without_logs()
    assert bare.log_dir is None
    assert {entry.log for entry in bare.channels} == {None}
    assert {entry.config() for entry in bare.channels} == {entry.config() for entry in config.channels}
    gone = {"log_dir", "record_packets", "subscriptions", "daemons", "daemons_dir", "web", "otel", "issuer_key"}
    assert set(config.changed()) - set(bare.changed()) == gone


@pytest.mark.parametrize(
    ("settings", "refuses"),
    [
        ({}, False),
        ({"channels": [{"name": "a", "log": "published"}], "log_dir": "log"}, False),
        ({"channels": [{"name": "a", "priority": 7, "reliable": True, "max_rate_pps": 5}]}, False),
        ({"channels": [{"name": "a", "require_token": True}]}, True),
        ({"channels": [{"name": "a", "subscribe_caps": {"require_tags": ["x"]}}]}, True),
        ({"channels": [{"name": "a", "publish_caps": {"require_tags": ["x"]}}]}, True),
        ({"channels": [{"prefix": "a/", "visibility": "subnet-local"}]}, True),
        ({"channels": [{"name": "a", "require_token": True}], "unlisted_channels": "open"}, False),
        ({"unlisted_channels": "refuse"}, True),
    ],
)
def test_channels_without_an_entry_are_open_unless_an_entry_restricts_a_channel(
    settings: dict[str, Any], refuses: bool
) -> None:
    config = _load(**settings)
    registry = config.own_policy().channel_registry()
    assert config.own_policy().refuses_unlisted is refuses
    assert (registry is not None and registry.get_by_name("other") is None) is refuses
    if not refuses and registry is not None:
        other = registry.get_by_name("other")
        assert other is not None
        assert other.is_open
    assert registry is None or registry.get_by_name("a") is not None or not config.channels or "prefix" in str(settings)


def test_an_entry_for_every_channel_wins_over_the_default() -> None:
    registry = _load(channels=[{"prefix": "", "priority": 7}]).own_policy().channel_registry()
    assert registry is not None
    every = registry.get_by_name("other")
    assert every is not None
    assert every.priority == 7


def test_the_folder_of_the_socket_is_chosen_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    subject.default_admin_socket()  # a warning would be an error here


def test_a_folder_of_another_user_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("runtime directory belongs to another user")

    monkeypatch.setattr("platformdirs.user_runtime_path", refuse)
    with pytest.raises(ConfigError, match="set admin_socket, or the variable XDG_RUNTIME_DIR"):
        subject.default_admin_socket()


def test_a_node_that_may_connect_directly_is_named_by_its_id() -> None:
    assert _load(accept=["00000000000000ff"]).accept == (255,)
    with pytest.raises(ConfigError, match="expected a node id"):
        _load(accept=["robot"])


def test_names_in_a_prefix_entry_are_entries_of_their_own() -> None:
    config = NodeConfig(channels=(ChannelEntry(prefix="s/", names=(ChannelName("s/a"),), require_token=True),))
    registry = config.own_policy().channel_registry()
    assert registry is not None
    assert [(one.name, one.require_token) for one in registry] == [("s/a", True)]
    assert list(registry.prefixes) == ["s/"]


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([{"name": "a", "names": ["b"]}], "only allowed with 'prefix'"),
        ([{"prefix": "s/", "names": ["t/a"]}], "'t/a' does not begin with the prefix 's/'"),
        ([{"prefix": "s/", "names": ["s/a"]}, {"name": "s/a"}], "'s/a' is configured twice"),
        ([{"prefix": "s/"}, {"prefix": "s/"}], "'s/' is configured twice"),
    ],
)
def test_names_in_a_prefix_entry_are_checked(entries: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        NodeConfig.load(env={}, channels=entries)


def test_channels_that_are_open_by_default_give_a_gateway_no_rule() -> None:
    registry = NodeConfig(channels=(ChannelEntry(name=ChannelName("a")),)).own_policy().channel_registry()
    assert registry is not None
    assert registry.get_by_name("else") is not None
    assert registry.rule_of("else") is None


def test_pins_and_revocations_are_beside_the_identity_unless_there_is_none(tmp_path: Path) -> None:
    assert _load(identity=tmp_path / "id.toml").pins_path() == tmp_path / "id.pins.toml"
    assert _load(ephemeral=True).pins_path() is None
    assert _load(ephemeral=True, pins=tmp_path / "p").pins_path() == tmp_path / "p"
    assert _load(identity=tmp_path / "id.toml").revocations_path() == tmp_path / "id.revocations.toml"
    assert _load(ephemeral=True).revocations_path() is None
    assert _load(ephemeral=True, revocations=tmp_path / "r").revocations_path() == tmp_path / "r"
    assert _load().secure is SecureMode.AUTO


def test_the_audit_log_is_beside_the_policy_or_the_identity(tmp_path: Path) -> None:
    policy, identity = tmp_path / "policy.toml", tmp_path / "id.toml"
    assert _load(identity=identity).audit_path() == tmp_path / "id.audit"
    assert _load(identity=identity, policy_file=policy).audit_path() == tmp_path / "policy.toml.history"
    assert _load(policy_file=policy, audit_log=tmp_path / "a").audit_path() == tmp_path / "a"
    with pytest.raises(ConfigError, match="audit_log: required for an ephemeral node"):
        _load(ephemeral=True).audit_path()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"trusted_issuers": [HEX]}, "trusted_issuers"),
        ({"gateway": True}, "gateway"),
        ({"default_subnet": "3"}, "default_subnet"),
        ({"unlisted_channels": "open"}, "unlisted_channels"),
        ({"channels": [{"name": "a"}, {"name": "b", "priority": 1}]}, "channels[1].priority"),
    ],
)
def test_a_policy_is_in_one_place(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match="not allowed with policy_file; move it to") as caught:
        _load(policy_file="policy.toml", **settings)
    assert caught.value.key == key


def test_logs_of_channels_stay_with_the_node(tmp_path: Path) -> None:
    config = _load(policy_file="policy.toml", log_dir=tmp_path, channels=[{"name": "a", "log": "published"}])
    assert config.log_config("a", Logged.PUBLISHED) is not None


def test_issuers_of_policies_need_a_file_for_them() -> None:
    with pytest.raises(ConfigError, match="policy_file: required because policy_issuers is set"):
        _load(policy_issuers=[HEX])
    config = _load(policy_issuers=[HEX], policy_file="policy.toml")
    assert config.without_logs().policy_issuers == ()
