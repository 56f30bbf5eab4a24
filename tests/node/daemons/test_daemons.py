"""Daemons for applications: arguments, placement, moves as one call, and daemons from the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshbus import CapabilityFilter, Node
from meshbus.compute.daemon import derive_daemon
from meshbus.errors import ConfigError, DaemonError, LocalProtocolError, MigrationError, MigrationFault, Timeout
from meshbus.keyfile import load_identity
from meshbus.node.daemons import daemons as daemons_module
from meshbus.node.daemons.daemoninfo import DaemonState
from tests.compute.counter import Counter
from tests.node.daemons.daemontrio import (
    DAEMON,
    INPUT,
    OUTPUT,
    PSK,
    check,
    info,
    nodes,
    offer,
    prepared,
    processed,
    publish,
    until,
)


async def test_a_node_without_a_directory_runs_none_and_does_not_announce_it(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (able,), prepared(tmp_path, 1, daemons_dir=None) as plain:
        await plain.connect(able.address, public_key=able.public_key)
        with pytest.raises(ConfigError, match="daemons_dir"):
            _ = plain.daemons
        assert "subprotocol:0x0500" not in plain.live.engine.announcer.capabilities.tags
        assert "subprotocol:0x0500" in able.live.engine.announcer.capabilities.tags
        await able.daemons.run(DAEMON, Counter, output=OUTPUT)
        await until(lambda: bool(plain.peers) and plain.peers[0].profile)
        with pytest.raises(MigrationError, match="runs no daemons") as caught:
            await able.daemons.move(DAEMON, plain.node_id)
        assert caught.value.fault is MigrationFault.COMPUTE_NOT_SUPPORTED


async def test_arguments_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons_module, "LOOK_FOR_S", 0.1)
    async with nodes(tmp_path, 1) as (node,):
        with pytest.raises(ConfigError, match="unlogged is the output of a daemon"):
            await node.daemons.run(DAEMON, Counter, output="unlogged")
        with pytest.raises(ConfigError, match="unlogged@NODE"):
            await node.daemons.run(DAEMON, Counter, inputs=["unlogged"])
        with pytest.raises(LocalProtocolError, match="announced the name 'nobody'"):
            await node.daemons.run(DAEMON, Counter, inputs=["numbers@nobody"])
        with pytest.raises(DaemonError, match="not known to this node"):
            await node.daemons.stop(DAEMON)
        with pytest.raises(MigrationError, match="no other node says"):
            await node.daemons.move(DAEMON, 7)
        with pytest.raises(MigrationError, match="not being moved"):
            await node.daemons.cancel(DAEMON)
        assert list(node.daemons.list()) == []


async def test_names_and_keys(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (node,):
        assert node.daemons.origin_of(DAEMON) == derive_daemon(PSK, DAEMON).origin_hash
        told = await node.daemons.run("own", Counter, key=str(tmp_path / "own.toml"))
        assert told.origin == load_identity(tmp_path / "own.toml").origin_hash == node.daemons.origin_of("own")
        assert node.daemons.get(told.origin).name == "own"


async def test_a_second_start_elsewhere_is_refused_where_it_is_known(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as (one, two):
        await one.daemons.run(DAEMON, Counter, output=OUTPUT)
        origin = one.daemons.origin_of(DAEMON)
        await until(lambda: two.find_chain_holders(origin) == [one.node_id])
        with pytest.raises(DaemonError, match="offer it here and move it"):
            await two.daemons.run(DAEMON, Counter, output=OUTPUT)


class Picky(Counter):
    requirements = CapabilityFilter(require_tags=("camera",))


async def test_without_a_target_the_nearest_node_that_fits_gets_it(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2) as (source, plain), prepared(tmp_path, 5, tags=["camera"]) as camera:
        await camera.connect(source.address, public_key=source.public_key)
        await source.daemons.run(DAEMON, Picky, inputs=[INPUT], output=OUTPUT)
        await offer(plain, camera, create=Picky)
        await until(lambda: camera.node_id in source.find_nodes(CapabilityFilter(require_tags=("camera",))))
        moved = await source.daemons.move(DAEMON)
        assert (moved.source, moved.target) == (source.node_id, camera.node_id)
        await publish(source, 0, 30)
        await processed(camera, 30)
        check(camera, [source, plain, camera], 30)
        with pytest.raises(MigrationError, match="meets its requirements"):
            await camera.daemons.move(DAEMON)


async def test_a_move_that_takes_too_long_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes(tmp_path, 2) as (source, target):
        await source.daemons.run(DAEMON, Counter, inputs=[INPUT], output=OUTPUT)
        await offer(target)
        hosting = target._parts.daemons[0]  # type: ignore[union-attr, index]
        monkeypatch.setattr(hosting, "take", lambda _carried: None)  # it does not answer
        with pytest.raises(Timeout):
            await source.daemons.move(DAEMON, target.node_id, timeout_s=0.3)
        await publish(source, 0, 10)
        await processed(source, 10)
        await until(lambda: info(source).state is DaemonState.RUNNING)
        check(source, [source], 10)


async def test_daemons_of_the_configuration_run_and_move(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "counting_daemon.py").write_text("from tests.compute.counter import Counter\n")
    entry = {"name": DAEMON, "factory": "counting_daemon:Counter", "inputs": [f"{INPUT}@n1"], "output": OUTPUT}

    def configured(number: int, *, runs: bool) -> Node:
        return prepared(tmp_path, number, daemons=[{**entry, "run": runs}], daemons_path=[tmp_path / "modules"])

    async with configured(0, runs=True) as one, configured(1, runs=False) as two:
        # The name of the publisher is not known yet.
        assert list(one.daemons.list()) == []
        await two.connect(one.address, public_key=one.public_key)
        await publish(two, 0, 25)
        await until(lambda: bool(one.daemons.list()))
        await processed(one, 25)
        await two.daemons.move(DAEMON, "n1")
        await publish(two, 25, 50)
        await processed(two, 50)
        check(two, [one, two], 50)


async def test_code_that_cannot_be_loaded_keeps_the_node_from_starting(tmp_path: Path) -> None:
    node = prepared(tmp_path, 0, daemons=[{"name": DAEMON, "factory": "no_such_module:Counter"}])
    with pytest.raises(ConfigError, match="no_such_module"):
        await node.start()
    await node.close()
