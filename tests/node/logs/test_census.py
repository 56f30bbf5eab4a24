"""A node writes down what it knows: itself, its peers, its rosters, each when it changes."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshbus.compute.daemon import DaemonEvent
from meshbus.config.node import NodeConfig
from meshbus.engine.channels.roster import SubscriberRoster
from meshbus.errors import LogError, LogFault, MigrationError
from meshbus.log.census import FOLDER, Fact, FactKind, channel_of, list_censuses
from meshbus.log.log import RedexFile
from meshbus.log.reader import LogReader
from meshbus.names.channel import ChannelName
from meshbus.names.identity import derive_origin_hash
from meshbus.node.logs import census
from meshbus.node.logs.census import CensusBook, CensusLog, roster_fact
from meshbus.node.node import Node
from tests.log.faults import Faults, each_fault, name_of
from tests.node.logs.censuslife import Life
from tests.node.test_node import until

PSK = bytes(32).hex()
OWN = Fact(FactKind.SNAPSHOT, 1)


def node(node_id: int = 7, offset: int | None = None, error: int | None = None, subnet: int = 0) -> Fact:
    return Fact(FactKind.NODE, node_id, subnet=subnet, clock_offset_ns=offset, clock_error_ns=error)


def roster(channel: str, subscribers: int) -> Fact:
    return Fact(FactKind.ROSTER, channel=channel, subscribers=subscribers, copies=subscribers)


def test_only_changes_are_new() -> None:
    book = CensusBook()
    assert book.snapshot(OWN, [node()], [roster("a", 1)]) == [OWN, node(), roster("a", 1)]
    assert book.nodes([node()]) == []
    assert book.nodes([node(subnet=3)]) == [node(subnet=3)]
    assert book.roster(roster("a", 1)) == []
    assert book.roster(roster("a", 2)) == [roster("a", 2)]
    assert book.snapshot(OWN, [node(subnet=3)], [roster("a", 2)]) == [OWN, node(subnet=3), roster("a", 2)]


def test_a_clock_is_new_if_it_moved_or_is_known_much_better() -> None:
    book = CensusBook()
    assert book.nodes([node(offset=100, error=50)])
    assert not book.nodes([node(offset=130, error=40)])
    assert book.nodes([node(offset=130, error=20)])
    assert not book.nodes([node(offset=149, error=20)])
    assert book.nodes([node(offset=200, error=20)])
    assert book.nodes([node()])
    assert not book.nodes([node()])


def test_a_peer_that_comes_back_is_described_again() -> None:
    book = CensusBook()
    assert book.nodes([node()])
    assert book.nodes([]) == []
    assert book.nodes([node()]) == [node()]


def test_a_channel_without_a_row_has_no_subscribers() -> None:
    book = CensusBook()
    assert book.roster(roster("a", 0)) == []
    assert book.rosters([roster("a", 1), roster("b", 2)]) == [roster("a", 1), roster("b", 2)]
    assert book.rosters([roster("b", 2)]) == [roster("a", 0)]
    assert book.rosters([roster("b", 2)]) == []


def test_a_group_gets_one_copy() -> None:
    kept, channel = SubscriberRoster(), ChannelName("a")
    for member, group in ((1, ""), (2, ""), (3, "g"), (4, "g"), (5, "h")):
        kept.add(channel, member, group)
    fact = roster_fact(kept, channel)
    assert (fact.subscribers, fact.copies) == (5, 4)


def facts(root: Path, of: Node) -> list[Fact]:
    batches = LogReader(root / FOLDER, channel_of(of.node_id)).snapshot().batches(columns=["payload"])
    return [msgspec.json.decode(row["payload"], type=Fact) for batch in batches for row in batch.to_pylist()]


def make(**settings: Any) -> Node:
    return Node(NodeConfig.load(env={}, psk=PSK, ephemeral=True, **settings))


async def test_a_node_writes_itself_its_peers_their_clocks_and_its_rosters(tmp_path: Path) -> None:
    publisher, reader = make(log_dir=tmp_path, subnet="3.1", name="base"), make(subnet="3.2", name="west-rover")
    async with publisher, reader:
        await reader.connect(publisher.address, public_key=publisher.public_key)
        async with reader.subscribe("sensors/lidar"):
            await until(lambda: publisher.live.engine.peers.require(reader.node_id).clock is not None, 30)
        await until(lambda: not publisher.roster.members("sensors/lidar"), 30)
    found = facts(tmp_path, publisher)
    own = found[0]
    assert (own.kind, own.node_id, own.origin) == ("snapshot", publisher.node_id, publisher.identity.origin_hash)
    assert own.name == "base"
    assert (own.entity, own.subnet) == (publisher.public_key, int(publisher.config.subnet))
    assert [(fact.channel, fact.subscribers, fact.copies) for fact in found if fact.kind == "roster"] == [
        ("sensors/lidar", 1, 1),
        ("sensors/lidar", 0, 0),
    ]
    last = [fact for fact in found if fact.node_id == reader.node_id][-1]
    assert (last.entity, last.origin) == (reader.public_key, derive_origin_hash(reader.public_key))
    assert last.name == "west-rover"
    assert last.subnet is None, "this node has no rules that place its peers"
    assert last.clock_offset_ns is not None
    assert last.clock_error_ns is not None
    assert abs(last.clock_offset_ns) <= last.clock_error_ns, "both nodes read the same clock"
    assert list_censuses(tmp_path) == {publisher.node_id: channel_of(publisher.node_id)}


class Still:
    def process(self, _event: DaemonEvent) -> list[bytes]:
        return []

    def snapshot(self) -> bytes:
        return b""

    def restore(self, _state: bytes) -> None:
        pass


async def test_a_node_writes_the_moves_that_it_drives(tmp_path: Path) -> None:
    east, west = (
        make(log_dir=tmp_path / name / "log", daemons_dir=tmp_path / name / "daemons", name=name)
        for name in ("east", "west")
    )
    async with east, west:
        await west.connect(east.address, public_key=east.public_key)
        await east.daemons.run("still", Still)
        await west.daemons.offer("still", Still)
        with pytest.raises(MigrationError):  # nobody runs it, so this is no move
            await west.daemons.move("nobody", west.node_id, source=east.node_id)
        stuck = await east.daemons.run("stuck", Still)
        with pytest.raises(MigrationError) as refused:  # it is not offered there
            await west.daemons.move("stuck", west.node_id, source=east.node_id)
        moved = await west.daemons.move("still", west.node_id, source=east.node_id)
    told = [fact for fact in facts(tmp_path / "west" / "log", west) if fact.origin == moved.origin]
    assert [(fact.kind, fact.node_id, fact.name) for fact in told] == [
        ("moving", east.node_id, "still"),
        ("moved", west.node_id, "still"),
    ]
    assert not [fact for fact in facts(tmp_path / "west" / "log", west) if fact.kind == "moved" and fact not in told]
    (failed,) = [fact for fact in facts(tmp_path / "west" / "log", west) if fact.kind == "not_moved"]
    assert (failed.origin, failed.node_id) == (stuck.origin, west.node_id)
    assert failed.failure == str(refused.value)
    assert {fact.kind for fact in facts(tmp_path / "east" / "log", east)} <= {"snapshot", "node", "roster"}


async def test_a_node_without_logs_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with make():
        pass
    assert not (tmp_path / FOLDER).is_dir()


async def test_each_hour_begins_with_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "LOOK_S", 0.01)
    monkeypatch.setattr(census, "SNAPSHOT_NS", 10**7)
    node = make(log_dir=tmp_path)
    async with node:
        await until(lambda: len(facts(tmp_path, node)) >= 3, 30)
    assert {fact.kind for fact in facts(tmp_path, node)} == {"snapshot"}


async def test_more_changes_than_are_kept_still_end_in_the_right_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(census, "MAX_CHANGES", 2)
    publisher, reader = make(log_dir=tmp_path), make()
    async with reader, publisher:  # the publisher closes first, so that nobody has left by then
        await reader.connect(publisher.address, public_key=publisher.public_key)
        for number in range(5):
            await reader.subscribe_channel(publisher.node_id, f"a/{number}")
    last = {fact.channel: fact.subscribers for fact in facts(tmp_path, publisher) if fact.kind == "roster"}
    assert last == {f"a/{number}": 1 for number in range(5)}


async def test_a_census_that_cannot_be_written_is_counted_and_stops_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise LogError(LogFault.FAILED, "the disk is full")

    close = CensusLog.close

    def close_and_refuse(log: CensusLog) -> None:
        close(log)
        refuse()

    with monkeypatch.context() as patch:
        patch.setattr(RedexFile, "write_batch", refuse)
        async with make(log_dir=tmp_path) as node:
            await until(lambda: node.counters.get("fail") == {"log_census": 1}, 30)
        patch.setattr(CensusLog, "close", close_and_refuse)
        async with make(log_dir=tmp_path):
            pass


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look, and try again, all the time."""
    monkeypatch.setattr(census, "LOOK_S", 0.01)
    monkeypatch.setattr(census, "RETRY_S", 0.01)


@pytest.mark.usefixtures("hasty")
async def test_a_census_that_cannot_be_opened_at_first_begins_when_it_can(tmp_path: Path) -> None:
    (tmp_path / FOLDER).touch()  # no folder, so nothing can be created in it
    async with make(log_dir=tmp_path) as node:
        await until(lambda: node.counters["fail"]["census_open"] > 1)
        assert node.counters["fail"]["log_census"] >= 1, "what is not written is counted"
        (tmp_path / FOLDER).unlink()
        await until(lambda: (tmp_path / FOLDER).is_dir() and list_censuses(tmp_path))
        await until(lambda: [fact.kind for fact in facts(tmp_path, node)] == ["snapshot"])


@pytest.mark.usefixtures("hasty")
async def test_what_a_full_disk_refused_follows_as_a_snapshot_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise LogError(LogFault.NO_SPACE, "no space left")

    publisher, reader = make(log_dir=tmp_path), make()
    async with reader, publisher:
        await reader.connect(publisher.address, public_key=publisher.public_key)
        with monkeypatch.context() as full:
            full.setattr(RedexFile, "write_batch", refuse)
            await reader.subscribe_channel(publisher.node_id, "a/0")
            await until(lambda: publisher.counters.get("fail", {}).get("log_census"))
        await until(lambda: "a/0" in {fact.channel for fact in facts(tmp_path, publisher)})
        found = [fact.kind for fact in facts(tmp_path, publisher)]
        assert found.index("snapshot", 1) < found.index("roster")


def play(folder: Path, every: int) -> None:
    plain = Life(folder / "plain", Faults())
    plain.live()
    plain.check("without a fault")
    for error, lasting, at in each_fault(len(plain.files.calls), every):
        life = Life(folder / "one", Faults(at, error, lasting=lasting))
        life.live()
        life.check(f"{name_of(error, lasting=lasting)} at {life.files.hit or at}")
        shutil.rmtree(folder / "one")


def test_a_census_survives_any_fault_at_any_call(tmp_path: Path) -> None:
    play(tmp_path, every=37)


@pytest.mark.soak
def test_a_census_survives_every_fault_at_every_call(tmp_path: Path) -> None:
    play(tmp_path, every=1)
