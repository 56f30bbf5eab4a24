"""A node and one of a later build that has other versions of subprotocols: what fits is used, the rest is reported.

The later build is this one with other versions in its registry, on a simulated network with whole engines. A manifest has one
version of each id, and the lowest version of the other side that it still understands.
"""

from __future__ import annotations

import pytest

from meshbus.engine.base.notices import Negotiated, PeerInsecure
from meshbus.engine.settings import SecureConfig, SecureMode
from meshbus.policy.registry import Mismatch
from meshbus.testing.fakenet import FakeNet, FakeNode
from meshbus.wire.constants import Subprotocol
from meshbus.wire.subprotocol import SubprotocolDescriptor, SubprotocolVersion
from tests.engine.fleet import CHANNEL, Wiretap, meet, subscribed

NOW, MINOR, MAJOR = SubprotocolVersion(1), SubprotocolVersion(1, 1), SubprotocolVersion(2)
AUTO = SecureConfig(mode=SecureMode.AUTO)


def upgrade(node: FakeNode, subprotocol_id: int, version: SubprotocolVersion, accepts: SubprotocolVersion) -> None:
    """Let a node have a later version of a subprotocol, and accept peers from a version on."""
    known = node.engine.registry.lookup(subprotocol_id)
    assert known is not None
    assert known.version == NOW, "this build has a later version itself: raise the versions of this test"
    later = SubprotocolDescriptor(id=subprotocol_id, name=known.name, version=version, min_compatible=accepts)
    node.engine.registry.register(later, replace=True)


def fleet(*later: tuple[int, SubprotocolVersion, SubprotocolVersion]) -> tuple[FakeNet, FakeNode, FakeNode]:
    """Return a node of this build and one of a later one, which have met."""
    net = FakeNet()
    old, new = net.create("old", secure=AUTO), net.create("new", secure=AUTO)
    for subprotocol_id, version, accepts in later:
        upgrade(new, subprotocol_id, version, accepts)
    return net, old, new


@pytest.mark.parametrize("new_publishes", [True, False])
def test_a_minor_version_that_accepts_the_older_one_is_used_in_both_directions(new_publishes: bool) -> None:
    net, old, new = fleet((Subprotocol.RELIABLE, MINOR, NOW), (Subprotocol.SECURE, MINOR, NOW))
    meet(old, new)
    publisher, subscriber = (new, old) if new_publishes else (old, new)
    subscribed(subscriber, publisher)
    publisher.publish(CHANNEL, [b"one", b"two"], reliable=True)
    net.run(for_s=2)
    assert subscriber.payloads(CHANNEL) == [b"one", b"two"]
    for node, other in ((old, new), (new, old)):
        peer = node.engine.peers.require(other.node_id)
        assert peer.uses(Subprotocol.RELIABLE)
        assert peer.link.epoch == 1, "the session is secure"
        assert not peer.negotiated.incompatible


def test_a_major_version_that_does_not_fit_is_reported_and_the_rest_works() -> None:
    net, old, new = fleet((Subprotocol.HISTORY, MAJOR, MAJOR))
    tap = Wiretap(net)
    meet(old, new)
    subscribed(old, new)
    new.publish(CHANNEL, [b"one"], reliable=True)
    net.run(for_s=2)
    assert old.payloads(CHANNEL) == [b"one"]
    assert Subprotocol.HISTORY not in tap.ids()
    for node, other, versions in ((old, new, (NOW, MAJOR)), (new, old, (MAJOR, NOW))):
        peer = node.engine.peers.require(other.node_id)
        assert not peer.uses(Subprotocol.HISTORY)
        assert peer.uses(Subprotocol.RELIABLE)
        assert node.happened(Negotiated)[-1].incompatible == (Mismatch(Subprotocol.HISTORY, *versions),)


def test_versions_of_secure_sessions_that_do_not_fit_never_lead_to_a_plain_session() -> None:
    net, old, new = fleet((Subprotocol.SECURE, MAJOR, MAJOR))
    old.connect(new)
    net.run_until(lambda: old.has_session_with(new) and new.has_session_with(old))
    old.subscribe(new, CHANNEL)
    net.run(for_s=3 * AUTO.patience_s)
    new.publish(CHANNEL, [b"secret"])
    net.run(for_s=5)
    assert old.payloads(CHANNEL) == []
    for node, mine, theirs in ((old, NOW, MAJOR), (new, MAJOR, NOW)):
        (told,) = node.happened(PeerInsecure)
        assert told.problem == (
            f"it has version {theirs} of secure sessions, and this node {mine}, which do not fit; upgrade the older of the"
            " two nodes"
        )


def test_every_subprotocol_of_this_build_accepts_the_versions_so_far() -> None:
    """A build that changes a subprotocol goes on with the version before it, or no fleet could be upgraded node by node."""
    net = FakeNet()
    for descriptor in net.create("node", secure=AUTO).engine.registry.all_descriptors():
        assert descriptor.min_compatible == NOW, descriptor
