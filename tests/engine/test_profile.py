"""Negotiation between two nodes: versions, minimums, one-sided support, silence; and what plain peers receive."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshbus.engine.base.notices import Negotiated
from meshbus.engine.services import SERVICES
from meshbus.engine.session.negotiate import Profile
from meshbus.engine.settings import PROFILE_WINDOW, AnnounceConfig, LivenessConfig
from meshbus.names.channel import ChannelName
from meshbus.policy.registry import Mismatch, NegotiatedSet
from meshbus.testing.fakenet import FakeNet, FakeNode, FakePath, Passage
from meshbus.wire.constants import STREAM_WINDOW, Subprotocol
from meshbus.wire.frames import unpack_frames
from meshbus.wire.messages.manifest import decode_manifest
from meshbus.wire.messages.reliable import FIRST_SEQUENCE
from meshbus.wire.seal import Opener
from meshbus.wire.subprotocol import SubprotocolDescriptor, SubprotocolVersion
from tests.engine.fleet import CHANNEL, Wiretap, meet, numbered, subscribed

PLAIN_SERVICES = [row.id for row in SERVICES if row.id is not None and not (row.profile or row.optional or row.later)]
PROFILE_SERVICES = [
    row.id
    for row in SERVICES
    # Secure sessions are off in the settings of these engines.
    if row.id not in {None, Subprotocol.SECURE} and row.profile and not row.optional
]
PROFILE_IDS = {*PROFILE_SERVICES, Subprotocol.NEGOTIATION}


def two(
    *, left: Callable[[FakeNode], None] = lambda _: None, right: Callable[[FakeNode], None] = lambda _: None
) -> tuple[FakeNet, FakeNode, FakeNode, Wiretap]:
    """Create two nodes, change what they offer, and connect them."""
    net = FakeNet()
    nodes = net.create("left", announces=False), net.create("right", announces=False)
    for node, change in zip(nodes, (left, right), strict=True):
        change(node)
        with node.turn() as (engine, now, out):
            engine.announce(engine.announcer.capabilities, now, out)
    tap = Wiretap(net)
    nodes[0].connect(nodes[1])
    net.run_until(lambda: nodes[0].has_session_with(nodes[1]))
    net.run(for_s=10)
    return net, *nodes, tap


def speaks(subprotocol_id: int, version: tuple[int, int], minimum: tuple[int, int]) -> Callable[[FakeNode], None]:
    """Make a node offer a subprotocol at another version."""

    def change(node: FakeNode) -> None:
        descriptor = SubprotocolDescriptor(
            id=subprotocol_id,
            name="changed",
            version=SubprotocolVersion(*version),
            min_compatible=SubprotocolVersion(*minimum),
        )
        node.engine.registry.register(descriptor, replace=True)

    return change


def lacks(subprotocol_id: int) -> Callable[[FakeNode], None]:
    return lambda node: (node.engine.registry.unregister(subprotocol_id), None)[1]


def agreed(node: FakeNode, other: FakeNode) -> NegotiatedSet:
    return node.engine.peers.require(other.node_id).negotiated


def use_everything(net: FakeNet, left: FakeNode, right: FakeNode) -> None:
    """Publish both ways, reliably and not."""
    for one, other in ((left, right), (right, left)):
        subscribed(one, other)
        for reliable in (True, False):
            other.publish(CHANNEL, numbered(20), reliable=reliable)
    net.run(for_s=5)
    for node in (left, right):
        assert node.payloads(CHANNEL) == numbered(20) * 2


def test_two_equal_nodes_agree_on_everything_with_two_messages_that_are_repeated() -> None:
    net, left, right, tap = two()
    everything = frozenset({*PLAIN_SERVICES, *PROFILE_SERVICES})
    assert agreed(left, right) == agreed(right, left) == NegotiatedSet(everything)
    low, high = sorted((left, right), key=lambda node: node.node_id)
    # The lower id asks once, because it is answered; the higher one repeats its answer, which nothing confirms.
    assert tap.messages(Subprotocol.NEGOTIATION, low, high) == 1
    assert tap.messages(Subprotocol.NEGOTIATION, high, low) == 3
    use_everything(net, left, right)
    assert Subprotocol.RELIABLE in tap.ids(left, right)


def test_the_manifest_on_the_wire_lists_what_is_offered() -> None:
    net = FakeNet()
    left, right = net.create("left"), net.create("right")
    seen: list[Passage] = []
    net.taps.append(seen.append)
    left.connect(right)
    net.run_until(lambda: left.speaks_profile_with(right))
    peer = right.engine.peers.require(left.node_id)
    opener = Opener.__new__(Opener)
    opener.aead, opener.nonce_prefix = peer.link.opener.aead, peer.link.opener.nonce_prefix
    manifests = []
    for passage in seen:
        if passage.source == "left" and len(passage.datagram) > 84 and passage.datagram[8:10] == b"\x00\x06":
            opener.window = type(peer.link.opener.window)()
            _, plain = opener.open(passage.datagram)
            manifests.append(decode_manifest(unpack_frames(plain, 1)[0]))
    assert manifests
    assert [entry.id for entry in manifests[0].entries] == sorted({*PLAIN_SERVICES, *PROFILE_SERVICES})


def test_a_newer_version_that_still_takes_the_old_one_gets_along() -> None:
    net, left, right, tap = two(left=speaks(Subprotocol.RELIABLE, (1, 7), (1, 0)))
    assert Subprotocol.RELIABLE in agreed(left, right)
    assert agreed(left, right) == agreed(right, left)
    use_everything(net, left, right)
    assert Subprotocol.RELIABLE in tap.ids(left, right)


@pytest.mark.parametrize("side", ["left", "right"])
def test_incompatible_minimums_leave_a_subprotocol_out_on_both_sides(side: str) -> None:
    change = {side: speaks(Subprotocol.RELIABLE, (2, 0), (2, 0))}
    net, left, right, tap = two(**change)
    new, old = SubprotocolVersion(2), SubprotocolVersion(1)
    mine, theirs = (new, old) if side == "left" else (old, new)
    assert agreed(left, right).incompatible == (Mismatch(Subprotocol.RELIABLE, mine, theirs),)
    assert agreed(right, left).incompatible == (Mismatch(Subprotocol.RELIABLE, theirs, mine),)
    # Requests and appends travel on reliable streams, so they are out as well; the others are not.
    others = {Subprotocol.HANDSHAKE_RELAY, Subprotocol.INTEREST, Subprotocol.LEADERSHIP, Subprotocol.PRESENCE}
    left_over = frozenset({*PLAIN_SERVICES, *others})
    assert agreed(left, right).compatible == agreed(right, left).compatible == left_over
    use_everything(net, left, right)
    for one, other in ((left, right), (right, left)):
        assert not tap.ids(one, other) & {Subprotocol.RELIABLE, Subprotocol.REQUEST}
        assert all(header.sequence < FIRST_SEQUENCE for header in tap.data(one, other))
        assert one.engine.peers.require(other.node_id).window == STREAM_WINDOW


@pytest.mark.parametrize("missing", PROFILE_SERVICES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_what_only_one_side_has_is_not_used_by_either(missing: int, side: str) -> None:
    net, left, right, tap = two(**{side: lacks(missing)})
    assert missing not in agreed(left, right)
    assert agreed(left, right).compatible == agreed(right, left).compatible
    assert agreed(left, right).incompatible == ()
    use_everything(net, left, right)
    assert missing not in tap.ids()


def test_a_node_that_never_answers_stays_plain_and_is_counted() -> None:
    net = FakeNet()
    left, right = net.create("left"), net.create("right")
    low, high = sorted((left, right), key=lambda node: node.node_id)
    high.engine.reception.handlers[Subprotocol.NEGOTIATION] = lambda *_: None
    tap = Wiretap(net)
    left.connect(right)
    net.run_until(lambda: left.has_session_with(right))
    net.run(for_s=4)
    assert tap.messages(Subprotocol.NEGOTIATION, low, high) == 3
    assert low.engine.counters.get("negotiation", "no_answer") == 1
    assert agreed(low, high) == NegotiatedSet()
    assert low.happened(Negotiated) == []
    use_everything(net, left, right)
    assert tap.ids() & PROFILE_IDS == {Subprotocol.NEGOTIATION}


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_node_that_does_not_announce_itself_gets_no_answer(side: str) -> None:
    net = FakeNet()
    left, right = net.create("left", announces=side != "left"), net.create("right", announces=side != "right")
    tap = Wiretap(net)
    left.connect(right)
    net.run_until(lambda: left.has_session_with(right))
    use_everything(net, left, right)
    assert tap.ids() & PROFILE_IDS <= {Subprotocol.NEGOTIATION}  # it may ask one that announced it
    assert agreed(left, right) == agreed(right, left) == NegotiatedSet()


@pytest.mark.parametrize("side", ["left", "right"])
def test_an_announcement_without_the_tags_asks_for_nothing(side: str) -> None:
    net = FakeNet()
    left, right = (net.create(name, announce=AnnounceConfig(enrich=name != side)) for name in ("left", "right"))
    tap = Wiretap(net)
    left.connect(right)
    net.run_until(lambda: left.has_session_with(right))
    use_everything(net, left, right)
    assert not tap.ids() & PROFILE_IDS


def test_a_configured_peer_needs_no_announcement() -> None:
    net = FakeNet()
    left, right = net.create("left", announces=False), net.create("right", announces=False)
    for one, other in ((left, right), (right, left)):
        one.engine.negotiator.configure(other.node_id, Profile.MESHBUS)
    left.connect(right, profile=Profile.MESHBUS)
    net.run_until(lambda: left.speaks_profile_with(right))
    assert left.engine.peers.require(right.node_id).window == PROFILE_WINDOW


# ── plain peers ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("plain_side", ["left", "right"])
def test_a_plain_peer_never_receives_a_byte_of_the_profile(plain_side: str) -> None:
    """A long scenario: sessions, channels, loss, failure, recovery, a new session."""
    quick = LivenessConfig(heartbeat_s=0.5, session_timeout_s=1.0)
    net = FakeNet(3)
    nodes = {side: net.create(side, profile=side != plain_side, liveness=quick) for side in ("left", "right")}
    plain = nodes[plain_side]
    meshbus = next(node for node in nodes.values() if node is not plain)
    tap = Wiretap(net)
    nodes["left"].connect(nodes["right"])
    net.run_until(lambda: plain.has_session_with(meshbus))
    net.run(for_s=10)
    use_everything(net, *nodes.values())
    with meshbus.turn() as (engine, now, out):
        engine.open_channel(ChannelName("prefix/a"), now, out)
    meshbus.publish(CHANNEL, numbered(500, 1000), reliable=True)
    net.path = FakePath(loss=0.3, duplication=0.1, jitter_s=0.01)
    for n in range(20):
        meshbus.publish(CHANNEL, numbered(5, 500), reliable=n % 2 == 0)
        plain.publish(CHANNEL, numbered(5, 500), reliable=n % 2 == 0)
        net.run(for_s=0.3)
    net.path = FakePath()
    net.partition(["left"], ["right"])
    net.run(for_s=5)
    net.heal()
    net.run(for_s=5)
    meshbus.connect(plain)
    net.run(for_s=5)
    meshbus.publish(CHANNEL, numbered(50, 500), reliable=True)
    net.run(for_s=20)
    headers = tap.headers(meshbus, plain)
    assert len(headers) > 40
    assert not {header.subprotocol_id for header in headers} & PROFILE_IDS
    assert all(header.sequence < FIRST_SEQUENCE for header in headers)
    assert agreed(meshbus, plain) == NegotiatedSet()
    assert not tap.ids(plain, meshbus) & PROFILE_IDS


def test_a_meshbus_peer_that_returns_as_plain_receives_nothing_of_the_profile() -> None:
    net = FakeNet(4)
    left, right = net.create("left"), net.create("right")
    meet(left, right)
    subscribed(right, left)
    left.publish(CHANNEL, numbered(200, 1000), reliable=True, wait_s=100.0)
    net.run(for_s=0.003)  # much of it is on the way
    net.remove("right")
    plain = net.create("right", identity=right.engine.identity, profile=False)
    plain.connect(left)
    net.run_until(lambda: left.has_session_with(plain))
    session = plain.engine.peers.require(left.node_id).link.session_id
    tap = Wiretap(net)
    subscribed(plain, left)
    net.run(for_s=60)
    left.publish(CHANNEL, [b"plain"], reliable=True)
    net.run(for_s=1)
    headers = [header for header in tap.headers(left, plain) if header.session_id == session]
    assert headers
    assert not {header.subprotocol_id for header in headers} & PROFILE_IDS
    assert all(header.sequence < FIRST_SEQUENCE for header in headers)
    assert plain.payloads(CHANNEL)[-1] == b"plain"
    assert left.engine.counters.get("fail", "reliable_stream") == 1
