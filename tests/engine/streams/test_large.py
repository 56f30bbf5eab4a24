"""Putting large events together: order, limits, memory, and senders that do not keep their word."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from meshbus.engine.base.notices import DownReason, PeerFailed, PeerGone
from meshbus.engine.base.packets import Output
from meshbus.engine.core import Engine
from meshbus.engine.session.peer import Peer
from meshbus.engine.streams import large
from meshbus.engine.streams.large import MAX_UNFINISHED, STALL_S, Large, Whole
from meshbus.engine.streams.reorder import Payloads
from meshbus.names.channel import ChannelName
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry
from meshbus.policy.reason import Reason
from meshbus.policy.registry import NegotiatedSet
from meshbus.testing.rig import rig
from meshbus.wire.constants import DEFAULT_LARGE_EVENT, Subprotocol
from meshbus.wire.frames import pack_frames
from meshbus.wire.messages.large import MAX_MESSAGE, encode_parts, parts_of
from tests.engine.wires import FarEnd

STREAM = 77
LIMIT = 1 << 20
EVENT = bytes(range(256)) * 4
SMALL = pack_frames([b"small"])


class Receiver:
    """One node that receives large events from peers."""

    def __init__(self) -> None:
        self.engine: Engine = rig(node_id=1, seed=1)
        self.large: Large = self.engine.large
        self.peer = self.befriend(9)
        self.out = Output()

    def befriend(self, node_id: int) -> Peer:
        peer = FarEnd(self.engine.peers, node_id).peer
        peer.negotiated = NegotiatedSet(frozenset({Subprotocol.RELIABLE, Subprotocol.LARGE}))
        return peer

    def take(
        self, *payloads: bytes, number: int | None = 5, limit: int = LIMIT, now: float = 0.0, stream: int = STREAM
    ) -> list[bytes | int]:
        """Return what comes out: large events, and how many packets with small events are in each run."""
        found = self.large.join(self.peer, stream, run(*payloads, number=number), limit, now, self.out)
        return [piece.data.tobytes() if isinstance(piece, Whole) else len(piece) for piece in found]

    def dropped(self, reason: Reason) -> int:
        return self.engine.counters.get(*reason.counter)


def run(*payloads: bytes, number: int | None = 5) -> Payloads:
    lengths = np.array([len(payload) for payload in payloads], np.int64)
    return Payloads(
        np.arange(100, 100 + len(payloads), dtype=np.uint64) + np.uint64(1 << 61),
        np.frombuffer(b"".join(payloads), np.uint8),
        np.cumsum(lengths) - lengths,
        lengths,
        np.array([payload == SMALL for payload in payloads], np.int64),
        number,
        np.arange(len(payloads), dtype=np.uint32) + 1,
    )


def parts(event: bytes = EVENT, body_bytes: int = 300) -> list[bytes]:
    packed = encode_parts(np.frombuffer(event, np.uint8), body_bytes, 0, parts_of(len(event), body_bytes), 0)
    edges = packed.bounds.tolist()
    return [packed.data[a:b].tobytes() for a, b in pairwise(edges)]


def claim(size: int, body: bytes = b"x", offset: int = 0) -> bytes:
    return size.to_bytes(4, "little") + offset.to_bytes(4, "little") + body


def test_parts_become_one_event_in_one_buffer() -> None:
    node = Receiver()
    (whole,) = node.large.join(node.peer, STREAM, run(*parts()), LIMIT, 0.0, node.out)
    assert isinstance(whole, Whole)
    assert whole.data.tobytes() == EVENT
    assert whole.data.base is None, "its own memory, not a view of something larger"
    assert (whole.pub_seq, whole.sequence, whole.stamp) == (5, 103 + (1 << 61), 4)
    assert (len(node.large), node.large.nbytes, node.large.next_timer()) == (0, 0, None)


def test_parts_may_come_in_any_number_of_runs() -> None:
    node = Receiver()
    one, two, three, four = parts()
    assert node.take(one) == []
    assert node.take(two, three) == []
    assert (len(node.large), node.large.nbytes) == (1, len(EVENT))
    assert node.take(four, SMALL, one) == [EVENT, 1]
    assert len(node.large) == 1, "another event has begun"


def test_small_events_keep_their_place_and_their_number() -> None:
    node = Receiver()
    pieces = list(node.large.join(node.peer, STREAM, run(SMALL, SMALL, *parts()), LIMIT, 0.0, node.out))
    small, whole = pieces
    assert isinstance(small, Payloads)
    assert isinstance(whole, Whole)
    assert (len(small), small.pub_seq, whole.pub_seq) == (2, 5, 7)
    assert small.stamps is not None
    assert small.stamps.tolist() == [1, 2]


@pytest.mark.parametrize(
    "order",
    [(1, 0, 2, 3), (0, 2, 3), (0, 0, 1, 1, 2, 3), (0, 1, 1, 2, 3), (3,), (0, 1, 2, 0)],
    ids=["swapped", "missing", "repeated", "overlapping", "no start", "begun again"],
)
def test_parts_that_do_not_continue_an_event_end_it(order: tuple[int, ...]) -> None:
    node = Receiver()
    cut = parts()
    assert EVENT not in node.take(*(cut[place] for place in order))
    assert node.dropped(Reason.PART_DISORDER) + node.dropped(Reason.LARGE_UNFINISHED) > 0
    assert node.take(*cut) == [EVENT], "the next one is whole"


def test_a_part_of_another_event_ends_the_one_before() -> None:
    node = Receiver()
    one, *rest = parts()
    node.take(one, number=5)
    assert node.take(*rest, number=6) == []
    node.take(one)
    assert node.take(claim(len(EVENT) + 1, b"x" * 300, 300)) == []
    assert len(node.large) == 0
    assert node.dropped(Reason.LARGE_UNFINISHED) == 2


def test_an_event_above_the_limit_is_refused_and_its_sender_told() -> None:
    node = Receiver()
    assert node.take(*parts(), limit=1000) == []
    assert node.dropped(Reason.REFUSE_LARGE) == 1
    assert len(node.out.trains) == 1
    assert len(node.large) == 0


@pytest.mark.parametrize("payload", [b"", b"1234567", claim(5, b""), claim(5, b"abcdef"), claim(MAX_MESSAGE + 1)])
def test_bytes_that_are_no_part_are_counted(payload: bytes) -> None:
    node = Receiver()
    assert node.take(payload) == []
    assert node.dropped(Reason.PART_MALFORMED) == 1


def test_nothing_large_comes_where_nothing_large_may_come() -> None:
    node = Receiver()
    assert node.take(*parts(), limit=0) == []
    node.peer.negotiated = NegotiatedSet(frozenset({Subprotocol.RELIABLE}))
    assert node.take(*parts()) == []
    assert node.dropped(Reason.PART_MALFORMED) == 8


def test_claims_without_bytes_take_their_share_of_the_budget_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "PEER_BYTES", 10_000)
    monkeypatch.setattr(large, "NODE_BYTES", 15_000)
    node = Receiver()
    for stream in range(8):
        node.take(claim(4000), stream=stream)
    assert (len(node.large), node.large.nbytes) == (2, 8000)
    node.peer = node.befriend(10)
    for stream in range(8):
        node.take(claim(4000), stream=stream)
    assert (len(node.large), node.large.nbytes) == (3, 12_000), "all peers together have a budget, too"
    assert node.dropped(Reason.PART_WAITS) == 13


def test_unfinished_events_are_bounded_in_number() -> None:
    node = Receiver()
    for stream in range(MAX_UNFINISHED + 1000):
        node.take(claim(9), stream=stream)
    assert (len(node.large), node.large.nbytes) == (MAX_UNFINISHED, 9 * MAX_UNFINISHED)
    assert node.dropped(Reason.PART_WAITS) == 1000


def test_a_claim_costs_no_memory_until_bytes_come() -> None:
    node = Receiver()
    node.take(claim(LIMIT))
    assert node.large.nbytes == LIMIT  # counted in full, though nothing of it was written


def test_a_new_event_waits_unacknowledged_while_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "PEER_BYTES", 1500)
    node = Receiver()
    one, *rest = parts()
    assert node.large.admitted(node.peer, run(SMALL, one)) == 2
    node.take(one)
    assert node.large.admitted(node.peer, run(*rest)) == 3, "what was begun can be finished"
    assert node.large.admitted(node.peer, run(SMALL, *rest, one, SMALL)) == 4
    assert node.dropped(Reason.PART_WAITS) == 1
    assert node.take(*rest) == [EVENT]
    assert node.large.admitted(node.peer, run(one)) == 1
    # What could never be accepted must not wait for ever: it is dropped in its turn.
    assert node.large.admitted(node.peer, run(claim(MAX_MESSAGE + 1), b"")) == 2


def test_an_event_that_stalls_is_given_up_unless_the_application_holds_it() -> None:
    node = Receiver()
    one, two, three, four = parts()
    node.take(one, now=1.0)
    node.take(two, now=20.0)
    assert node.large.next_timer() == 20.0 + STALL_S
    node.large.tick(20.0 + STALL_S - 1, node.out)
    assert len(node.large) == 1
    node.peer.rx_stream(STREAM).held = True
    node.large.tick(20.0 + STALL_S, node.out)
    assert len(node.large) == 1, "it waits because nothing more is acknowledged"
    node.peer.rx_stream(STREAM).held = False
    node.large.tick(20.0 + 2 * STALL_S, node.out)
    assert (len(node.large), node.large.nbytes) == (0, 0)
    assert node.dropped(Reason.LARGE_UNFINISHED) == 1
    assert node.take(three, four, now=90.0) == []


def test_a_peer_that_is_gone_leaves_nothing_behind() -> None:
    node = Receiver()
    node.take(parts()[0])
    node.large.peer_down(PeerFailed(9, DownReason.SILENT), 1.0, node.out)
    assert len(node.large) == 1, "one that failed may come back"
    node.large.peer_down(PeerGone(9, DownReason.CLOSED), 1.0, node.out)
    assert (len(node.large), node.large.nbytes, node.large.next_timer()) == (0, 0, None)


def test_channels_have_their_own_limit() -> None:
    node = Receiver()
    camera, other = ChannelName("camera"), ChannelName("other")
    assert node.large.limit_of(camera) == DEFAULT_LARGE_EVENT
    registry = ChannelConfigRegistry()
    registry.insert(ChannelConfig(name=camera, max_event_bytes=9000))
    node.engine.set_channel_configs(registry, 0.0, node.out)
    assert (node.large.limit_of(camera), node.large.limit_of(other)) == (9000, DEFAULT_LARGE_EVENT)


def test_a_refusal_that_cannot_be_read_is_counted() -> None:
    node = Receiver()
    node.large.receive(node.peer, memoryview(b"\x09"), 0.0, node.out)
    assert node.dropped(Reason.LARGE_MALFORMED) == 1
