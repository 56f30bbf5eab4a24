"""This node's announcement: rising versions, broadcasts and their interval, repetitions."""

import pytest

from meshbus.engine.base.packets import Output
from meshbus.engine.directory.announce import MAX_VERSION, REPEATS_S
from meshbus.engine.directory.reachability import Nat, NatStatus
from meshbus.engine.settings import AnnounceConfig, NamedChannels
from meshbus.errors import ConfigError, LocalProtocolError
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.policy.capability import CapabilityFilter, CapabilitySet
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility
from meshbus.policy.tag import MAX_CHANNEL_TAGS
from meshbus.testing.rig import rig
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.address import Address
from meshbus.wire.messages.capability import Announcement, decode_announcement
from tests.engine.wires import FarEnd
from tests.vectors import load

REFERENCE = load("policy")["reference_announcement"]
START_NS = 1_794_767_280_682_856_723
ME = Identity.from_seed(b"\x01" * 32)
ONE, TWO = CapabilitySet(["one"]), CapabilitySet(["two"])
FRESH = CapabilitySet(["fresh"])


class World:
    """An announcer, its peers and a clock that starts in 2026."""

    def __init__(
        self, identity: Identity = ME, config: AnnounceConfig | None = None, *, wall_ns: int = START_NS
    ) -> None:
        self.wall_ns = wall_ns
        engine = rig(identity, wall=lambda now: self.wall_ns + int(now * 1e9), announce=config or AnnounceConfig())
        self.peers, self.index, self.registry = engine.peers, engine.index, engine.registry
        self.announcer, self.counters = engine.announcer, engine.counters

    def announce(self, capabilities: CapabilitySet, now: float) -> Output:
        out = Output()
        self.announcer.announce(capabilities, now, out)
        return out

    def up(self, far: FarEnd, now: float) -> Output:
        out = Output()
        self.announcer.peer_up(far.peer, now, out)
        return out

    def tick(self, now: float) -> Output:
        out = Output()
        self.announcer.tick(now, out)
        return out


def heard(far: FarEnd, out: Output) -> list[Announcement]:
    messages = far.read(out)
    assert {subprotocol_id for subprotocol_id, _ in messages} <= {Subprotocol.CAPABILITY}
    announcements = [decode_announcement(message) for _, message in messages]
    assert all(announcement.verify() and announcement.owns_node_id for announcement in announcements)
    return announcements


def tags(far: FarEnd, out: Output) -> list[str]:
    """The tag of each announcement that says what was announced."""
    return [tag for announcement in heard(far, out) for tag in announcement.tags if tag in {"one", "two", "fresh"}]


# ── content ─────────────────────────────────────────────────────────────────────────────────


def test_the_bytes_are_those_of_the_reference() -> None:
    theirs = decode_announcement(REFERENCE["first"].encode())
    world = World(Identity.from_seed(bytes.fromhex(REFERENCE["seed"])), AnnounceConfig(enrich=False))
    world.wall_ns = theirs.timestamp_ns
    far = FarEnd(world.peers, 7)
    [(_, message)] = far.read(world.announce(CapabilitySet(["one", "subprotocol:0x0500"]), 0.0))
    ours = decode_announcement(message)
    assert (ours.node_id, ours.tags, ours.ttl_secs, ours.timestamp_ns) == (
        theirs.node_id, theirs.tags, theirs.ttl_secs, theirs.timestamp_ns,
    )  # fmt: skip
    assert message.index(b'"signature"') == REFERENCE["first"].index('"signature"') + len(str(ours.version)) - 1


def test_the_node_adds_how_it_is_reached_and_what_it_handles() -> None:
    world = World()
    world.announce(CapabilitySet(["one", "nat:cone"], {"k": "v"}), 0.0)
    assert world.announcer.current is not None
    assert world.announcer.current.metadata == {"k": "v"}
    expected = {"one", "nat:unknown", *world.registry.capability_tags()}
    assert "subprotocol:0x0600" in expected
    assert world.announcer.capabilities.tags == expected


def test_the_tags_of_subprotocols_can_be_switched_off() -> None:
    world = World(config=AnnounceConfig(enrich=False))
    world.announce(ONE, 0.0)
    assert world.announcer.capabilities.tags == {"one", "nat:unknown"}


def test_a_new_way_of_being_reached_is_announced() -> None:
    world, out = World(), Output()
    far = FarEnd(world.peers, 7)
    opened = NatStatus(Nat.OPEN, Address("192.0.2.1", 9001))
    world.announcer.set_nat(opened, 0.0, out)
    assert far.read(out) == []
    world.announce(ONE, 0.0)
    world.announcer.set_nat(opened, 20.0, out)
    assert far.read(out) == []
    world.announcer.set_nat(NatStatus(Nat.SYMMETRIC), 20.0, out)
    [announcement] = heard(far, out)
    assert "nat:symmetric" in announcement.tags
    assert "nat:open" not in announcement.tags
    assert announcement.reflex_addr is None
    out = Output()
    world.announcer.set_nat(opened, 40.0, out)
    [announcement] = heard(far, out)
    assert "nat:open" in announcement.tags
    assert announcement.reflex_addr == "192.0.2.1:9001"


def test_the_node_finds_itself_once_it_announced() -> None:
    world = World()
    wanted = CapabilityFilter(require_tags=("one",))
    assert world.index.query(wanted, now=0.0) == []
    world.announce(ONE, 0.0)
    assert world.index.query(wanted, now=0.0) == [ME.node_id]


def test_what_does_not_fit_a_packet_is_refused_and_changes_nothing() -> None:
    world = World()
    far = FarEnd(world.peers, 7)
    world.announce(ONE, 0.0)
    before = world.announcer.current
    with pytest.raises(LocalProtocolError, match="does not fit"):
        world.announce(CapabilitySet(["x" * 9000]), 20.0)
    assert world.announcer.current is before
    assert tags(far, world.up(far, 21.0)) == ["one"]


@pytest.mark.parametrize("bad", [{"ttl_s": 0}, {"ttl_s": 1 << 32}, {"ttl_s": 10}, {"min_interval_s": -1.0}])
def test_impossible_times_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        AnnounceConfig(**bad)  # type: ignore[arg-type]


# ── versions ────────────────────────────────────────────────────────────────────────────────


def test_versions_are_milliseconds_and_always_grow() -> None:
    world = World()
    first = world.announcer.announce(ONE, 0.0, Output())
    assert first == START_NS // 1_000_000
    assert world.announcer.announce(ONE, 0.0, Output()) == first + 1
    world.wall_ns -= 3_600_000_000_000
    assert world.announcer.announce(ONE, 1.0, Output()) == first + 2
    world.wall_ns += 7_200_000_000_000
    assert world.announcer.announce(ONE, 1.0, Output()) == first + 3_601_000


def test_a_restarted_node_is_newer_than_it_was() -> None:
    before, after = World(), World(wall_ns=START_NS + 2_000_000_000)
    last = [before.announcer.announce(ONE, now * 0.1, Output()) for now in range(10)][-1]
    assert after.announcer.announce(ONE, 0.0, Output()) > last


def test_a_version_of_an_earlier_life_is_surpassed() -> None:
    world, out = World(wall_ns=0), Output()
    far = FarEnd(world.peers, 7)
    world.announcer.surpass(500, 0.0, out)
    world.announce(ONE, 0.0)
    assert world.announcer.current is not None
    world.announcer.surpass(world.announcer.current.version, 20.0, out)
    world.announcer.surpass(MAX_VERSION, 20.0, out)
    assert far.read(out) == []
    world.announcer.surpass(1_794_767_280_682, 20.0, out)
    [announcement] = heard(far, out)
    assert announcement.version == 1_794_767_280_683


# ── when ────────────────────────────────────────────────────────────────────────────────────


def test_two_quick_calls_are_one_broadcast_and_then_the_latest() -> None:
    world = World()
    far = FarEnd(world.peers, 7)
    sent = [tags(far, world.announce(content, now)) for content, now in ((ONE, 0.0), (TWO, 0.1), (FRESH, 3.0))]
    assert sent == [["one"], [], []]
    assert sum(map(len, sent)) == REFERENCE["two_calls_within_10s_broadcasts_seen"]
    assert world.announcer.next_timer() == 10.0
    assert tags(far, world.tick(9.9)) == []
    assert tags(far, world.tick(10.0)) == ["fresh"]
    assert tags(far, world.tick(11.0)) == []
    assert tags(far, world.announce(ONE, 15.0)) == []
    assert tags(far, world.tick(20.0)) == ["one"]


def test_it_is_repeated_at_half_its_life_with_a_new_version() -> None:
    world = World()
    far = FarEnd(world.peers, 7)
    [first] = heard(far, world.announce(ONE, 0.0))
    assert world.announcer.next_timer() == 150.0
    assert heard(far, world.tick(149.9)) == []
    [second] = heard(far, world.tick(150.0))
    assert second.version > first.version
    assert second.tags == first.tags
    assert world.announcer.next_timer() == 300.0
    assert world.index.query(CapabilityFilter(require_tags=("one",)), now=400.0) == [ME.node_id]


def test_a_broadcast_to_nobody_holds_nothing_back() -> None:
    world = World()
    world.announce(ONE, 0.0)
    far = FarEnd(world.peers, 7)
    assert tags(far, world.announce(TWO, 1.0)) == ["two"]


def test_a_short_life_is_not_repeated_faster_than_allowed() -> None:
    world = World(config=AnnounceConfig(ttl_s=12))
    FarEnd(world.peers, 7)
    world.announce(ONE, 0.0)
    assert world.announcer.next_timer() == 10.0


def test_refreshing_tells_what_the_registry_says_now() -> None:
    world, out = World(), Output()
    far = FarEnd(world.peers, 7)
    world.announcer.refresh(0.0, out)
    [announcement] = heard(far, world.announce(ONE, 0.0))
    assert "subprotocol:0x4d06" in announcement.tags
    world.registry.unregister(Subprotocol.REQUEST)
    world.announcer.refresh(20.0, out)
    [announcement] = heard(far, out)
    assert "subprotocol:0x4d06" not in announcement.tags
    assert "one" in announcement.tags


# ── new sessions ────────────────────────────────────────────────────────────────────────────


def test_a_new_session_is_told_at_once_and_a_few_times_again() -> None:
    world = World()
    first = FarEnd(world.peers, 7)
    assert first.read(world.up(first, 0.0)) == []
    world.announce(ONE, 0.0)
    late = FarEnd(world.peers, 8)
    out = world.up(late, 1.0)
    assert tags(late, out) == ["one"]
    assert first.read(out) == []
    world.announce(TWO, 1.2)
    times = []
    while (due := world.announcer.next_timer()) is not None and due < 9.0:
        assert tags(late, world.tick(due)) == ["two"], "a repetition tells the latest"
        times.append(due)
    assert times == [1.0 + delay for delay in REPEATS_S]


def test_repetitions_end_with_their_session() -> None:
    world = World()
    world.announce(ONE, 0.0)
    old = FarEnd(world.peers, 7)
    world.up(old, 0.0)
    new = FarEnd(world.peers, 7, session=1)
    assert tags(new, world.up(new, 0.1)) == ["one"]
    out = world.tick(5.0)
    assert old.read(out) == []
    assert len(heard(new, out)) == 2
    world.peers.remove(7)
    assert world.tick(20.0).trains == []


def test_a_peer_that_knows_the_version_is_told_a_new_one() -> None:
    world = World()
    far, other = FarEnd(world.peers, 7), FarEnd(world.peers, 8)
    [known] = heard(far, world.announce(ONE, 0.0))
    [again] = heard(far, world.up(far, 0.5))
    assert again.version > known.version
    assert again.tags == known.tags
    [elsewhere] = heard(other, world.up(other, 0.6))
    assert elsewhere.version == again.version, "one new version serves all who come back"


def test_a_peer_that_had_failed_is_told_again() -> None:
    world, out = World(), Output()
    far = FarEnd(world.peers, 7)
    [known] = heard(far, world.announce(ONE, 0.0))
    world.announcer.recovered(far.peer, 100.0, out)
    [again] = heard(far, out)
    assert again.version > known.version, "it has dropped what it knew of us"


# ── names of channels ───────────────────────────────────────────────────────────────────────


def named(announcement: Announcement) -> list[str]:
    return [tag.removeprefix("publishes:") for tag in announcement.tags if tag.startswith("publishes:")]


def test_channels_that_are_opened_together_are_named_in_one_version() -> None:
    world = World()
    far = FarEnd(world.peers, 7)
    world.announce(ONE, 0.0)
    for name in ("b", "a", "b"):
        world.announcer.open_channel(ChannelName(name), 20.0)
    assert world.announcer.next_timer() == 20.0
    [announcement] = heard(far, world.tick(20.0))
    assert named(announcement) == ["a", "b"]
    assert "one" in announcement.tags


def test_a_channel_that_is_opened_soon_after_waits_for_the_interval() -> None:
    world = World()
    far = FarEnd(world.peers, 7)
    world.announce(ONE, 0.0)
    world.announcer.open_channel(ChannelName("a"), 3.0)
    assert heard(far, world.tick(9.9)) == heard(far, Output())
    assert world.announcer.next_timer() == 10.0
    [announcement] = heard(far, world.tick(10.0))
    assert named(announcement) == ["a"]


def test_a_closed_channel_is_not_named_in_the_next_version() -> None:
    world = World()
    far = FarEnd(world.peers, 7)
    for name in ("a", "b", "b"):
        world.announcer.open_channel(ChannelName(name), 0.0)
    assert [named(one) for one in heard(far, world.announce(ONE, 0.0))] == [["a", "b"]]
    for name in ("a", "b"):
        world.announcer.close_channel(ChannelName(name))
    assert [named(one) for one in heard(far, world.announce(TWO, 20.0))] == [["b"]]


@pytest.mark.parametrize(
    ("channels", "expected"),
    [
        (NamedChannels.NONE, []),
        (NamedChannels.OPEN, ["else", "free", "skilled"]),
        (NamedChannels.ALL, ["else", "exported", "free", "secret", "skilled"]),
    ],
)
def test_only_channels_that_may_be_known_are_named(channels: NamedChannels, expected: list[str]) -> None:
    world = World(config=AnnounceConfig(channels=channels))
    far = FarEnd(world.peers, 7)
    registry = ChannelConfigRegistry()
    for config in (
        ChannelConfig(name=ChannelName("free")),
        ChannelConfig(name=ChannelName("skilled"), publish_caps=CapabilityFilter(require_tags=("x",))),
        ChannelConfig(name=ChannelName("secret"), require_token=True),
        ChannelConfig(name=ChannelName("local"), visibility=Visibility.SUBNET_LOCAL),
        ChannelConfig(name=ChannelName("exported"), visibility=Visibility.EXPORTED),
    ):
        registry.insert(config)
        world.announcer.open_channel(config.name, 0.0)
    world.announcer.open_channel(ChannelName("else"), 0.0)
    world.announcer.channels_configured(registry, 0.0, Output())
    [announcement] = heard(far, world.announce(ONE, 0.0))
    assert named(announcement) == expected


def test_a_channel_that_becomes_open_is_announced() -> None:
    world = World()
    far = FarEnd(world.peers, 7)
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=ChannelName("a"), require_token=True))
    world.announcer.channels_configured(registry, 0.0, Output())
    world.announcer.open_channel(ChannelName("a"), 0.0)
    world.announce(ONE, 0.0)
    world.announcer.channels_configured(None, 20.0, Output())
    assert [named(one) for one in heard(far, world.tick(20.0))] == [["a"]]


def test_channels_beyond_the_limit_are_counted_and_not_named() -> None:
    world = World()
    far = FarEnd(world.peers, 7)
    for number in range(MAX_CHANNEL_TAGS + 2):
        world.announcer.open_channel(ChannelName(f"c/{number:03}"), 0.0)
    [announcement] = heard(far, world.announce(ONE, 0.0))
    assert named(announcement) == [f"c/{number:03}" for number in range(MAX_CHANNEL_TAGS)]
    assert world.counters.get("drop", "channel_not_named") == 2


def test_names_that_do_not_fit_beside_the_capabilities_are_left_out() -> None:
    world = World()
    far = FarEnd(world.peers, 7)
    world.announcer.open_channel(ChannelName("x" * 200), 0.0)
    [announcement] = heard(far, world.announce(CapabilitySet(["y" * 7_300]), 0.0))
    assert named(announcement) == []
    assert world.counters.get("drop", "channel_not_named") == 1
    with pytest.raises(LocalProtocolError):
        world.announce(CapabilitySet(["y" * 9_000]), 20.0)
