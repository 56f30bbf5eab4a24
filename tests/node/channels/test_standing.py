"""Standing subscriptions: a node records what its file says, without a program, whatever its peers do meanwhile."""

from pathlib import Path
from typing import Any

import pytest

from meshbus.log.reader import LogReader
from meshbus.node.channels import standing as subject
from meshbus.node.node import Node
from tests.node.test_node import PSK, until
from tests.patience import PATIENCE_S

QUICK: dict[str, Any] = {"psk": PSK, "ephemeral": True, "heartbeat_s": 0.1, "session_timeout_s": 1.0}


def recorded(folder: Path, channel: str) -> list[bytes]:
    """Return what a node has logged of a channel."""
    return [event.payload for event in LogReader(folder / "received", channel).snapshot().events()]


async def test_a_base_records_channels_and_prefixes_without_a_program(tmp_path: Path) -> None:
    wanted = [{"prefix": "robot/"}, {"channel": "orders"}]
    async with (
        Node.open(**QUICK) as robot,
        Node.open(**QUICK, log_dir=tmp_path, subscriptions=wanted) as base,
    ):
        await base.connect(robot.address, public_key=robot.public_key)
        publishers = [robot.publisher(name) for name in ("robot/status", "orders", "other")]
        await until(lambda: all(robot.roster.members(publisher.channel) for publisher in publishers[:2]), PATIENCE_S)
        for publisher in publishers:
            await publisher.publish(publisher.channel.encode())
        await until(lambda: base.counters["received"]["events"] == 2, PATIENCE_S)
        assert base.counters.get("drop", {}).get("nobody_listens") is None
    assert recorded(tmp_path, "robot/status") == [b"robot/status"]
    assert recorded(tmp_path, "orders") == [b"orders"]
    assert not list((tmp_path / "received").glob("other-*"))


async def test_a_publisher_that_connects_later_is_recorded_and_only_that_one(tmp_path: Path) -> None:
    async with Node.open(**QUICK) as robot, Node.open(**QUICK) as other:
        wanted = [{"channel": "status", "publisher": f"{robot.node_id:016x}"}]
        async with Node.open(**QUICK, log_dir=tmp_path, subscriptions=wanted) as base:
            for node in (other, robot):
                await base.connect(node.address, public_key=node.public_key)
            await until(lambda: robot.roster.members("status"), PATIENCE_S)
            assert not other.roster.members("status")
            await robot.publisher("status").publish(b"here")
            await until(lambda: base.counters["received"]["events"] == 1, PATIENCE_S)
    assert recorded(tmp_path, "status") == [b"here"]


async def test_a_refused_subscription_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "RETRY_S", 1.0)  # publishers limit those who ask more often
    closed = [{"name": "status", "require_token": True}]
    async with (
        Node.open(**QUICK, channels=closed) as robot,
        Node.open(**QUICK, log_dir=tmp_path, subscriptions=[{"channel": "status"}]) as base,
    ):
        await base.connect(robot.address, public_key=robot.public_key)
        await until(lambda: robot.counters.get("refuse", {}), PATIENCE_S)
        robot.set_channel_configs(None)
        await until(lambda: robot.roster.members("status"), PATIENCE_S)
