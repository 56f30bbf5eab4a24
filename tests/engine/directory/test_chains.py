"""Chains: tags that say who holds which log, and the nearest holder first."""

from meshbus.engine.base.packets import Output
from meshbus.engine.core import Engine
from meshbus.engine.directory.chains import MAX_CHAINS
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.tag import chain_range_tag, chain_tag
from meshbus.testing.rig import rig
from meshbus.wire.messages.capability import Announcement, decode_announcement
from meshbus.wire.pingwave import Pingwave
from tests.engine.wires import FarEnd

CHAIN, OTHER = 0x1234, 0x5678
WALL_US = 1_700_000_000_000_000


def announced(far: FarEnd, engine: Engine, now: float) -> list[Announcement]:
    """Give what the peer gets when the time comes."""
    out = Output()
    engine.announcer.tick(now, out)
    return [decode_announcement(message) for _, message in far.read(out)]


def chains(announcement: Announcement) -> set[str]:
    return {tag for tag in announcement.tags if tag.startswith("causal:")}


def fleet(engine: Engine, *tags: str, distances_us: tuple[int | None, ...]) -> None:
    """Let nodes 10, 11, … announce a tag each, at these distances."""
    for node_id, (tag, distance) in enumerate(zip(tags, distances_us, strict=True), 10):
        engine.index.apply(node_id, CapabilitySet([tag]), 1, 300.0, 0.0)
        if distance is not None:
            wave = Pingwave(node_id=node_id, seq=1, ttl=3, timestamp_us=WALL_US - distance)
            engine.mesh.graph.observe(wave, node_id, ("127.0.0.1", node_id), 0.0, WALL_US)


# ── what this node announces ────────────────────────────────────────────────────────────────


def test_a_chain_is_a_tag_of_the_next_announcement_until_it_is_withdrawn() -> None:
    engine = rig(node_id=1)
    far = FarEnd(engine.peers, 7)
    engine.announce(CapabilitySet(["lidar"]), 0.0, Output())
    engine.chains.announce_chain(CHAIN, 41, 1.0)
    assert announced(far, engine, 9.9) == []
    [first] = announced(far, engine, 10.0)
    assert chains(first) == {"causal:0000000000001234:41"}
    assert "lidar" in first.tags
    engine.chains.withdraw_chain(CHAIN, 11.0)
    [second] = announced(far, engine, 20.0)
    assert second.version > first.version
    assert chains(second) == set()


def test_a_chain_has_one_tag_and_a_new_one_replaces_it() -> None:
    engine = rig(node_id=1)
    far = FarEnd(engine.peers, 7)
    engine.announce(CapabilitySet(), 0.0, Output())
    for tip in (None, 41, 42):
        engine.chains.announce_chain(CHAIN, tip, 1.0)
    engine.chains.announce_chain(OTHER, None, 1.0)
    [told] = announced(far, engine, 10.0)
    assert chains(told) == {"causal:0000000000001234:42", "causal:0000000000005678"}


def test_what_does_not_change_is_not_announced_again() -> None:
    engine = rig(node_id=1)
    far = FarEnd(engine.peers, 7)
    engine.chains.announce_chain(CHAIN, 41, 0.0)
    out = Output()
    engine.announce(CapabilitySet(), 0.0, out)
    assert [chains(decode_announcement(message)) for _, message in far.read(out)] == [{chain_tag(CHAIN, tip=41)}]
    engine.chains.announce_chain(CHAIN, 41, 20.0)
    engine.chains.withdraw_chain(OTHER, 20.0)
    assert announced(far, engine, 30.0) == []


def test_more_chains_than_an_announcement_names_are_counted() -> None:
    engine = rig(node_id=1)
    far = FarEnd(engine.peers, 7)
    engine.announce(CapabilitySet(), 0.0, Output())
    for chain in range(MAX_CHAINS + 3):
        engine.chains.announce_chain(chain, 2**63, 1.0)
    [told] = announced(far, engine, 10.0)
    assert len(chains(told)) == MAX_CHAINS
    assert engine.counters.snapshot()["drop"] == {"chain_not_announced": 3}
    assert engine.chains.find_chain_holders(MAX_CHAINS, 10.0) == []
    engine.chains.announce_chain(0, 7, 11.0)
    [told] = announced(far, engine, 20.0)
    assert "causal:0000000000000000:7" in told.tags


def test_capabilities_that_fill_the_announcement_go_before_chains() -> None:
    engine = rig(node_id=1)
    far = FarEnd(engine.peers, 7)
    out = Output()
    engine.announce(CapabilitySet(["x" * 7000]), 0.0, out)
    far.read(out)
    for chain in range(MAX_CHAINS):
        engine.chains.announce_chain(chain, 2**63, 1.0)
    [told] = announced(far, engine, 10.0)
    assert chains(told) == set()
    assert "x" * 7000 in told.tags
    assert engine.counters.snapshot()["drop"] == {"chain_not_announced": MAX_CHAINS}


# ── who holds what ──────────────────────────────────────────────────────────────────────────


def test_holders_are_this_node_then_the_nearest_then_those_of_unknown_distance() -> None:
    engine = rig(node_id=99)
    fleet(
        engine,
        chain_tag(CHAIN),
        chain_tag(CHAIN, tip=5),
        chain_range_tag(CHAIN, 2, 9),
        chain_tag(CHAIN, tip=7),
        chain_tag(OTHER),
        chain_tag(CHAIN),
        distances_us=(None, 900, 200, 900, 100, None),
    )
    assert engine.chains.find_chain_holders(CHAIN, 1.0) == [12, 11, 13, 10, 15]
    engine.chains.announce_chain(CHAIN, None, 1.0)
    assert engine.chains.find_chain_holders(CHAIN, 1.0) == [99, 12, 11, 13, 10, 15]
    assert engine.chains.find_chain_holders(OTHER, 1.0) == [14]
    assert engine.chains.find_chain_holders(0, 1.0) == []


def test_this_node_holds_what_it_announced_last_even_before_it_is_sent() -> None:
    engine = rig(node_id=99)
    engine.chains.announce_chain(CHAIN, 3, 0.0)
    engine.announce(CapabilitySet(), 0.0, Output())
    assert engine.chains.find_chain_holders(CHAIN, 0.0) == [99]
    engine.chains.withdraw_chain(CHAIN, 0.0)
    assert engine.chains.find_chain_holders(CHAIN, 0.0) == []


def test_a_holder_whose_announcement_expired_is_not_found() -> None:
    engine = rig(node_id=99)
    fleet(engine, chain_tag(CHAIN), distances_us=(None,))
    assert engine.chains.find_chain_holders(CHAIN, 300.0) == [10]
    assert engine.chains.find_chain_holders(CHAIN, 300.5) == []
