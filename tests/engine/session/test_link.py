"""Test links: the scalar path reads the trains, and batches refuse packets that are forged or not new."""

from hashlib import blake2s
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.engine.base.packets import PacketBatch, Train
from meshbus.engine.base.runscan import scan
from meshbus.engine.session import link as module
from meshbus.engine.session.link import MAX_TRAIN_BYTES, Link, equalize, part_of
from meshbus.errors import Replayed
from meshbus.wire.constants import HEADER_BYTES, PACKET_COST, ROUTE_BYTES, Subprotocol
from meshbus.wire.frames import columns_of, decode_frames, encode_frames, pack_frames, unpack_frames
from meshbus.wire.header import Header, unpack_header
from meshbus.wire.headerbatch import read_headers
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.route import RouteHeader, unpack_route

HASH = bytes(range(32))
PATTERN = Header(stream_id=77, channel_hash=5, flags=1, origin_hash=3, event_count=1)


def links(route: RouteHeader | None = None) -> tuple[Link, Link]:
    a = Link(derive_keys(HASH, Role.INITIATOR), Role.INITIATOR, "b", 0.0, route=route)
    return a, Link(derive_keys(HASH, Role.RESPONDER), Role.RESPONDER, "a", 0.0)


def datagrams(trains: list[Train]) -> list[bytes]:
    return [datagram for train in trains for datagram in train.datagrams()]


def open_all(link: Link, packets: list[bytes]) -> tuple[list[bytes], list[bool], list[bool]]:
    data = np.frombuffer(bytearray(b"".join(packets)), np.uint8)
    lengths = np.array([len(packet) for packet in packets], np.int64)
    starts = np.cumsum(lengths) - lengths
    headers = read_headers(data, starts, lengths).columns
    plain, places, genuine, fresh = link.open_batch(data, starts, headers)
    sizes, counts = headers["payload_len"].astype(np.int64), headers["event_count"].astype(np.int64)
    offsets, events, _ = decode_frames(plain, places[fresh], sizes[fresh], counts[fresh])
    payloads = [events[a:b].tobytes() for a, b in pairwise(offsets)]
    return payloads, genuine.tolist(), fresh.tolist()


events = st.lists(st.binary(max_size=400), min_size=1, max_size=120)


@given(events, st.sampled_from([8108, 900, 120]))
def test_sealed_batches_open_by_batch_and_one_by_one(content: list[bytes], limit: int) -> None:
    sender, receiver = links()
    packed = encode_frames(*columns_of(content), max_payload=limit)
    sealed = datagrams(sender.seal_batch(PATTERN, packed, first_sequence=5))
    assert open_all(receiver, sealed) == (content, [True] * len(packed), [True] * len(packed))
    _, scalar = links()
    headers, plains = zip(*(scalar.opener.open(datagram) for datagram in sealed), strict=True)
    assert [header.sequence for header in headers] == list(range(5, 5 + len(packed)))
    assert {(header.stream_id, header.channel_hash, header.flags, header.origin_hash) for header in headers} == {
        (77, 5, 1, 3)
    }
    got = [bytes(e) for h, p in zip(headers, plains, strict=True) for e in unpack_frames(p, h.event_count)]
    assert got == content


def test_mixed_sizes_travel_in_equal_packets() -> None:
    rng = np.random.default_rng(1)
    content = [bytes(int(size)) for size in rng.integers(16, 512, 1500)]
    sender, receiver = links()
    trains = sender.seal_batch(PATTERN, equalize(encode_frames(*columns_of(content))), 0)
    assert len(trains) < len(datagrams(trains)) / 5
    assert all(len(train.data) <= MAX_TRAIN_BYTES for train in trains)
    assert open_all(receiver, datagrams(trains))[0] == content


def test_padding_is_not_wasted_on_very_different_packets() -> None:
    content = [bytes(50), bytes(8000), bytes(50), bytes(8000)]
    sender, receiver = links()
    sealed = datagrams(sender.seal_batch(PATTERN, equalize(encode_frames(*columns_of(content), max_payload=60)), 0))
    assert sum(map(len, sealed)) == sum(map(len, content)) + 4 * (4 + PACKET_COST)
    assert open_all(receiver, sealed)[0] == content


def test_forged_and_repeated_packets_are_counted_separately() -> None:
    sender, receiver = links()
    sealed = datagrams(sender.seal_batch(PATTERN, encode_frames(*columns_of([b"a", b"b", b"c"]), max_payload=5), 0))
    forged = sealed[1][:-1] + bytes([sealed[1][-1] ^ 1])
    payloads, genuine, fresh = open_all(receiver, [sealed[0], forged, sealed[0], sealed[2]])
    assert payloads == [b"a", b"c"]
    assert genuine == [True, False, True, True]
    assert fresh == [True, False, False, True]
    assert open_all(receiver, [sealed[1]])[0] == [b"b"]  # the forgery did not use up its counter


def test_a_relayed_peer_gets_the_routing_header_on_every_packet() -> None:
    route = RouteHeader(src_id=1, dest_id=2)
    sender, receiver = links(route)
    for content in ([b"one"], [bytes(3000)] * 9):
        sealed = datagrams(sender.seal_batch(PATTERN, encode_frames(*columns_of(content)), 0))
        assert all(unpack_route(datagram) == route for datagram in sealed)
        assert open_all(receiver, [datagram[ROUTE_BYTES:] for datagram in sealed])[0] == content
    (single,) = sender.seal(PATTERN, pack_frames([b"x"])).datagrams()
    assert unpack_route(single) == route
    assert len(single) == ROUTE_BYTES + HEADER_BYTES + 5 + 16


def test_scalar_and_batch_share_one_counter() -> None:
    sender, receiver = links()
    first = next(sender.seal(PATTERN, pack_frames([b"1"])).datagrams())
    batch = datagrams(sender.seal_batch(PATTERN, encode_frames(*columns_of([b"2", b"3"]), max_payload=5), 1))
    last = next(sender.seal(PATTERN, pack_frames([b"4"])).datagrams())
    assert open_all(receiver, [first, *batch, last]) == ([b"1", b"2", b"3", b"4"], [True] * 4, [True] * 4)


def test_headers_of_single_events_are_kept_for_so_many_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PATTERNS", 3)
    sender, receiver = links()
    patterns = [Header(stream_id=number, origin_hash=3) for number in range(7)]
    for number in range(30):
        train = sender.seal_one(patterns[number * number % 7], b"event", number)
        header, payload = receiver.opener.open(train.data)
        assert (header.stream_id, header.sequence, payload) == (number * number % 7, number, b"event")
        assert len(sender._pieces) <= 3
    changed = sender.seal_one(Header(stream_id=0, origin_hash=4), b"event", 30)
    assert receiver.opener.open(changed.data)[0].origin_hash == 4


def test_parts_of_a_load_are_sealed_without_copying_it() -> None:
    content = [bytes([n]) * 30 for n in range(20)]
    packed = encode_frames(*columns_of(content), max_payload=70)
    sender, receiver = links()
    sealed = [
        d
        for a, b in [(0, 3), (3, 4), (4, len(packed))]
        for d in datagrams(sender.seal_batch(PATTERN, part_of(packed, a, b), a))
    ]
    assert open_all(receiver, sealed)[0] == content
    assert np.shares_memory(part_of(packed, 3, 5).data, packed.data)


@given(events)
def test_equalized_payloads_read_the_same(content: list[bytes]) -> None:
    packed = encode_frames(*columns_of(content), max_payload=700)
    equal = equalize(packed)
    sizes = np.diff(equal.bounds)
    offsets, data, found = decode_frames(equal.data, equal.bounds[:-1], sizes, equal.counts)
    assert [data[a:b].tobytes() for a, b in pairwise(offsets)] == content
    assert found.tolist() == packed.counts.tolist()
    if equal is not packed:
        assert len(set(sizes[:-1].tolist())) == 1
        assert sizes[-1] <= sizes[0]


# ── new keys ────────────────────────────────────────────────────────────────────────────────


def with_new_keys() -> tuple[Link, Link, bytes]:
    """Return two links that can open packets under new keys, and a packet under the old ones."""
    a, b = links()
    under_old = bytes(a.seal(Header(), b"old").data)
    fresh = blake2s(b"fresh").digest()
    a.expect(derive_keys(fresh, Role.INITIATOR))
    b.expect(derive_keys(fresh, Role.RESPONDER))
    return a, b, under_old


def opened(link: Link, packet: bytes) -> bytes:
    return link.open_one(unpack_header(packet), packet)


def test_the_other_side_seals_with_new_keys_when_the_first_packet_under_them_has_arrived() -> None:
    a, b, under_old = with_new_keys()
    a.seal_anew()
    assert (a.epoch, b.epoch) == (1, 0)
    first, second = (bytes(a.seal(Header(), name).data) for name in (b"first", b"second"))
    assert opened(b, second) == b"second"
    assert b.turned
    assert (b.epoch, b.sealer.session_id) == (1, a.sealer.session_id)
    b.turned = False
    # What was under way is still opened, in any order, each once.
    assert opened(b, under_old) == b"old"
    assert opened(b, first) == b"first"
    assert not b.turned
    with pytest.raises(Replayed):
        opened(b, first)
    assert b.session_id == a.session_id != a.sealer.session_id


def test_forgotten_keys_open_nothing() -> None:
    a, b, _ = with_new_keys()
    assert a.forget_old() == [], "the next keys are not old"
    a.seal_anew()
    opened(b, bytes(a.seal(Header(), b"").data))
    assert set(b.session_ids) == {a.session_id, a.sealer.session_id}
    seen = b.seen
    assert b.forget_old() == [a.session_id]
    assert b.session_ids == (a.sealer.session_id,)
    assert b.seen == seen, "the peer was heard all the same"
    assert b.proved


def test_batches_and_runs_under_new_keys_are_opened_as_single_packets_are() -> None:
    for whole in (True, False):
        a, b, _ = with_new_keys()
        a.seal_anew()
        packed = encode_frames(*columns_of([bytes([number]) * 100 for number in range(8)]), max_payload=104)
        sealed = datagrams(a.seal_batch(Header(stream_id=7), packed, 0))
        batch = PacketBatch.of([("a", bytes(datagram)) for datagram in sealed])
        if whole:
            run = scan(batch.data, batch.starts, batch.lengths)
            assert run is not None
            opening = b.open_run(batch.data, batch.starts, run)
            assert opening.genuine is None
        else:
            headers = read_headers(batch.data, batch.starts, batch.lengths)
            _, _, genuine, fresh = b.open_batch(batch.data, batch.starts, headers.columns)
            assert genuine.all()
            assert fresh.all()
        assert b.turned
        assert b.epoch == 1


def test_what_may_come_under_the_keys_of_the_handshake() -> None:
    a, _, _ = with_new_keys()
    clear, secret = a.session_id, a.session_ids[1]
    assert not a.bars(clear, Subprotocol.EVENTS)
    a.closed = True
    assert a.bars(clear, Subprotocol.EVENTS)
    assert not a.bars(clear, Subprotocol.NEGOTIATION)
    assert not a.bars(secret, Subprotocol.EVENTS)
    a.seal_anew()
    assert a.bars(clear, Subprotocol.NEGOTIATION)
    assert not a.bars(clear, Subprotocol.CAPABILITY)
