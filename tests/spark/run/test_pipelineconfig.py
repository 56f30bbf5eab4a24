"""A pipeline's file and a policy's file: what is wrong in them is said with its place."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshbus.config.node import NodeConfig
from meshbus.engine.base.packets import Output
from meshbus.errors import ConfigError
from meshbus.policy.channels import Visibility
from meshbus.policy.gatewaypolicy import ChannelPolicy, GatewayPolicy
from meshbus.spark.lake.codec import Codec
from meshbus.spark.run.pipelineconfig import PipelineConfig, load_config, load_policy
from meshbus.testing.rig import rig

PIPELINE = """
logs = ["log"]
tables = "/data/tables"
trigger_s = 2.0
[[channels]]
prefix = "sensors/"
codec = "json"
schema = "temp DOUBLE"
[[subscriptions]]
peer = 5
prefix = "sensors/"
"""
NODE = """
subnet = "3"
heartbeat_s = 2.0
gateway = true
peer_subnets = ["3.7", "4"]
[[exports]]
channel = "out/state"
subnets = ["4"]
[[channels]]
name = "out/state"
visibility = "exported"
[[channels]]
name = "in/state"
visibility = "parent-visible"
require_token = true
publishers = ["00000000000000ff"]
[[channels]]
prefix = "any/"
"""


def write(folder: Path, text: str, name: str = "file.toml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_pipeline_is_read_with_folders_beside_its_file(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, PIPELINE))
    assert config.logs == (str(tmp_path / "log"),)
    assert config.tables == "/data/tables"
    assert config.channels[0].codec is Codec.JSON
    assert config.subscriptions[0].peer == 5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("table = 'x'", "table"),
        ("trigger_s = 'soon'", "trigger_s"),
        ("[[channels]]\ncodec = 'json'", "either 'name' or 'prefix'"),
        ("[[channels]]\nname = 'a'\ncodec = 'xml'", "codec"),
        ("logs = [", "not valid TOML"),
        ("compact_batches = 1", "compact_batches: must be at least 2, got 1"),
    ],
)
def test_a_wrong_pipeline_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_config(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "none.toml")


def test_a_nodes_configuration_is_a_policy(tmp_path: Path) -> None:
    assert load_policy(write(tmp_path, NODE)) == GatewayPolicy(
        local_subnet=0x03000000,
        peer_subnets=(0x03070000, 0x04000000),
        channels=(
            ChannelPolicy(name="out/state", visibility=Visibility.EXPORTED, exports=(0x04000000,)),
            ChannelPolicy(name="in/state", visibility=Visibility.PARENT_VISIBLE, enforced=True, publishers=(255,)),
        ),
        prefixes=(ChannelPolicy(name="any/", visibility=Visibility.GLOBAL),),
    )


def test_names_and_exports_of_a_prefix_are_rules_of_their_own(tmp_path: Path) -> None:
    text = """
subnet = "3"
[[exports]]
channel = "out/b"
subnets = ["4"]
[[exports]]
channel = "without/rule"
subnets = ["4"]
[[channels]]
prefix = "out/"
names = ["out/a"]
visibility = "exported"
require_token = true
"""
    rule = ChannelPolicy(name="out/", visibility=Visibility.EXPORTED, enforced=True)
    policy = load_policy(write(tmp_path, text))
    assert policy.prefixes == (rule,)
    assert policy.channels == (
        msgspec.structs.replace(rule, name="out/a"),
        msgspec.structs.replace(rule, name="out/b", exports=(0x04000000,)),
    )


def test_the_policy_of_a_file_is_that_of_the_node_that_reads_it(tmp_path: Path) -> None:
    entries = """
[[channels]]
prefix = "out/"
names = ["out/a"]
visibility = "parent-visible"
require_token = true
[[channels]]
name = "b"
"""
    path = write(tmp_path, "gateway = true\n" + entries)
    config = NodeConfig.load(path, env={})
    engine = rig(subnet=config.subnet, gateway=config.own_policy().gateway_of(0, None))
    engine.set_channel_configs(config.own_policy().channel_registry(), 0.0, Output())
    node = engine.mesh.boundary.gateway.snapshot()
    policy = load_policy(path)
    assert (policy.prefixes, set(policy.channels)) == (node.prefixes, set(node.channels))


def test_two_rules_for_a_channel_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a/b has 2 rules"):
        load_policy(write(tmp_path, "[[channels]]\nname = 'a/b'\n" * 2))
    with pytest.raises(ConfigError, match="prefix 'a/' has 2 rules"):
        load_policy(write(tmp_path, "[[channels]]\nprefix = 'a/'\n" * 2))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"local_subnet":"x"}', '{"local_subnet":0,"channels":[{"name":1}]}'])
def test_what_is_no_recorded_policy_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"policy \(from .*policy\.json\)"):
        load_policy(write(tmp_path, text, "policy.json"))


@pytest.mark.parametrize(
    "text",
    [
        "subnet = 'x'",
        "peer_subnets = ['300']",
        "[[channels]]\nname = 'a'\nvisibility = 'up'",
        "unknown_channels = 'maybe'",
    ],
)
def test_a_wrong_policy_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"policy \(from .*file\.toml\)"):
        load_policy(write(tmp_path, text))


def test_a_recorded_policy_is_a_policy(tmp_path: Path) -> None:
    policy = GatewayPolicy(local_subnet=7, channels=(ChannelPolicy("a", Visibility.GLOBAL, enforced=True),))
    (tmp_path / "0000000001.json").write_bytes(msgspec.json.encode(policy))
    assert load_policy(tmp_path / "0000000001.json") == policy


def test_the_defaults_are_allowed() -> None:
    assert PipelineConfig().restarts == 5


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"mirror": "s3://bucket/lake"}, "mirror: requires format 'delta' or 'iceberg', got 'parquet'"),
        ({"mirror": "s3://bucket/lake", "format": "parquet"}, "plain directories have no atomic commit"),
        ({"mirror": "ftp://bucket", "format": "delta"}, "mirror: invalid URI 'ftp://bucket'; write s3://bucket/prefix"),
        ({"mirror": "s3://me:secret@bucket", "format": "delta"}, "mirror: must not contain credentials"),
        ({"mirror": "s3://bucket/a%20b", "format": "delta"}, "mirror: must not contain '%' in its path"),
        ({"mirror_keep_days": 3.0, "keep_days": 1.0}, "mirror_keep_days: requires mirror and keep_days"),
        ({"mirror_keep_days": 3.0, "mirror": "s3://b/l", "format": "delta"}, "requires mirror and keep_days"),
        (
            {"mirror_keep_days": 3.0, "keep_days": 7.0, "mirror": "s3://b/l", "format": "iceberg"},
            "mirror_keep_days: must be at least keep_days \\(7\\), got 3",
        ),
    ],
)
def test_a_copy_that_cannot_be_kept_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        PipelineConfig(**settings)
    assert "secret" not in str(caught.value)


def test_a_copy_is_configured_by_its_place() -> None:
    config = PipelineConfig(
        format="delta", mirror="s3://bucket/lake?region=eu-west-1", keep_days=7.0, mirror_keep_days=7.0
    )
    assert config.mirror == "s3://bucket/lake?region=eu-west-1"
