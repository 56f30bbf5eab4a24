"""The files of the fleet are those of real nodes, and the proposed policy differs in what it says it does."""

from pathlib import Path

import pytest

from meshbus.config import NodeConfig
from meshbus.demo.alarms import NAMES
from meshbus.demo.detector import Detector
from meshbus.demo.roles import (
    ALARMS,
    ANOMALIES,
    CONTROL,
    DETECTOR,
    FAILING,
    FRAMES,
    GATEWAY,
    MAPS,
    NOTES,
    ORDERS,
    PIPELINE,
    POSES,
    PROPOSED_POLICY,
    REPLICAS,
    ROLES,
    TRACES,
    FleetFiles,
    Role,
    place_of,
    write_files,
)
from meshbus.errors import ConfigError
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId
from meshbus.policy.channels import Visibility
from meshbus.spark.run.pipelineconfig import load_config, load_policy
from meshbus.wire.messages.token import Scope


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> FleetFiles:
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_member_is_a_node_on_loopback_that_can_start(files: FleetFiles, role: Role) -> None:
    config = NodeConfig.load(files.config(role.name), env={})
    assert (config.bind.host, config.bind.port) == ("127.0.0.1", 0)
    assert config.load_identity() == files.identities[role.name]
    assert len(config.load_psk()) == 32
    assert config.gateway == (role.name == GATEWAY)


def test_a_token_is_for_its_holder_and_the_gateway_knows_those_of_publishers(files: FleetFiles) -> None:
    for role in ROLES:
        config = NodeConfig.load(files.config(role.name), env={})
        tokens = [chain[-1] for chain in config.load_tokens()]
        holders = {files.identities[other.name].entity_id for other in ROLES if other.allowed == Scope.PUBLISH}
        own = {files.identities[role.name].entity_id} if role.allowed is not None else set()
        assert {token.subject for token in tokens} == (holders if role.name == GATEWAY else own)
        for token in tokens:
            assert token.issuer in config.trusted_issuers
            assert token.authorizes(role.allowed or Scope.PUBLISH, ChannelName(ALARMS).hash)


def test_the_proposal_changes_two_channels_and_nothing_else(files: FleetFiles) -> None:
    before, after = (load_policy(path) for path in (files.config(GATEWAY), files.folder / PROPOSED_POLICY))
    rules = {channel.name: channel.visibility for channel in before.channels}
    assert rules == {
        ALARMS: Visibility.GLOBAL,
        POSES: Visibility.PARENT_VISIBLE,
        MAPS: Visibility.EXPORTED,
        TRACES: Visibility.SUBNET_LOCAL,
        ANOMALIES: Visibility.PARENT_VISIBLE,
        FRAMES: Visibility.PARENT_VISIBLE,
        ORDERS: Visibility.GLOBAL,
    }
    assert NOTES not in rules
    changed = {new.name: new.visibility for old, new in zip(before.channels, after.channels, strict=True) if old != new}
    assert changed == {ALARMS: Visibility.PARENT_VISIBLE, POSES: Visibility.GLOBAL}
    assert before.peer_subnets == after.peer_subnets == (SubnetId.parse("3.1"), SubnetId.parse("3.2"))


def test_the_pipeline_reads_what_the_gateway_and_the_readers_wrote(files: FleetFiles) -> None:
    settings = load_config(files.folder / PIPELINE)
    assert settings.tables == str(files.folder / "tables")
    replicas = [files.folder / REPLICAS / name / "logs" for name in NAMES]
    logs = [*(files.log_dir(name) for name in (GATEWAY, "control", "east-planner")), *replicas]
    assert settings.logs == tuple(map(str, logs))
    readers = {files.identities[name].node_id for name in ("control", "east-planner")}
    assert {entry.peer for entry in settings.subscriptions} == readers


def test_every_wish_names_a_member(files: FleetFiles) -> None:
    assert {publisher for role in ROLES for publisher, _ in role.wishes} <= set(files.identities)


def test_the_detector_begins_on_the_failing_rover_and_may_move_to_the_gateway(files: FleetFiles) -> None:
    for role in ROLES:
        config = NodeConfig.load(files.config(role.name), env={})
        found = [(entry.name, entry.run, str(entry.output)) for entry in config.daemons]
        assert found == ([(DETECTOR, role.name == FAILING, ANOMALIES)] if role.name in {FAILING, GATEWAY} else [])
        for entry in config.daemons:
            assert entry.load_factory() is Detector


def test_one_node_has_a_bridge_and_only_a_gateway_that_is_asked_to_serves_a_page(
    files: FleetFiles, tmp_path: Path
) -> None:
    with_bridge = [role.name for role in ROLES if NodeConfig.load(files.config(role.name), env={}).edge]
    assert with_bridge == [CONTROL]
    assert NodeConfig.load(files.config(GATEWAY), env={}).web is None
    served = write_files(tmp_path, serve=True)
    web = {role.name: NodeConfig.load(served.config(role.name), env={}).web for role in ROLES}
    assert [name for name, entry in web.items() if entry is not None] == [GATEWAY]


def test_nothing_is_overwritten(files: FleetFiles) -> None:
    with pytest.raises(ConfigError, match="never overwritten"):
        write_files(files.folder)


def test_places_have_names() -> None:
    assert [place_of(subnet) for subnet in ("3", "3.2", 0x03010000, "9", None)] == ["region", "east", "west", "9", "–"]
