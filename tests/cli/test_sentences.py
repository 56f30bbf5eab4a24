"""Every notice that people should see is one plain sentence, with names and without anything of Python."""

import pytest

from meshbus.cli.sentences import sentence
from meshbus.edge.refusals import Direction, Refusal
from meshbus.engine.base import notices
from meshbus.errors import HandshakeFault, SlowConsumer
from meshbus.names.channel import ChannelName
from meshbus.names.identity import Identity
from meshbus.node.peers.noticelog import (
    JoinRefused,
    JoinWaiting,
    NodeJoined,
    PolicyChanged,
    PolicyRefused,
    RotationRefused,
    SecretRotated,
)
from meshbus.node.peers.redial import PeerUnreachable
from meshbus.policy.registry import Mismatch
from meshbus.wire.messages.membership import AckReason
from meshbus.wire.messages.token import PermissionToken, Scope
from meshbus.wire.subprotocol import SubprotocolVersion

ROBOT = 0x1122334455667788
CALLED = "west-rover (1122334455667788)"
LIDAR = ChannelName("sensors/lidar")
TOKEN = PermissionToken.issue(
    Identity.from_seed(bytes(32)), bytes(32), Scope.SUBSCRIBE, LIDAR, ttl_s=60, now=0, entropy=bytes
)


def _said(notice: object) -> str | None:
    return sentence(notice, {ROBOT: "west-rover"}.get)


@pytest.mark.parametrize(
    ("notice", "said"),
    [
        (notices.SessionUp(ROBOT, 1, initiated=True), f"connected to {CALLED}"),
        (notices.SessionUp(ROBOT, 1, initiated=False), f"{CALLED} connected"),
        (notices.HandshakeFailed(ROBOT, HandshakeFault.TIMEOUT, "no answer"), f"cannot connect to {CALLED}: no answer"),
        (notices.HandshakeUnanswered(ROBOT, "no answer yet"), f"connecting to {CALLED}: no answer yet"),
        (
            PeerUnreachable(ROBOT, "10.0.0.7:9000", 4, "no answer", 1.52, 0),
            f"cannot connect to {CALLED} after 4 tries, next try in 1.5 s: no answer",
        ),
        (
            PolicyChanged("ada", "apply", tuple(f"change {number}" for number in range(7))),
            "ada changed the policy (apply): change 0; change 1; change 2; change 3; change 4; and 2 more",
        ),
        (
            PolicyChanged("ada", "sighup", ()),
            "ada changed the policy (sighup): nothing, because the new one means the same",
        ),
        (
            PolicyRefused("eve", "apply", "line 3: wrong"),
            "a change of the policy by eve (apply) was refused, and the old one stays: line 3: wrong",
        ),
        (NodeJoined("rover-7", b"k" * 32, "ab"), f"rover-7 joined the fleet with the key {'6b' * 32}"),
        (
            JoinWaiting("rover-7", b"k" * 32, "ab"),
            f"rover-7 with the key {'6b' * 32} waits for approval: `meshbus invite approve ab`",
        ),
        (
            JoinRefused("rover-7", b"k" * 32, "ab", "join_used", "It was used."),
            f"a node with the key {'6b' * 32} may not join as rover-7: It was used.",
        ),
        (
            SecretRotated("mesh key", "ada", "apply", ("the mesh key was replaced",)),
            "ada changed a secret (apply): the mesh key was replaced",
        ),
        (
            RotationRefused("mesh key", "eve", "sighup", "it belongs to another mesh"),
            "a new mesh key of eve (sighup) was refused, and the old one stays: it belongs to another mesh",
        ),
        (notices.TokenIssued(ROBOT, TOKEN), f"renewed a token of {CALLED}"),
        (notices.TokenRenewed(ROBOT, TOKEN, TOKEN), f"{CALLED} renewed a token of this node for 60 s"),
        (
            notices.TokenNotRenewed(ROBOT, TOKEN, "not_renewable"),
            f"{CALLED} does not renew a token of this node: not renewable",
        ),
        (
            notices.PeerGone(ROBOT, notices.DownReason.RETIRED),
            f"{CALLED} was removed: its session began with the previous mesh key, and it did not show that it has the new one",
        ),
        (
            notices.PeerFailed(ROBOT, notices.DownReason.SILENT),
            f"{CALLED} is silent: no heartbeat within session_timeout_s",
        ),
        (notices.PeerGone(ROBOT, notices.DownReason.LEFT), f"{CALLED} left"),
        (notices.PeerRecovered(ROBOT), f"{CALLED} is back"),
        (notices.Reached(ROBOT, notices.Path.PUNCHED), f"reached {CALLED}, path punched"),
        (notices.Negotiated(ROBOT, frozenset({0x4D01})), f"{CALLED} uses the meshbus profile"),
        (notices.Negotiated(ROBOT, frozenset()), f"{CALLED} no longer uses the meshbus profile"),
        (
            notices.Negotiated(
                ROBOT, frozenset({0x4D01}), (Mismatch(0x4D02, SubprotocolVersion(1), SubprotocolVersion(2)),)
            ),
            f"{CALLED} uses the meshbus profile, but not 0x4d02 (here 1.0, there 2.0): upgrade the older of the two nodes",
        ),
        (
            notices.PeerPlain(ROBOT),
            f"{CALLED} is a plain net-mesh node: no prefixes, no requests, no reliable streams with it",
        ),
        (notices.Acked(1, ROBOT, LIDAR, accepted=True), f"subscribed to sensors/lidar of {CALLED}"),
        (notices.Acked(1, ROBOT, LIDAR, accepted=True, leaving=True), f"unsubscribed from sensors/lidar of {CALLED}"),
        (
            notices.Acked(1, ROBOT, LIDAR, accepted=False, reason=AckReason.UNKNOWN_CHANNEL),
            f"not subscribed to sensors/lidar of {CALLED}: unknown channel",
        ),
        (
            notices.Acked(1, ROBOT, LIDAR, accepted=False, timed_out=True),
            f"not subscribed to sensors/lidar of {CALLED}: no answer",
        ),
        (notices.Acked(1, ROBOT, LIDAR, accepted=False, gone=True), None),
        (notices.Matched(1, ROBOT), None),
        (notices.Matched(1, ROBOT, timed_out=True), f"{CALLED} did not answer a subscription to a prefix"),
        (
            notices.Matched(1, ROBOT, (LIDAR,), (ChannelName("a"),), ((ChannelName("b"), AckReason.UNAUTHORIZED),)),
            f"subscribed to sensors/lidar of {CALLED}; {CALLED} no longer publishes a; {CALLED} refused b (unauthorized)",
        ),
        (
            notices.Matched(1, ROBOT, tuple(ChannelName(f"c/{number}") for number in range(7))),
            f"subscribed to c/0, c/1, c/2, c/3, c/4 and 2 more of {CALLED}",
        ),
        (notices.Subscribed(ROBOT, LIDAR), f"{CALLED} subscribed to sensors/lidar"),
        (notices.Subscribed(ROBOT, LIDAR, "work"), f"{CALLED} subscribed to sensors/lidar in queue group work"),
        (
            notices.Unsubscribed(ROBOT, LIDAR, "peer_gone"),
            f"the subscription of {CALLED} to sensors/lidar ended: peer gone",
        ),
        (notices.StreamFailed(ROBOT, 1, "no room"), f"a reliable stream to {CALLED} failed: no room"),
        (
            notices.RequestFailed(1, ROBOT, LIDAR, notices.RequestFault.NO_RESPONDER),
            f"a request to {CALLED} on sensors/lidar failed: no responder",
        ),
        (notices.HistoryOpened(1, ROBOT, LIDAR), f"reading the log of {CALLED} for sensors/lidar"),
        (
            notices.HistoryGap(1, ROBOT, LIDAR, 5, 9),
            f"4 events of sensors/lidar are no longer in the log of {CALLED}",
        ),
        (
            notices.HistoryEnded(1, ROBOT, LIDAR, notices.HistoryFault.RANGE_GONE),
            f"cannot read the log of {CALLED} for sensors/lidar: range gone",
        ),
        (notices.HistoryEnded(1, ROBOT, LIDAR), None),
        (notices.Announced(ROBOT, direct=True), None),
        (
            Refusal(Direction.PUBLISH, "a/b", "not_exposed", "add it there", 1),
            "an application may not publish 'a/b': not exposed: add it there",
        ),
        (SlowConsumer("a", 3, 1), str(SlowConsumer("a", 3, 1))),
    ],
)
def test_a_notice_is_a_sentence(notice: object, said: str | None) -> None:
    assert _said(notice) == said


def test_a_node_without_a_name_is_shown_by_its_id() -> None:
    assert sentence(notices.PeerRecovered(255)) == "00000000000000ff is back"
