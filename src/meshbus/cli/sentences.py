"""Notices of a node for people: one sentence each. For programs they are JSON objects, see cli/up.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshbus.engine.base.notices import Acked, Matched
    from meshbus.policy.registry import Mismatch

NameOf = Callable[[int], str | None]
"""Returns the name of a node, or None if it is not known."""

Who = Callable[[int], str]
"""Returns how a sentence calls a node: its name and id, or its id."""

FEW = 5
"""Channels that a sentence names before it counts the rest."""

_DOWN = {
    "silent": "is silent: no heartbeat within session_timeout_s",
    "evicted": "was removed: its session was not used for too long",
    "closed": "was disconnected",
    "left": "left",
    "overrun": "was removed: more than a million of its packets in a row were lost, so its session cannot continue",
    "retired": "was removed: its session began with the previous mesh key, and it did not show that it has the new one",
}


def sentence(notice: object, name_of: NameOf = lambda _: None) -> str | None:
    """Return what a notice says, or None for one that is worth no line, such as the answer to a request."""

    def who(node_id: int) -> str:
        name = name_of(node_id)
        return f"{node_id:016x}" if name is None else f"{name} ({node_id:016x})"

    parts = (_of_sessions, _of_channels, _of_requests, _of_tokens)
    return next((text for part in parts if (text := part(notice, who))), None) or _of_trust(notice)


def _of_sessions(notice: object, who: Who) -> str | None:
    from meshbus.engine.base import notices
    from meshbus.node.peers.redial import PeerUnreachable
    from meshbus.wire.constants import Subprotocol

    match notice:
        case notices.SessionUp(node_id=node_id, initiated=initiated):
            return f"connected to {who(node_id)}" if initiated else f"{who(node_id)} connected"
        case notices.HandshakeFailed(node_id=node_id, problem=problem):
            return f"cannot connect to {who(node_id)}: {problem}"
        case notices.HandshakeUnanswered(node_id=node_id, problem=problem):
            return f"connecting to {who(node_id)}: {problem}"
        case PeerUnreachable(node_id=node_id, tries=tries, problem=problem, next_try_s=next_try_s):
            count = "" if tries == 1 else f" after {tries} tries"
            return f"cannot connect to {who(node_id)}{count}, next try in {next_try_s:.1f} s: {problem}"
        case notices.PeerFailed(node_id=node_id, reason=reason) | notices.PeerGone(node_id=node_id, reason=reason):
            return f"{who(node_id)} {_DOWN.get(reason, reason)}"
        case notices.PeerRecovered(node_id=node_id):
            return f"{who(node_id)} is back"
        case notices.Reached(node_id=node_id, path=path):
            return f"reached {who(node_id)}, path {path}"
        case notices.PeerSecured(node_id=node_id, pinned=pinned):
            return f"the session with {who(node_id)} is secure" + (", from now on always" if pinned else "")
        case notices.NodeRenamed(old_id=old_id, node_id=node_id):
            return f"{who(node_id)} goes on under another key; its id was {old_id:016x}"
        case notices.PeerInsecure(node_id=node_id, problem=problem):
            return f"no data to or from {who(node_id)}, because the session is not secure: {problem}"
        case notices.Negotiated(compatible=compatible) if compatible == {Subprotocol.SECURE}:
            return None  # the rest follows when the session is secure
        case notices.Negotiated(node_id=node_id, compatible=compatible, incompatible=incompatible):
            text = f"{who(node_id)} {'uses' if compatible else 'no longer uses'} the meshbus profile"
            return text + _versions(incompatible)
        case notices.PeerPlain(node_id=node_id):
            return f"{who(node_id)} is a plain net-mesh node: no prefixes, no requests, no reliable streams with it"
    return None


def _versions(incompatible: Sequence[Mismatch]) -> str:
    """Return what is not used because the versions of the two nodes do not fit."""
    named = ", ".join(map(str, incompatible))
    return f", but not {named}: upgrade the older of the two nodes" if named else ""


def _of_channels(notice: object, who: Who) -> str | None:
    from meshbus.edge.refusals import Refusal
    from meshbus.engine.base import notices
    from meshbus.errors import SlowConsumer

    match notice:
        case notices.Acked():
            return _acked(notice, who)
        case notices.Matched():
            return _matched(notice, who)
        case notices.Subscribed(node_id=node_id, channel=channel, queue_group=group):
            return f"{who(node_id)} subscribed to {channel}" + (f" in queue group {group}" if group else "")
        case notices.Unsubscribed(node_id=node_id, channel=channel, reason=reason):
            return f"the subscription of {who(node_id)} to {channel} ended: {reason.replace('_', ' ')}"
        case Refusal(direction=direction, topic=topic, reason=reason, problem=problem):
            return f"an application may not {direction} {topic!r}: {reason.replace('_', ' ')}: {problem}"
        case SlowConsumer():
            return str(notice)
    return None


def _of_requests(notice: object, who: Who) -> str | None:
    from meshbus.engine.base import notices

    match notice:
        case notices.StreamFailed(node_id=node_id, problem=problem):
            return f"a reliable stream to {who(node_id)} failed: {problem}"
        case notices.RequestFailed(node_id=node_id, channel=channel, fault=fault, problem=problem):
            return f"a request to {who(node_id)} on {channel} failed: {problem or fault.replace('_', ' ')}"
        case notices.HistoryOpened(node_id=node_id, channel=channel):
            return f"reading the log of {who(node_id)} for {channel}"
        case notices.HistoryGap(node_id=node_id, channel=channel, expected=expected, first_available=first):
            return f"{first - expected} events of {channel} are no longer in the log of {who(node_id)}"
        case notices.HistoryEnded(node_id=node_id, channel=channel, fault=fault) if fault is not None:
            return f"cannot read the log of {who(node_id)} for {channel}: {fault.replace('_', ' ')}"
    return None


def _of_trust(notice: object) -> str | None:
    from meshbus.node.peers.noticelog import (
        JoinRefused,
        JoinWaiting,
        NodeJoined,
        PolicyChanged,
        PolicyRefused,
        RotationRefused,
        SecretRotated,
    )

    match notice:
        case PolicyChanged(by=by, via=via, changes=changes):
            words = "; ".join(changes[:FEW]) or "nothing, because the new one means the same"
            more = f"; and {len(changes) - FEW} more" if len(changes) > FEW else ""
            return f"{by} changed the policy ({via}): {words}{more}"
        case PolicyRefused(by=by, via=via, problem=problem):
            return f"a change of the policy by {by} ({via}) was refused, and the old one stays: {problem}"
        case SecretRotated(by=by, via=via, changes=changes):
            return f"{by} changed a secret ({via}): {'; '.join(changes)}"
        case RotationRefused(secret=secret, by=by, via=via, problem=problem):
            return f"a new {secret} of {by} ({via}) was refused, and the old one stays: {problem}"
        case NodeJoined(name=name, public_key=key):
            return f"{name} joined the fleet with the key {key.hex()}"
        case JoinWaiting(name=name, public_key=key, invite=invite):
            return f"{name} with the key {key.hex()} waits for approval: `meshbus invite approve {invite}`"
        case JoinRefused(name=name, public_key=key, problem=problem):
            return f"a node with the key {key.hex()} may not join as {name}: {problem}"
    return None


def _of_tokens(notice: object, who: Who) -> str | None:
    from meshbus.engine.base import notices

    match notice:
        case notices.TokenIssued(node_id=node_id):
            return f"renewed a token of {who(node_id)}"
        case notices.TokenRenewed(node_id=node_id, new=new):
            return f"{who(node_id)} renewed a token of this node for {new.not_after - new.not_before} s"
        case notices.TokenNotRenewed(node_id=node_id, why=why):
            return f"{who(node_id)} does not renew a token of this node: {why.replace('_', ' ')}"
    return None


def _acked(notice: Acked, who: Who) -> str | None:
    if notice.leaving:
        return f"unsubscribed from {notice.channel} of {who(notice.node_id)}"
    if notice.accepted:
        return f"subscribed to {notice.channel} of {who(notice.node_id)}"
    if notice.gone:
        return None  # its own notice says that it is gone
    reason = "no answer" if notice.timed_out else notice.reason.name.lower().replace("_", " ")
    return f"not subscribed to {notice.channel} of {who(notice.node_id)}: {reason}"


def _matched(notice: Matched, who: Who) -> str | None:
    if notice.timed_out:
        return f"{who(notice.node_id)} did not answer a subscription to a prefix"
    parts = []
    if notice.added:
        parts.append(f"subscribed to {_few(notice.added)} of {who(notice.node_id)}")
    if notice.removed:
        parts.append(f"{who(notice.node_id)} no longer publishes {_few(notice.removed)}")
    if notice.refused:
        refused = [f"{channel} ({reason.name.lower().replace('_', ' ')})" for channel, reason in notice.refused]
        parts.append(f"{who(notice.node_id)} refused {_few(refused)}")
    return "; ".join(parts) or None


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(map(str, names[:FEW]))
    return shown if len(names) <= FEW else f"{shown} and {len(names) - FEW} more"
