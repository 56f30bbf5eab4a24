"""Which gateway's packets are replayed, and by which rules."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshbus.cli import policyreplay as subject
from meshbus.cli.policyreplay import Recorded
from meshbus.config.node import NodeConfig
from meshbus.config.policyfile import parse_policy
from meshbus.errors import ConfigError
from meshbus.names.subnet import SubnetId
from meshbus.policy.gatewaypolicy import GatewayPolicy
from meshbus.spark.replay.replay import Replay
from tests.spark.packets import gateway_of, random_policy, record

POLICY = parse_policy(b'[[gateways]]\nnode = "gw"\npeer_subnets = ["3"]\n', "new")
CONFIG = NodeConfig(name="gw", subnet=SubnetId.parse("7"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one gateway recorded."""
    rng, folder = np.random.default_rng(3), tmp_path_factory.mktemp("record")
    record(folder, 7, gateway_of(random_policy(rng)), rng, 500)
    return folder


def test_the_only_recorder_is_meant(folder: Path) -> None:
    found = Recorded(folder, None, CONFIG).replay(POLICY, None, None)
    assert found.packets > 0
    assert Recorded(folder, "0000000000000007", CONFIG).replay(POLICY, None, None) == found


def test_the_subnet_is_the_recorded_one(folder: Path) -> None:
    recorded = Recorded(folder, None, CONFIG)._recorded_subnet()
    assert recorded != CONFIG.subnet
    (local,) = {policy.local_subnet for policy in subject_policies(folder)}
    assert int(recorded) == local


def subject_policies(folder: Path) -> list[GatewayPolicy]:
    from meshbus.log.packets.policies import load_policies
    from meshbus.log.packets.store import folder_of

    return list(load_policies(folder_of(folder, 7)).values())


def test_what_is_not_clear_is_asked_for(folder: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    for recorder in (7, 8):
        record(tmp_path / "two", recorder, gateway_of(random_policy(rng)), rng, 10)
    with pytest.raises(
        ConfigError, match="several nodes recorded packets; choose from 0000000000000007, 0000000000000008"
    ):
        Recorded(tmp_path / "two", None, CONFIG)
    with pytest.raises(ConfigError, match="is not a log_dir with recorded packets; give the id of the gateway"):
        Recorded(tmp_path, None, CONFIG)
    with pytest.raises(ConfigError, match="--recorder: expected a node id of up to 16 hex digits, got 'robot'"):
        Recorded(folder, "robot", CONFIG)


def test_a_node_that_is_no_gateway_any_more(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"0000000000000007 \(gw\) is not in \[\[gateways\]\] of the new policy"):
        Recorded(folder, None, CONFIG).replay(parse_policy(b"#\n", "new"), None, None)


def test_tables_are_replayed_by_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Session:
        def stop(self) -> None:
            asked.append("stopped")

    def replay(_spark: object, _store: object, rules: GatewayPolicy, **chosen: Any) -> Replay:
        asked.append((rules.local_subnet, chosen["recorder"]))
        return Replay(0, 0, (), ())

    monkeypatch.setattr("meshbus.cli.pipeline.Where.session", lambda _self: Session())
    monkeypatch.setattr("meshbus.spark.lake.tablestore.open_store", lambda path: path)
    monkeypatch.setattr("meshbus.spark.replay.replay.replay_packets", replay)
    Recorded(tmp_path, "7", CONFIG).replay(POLICY, None, None)
    assert asked == [(int(CONFIG.subnet), 7), "stopped"]
    assert subject.__doc__
