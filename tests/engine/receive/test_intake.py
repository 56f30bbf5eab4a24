"""Test that all ways through the intake have the same result, and that every drop is counted with a reason."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from hashlib import blake2s
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from meshbus.engine.base.counters import Counters
from meshbus.engine.base.packets import Address, Output, PacketBatch
from meshbus.engine.receive.intake import Intake, Opened
from meshbus.engine.routes.tap import Tap
from meshbus.engine.session.link import Link
from meshbus.engine.session.peer import Peer, PeerTable
from meshbus.names.identity import Identity
from meshbus.policy.reason import Reason
from meshbus.wire.constants import HEADER_BYTES, ROUTE_BYTES
from meshbus.wire.frames import pack_frames
from meshbus.wire.handshake import encode_handshake, encode_routed_handshake
from meshbus.wire.header import Header, pack_header
from meshbus.wire.keys import Role, derive_keys
from meshbus.wire.pingwave import Pingwave, pack_pingwave
from meshbus.wire.punch import Keepalive, pack_keepalive
from meshbus.wire.route import RouteHeader, pack_route
from tests.seeds import for_each_seed

if TYPE_CHECKING:
    from numpy.typing import NDArray

OWN = Identity.from_seed(bytes(32))
NODE = OWN.node_id


class IntakeRig:
    """An intake with two peers, and a record of everything that it found."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.peers = PeerTable()
        self.far = {node_id: self._session(node_id) for node_id in (5, 6)}
        self.found: list[tuple[object, ...]] = []
        self.intake = Intake(OWN, self.peers, self.counters, self, Tap(self.peers, lambda: np.zeros(0, np.uint64)))

    def _session(self, node_id: int) -> Link:
        secret = blake2s(bytes([node_id])).digest()
        near = Link(derive_keys(secret, Role.RESPONDER), Role.RESPONDER, f"peer {node_id}", 0.0)
        self.peers.establish(node_id, near, 0.0)
        return Link(derive_keys(secret, Role.INITIATOR), Role.INITIATOR, "here", 0.0)

    def packet(self, node_id: int, content: bytes = b"", **fields: int) -> bytes:
        """Seal a packet that a peer sends."""
        fields.setdefault("stream_id", 7)
        return bytes(self.far[node_id].seal(Header(event_count=1, **fields), pack_frames([content])).data)  # type: ignore[arg-type]

    def receive(
        self, *datagrams: bytes, source: Address = "somewhere", singly: bool = False
    ) -> list[tuple[object, ...]]:
        """Receive datagrams, as one batch or one by one; return what was found."""
        self.found = []
        batches = [[d] for d in datagrams] if singly else [list(datagrams)]
        for batch in batches:
            self.intake.receive(PacketBatch.of([(source, datagram) for datagram in batch]), 1.0, Output())
        return self.found

    def on_handshake(self, source: Address, datagram: memoryview, _now: float, _out: Output, *, routed: bool) -> None:
        self.found.append(("handshake", source, bytes(datagram), routed))

    def on_stranger(self, source: Address, packet: bytes, _now: float, _out: Output) -> bool:
        self.found.append(("stranger", source, packet))
        return False

    def on_new_keys(self, peer: Peer, _now: float, _out: Output) -> None:
        peer.link.turned = False
        self.found.append(("new keys", peer.node_id))

    def on_heartbeat(self, peer: Peer, _now: float, _out: Output) -> None:
        self.found.append(("heartbeat", peer.node_id))

    def on_packets(self, peer: Peer, opened: Opened, _now: float, _out: Output) -> None:
        ends = (opened.starts + opened.headers["payload_len"]).tolist()
        for start, end, sequence in zip(opened.starts.tolist(), ends, opened.headers["sequence"].tolist(), strict=True):
            self.found.append(("packet", peer.node_id, sequence, opened.data[start + 4 : end].tobytes()))
        if opened.run is not None:
            assert len(opened.run) == len(opened.headers)
            assert opened.run.places.tolist() == opened.starts.tolist()

    def on_packet(self, peer: Peer, header: Header, payload: bytes, _now: float, _out: Output) -> None:
        self.found.append(("packet", peer.node_id, header.sequence, payload[4:]))

    def on_transit(
        self,
        source: Address,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        first: int,
        last: int,
        _now: float,
        _out: Output,
        /,
    ) -> None:
        for start, length in zip(starts[first:last].tolist(), lengths[first:last].tolist(), strict=True):
            self.found.append(("transit", source, data[start : start + length].tobytes()))

    def on_pingwave(self, source: Address, datagram: memoryview, _now: float, _out: Output, /) -> None:
        self.found.append(("pingwave", source, len(datagram)))

    def on_keepalive(self, source: Address, datagram: memoryview, _now: float, _out: Output, /) -> None:
        self.found.append(("keepalive", source, len(datagram)))

    def drops(self) -> dict[str, int]:
        return self.counters.snapshot().get("drop", {})


@pytest.mark.parametrize("count", [1, 3, 4, 5, 40])
def test_packets_of_one_stream_are_opened_in_order(count: int) -> None:
    rig = IntakeRig()
    datagrams = [rig.packet(5, bytes([n]), sequence=n) for n in range(count)]
    assert rig.receive(*datagrams) == [("packet", 5, n, bytes([n])) for n in range(count)]
    assert rig.drops() == {}


def test_packets_of_several_peers_and_streams_are_sorted_out() -> None:
    rig = IntakeRig()
    datagrams = [rig.packet(5 + n % 2, bytes([n]), sequence=n, stream_id=n % 3) for n in range(24)]
    found = rig.receive(*datagrams)
    for peer in (5, 6):
        mine = [finding for finding in found if finding[1] == peer]
        assert mine == [("packet", peer, n, bytes([n])) for n in range(24) if 5 + n % 2 == peer]


def test_every_kind_of_datagram_reaches_its_receiver() -> None:
    rig = IntakeRig()
    direct, first = encode_handshake(bytes(48)), encode_routed_handshake(bytes(56), sender=9, receiver=NODE)
    inner = rig.packet(5, b"inside")
    elsewhere = pack_route(RouteHeader(src_id=9, dest_id=77)) + inner
    here = pack_route(RouteHeader(src_id=9, dest_id=NODE)) + inner
    wave = pack_pingwave(Pingwave(node_id=9, seq=1, timestamp_us=1))
    stranger = bytearray(rig.packet(5))
    stranger[24:32] = bytes(8)
    for singly in (True, False):
        fresh = IntakeRig()
        found = fresh.receive(
            direct, first, elsewhere, here, wave, bytes(stranger), fresh.far[6].sealer.heartbeat(), singly=singly
        )
        assert sorted(found, key=str) == sorted(
            [
                ("handshake", "somewhere", direct, False),
                ("handshake", "somewhere", first, True),
                ("transit", "somewhere", elsewhere),
                ("packet", 5, 0, b"inside"),
                ("pingwave", "somewhere", 72),
                ("stranger", "somewhere", bytes(stranger)),
                ("heartbeat", 6),
            ],
            key=str,
        )
        assert fresh.drops() == {}


def test_the_source_of_each_datagram_is_reported() -> None:
    rig = IntakeRig()
    waves = [pack_pingwave(Pingwave(node_id=n, seq=1, timestamp_us=1)) for n in range(1, 7)]
    batch = PacketBatch.of([(f"from {n}", wave) for n, wave in enumerate(waves)])
    runs: Sequence[tuple[Address, int]] = [("a", 2), ("b", 3), ("c", 1)]
    rig.intake.receive(PacketBatch(batch.data, batch.starts, batch.lengths, runs), 1.0, Output())
    assert [finding[1] for finding in rig.found] == ["a", "a", "b", "b", "b", "c"]


def _damaged(rig: IntakeRig) -> list[tuple[Reason, bytes]]:
    """Datagrams that no node may accept, each with its reason."""
    good = rig.packet(5, b"x")
    flipped = good[:-1] + bytes([good[-1] ^ 1])
    header = Header(session_id=rig.far[5].session_id, stream_id=7)
    beat = rig.far[5].sealer.heartbeat()
    return [
        (Reason.UNREADABLE, b"what?"),
        (Reason.TRUNCATED, good[: HEADER_BYTES - 1]),
        (Reason.UNKNOWN_VERSION, good[:2] + b"\2" + good[3:]),
        (Reason.MALFORMED, good + b"\0"),
        (Reason.BAD_TAG, flipped),
        (Reason.ROUTED_HEARTBEAT, pack_route(RouteHeader(src_id=9, dest_id=NODE)) + beat),
        (Reason.MALFORMED, pack_header(header)[:64] + (8109).to_bytes(2, "little") + bytes(2) + bytes(16)),
        (Reason.MALFORMED, pack_header(header)[:66] + (2028).to_bytes(2, "little") + bytes(16)),
    ]


@pytest.mark.parametrize("number", range(len(_damaged(IntakeRig()))))
@pytest.mark.parametrize("company", [0, 10])
def test_every_refusal_has_a_reason_alone_and_in_company(number: int, company: int) -> None:
    rig = IntakeRig()
    reason, bad = _damaged(rig)[number]
    honest = [rig.packet(5, b"honest", sequence=n) for n in range(company)]
    found = rig.receive(*honest[:5], bad, *honest[5:])
    assert found == [("packet", 5, n, b"honest") for n in range(company)]
    assert rig.drops() == {reason.why: 1}


@pytest.mark.parametrize("count", [1, 10])
def test_keepalives_are_passed_on(count: int) -> None:
    rig = IntakeRig()
    datagram = pack_keepalive(Keepalive(node_id=1))
    assert rig.receive(*[datagram] * count) == [("keepalive", "somewhere", 14)] * count
    assert rig.drops() == {}


@pytest.mark.parametrize("company", ["one by one", "run", "mixed"])
def test_new_keys_are_reported_once_before_the_first_packet_under_them(company: str) -> None:
    rig = IntakeRig()
    before = [rig.packet(5, b"old", sequence=n) for n in range(2)]
    keys, near = blake2s(b"new").digest(), rig.peers.require(5)
    rig.far[5].expect(derive_keys(keys, Role.INITIATOR))
    near.link.expect(derive_keys(keys, Role.RESPONDER))
    assert rig.peers.add_keys(near, int.from_bytes(keys[:8], "little"))
    rig.far[5].seal_anew()
    under = [rig.packet(5, b"new", sequence=n, stream_id=7 + n % 2 * (company == "mixed")) for n in range(2, 10)]
    found = rig.receive(*under, singly=company == "one by one")
    assert found == [("new keys", 5), *(("packet", 5, n, b"new") for n in range(2, 10))]
    # Late packets under the old keys are opened, until those are dropped.
    assert rig.receive(before[0]) == [("packet", 5, 0, b"old")]
    rig.peers.drop_keys(near)
    assert rig.receive(before[1])[0][0] == "stranger"
    rig.peers.remove(5)
    assert rig.receive(rig.packet(5))[0][0] == "stranger"


@pytest.mark.parametrize("singly", [True, False])
def test_a_repeated_packet_counts_once(singly: bool) -> None:
    rig = IntakeRig()
    datagrams = [rig.packet(5, bytes([n]), sequence=n) for n in range(8)]
    found = rig.receive(*datagrams, *datagrams, datagrams[3], singly=singly)
    assert found == [("packet", 5, n, bytes([n])) for n in range(8)]
    assert rig.receive(*datagrams[:4], singly=singly) == []
    assert rig.drops() == {"replayed": 13}


def test_a_forged_packet_does_not_move_the_window() -> None:
    rig = IntakeRig()
    far_ahead = bytearray(rig.packet(5, b"x"))
    far_ahead[16:24] = (10**6).to_bytes(8, "little")
    rig.receive(bytes(far_ahead))
    assert rig.receive(rig.packet(5, b"next", sequence=1)) == [("packet", 5, 1, b"next")]


def test_forgeries_in_a_run_leave_the_others_in_order() -> None:
    rig = IntakeRig()
    datagrams = [bytearray(rig.packet(5, bytes([n]), sequence=n)) for n in range(64)]
    for n in (0, 13, 63):
        datagrams[n][70] ^= 0x80
    found = rig.receive(*map(bytes, datagrams))
    assert found == [("packet", 5, n, bytes([n])) for n in range(64) if n not in {0, 13, 63}]
    assert rig.drops() == {"bad_tag": 3}


def test_an_empty_batch_is_nothing() -> None:
    rig = IntakeRig()
    assert rig.receive() == []
    assert rig.drops() == {}


@for_each_seed(range(5))
def test_batches_and_single_datagrams_find_the_same(seed: int) -> None:
    """Junk, forgeries, repetitions, two peers and many streams, cut into batches of all sizes."""
    rng = random.Random(seed)
    source = IntakeRig()
    datagrams: list[bytes] = []
    for n in range(400):
        kind = rng.random()
        packet = source.packet(
            rng.choice([5, 6]), rng.randbytes(rng.randrange(40)), sequence=n, stream_id=rng.choice([1, 2])
        )
        if kind < 0.1:
            packet = rng.randbytes(rng.randrange(200))
        elif kind < 0.2:
            place = rng.randrange(len(packet))
            packet = packet[:place] + bytes([packet[place] ^ 1 << rng.randrange(8)]) + packet[place + 1 :]
        elif kind < 0.3 and datagrams:
            packet = rng.choice(datagrams)
        elif kind < 0.35:
            packet = packet[: rng.randrange(len(packet))]
        datagrams.append(packet)
    alone = IntakeRig()
    expected = alone.receive(*datagrams, singly=True)
    together = IntakeRig()
    found: list[tuple[object, ...]] = []
    start = 0
    while start < len(datagrams):
        size = rng.randint(1, 60)
        found += together.receive(*datagrams[start : start + size])
        start += size
    for peer in (5, 6):
        assert [f for f in found if f[0] == "packet" and f[1] == peer] == [
            f for f in expected if f[0] == "packet" and f[1] == peer
        ]
    assert sorted(map(str, found)) == sorted(map(str, expected))
    assert together.drops() == alone.drops()


def test_random_datagrams_never_raise() -> None:
    rng = random.Random(1)
    rig = IntakeRig()
    starts = [b"", b"\x45\x4e\x01", b"\x52\x54", pack_route(RouteHeader(src_id=9, dest_id=NODE)), b"\x50\x48"]
    starts.append(pack_header(Header(session_id=rig.far[5].session_id)))
    starts.append(pack_route(RouteHeader(src_id=9, dest_id=NODE)) + starts[-1])
    total = 0
    for _ in range(400):
        batch = [
            (rng.choice(starts) + rng.randbytes(rng.choice([0, 1, 16, 17, 66, 72, 84, 200])))[: rng.randrange(1, 300)]
            for _ in range(rng.choice([1, 2, 3, 20, 64]))
        ]
        total += len(batch)
        rig.receive(*batch)
    assert total > 5000
    assert sum(rig.drops().values()) > total / 2
    assert len(rig.receive(rig.packet(5, b"still here"))) == 1


def test_a_routed_packet_is_cut_at_the_right_place() -> None:
    assert ROUTE_BYTES == 18
    rig = IntakeRig()
    beat = rig.far[5].seal(Header(), b"")
    datagram = pack_route(RouteHeader(src_id=9, dest_id=NODE)) + bytes(beat.data)
    assert rig.receive(datagram) == [("packet", 5, 0, b"")]


@pytest.mark.parametrize("count", [1, 3, 4, 40])
def test_routed_packets_of_one_stream_are_opened_together(count: int) -> None:
    rig = IntakeRig()
    route = pack_route(RouteHeader(src_id=9, dest_id=NODE))
    datagrams = [route + rig.packet(5, bytes([n]), sequence=n) for n in range(count)]
    assert rig.receive(*datagrams) == [("packet", 5, n, bytes([n])) for n in range(count)]
    assert rig.drops() == {}


def test_routed_packets_of_all_kinds_are_sorted_out_however_they_come() -> None:
    ours, theirs = pack_route(RouteHeader(src_id=9, dest_id=NODE)), pack_route(RouteHeader(src_id=9, dest_id=77))
    found = []
    for singly in (False, True):
        rig = IntakeRig()
        datagrams = [
            *(ours + rig.packet(5 + n % 2, bytes([n]), sequence=n) for n in range(6)),
            *(theirs + rig.packet(5, bytes([n]), sequence=n) for n in range(3)),
            ours + theirs + rig.packet(5, b"nested"),
            ours + ours + rig.packet(5, b"nested"),
            ours + bytes(68),
            ours + rig.far[5].sealer.heartbeat(),
            encode_routed_handshake(bytes(56), sender=9, receiver=NODE),
            rig.packet(6, b"direct", sequence=50),
        ]
        found.append((sorted(map(str, rig.receive(*datagrams, singly=singly))), rig.drops()))
    assert found[0] == found[1]
    assert found[0][1] == {"bad_magic": 3, "routed_heartbeat": 1}


def test_packets_for_others_keep_their_sources() -> None:
    rig = IntakeRig()
    packet = pack_route(RouteHeader(src_id=9, dest_id=77)) + bytes(68)
    batch = [("a", packet), ("a", packet), ("b", packet), ("c", rig.packet(5)), ("a", packet)]
    rig.intake.receive(PacketBatch.of(batch), 1.0, Output())
    assert [found[1] for found in rig.found if found[0] == "transit"] == ["a", "a", "b", "a"]


class CountedRuns(list[tuple[Address, int]]):
    """The sources of a batch, and how often one of them was looked at."""

    looked = 0

    def __iter__(self) -> Iterator[tuple[Address, int]]:
        for run in super().__iter__():
            self.looked += 1
            yield run


def _junk(kind: str, rig: IntakeRig, number: int) -> bytes:
    """Make a datagram that anybody can send."""
    match kind:
        case "routed, alternating":
            return pack_route(RouteHeader(src_id=9, dest_id=NODE if number % 2 else 77)) + bytes(68)
        case "routed to us, unknown sessions":
            inner = pack_header(Header(session_id=1000 + number, stream_id=7)) + bytes(16)
            return pack_route(RouteHeader(src_id=9, dest_id=NODE)) + inner
        case "unknown sessions":
            return pack_header(Header(session_id=1000 + number, stream_id=7)) + bytes(16)
        case "unknown sessions, four packets each":
            return pack_header(Header(session_id=1000 + number // 4, stream_id=number)) + bytes(16)
        case "known sessions":
            return pack_header(Header(session_id=rig.far[5 + number % 2].session_id, stream_id=7)) + bytes(16)
        case _:
            return bytes(80)


@pytest.mark.parametrize(
    "kind",
    [
        "plain",
        "routed, alternating",
        "routed to us, unknown sessions",
        "unknown sessions",
        "unknown sessions, four packets each",
        "known sessions",
    ],
)
def test_what_a_datagram_costs_does_not_depend_on_its_batch(kind: str) -> None:
    count, rig = 512, IntakeRig()
    batch = PacketBatch.of([(number, _junk(kind, rig, number)) for number in range(count)])
    runs = CountedRuns(batch.runs)
    rig.intake.receive(msgspec.structs.replace(batch, runs=runs), 1.0, Output())
    assert runs.looked <= 4 * count, f"{runs.looked} looks at the sources of {count} datagrams"


def test_sessions_are_grouped_once_however_many_ids_were_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, calls = IntakeRig(), []
    monkeypatch.setattr(rig.intake, "_open", lambda *given: calls.append(given))
    datagrams = [_junk("unknown sessions", rig, number) for number in range(300)]
    found = rig.receive(*datagrams, *(_junk("known sessions", rig, number) for number in range(8)))
    assert len(calls) == 2
    assert [packet for kind, _, packet in found if kind == "stranger"] == datagrams


def test_heartbeats_of_a_drain_are_opened_together_and_forged_ones_are_counted() -> None:
    rig = IntakeRig()
    genuine = [rig.far[peer].sealer.heartbeat() for peer in (5, 5, 6)]
    forged = [one[:-1] + bytes([one[-1] ^ 1]) for one in (rig.far[5].sealer.heartbeat() for _ in range(20))]
    found = rig.receive(*forged, *genuine, *genuine)
    assert set(found) == {("heartbeat", 5), ("heartbeat", 6)}
    assert rig.drops() == {"bad_tag": 20, "replayed": 3}
