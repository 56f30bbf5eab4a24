"""Decoders of `meshbus.wire`: packets, messages of every subprotocol, and the kernels that read many packets at once.

What a kernel finds is compared with its reference, or with the decoder for a single packet.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from fuzz.pieces import cut
from fuzz.target import Run, Target, decoder
from meshbus.errors import AuthError, BadTag, RemoteProtocolError
from meshbus.jit import Kernel
from meshbus.names.identity import Identity
from meshbus.wire import datarun, recordcolumn, routebatch
from meshbus.wire.certificate import decode_certificate, encode_certificate
from meshbus.wire.column import column_of
from meshbus.wire.constants import HEADER_BYTES, MAX_EVENTS, ROUTE_BYTES, Flags
from meshbus.wire.datagram import DatagramKind, classify
from meshbus.wire.frames import decode_frames, pack_frames, unpack_frames
from meshbus.wire.handshake import (
    decode_handshake,
    decode_routed_handshake,
    encode_handshake,
    encode_routed_handshake,
    pack_initiator_id,
    unpack_initiator_id,
)
from meshbus.wire.header import Header, aad_of, pack_header, unpack_header
from meshbus.wire.headerbatch import HeaderStatus, read_headers
from meshbus.wire.invitation import InviteToken
from meshbus.wire.joining import Admission, Newcomer, read_hello
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.messages import (
    append,
    bindings,
    capability,
    causal,
    checkpoint,
    continuity,
    envelope,
    fleetpolicy,
    groups,
    history,
    identityproof,
    interest,
    large,
    leadership,
    manifest,
    membership,
    migration,
    partition,
    presence,
    reconciliation,
    redex,
    reflex,
    relay,
    reliable,
    rendezvous,
    request,
    revocation,
    rotation,
    secure,
    snapshot,
    streamrepair,
    token,
    window,
    withdrawal,
)
from meshbus.wire.messages.address import pack_address, parse_address, unpack_address
from meshbus.wire.noise import Initiator, Responder, derive_public_key, prologue
from meshbus.wire.pingwave import pack_pingwave, unpack_pingwave
from meshbus.wire.punch import pack_keepalive, unpack_keepalive
from meshbus.wire.record import Record, pack_record, unpack_record
from meshbus.wire.route import destination_of, pack_route, unpack_route
from meshbus.wire.seal import Opener, Sealer
from meshbus.wire.secure import Chain, Ends, Offering, answer

SECRET = bytes(range(32))
"""Keys of the session and the handshake that inputs belong to."""
_NODE, _PEER = 0x1122334455667788, 0x99AABBCCDDEEFF00


# ── packets ─────────────────────────────────────────────────────────────────────────────────


def _packet() -> Run:
    """Read a header, and open a packet that was sealed with the fields and the payload of the input."""
    sent, kept = derive_keys(SECRET, Role.INITIATOR), derive_keys(SECRET, Role.RESPONDER)

    def run(data: bytes) -> None:
        aad_of(data)
        found = unpack_header(data)
        assert unpack_header(pack_header(found)) == found
        plain = msgspec.structs.replace(found, flags=found.flags & ~int(Flags.HANDSHAKE | Flags.HEARTBEAT))
        payload = data[HEADER_BYTES:]
        datagram = Sealer(sent).seal(plain, payload)
        assert Opener(kept).open(datagram)[1] == payload
        with suppress(BadTag):  # who has no key is refused here, and not before
            Opener(kept).open(data)

    return run


def _classified(data: bytes) -> None:
    """Read a datagram as what it was taken for."""
    kind = classify(data)
    readers: dict[DatagramKind, Callable[[bytes], object]] = {
        DatagramKind.KEEPALIVE: unpack_keepalive,
        DatagramKind.PINGWAVE: unpack_pingwave,
        DatagramKind.ROUTED: unpack_route,
    }
    if kind in readers:
        readers[kind](data)
    if kind is DatagramKind.ROUTED:
        assert destination_of(data) == unpack_route(data).dest_id


def _handshake() -> Run:
    """Read handshake packets, and the Noise messages in them, as either side."""
    bound, public = prologue(_NODE, _PEER), derive_public_key(SECRET)

    def run(data: bytes) -> None:
        try:
            header_of, message = decode_routed_handshake(data)
            again = encode_routed_handshake(message, sender=header_of.src_id, receiver=header_of.dest_id)
            assert decode_routed_handshake(again)[1] == message
        except RemoteProtocolError:
            message = decode_handshake(data)
            assert decode_handshake(encode_handshake(message)) == message
        initiator = Initiator(
            psk=SECRET, prologue=bound, responder_public_key=public, ephemeral_private_key=SECRET[::-1]
        )
        initiator.write()
        try:
            initiator.read(message)
        except RemoteProtocolError:
            Responder(psk=SECRET, prologue=bound, static_private_key=SECRET).read(message)

    return run


def _initiator_id(data: bytes) -> None:
    node_id = unpack_initiator_id(data[4:], int.from_bytes(data[:4], "little"))
    assert pack_initiator_id(node_id) == data[4:12]


def _secure() -> Run:
    """Read a message of a secure session, and take it as either side."""
    identity = Identity.from_seed(SECRET)
    ends, chain = Ends(_NODE, _PEER), Chain.begin(SECRET)

    def run(data: bytes) -> None:
        message = secure.decode_secure(data)
        assert secure.decode_secure(secure.encode_secure(message)) == message
        match message:
            case secure.Offer():
                answer(identity, ends, chain, message, SECRET[::-1])
            case secure.Accept():
                Offering(identity, ends, chain, SECRET[::-1]).take(message)

    return run


# ── many packets at once ────────────────────────────────────────────────────────────────────


def _batch(data: bytes) -> tuple[Any, Any, Any]:
    """Return pieces of an input as a buffer with starts and lengths, as a drained socket leaves them."""
    parts = list(cut(data))
    lengths = np.array([len(part) for part in parts], np.int64)
    return np.frombuffer(bytearray(b"".join(parts)), np.uint8), np.cumsum(lengths) - lengths, lengths


def _same(kernel: Kernel[..., Any], *arguments: Any) -> Any:
    """Return what a kernel finds, which must be what its reference finds and leaves in its arguments."""
    copies = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
    found, expected = kernel.run(*arguments), kernel.reference(*copies)
    assert found == expected, f"{kernel.loop.__name__} returns {found}, its reference {expected}"
    for one, other in zip(arguments, copies, strict=True):
        if isinstance(one, np.ndarray):
            assert one.tobytes() == other.tobytes(), f"{kernel.loop.__name__} leaves other arrays than its reference"
    return found


def _headers(data: bytes) -> None:
    buffer, starts, lengths = _batch(data)
    batch = read_headers(buffer, starts, lengths)
    for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        packet = buffer[start : start + length].tobytes()
        try:
            single: Header | None = unpack_header(packet)
        except RemoteProtocolError:
            single = None
        assert (single is not None) == (batch.status[row] in {HeaderStatus.OK, HeaderStatus.WRONG_SIZE})
        if single is not None:
            assert batch.columns[row]["stream_id"] == single.stream_id
            assert batch.columns[row]["payload_len"] == single.payload_len


def _routes(data: bytes) -> None:
    buffer, starts, lengths = _batch(data)
    long = lengths >= ROUTE_BYTES
    for row, start in zip(routebatch.read_routes(buffer, starts[long]), starts[long].tolist(), strict=True):
        assert row["dest_id"] == destination_of(buffer[start : start + ROUTE_BYTES].tobytes())
    first, last = 0, len(starts)
    while first < last:
        found = _same(routebatch._stretch, buffer, starts, lengths, first, last, np.uint64(_NODE))
        assert found == routebatch.routed_stretch(buffer, starts, lengths, first, last, _NODE)
        stop, at = first + max(1, abs(found)), first
        while found and at < stop:
            alike = _same(routebatch._alike, buffer, starts, lengths, at, stop)
            assert alike == routebatch.alike_run(buffer, starts, lengths, at, stop)
            assert 1 <= alike <= stop - at
            _same(routebatch._count, buffer, starts, at, at + alike)
            at += alike
        first = stop


def _frames(data: bytes) -> None:
    buffer, starts, lengths = _batch(data)
    # The count of events is in the header, which is limited.
    counts = np.array([(int(length) * 7919) % (MAX_EVENTS + 1) for length in lengths], np.int64)
    offsets, joined, found = decode_frames(buffer, starts, lengths, counts)
    events = []
    for start, length, count, held in zip(*(one.tolist() for one in (starts, lengths, counts, found)), strict=True):
        single = [bytes(event) for event in unpack_frames(buffer[start : start + length].tobytes(), count)]
        assert len(single) == held
        events += single
    assert [joined[a:b].tobytes() for a, b in pairwise(offsets.tolist())] == events
    if events and sum(map(len, events)) < 4096:
        assert [bytes(event) for event in unpack_frames(pack_frames(events), len(events))] == events


def _parts(data: bytes) -> None:
    buffer, starts, lengths = _batch(data)
    long = lengths >= large.PART_HEAD
    sizes, offsets = large.read_heads(buffer, starts[long])
    assert len(sizes) == len(offsets) == int(long.sum())
    size = next((int(size) for size in sizes if 0 < size <= 4096), 16)
    event = np.zeros(size, np.uint8)
    taken = _same(large._join, buffer, starts, lengths, event, 0)
    assert taken == large.join_parts(buffer, starts, lengths, np.zeros(size, np.uint8), 0)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        large.decode_part(buffer[start : start + length].tobytes())


def _records(data: bytes) -> None:
    """Read records in bulk and one by one."""
    parts = list(cut(data))
    column = column_of(memoryview(b"".join(parts)), np.array([len(part) for part in parts], np.int64))
    split = recordcolumn.split_record_column(column) if parts else None
    assert not parts or recordcolumn.have_headers(column) in {True, False}
    if split is not None:
        heads, offsets, payloads = split
        for part, head, start, stop in zip(parts, heads, offsets[:-1], offsets[1:], strict=True):
            single = unpack_record(part)
            assert single == Record(bytes(payloads[start:stop]), int(head["ts_ns"]), int(head["origin"]))
    for part in parts:
        found = unpack_record(part)
        assert unpack_record(pack_record(found)) == found


def _data_run(data: bytes) -> None:
    bodies = datarun.DataBodies()
    for part in cut(data):
        bodies.add(memoryview(part[2:]), int.from_bytes(part[:2], "little"))
    assert len(bodies.column()) == bodies.count


# ── messages that need more than bytes ──────────────────────────────────────────────────────


def _tokens(data: bytes) -> None:
    chain = token.decode_chain(data)
    assert token.decode_chain(token.encode_chain(chain)) == chain
    assert token.decode_chain(token.count_chain(token.encode_chain(chain))) == chain
    for one in chain:
        one.has_good_signature()
        one.valid(1_700_000_000.0)
        one.authorizes(token.Scope.PUBLISH, 1)


def _announcement(data: bytes) -> None:
    found = capability.decode_announcement(data)
    assert capability.decode_announcement(capability._serialize(found)) == found
    found.verify()
    found.forwarded()
    if found.reflex_addr is not None:
        parse_address(found.reflex_addr)


def _policy(data: bytes) -> None:
    found = fleetpolicy.decode_fleet_policy(data)
    assert fleetpolicy.encode_fleet_policy(found) == data
    if isinstance(found, fleetpolicy.Have):
        found.statement.verify()


def _revocation(data: bytes) -> None:
    found = revocation.decode_revocation(data)
    assert revocation.encode_revocation(found) == data
    if isinstance(found, revocation.Record):
        record = found.revocation
        assert revocation.decode_record(revocation.encode_record(record)) == record
        record.verify()
        assert len(record.id) == revocation.ID_BYTES
        assert len(record.subject) == 32


def _checkpoint(data: bytes) -> None:
    for read in (checkpoint.moves_in, checkpoint.term_in, checkpoint.is_shadow, checkpoint.is_checkpoint):
        read(data)
    found = checkpoint.decode_checkpoint(data)
    assert checkpoint.decode_checkpoint(checkpoint.encode_checkpoint(found)) == found
    assert data[checkpoint.own_state_at(data) :] == found.state


def _snapshot(data: bytes) -> None:
    found = snapshot.decode_snapshot(data)
    assert snapshot.decode_snapshot(snapshot.encode_snapshot(found)) == found
    snapshot.check_snapshot_start(data, found.origin_hash)
    if found.envelope is not None:
        envelope.open_identity(found.envelope, found.entity_id, found.head, SECRET)


def _redex(data: bytes) -> None:
    found = redex.decode_redex(data, compat_47=True)
    if not isinstance(found, redex.Reserved):
        assert redex.decode_redex(redex.encode_redex(found)) == found
    redex.decode_redex(data)


def _causal(data: bytes) -> None:
    found = causal.decode_causal(data, MAX_EVENTS)
    assert causal.decode_causal(causal.encode_causal(found), len(found)) == found
    causal.decode_causal_event(data)


def _certificate(data: bytes) -> None:
    found = decode_certificate(data)
    assert encode_certificate(found) == data
    with suppress(AuthError):
        found.verify()


def _joins() -> tuple[Run, Run]:
    """Return how the inviting node reads a hello, and a newcomer the answer that the node named in its token sealed."""
    inviter, newcomer = Identity.from_seed(SECRET), Identity.from_seed(SECRET[::-1])
    invite = InviteToken(SECRET[:8], SECRET[:16], inviter.entity_id, newcomer.entity_id)

    def hello(data: bytes) -> None:
        invite_id, message = read_hello(data)
        Admission(inviter, invite_id, invite.issuer, invite.psk, message)

    def answered(data: bytes) -> None:
        joining = Newcomer(invite, newcomer, SECRET)
        noise = Responder(
            psk=invite.psk,
            prologue=b"meshbus-join-v1\0" + invite.invite_id + invite.issuer,
            static_private_key=inviter.noise_private_key,
        )
        noise.read(read_hello(joining.hello)[1])
        joining.take(noise.write(SECRET, data))

    return hello, answered


def _nested(data: bytes) -> None:
    """Read a message of a leader, and the records in it."""
    found = leadership.decode_leadership(data)
    assert leadership.decode_leadership(leadership.encode_leadership(found)) == found
    if isinstance(found, leadership.Data):
        for payload in found.payloads:
            unpack_record(payload)


def _of(name: str, run: Run, *covers: Callable[..., Any], most_bytes: int = 2048) -> Target:
    return Target(name, lambda: run, covers=covers, most_bytes=most_bytes)


TARGETS: tuple[Target, ...] = (
    Target("packet", _packet, covers=(unpack_header, aad_of, Opener.open)),
    _of("datagram", _classified, classify, destination_of, most_bytes=256),
    Target("handshake", _handshake, covers=(decode_handshake, decode_routed_handshake, Initiator.read, Responder.read)),
    _of("initiator-id", _initiator_id, unpack_initiator_id, most_bytes=64),
    decoder("route", unpack_route, pack_route, most_bytes=64),
    decoder("pingwave", unpack_pingwave, pack_pingwave, most_bytes=256),
    decoder("keepalive", unpack_keepalive, pack_keepalive, most_bytes=64),
    _of("headers", _headers, read_headers),
    _of(
        "routes",
        _routes,
        routebatch.read_routes,
        routebatch.routed_stretch,
        routebatch.alike_run,
        routebatch.count_hop,
    ),
    _of("frames", _frames, decode_frames, unpack_frames),
    _of("parts", _parts, large.decode_part, large.read_heads, large.join_parts),
    _of("records", _records, unpack_record),
    _of("data-run", _data_run, datarun.DataBodies.add),
    _of("announcement", _announcement, capability.decode_announcement, most_bytes=8192),
    decoder("append", append.decode_append, append.encode_append),
    decoder("address", unpack_address, pack_address, most_bytes=64),
    decoder("bindings", bindings.decode_bindings, bindings.encode_bindings),
    _of("certificate", _certificate, decode_certificate),
    _of("causal", _causal, causal.decode_causal, causal.decode_causal_event),
    decoder("link", causal.unpack_link, causal.pack_link, most_bytes=64),
    _of(
        "checkpoint",
        _checkpoint,
        checkpoint.decode_checkpoint,
        checkpoint.is_checkpoint,
        checkpoint.is_shadow,
        checkpoint.moves_in,
        checkpoint.own_state_at,
        checkpoint.term_in,
    ),
    decoder("continuity", continuity.decode_continuity, continuity.encode_continuity),
    decoder("continuity-proof", continuity.decode_proof, continuity.encode_proof),
    decoder("fork", continuity.decode_fork, continuity.encode_fork),
    decoder("envelope", envelope.decode_envelope, envelope.encode_envelope, most_bytes=512),
    _of("policy", _policy, fleetpolicy.decode_fleet_policy),
    decoder("grant", window.decode_grant, window.encode_grant, most_bytes=64),
    decoder("groups", groups.decode_group, groups.encode_group),
    decoder("history", history.decode_history, history.encode_history),
    decoder("identity-proof", identityproof.decode_proof, identityproof.encode_proof, most_bytes=512),
    Target("join-answer", lambda: _joins()[1], covers=(Newcomer.take,)),
    Target("join-hello", lambda: _joins()[0], covers=(read_hello,), most_bytes=256),
    decoder("rotation", rotation.decode_rotation, rotation.encode_rotation, most_bytes=256),
    decoder("interest", interest.decode_interest, interest.encode_interest),
    _of("leadership", _nested, leadership.decode_leadership),
    decoder("manifest", manifest.decode_manifest, manifest.encode_manifest),
    decoder("membership", membership.decode_membership, membership.encode_membership),
    decoder("migration", migration.decode_migration, migration.encode_migration),
    decoder("partition", partition.decode_partition, partition.encode_partition),
    decoder("presence", presence.decode_presence, presence.encode_presence, most_bytes=256),
    decoder("reconciliation", reconciliation.decode_reconciliation, reconciliation.encode_reconciliation),
    _of("redex", _redex, redex.decode_redex),
    decoder("reflex", reflex.decode_reflex, reflex.encode_reflex, most_bytes=64),
    decoder("refused", large.decode_refused, large.encode_refused, most_bytes=64),
    decoder("relay", relay.decode_relay, relay.encode_relay),
    decoder("reliable", reliable.decode_reliable, reliable.encode_reliable),
    decoder("rendezvous", rendezvous.decode_rendezvous, rendezvous.encode_rendezvous, most_bytes=256),
    decoder("request", request.decode_request, request.encode_request),
    _of("revocation", _revocation, revocation.decode_revocation, revocation.decode_record),
    Target("secure", _secure, covers=(secure.decode_secure,), most_bytes=512),
    _of("snapshot", _snapshot, snapshot.decode_snapshot, snapshot.check_snapshot_start),
    decoder("stream-nack", streamrepair.decode_nack, streamrepair.encode_nack, most_bytes=256),
    decoder("stream-ranges", streamrepair.decode_ranges, streamrepair.encode_ranges),
    decoder("stream-reset", streamrepair.decode_reset, streamrepair.encode_reset, most_bytes=256),
    decoder("token", token.decode_token, token.encode_token, most_bytes=512),
    _of("token-chain", _tokens, token.decode_chain),
    decoder("withdrawal", withdrawal.decode_withdrawal, withdrawal.encode_withdrawal, most_bytes=64),
)
