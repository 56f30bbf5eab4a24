"""Revocation across the fleet (0x4D0C): takes signed records, passes them on, and puts them into effect at once.

    record ──► known? issuer? room? share? signature? ── no ──► counted with its reason
                  └── yes ──► to all neighbors ──► sessions, subscribers, readers, requests, forwarding ──► RevocationTaken

A new record goes to every neighbor at once, and from there to theirs; one that a neighbor has already costs it a look into a
table. What was missed meanwhile is made up for by comparing sets: when both have agreed on this subprotocol, when a failed
neighbor is heard again, and once a minute. HAVE has digests of 16 parts. A node asks for the ids of the parts that differ, and
then for the records that it lacks (wire/messages/revocation.py); nothing about a neighbor is remembered for that.

Sets of all nodes with the same issuers become equal, whatever is lost, repeated or replayed, because nothing is ever taken
back. Records of an issuer that is not configured any more stay in effect, but are not passed on.

What a record means is in policy/revocations.py and in the hook `revoked` of the services. The node writes records to disk
(node/policies/revocationkeeper.py). A node without configured issuers does not have this service, and the records that it
started with are in effect all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from meshbus.engine.base.notices import DownReason, NodeRenamed, PeerFailed, PeerGone, RevocationTaken
from meshbus.engine.base.packets import Output
from meshbus.engine.base.renaming import move
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context, Service
from meshbus.engine.streams.streams import Streams
from meshbus.errors import AuthError, AuthFault, Backpressure, LocalProtocolError, RemoteProtocolError
from meshbus.names.identity import Identity, derive_node_id
from meshbus.policy.reason import Reason
from meshbus.policy.revocations import MAX_REVOCATIONS, is_over
from meshbus.wire.constants import Subprotocol
from meshbus.wire.messages.revocation import (
    MAX_IDS,
    PARTS,
    Have,
    Listing,
    Record,
    Revocation,
    RevocationMessage,
    Revoked,
    Show,
    Want,
    decode_revocation,
    digest_of,
    encode_revocation,
    part_of,
)

REPEAT_S = 60.0
"""Interval between two HAVEs to all neighbors: 257 bytes a minute for each."""
PUSHED_RECORDS = 16
"""Records that came at once and are sent on one by one. Our choice: who gets more catches up, and its neighbors have most."""
BEHIND_S = 2.0
"""Pause after which a neighbor is asked again whose records took more than its share of time, which has then grown again."""
VERIFY_US = 250.0
"""What the check of a signature costs, beyond reading the message."""
SERVE_US = 20.0
"""What it costs to send one message of an answer."""

_ALL_PARTS = (1 << PARTS) - 1
_NANOSECONDS = 1_000_000_000


class Revoking(Service):
    """The revocations of the fleet at one node."""

    def __init__(self, context: Context) -> None:
        self._identity = context.identity
        self._issuers = frozenset(context.settings.policy_issuers)
        self._peers = context.peers
        self._services = context.services
        self._counters = context.counters
        self._wall = context.wall
        self._streams = context.services[Streams]
        self._revocations = context.revocations
        self._offered = {record.id: record for record in context.revocations if self._is_ours(record)}
        """What is passed on, by id."""
        self._digests: tuple[bytes, ...] | None = None
        """Of what is offered; None if they must be computed again."""
        self._taken: list[tuple[Revocation, int | None]] = []
        """Records that arrived in this call, with the neighbor that sent them."""
        self.unfinished = (self._taken,)
        self._behind: dict[int, float] = {}
        """When to ask a neighbor again whose records exceeded its share of time."""
        self._repeat_at = context.started_at + REPEAT_S

    def revoke(self, record: Revocation, now: float, out: Output) -> bool:
        """Put a record into effect here and in the whole fleet; return False if it is known already.

        Raises AuthError if no issuer of the fleet signed it, and LocalProtocolError if there is no room or it is of no use.
        """
        if not self._is_ours(record):
            raise AuthError(
                AuthFault.NOT_AUTHORIZED,
                f"{record.issuer.hex()} is none of the policy_issuers of this node; sign with one of theirs",
            )
        if not record.verify():
            raise AuthError(AuthFault.BAD_SIGNATURE, f"the record is not signed by its issuer {record.issuer.hex()}")
        if is_over(record, self._unix(now)):
            raise LocalProtocolError("the token expired more than a day ago and cannot be used; do not revoke it")
        if record.id in self._offered:
            return False
        if not self._has_room(record):
            raise LocalProtocolError(
                f"this fleet has {MAX_REVOCATIONS} revocations, the limit; rotate the mesh key to leave the old ones behind"
            )
        self._take(record)
        self._put_into_effect([(record, None)], now, out)
        return True

    # ── hooks ───────────────────────────────────────────────────────────────────────────────

    def agreed(self, peer: Peer, now: float, out: Output) -> None:
        """Send digests to a neighbor, which compares its records with those of this node."""
        self._compare(peer, now, out)

    def recovered(self, peer: Peer, now: float, out: Output) -> None:
        """Send digests to a neighbor that was away: it may have missed a record."""
        self._compare(peer, now, out)

    def stream_failed(self, node_id: int, stream_id: int, now: float, out: Output) -> None:
        """Send digests to a neighbor whose stream was lost with what it carried."""
        peer = self._peers.get(node_id)
        if stream_id == Subprotocol.REVOCATION and peer is not None:
            self._compare(peer, now, out)

    def peer_down(self, down: PeerFailed | PeerGone, now: float, out: Output) -> None:
        """Ask others than a neighbor that is away."""
        self._behind.pop(down.node_id, None)

    def next_timer(self) -> float | None:
        """Return when the next HAVE is due, or a neighbor is asked again."""
        earliest = min((*self._behind.values(), self._repeat_at if self._offered else inf))
        return None if earliest == inf else earliest

    def tick(self, now: float, out: Output) -> None:
        """Repeat HAVEs, ask again for what was too much at once, and forget what is over."""
        for node_id in [node_id for node_id, at in self._behind.items() if at <= now]:
            del self._behind[node_id]
            peer = self._peers.get(node_id)
            if peer is not None and peer.uses(Subprotocol.REVOCATION):
                self._send(peer, Show(_ALL_PARTS), now, out)
        if now < self._repeat_at:
            return
        self._repeat_at = now + REPEAT_S
        if self._revocations.expire(self._unix(now)):
            self._offered = {key: record for key, record in self._offered.items() if key in self._revocations}
            self._digests = None
        for peer in self._peers:
            self._compare(peer, now, out)

    def finish(self, now: float, out: Output) -> None:
        """Put into effect what arrived in this call."""
        # Not while its message is read: the session that it ends may be the one that it came through.
        if self._taken:
            taken = list(self._taken)
            self._taken.clear()
            self._put_into_effect(taken, now, out)

    def receive(self, peer: Peer, message: memoryview, now: float, out: Output) -> None:
        """Handle one message of a neighbor."""
        try:
            decoded = decode_revocation(message)
        except RemoteProtocolError:
            self._counters.count(Reason.REVOCATION_MALFORMED)
            return
        match decoded:
            case Have(digests=digests):
                self._on_have(peer, digests, now, out)
            case Show(parts=parts):
                self._on_show(peer, parts, now, out)
            case Listing(ids=ids):
                missing = tuple(one for one in ids if one not in self._offered)
                if missing:
                    self._send(peer, Want(missing), now, out)
            case Want(ids=ids):
                records = (self._offered[one] for one in ids if one in self._offered)
                self._answer(peer, map(Record, records), now, out)
            case Record(revocation=record):
                self._on_record(peer, record, now)

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def _on_have(self, peer: Peer, digests: tuple[bytes, ...], now: float, out: Output) -> None:
        """Ask for the ids in the parts that differ; if the neighbor lacks something, it asks by itself."""
        differing = sum(
            1 << part
            for part, (theirs, ours) in enumerate(zip(digests, self._own_digests(), strict=True))
            if theirs != ours and any(theirs)
        )
        if differing:
            self._send(peer, Show(differing), now, out)

    def _on_show(self, peer: Peer, parts: int, now: float, out: Output) -> None:
        ids = sorted(one for one in self._offered if parts >> part_of(one) & 1)
        pages = (tuple(ids[first : first + MAX_IDS]) for first in range(0, len(ids), MAX_IDS))
        self._answer(peer, map(Listing, pages), now, out)

    def _on_record(self, peer: Peer, record: Revocation, now: float) -> None:
        refusal = self._refusal(peer, record, now)
        if refusal is None:
            self._take(record)
            self._taken.append((record, peer.node_id))
            return
        self._counters.count(refusal)
        if refusal is Reason.PEER_SHARE:
            self._behind.setdefault(peer.node_id, now + BEHIND_S)

    def _refusal(self, peer: Peer, record: Revocation, now: float) -> Reason | None:
        """Return why a record of a neighbor is not taken, or None."""
        if record.id in self._offered:
            return Reason.REVOCATION_KNOWN
        if not self._is_ours(record):
            return Reason.REVOCATION_ISSUER
        if is_over(record, self._unix(now)):
            return Reason.REVOCATION_OVER
        if not self._has_room(record):
            return Reason.REVOCATION_FULL
        # The signature comes last: it is what costs time.
        if not peer.work.afford(VERIFY_US * len(record.signers), now):
            return Reason.PEER_SHARE
        return None if record.verify() else Reason.REVOCATION_SIGNATURE

    # ── effects ─────────────────────────────────────────────────────────────────────────────

    def _is_ours(self, record: Revocation) -> bool:
        """Return whether the issuer of a record may decide for this node; without issuers, a key decides to be succeeded."""
        return record.issuer in self._issuers or (record.heir is not None and not self._issuers)

    def _has_room(self, record: Revocation) -> bool:
        held = self._revocations
        return record.id in held or not (held.full if record.issuer in self._issuers else held.crowded)

    def _take(self, record: Revocation) -> None:
        self._revocations.add(record)
        self._offered[record.id] = record
        self._digests = None

    def _put_into_effect(self, taken: Sequence[tuple[Revocation, int | None]], now: float, out: Output) -> None:
        """Pass records on, cut what they revoke, and report them."""
        # First: the node that is cut is told as well, and can say why it is alone.
        for peer in self._peers:
            self._pass_on(peer, taken, now, out)
        for record, source in taken:
            node_id = record.node_id
            if record.heir is not None and node_id != self._identity.node_id:
                self._rename(record.subject, now, out)
            elif record.what is Revoked.NODE and node_id != self._identity.node_id:
                self._cut(node_id, now, out)
            subject = self._peers.get(node_id)
            if subject is not None:
                subject.muted = node_id in self._revocations.publishers
            self._services.revoked(record, now, out)
            out.control.append(RevocationTaken(record, source))
        self._services.tokens_changed(now, out)

    def _pass_on(self, peer: Peer, taken: Sequence[tuple[Revocation, int | None]], now: float, out: Output) -> None:
        if not peer.uses(Subprotocol.REVOCATION):
            return
        if len(taken) > PUSHED_RECORDS:
            self._compare(peer, now, out)  # it has most of them already
            return
        for record, source in taken:
            if source != peer.node_id:
                self._send(peer, Record(record), now, out)

    def _rename(self, subject: bytes, now: float, out: Output) -> None:
        """Continue with the heir of a key in its place; cut the old key where that cannot be."""
        old, heir = derive_node_id(subject), self._revocations.heir_of(subject)
        new = old if heir is None else derive_node_id(heir)
        peer = self._peers.get(old)
        # Without keys that only the two nodes have, anybody with the mesh key could be the peer.
        in_place = peer is not None and peer.link.epoch > 0 and self._peers.get(new) is None and new != old
        if in_place and new != self._identity.node_id and new not in self._revocations.nodes:
            self._peers.rename(old, new)
        else:
            self._cut(old, now, out)
        if new != old:
            self._services.renamed(old, new, now, out)
            out.control.append(NodeRenamed(old, new))

    def succeed(self, identity: Identity, record: Revocation, now: float, out: Output) -> None:
        """Continue under another key: hand out the record, and use the key from then on. Raises as `revoke` does."""
        old = self._identity.node_id
        self.revoke(record, now, out)
        self._identity.become(identity)
        self._services.became(old, now, out)

    def renamed(self, old: int, new: int, now: float, out: Output) -> None:
        """Ask a neighbor again that has another id."""
        move(self._behind, old, new)

    def _cut(self, node_id: int, now: float, out: Output) -> None:
        if self._peers.remove(node_id) is not None:
            down = PeerGone(node_id, DownReason.REVOKED)
            out.control.append(down)
            self._services.peer_down(down, now, out)

    # ── small parts ─────────────────────────────────────────────────────────────────────────

    def _own_digests(self) -> tuple[bytes, ...]:
        if self._digests is None:
            parts: list[list[bytes]] = [[] for _ in range(PARTS)]
            for one in sorted(self._offered):
                parts[part_of(one)].append(one)
            self._digests = tuple(digest_of(tuple(ids)) for ids in parts)
        return self._digests

    def _compare(self, peer: Peer, now: float, out: Output) -> None:
        if self._offered and peer.uses(Subprotocol.REVOCATION):
            self._send(peer, Have(self._own_digests()), now, out)

    def _answer(self, peer: Peer, messages: Iterable[RevocationMessage], now: float, out: Output) -> None:
        """Send answers, as many as the share of the peer allows; the next comparison makes up for the rest."""
        for message in messages:
            if not peer.work.afford(SERVE_US, now):
                self._counters.count(Reason.PEER_SHARE)
                return
            if not self._send(peer, message, now, out):
                return

    def _send(self, peer: Peer, message: RevocationMessage, now: float, out: Output) -> bool:
        """Send a message, and return whether there was room; a comparison makes up for one that was not sent."""
        try:
            self._streams.send_reliable(peer, Subprotocol.REVOCATION, encode_revocation(message), now, out)
        except Backpressure:
            self._counters.count(Reason.REVOCATION_UNSENT)
            return False
        return True

    def _unix(self, now: float) -> int:
        return self._wall(now) // _NANOSECONDS
