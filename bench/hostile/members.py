"""Packets of an attacker who is a peer: sealed correctly, and as expensive for their receiver as their kind can be.

Each kind is a function that returns the content of the next packet: the subprotocol, its messages, and whether they are
carried on a reliable stream. "Packed" kinds put as many messages into a packet as fit, which no honest node does: its
messages travel alone, except acknowledgements. What a packet costs its sender is sealing it; the content can be prepared
once and repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from bench.hostile.victim import ASKED, ISSUER, LOGGED, POLICY_VERSION, Member, Target
from meshbus.engine.base.packets import Address
from meshbus.names.channel import PUBLISH_STREAM_BIT, ChannelName
from meshbus.names.identity import Identity
from meshbus.wire.constants import FRAME_PREFIX_BYTES, MAX_EVENTS, MAX_PAYLOAD, Flags, Subprotocol
from meshbus.wire.frames import pack_frames
from meshbus.wire.header import Header
from meshbus.wire.messages import fleetpolicy, history, interest, membership, presence, reliable, request
from meshbus.wire.messages.address import Address as WireAddress
from meshbus.wire.messages.capability import Announcement, encode_announcement
from meshbus.wire.messages.manifest import encode_manifest
from meshbus.wire.messages.reflex import ReflexRequest, encode_reflex
from meshbus.wire.messages.relay import RelayedHandshake, encode_relay
from meshbus.wire.messages.reliable import FIRST_SEQUENCE, encode_reliable
from meshbus.wire.messages.rendezvous import PunchRequest, encode_rendezvous
from meshbus.wire.messages.token import PermissionToken, Scope, encode_chain
from meshbus.wire.messages.window import Grant, encode_grant

OWN_STREAM = 0x7777
"""Stream on which the attacker sends reliable messages of a subprotocol; one for each, from here on."""
_FRESH = 64
"""Different announcements that are prepared for a run; signing is not the cost of sending."""


class Content(NamedTuple):
    """What one packet carries."""

    subprotocol_id: int
    messages: Sequence[bytes]
    reliable: bool = False
    stream_id: int | None = None


Make = Callable[[], Content]
Kind = Callable[["Insider"], Make]


class Insider:
    """A peer of the victim that sends whatever it likes."""

    def __init__(self, victim: Target, member: Member) -> None:
        self.victim = victim
        self.member = member
        self.numbers = count(1)
        self._link = member.engine.peers.require(victim.node_id).link
        self._sequences: dict[int, int] = {}

    @property
    def address(self) -> Address:
        """The address of the session."""
        return self.member.address

    def prepare(self, content: Content) -> tuple[Header, bytes]:
        """Return header and payload of a packet, ready to be sealed."""
        subprotocol_id, messages, carried, chosen = content
        stream_id = subprotocol_id if chosen is None else chosen
        sequence = flags = 0
        if carried:
            stream_id = OWN_STREAM + subprotocol_id
            sequence = self._sequences.setdefault(stream_id, FIRST_SEQUENCE)
            self._sequences[stream_id] += 1
            flags = int(Flags.RELIABLE)
        header = Header(
            subprotocol_id=subprotocol_id,
            stream_id=stream_id,
            sequence=sequence,
            flags=flags,
            event_count=len(messages),
        )
        return header, pack_frames(messages)

    def seal(self, prepared: tuple[Header, bytes]) -> bytes:
        """Return the datagram: the only work that an attacker has to do for each packet."""
        return self._link.sealer.seal(*prepared)

    def catch_up(self) -> None:
        """Continue reliable streams where the victim is, as a sender does whose packets were not acknowledged."""
        for stream_id in self._sequences:
            self._sequences[stream_id] = self.victim.next_sequence(self.member, stream_id) or FIRST_SEQUENCE

    def begin_stream(self, subprotocol_id: int) -> Content:
        """Return the message that begins the reliable stream of a subprotocol."""
        stream_id = OWN_STREAM + subprotocol_id
        base = reliable.Base(
            stream_id=stream_id, sequence=self._sequences.get(stream_id, FIRST_SEQUENCE), pub_seq=None, start=True
        )
        return Content(Subprotocol.RELIABLE, [encode_reliable(base)])


def packed(subprotocol_id: int, message: bytes, *, carried: bool = False) -> Content:
    """Return a packet that is full of one message."""
    fits = min(MAX_EVENTS, MAX_PAYLOAD // (FRAME_PREFIX_BYTES + len(message)))
    return Content(subprotocol_id, [message] * fits, carried)


def _same(content: Content) -> Make:
    return lambda: content


def _subscribe(who: Insider) -> Make:
    """Subscribe to another channel each time, and leave the one before."""

    def make() -> Content:
        number = next(who.numbers)
        message = membership.Subscribe(nonce=number, channel=ChannelName(f"plant/{number % 100:03}"))
        return Content(Subprotocol.MEMBERSHIP, [membership.encode_membership(message)])

    return make


def _subscribe_token(who: Insider) -> Make:
    """Present a chain of tokens, each of which has a signature to verify."""
    issuer = who.member.engine.identity
    token = PermissionToken.issue(
        issuer, issuer.entity_id, Scope.SUBSCRIBE, "plant/001", ttl_s=1000, now=time.time_ns() / 1e9, entropy=bytes
    )
    message = membership.Subscribe(nonce=1, channel=ChannelName("plant/001"), token=encode_chain([token]))
    return _same(Content(Subprotocol.MEMBERSHIP, [membership.encode_membership(message)]))


def _subscribe_packed(_who: Insider) -> Make:
    message = membership.Subscribe(nonce=1, channel=ChannelName("plant/001"))
    return _same(packed(Subprotocol.MEMBERSHIP, membership.encode_membership(message)))


def _interest(who: Insider) -> Make:
    """Ask for the prefix of all channels, with another number each time."""

    def make() -> Content:
        message = interest.Interest(req=next(who.numbers) % 200, prefix="plant/")
        return Content(Subprotocol.INTEREST, [interest.encode_interest(message)])

    return make


def _interest_packed(_who: Insider) -> Make:
    return _same(packed(Subprotocol.INTEREST, interest.encode_interest(interest.Interest(req=1, prefix="plant/"))))


def _request(who: Insider) -> Make:
    def make() -> Content:
        message = request.Request(req=next(who.numbers), deadline_ms=50, channel=ChannelName(ASKED), payload=b"?")
        return Content(Subprotocol.REQUEST, [request.encode_request(message)], True)

    return make


def _request_packed(_who: Insider) -> Make:
    message = request.Request(req=1, deadline_ms=50, channel=ChannelName(ASKED), payload=b"")
    return _same(packed(Subprotocol.REQUEST, request.encode_request(message), carried=True))


def _read(who: Insider) -> Make:
    """Read a log from its start, and cancel the reading before."""

    def make() -> Content:
        number = next(who.numbers)
        asked = history.Read(req=number, channel=ChannelName(LOGGED), since=0, max_bytes=1)
        messages: list[history.HistoryMessage] = [history.Cancel(req=number - 1), asked]
        return Content(Subprotocol.HISTORY, [history.encode_history(message) for message in messages], True)

    return make


def _read_packed(_who: Insider) -> Make:
    message = history.Read(req=1, channel=ChannelName(LOGGED), since=0, max_bytes=1)
    return _same(packed(Subprotocol.HISTORY, history.encode_history(message), carried=True))


def _announcement(who: Insider, *, invented: bool = False) -> Make:
    """Announce a new version each time; the contents were signed before."""
    start = next(who.numbers) * _FRESH + time.time_ns() // 1_000_000_000
    ready = []
    for number in range(_FRESH):
        identity = Identity.from_seed((start + number).to_bytes(32, "big")) if invented else who.member.engine.identity
        told = Announcement(
            node_id=identity.node_id,
            entity_id=identity.entity_id,
            version=start + number if not invented else 1,
            timestamp_ns=0,
            ttl_secs=300,
            hop_count=int(invented),
            tags=tuple(f"tag:{tag}" for tag in range(200)),
        ).sign(identity)
        ready.append(encode_announcement(told))
    place = count()
    return lambda: Content(Subprotocol.CAPABILITY, [ready[next(place) % _FRESH]])


def _announcement_packed(who: Insider) -> Make:
    identity = who.member.engine.identity
    told = Announcement(
        node_id=identity.node_id,
        entity_id=identity.entity_id,
        version=1 << 61,
        timestamp_ns=0,
        ttl_secs=300,
        signature=bytes(64),
    )
    return _same(packed(Subprotocol.CAPABILITY, encode_announcement(told)))


def _acks(ranges: int, *, full: bool) -> Kind:
    def kind(_who: Insider) -> Make:
        message = encode_reliable(
            reliable.Ack(
                stream_id=ChannelName(LOGGED).stream_id,
                cumulative=FIRST_SEQUENCE,
                free=1 << 20,
                ranges=tuple((1, 1) for _ in range(ranges)),
            )
        )
        return _same(packed(Subprotocol.RELIABLE, message) if full else Content(Subprotocol.RELIABLE, [message]))

    return kind


def _bases(who: Insider) -> Make:
    """Begin new streams, as many as fit into a packet."""

    def make() -> Content:
        messages = [
            encode_reliable(
                reliable.Base(stream_id=next(who.numbers) << 20, sequence=FIRST_SEQUENCE, pub_seq=1, start=True)
            )
            for _ in range(250)
        ]
        return Content(Subprotocol.RELIABLE, messages)

    return make


def _grants(_who: Insider) -> Make:
    return _same(packed(Subprotocol.STREAM_WINDOW, encode_grant(Grant(stream_id=5, total_consumed=1 << 40))))


def _manifests(who: Insider) -> Make:
    """Offer less, then more: each changes the agreement."""
    manifest = who.member.engine.registry.manifest()
    ready = [packed(Subprotocol.NEGOTIATION, encode_manifest(manifest))]
    return _same(ready[0])


def _reflex(_who: Insider) -> Make:
    return _same(packed(Subprotocol.REFLEX, encode_reflex(ReflexRequest())))


def _rendezvous(who: Insider) -> Make:
    target = who.victim.another_peer(who.member)
    message = PunchRequest(target=target, self_reflex=WireAddress("127.0.0.1", 9))
    return _same(packed(Subprotocol.RENDEZVOUS, encode_rendezvous(message)))


def _presence(_who: Insider) -> Make:
    return _same(packed(Subprotocol.PRESENCE, presence.encode_presence(presence.Probe(1))))


def _policy_offers(*, full: bool) -> Kind:
    """Offer a policy in the name of the issuer, with a signature that has to be checked to be refused."""

    def kind(who: Insider) -> Make:
        def make() -> Content:
            newer = POLICY_VERSION + next(who.numbers)
            stated = fleetpolicy.PolicyStatement(newer, 1000, bytes(32), ISSUER.entity_id, bytes(64))
            message = fleetpolicy.encode_fleet_policy(fleetpolicy.Have(stated))
            if full:
                return packed(Subprotocol.POLICY, message, carried=True)
            return Content(Subprotocol.POLICY, [message], True)

        return make

    return kind


def _policy_fetch(_who: Insider) -> Make:
    """Ask for the chunks of the policy again and again."""
    message = fleetpolicy.encode_fleet_policy(fleetpolicy.Fetch(POLICY_VERSION, 0))
    return _same(Content(Subprotocol.POLICY, [message], True))


def _policy_fetch_packed(_who: Insider) -> Make:
    message = fleetpolicy.encode_fleet_policy(fleetpolicy.Fetch(POLICY_VERSION, 0))
    return _same(packed(Subprotocol.POLICY, message, carried=True))


def _relay(who: Insider) -> Make:
    target = who.victim.another_peer(who.member)
    message = encode_relay(RelayedHandshake(target, who.member.engine.node_id, bytes(64)))
    return _same(packed(Subprotocol.HANDSHAKE_RELAY, message))


def _relay_here(who: Insider) -> Make:
    message = encode_relay(RelayedHandshake(who.victim.node_id, who.member.engine.node_id, bytes(64)))
    return _same(packed(Subprotocol.HANDSHAKE_RELAY, message))


def _nothing(_who: Insider) -> Make:
    """Send as many empty messages as the format allows."""
    return _same(Content(Subprotocol.MEMBERSHIP, [b""] * MAX_EVENTS))


def _streams(who: Insider) -> Make:
    """Send one event on a new stream each time."""
    return lambda: Content(Subprotocol.EVENTS, [b"event"], False, next(who.numbers) | PUBLISH_STREAM_BIT)


def _direct_streams(who: Insider) -> Make:
    """Send one event without a channel on a new stream each time."""
    return lambda: Content(Subprotocol.EVENTS, [b"event"], False, next(who.numbers))


KINDS: Mapping[str, Kind] = {
    "subscribe": _subscribe,
    "subscribe, packed": _subscribe_packed,
    "subscribe with a token": _subscribe_token,
    "interest in 100 channels": _interest,
    "interest in 100 channels, packed": _interest_packed,
    "request": _request,
    "request, packed": _request_packed,
    "history read and cancel": _read,
    "history read, packed": _read_packed,
    "own announcement": _announcement,
    "invented announcement": lambda who: _announcement(who, invented=True),
    "announcement, packed": _announcement_packed,
    "acknowledgement": _acks(32, full=False),
    "acknowledgement, packed": _acks(0, full=True),
    "stream base, packed": _bases,
    "credit grant, packed": _grants,
    "manifest, packed": _manifests,
    "reflex request, packed": _reflex,
    "punch request, packed": _rendezvous,
    "clock probe, packed": _presence,
    "relayed handshake, packed": _relay,
    "relayed handshake for us, packed": _relay_here,
    "forged policy offer": _policy_offers(full=False),
    "forged policy offer, packed": _policy_offers(full=True),
    "policy fetch": _policy_fetch,
    "policy fetch, packed": _policy_fetch_packed,
    "2027 empty messages": _nothing,
    "event on a new channel stream": _streams,
    "event on a new stream": _direct_streams,
}
"""What a peer can send, by name."""
