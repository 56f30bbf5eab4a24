"""The hub: golden sequences of events under the strict rules, and what each rule means."""

import gc
import random
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.edge import hub as module
from meshbus.edge.hub import Change, HubLimits, Ignored, PubSubHub
from meshbus.edge.queue import Loss
from tests.vectors import load

ALL = 1 << 30
"""More bytes than any message here has."""


def encode(parts: Sequence[bytes]) -> Sequence[bytes]:
    """Encode a message in a simple format instead of ZMTP: lengths and parts."""
    return (b"".join(len(part).to_bytes(4, "big") + part for part in parts),)


def wire(*parts: bytes) -> bytes:
    return encode(parts)[0]


@pytest.fixture
def hub() -> PubSubHub:
    return PubSubHub(encode)


def receivers(hub: PubSubHub) -> list[int]:
    """Take the waiting messages of all peers; return the key of the peer for each message."""
    found = []
    for routing_id, epoch in hub.ready():
        key = hub.key_of(routing_id)
        assert key is not None
        found += [key] * len(hub.take(routing_id, epoch, ALL))
    return sorted(found)


# ── golden sequences ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", load("pubsub")["hub"], ids=lambda case: case["name"])
def test_golden_events_under_the_strict_rules(hub: PubSubHub, case: dict[str, Any]) -> None:
    names = set()
    for kind, *arguments in case["events"]:
        if kind == "pub":
            topic, _, expected = arguments
            assert hub.publish([bytes.fromhex(topic)]) == len(expected)
            assert receivers(hub) == expected
            continue
        name, argument = arguments
        names.add(name)
        routing_id = name.encode()
        match kind:
            case "up":
                hub.peer_up(routing_id, argument)
            case "down":
                hub.peer_down(routing_id, argument)
            case "sub":
                hub.subscribe(routing_id, hub.epoch_of(routing_id) or 0, bytes.fromhex(argument))
            case "unsub":
                hub.unsubscribe(routing_id, hub.epoch_of(routing_id) or 0, bytes.fromhex(argument))
            case _:
                pytest.fail(f"unknown event {kind}")
    keys = {name: key for name in names if (key := hub.key_of(name.encode())) is not None}
    live = {str(keys[name]): epoch for name in keys if (epoch := hub.epoch_of(name.encode())) is not None}
    assert {"live": live, "keys": keys} == case["end_strict"]
    assert hub.prefixes() == [bytes.fromhex(prefix) for prefix in case["table_strict"]]
    assert hub.stats().subscriptions >= hub.stats().prefixes


# ── epochs ──────────────────────────────────────────────────────────────────────────────────


def test_a_newer_connection_starts_without_the_subscriptions_and_messages_of_the_older(hub: PubSubHub) -> None:
    hub.peer_up(b"a", 1)
    hub.subscribe(b"a", 1, b"old")
    hub.publish([b"old"])
    assert hub.peer_up(b"a", 2)
    assert (hub.prefixes(), hub.take(b"a", 2, ALL), hub.publish([b"old"])) == ([], [], 0)
    assert hub.stats().dropped[Loss.PEER_GONE] == 1
    assert hub.ready() == []


@pytest.mark.parametrize("late", [1, 2])
def test_an_older_or_equal_connection_does_not_replace_a_live_one(hub: PubSubHub, late: int) -> None:
    hub.peer_up(b"a", 2)
    hub.subscribe(b"a", 2, b"t")
    assert not hub.peer_up(b"a", late)
    assert (hub.epoch_of(b"a"), hub.prefixes()) == (2, [b"t"])
    assert hub.stats().ignored[Ignored.UP_NOT_NEWER] == 1


@pytest.mark.parametrize("epoch", [1, 3])
def test_events_of_another_connection_are_ignored_and_counted(hub: PubSubHub, epoch: int) -> None:
    hub.peer_up(b"a", 2)
    hub.subscribe(b"a", 2, b"t")
    hub.publish([b"t"])
    assert hub.subscribe(b"a", epoch, b"u") is Change.STALE
    assert hub.unsubscribe(b"a", epoch, b"t") is Change.STALE
    assert hub.take(b"a", epoch, ALL) == []
    assert not hub.peer_down(b"a", epoch)
    assert (hub.prefixes(), hub.take(b"a", 2, ALL)) == ([b"t"], [wire(b"t")])
    ignored = hub.stats().ignored
    stale = (Ignored.SUBSCRIBE_STALE, Ignored.UNSUBSCRIBE_STALE, Ignored.TAKE_STALE, Ignored.DOWN_STALE)
    assert [ignored[why] for why in stale] == [1, 1, 1, 1]


def test_a_generated_id_is_forgotten_and_a_chosen_one_keeps_its_key(hub: PubSubHub) -> None:
    hub.peer_up(b"chosen", 1)
    hub.peer_up(b"generated", 1, generated=True)
    hub.peer_down(b"chosen", 1)
    hub.peer_down(b"generated", 1)
    assert (hub.key_of(b"chosen"), hub.key_of(b"generated")) == (1, None)
    hub.peer_up(b"generated", 2, generated=True)
    hub.peer_up(b"chosen", 1)
    assert (hub.key_of(b"chosen"), hub.key_of(b"generated")) == (1, 3)


def test_the_ids_that_left_longest_ago_are_forgotten_first(hub: PubSubHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REMEMBERED", 2)
    for name in (b"a", b"b", b"c"):
        hub.peer_up(name, 1)
    for name in (b"b", b"a"):
        hub.peer_down(name, 1)
    hub.peer_up(b"b", 2)
    hub.peer_down(b"b", 2)
    hub.peer_down(b"c", 1)
    assert [hub.key_of(name) for name in (b"a", b"b", b"c")] == [None, 2, 3]


# ── subscriptions ───────────────────────────────────────────────────────────────────────────


def test_changes_report_the_first_and_the_last_subscriber() -> None:
    told: list[tuple[bytes, Change]] = []
    hub = PubSubHub(encode, on_change=lambda prefix, change: told.append((prefix, change)))
    hub.peer_up(b"a", 1)
    hub.peer_up(b"b", 1)
    for name in (b"a", b"a", b"b"):
        hub.subscribe(name, 1, b"T")
    hub.subscribe(b"b", 1, b"S")
    hub.unsubscribe(b"a", 1, b"T")
    assert hub.unsubscribe(b"a", 1, b"T") is Change.ABSENT
    hub.peer_down(b"b", 1)
    assert told == [
        (b"T", Change.FIRST),
        (b"T", Change.KNOWN),
        (b"T", Change.ADDED),
        (b"S", Change.FIRST),
        (b"T", Change.REMOVED),
        (b"S", Change.LAST),
        (b"T", Change.LAST),
    ]


def test_a_peer_holds_as_much_as_it_may() -> None:
    hub = PubSubHub(encode, limits=HubLimits(subscriptions=2, prefix_bytes=5))
    hub.peer_up(b"a", 1)
    hub.peer_up(b"b", 1)
    assert hub.subscribe(b"a", 1, b"123456") is Change.REFUSED
    changes = [hub.subscribe(b"a", 1, prefix) for prefix in (b"12", b"345", b"")]
    assert changes == [Change.FIRST, Change.FIRST, Change.REFUSED]
    assert hub.subscribe(b"b", 1, b"") is Change.FIRST
    hub.unsubscribe(b"a", 1, b"345")
    assert hub.subscribe(b"a", 1, b"678") is Change.FIRST
    ignored = hub.stats().ignored
    assert (ignored[Ignored.TOO_MANY_PREFIX_BYTES], ignored[Ignored.TOO_MANY_SUBSCRIPTIONS]) == (1, 1)


CHANGES = st.lists(
    st.tuples(st.sampled_from((b"a", b"b")), st.dictionaries(st.text("xy", max_size=2).map(str.encode), st.booleans())),
    max_size=12,
)


@given(CHANGES, st.integers(1, 6), st.integers(1, 8), st.integers(1, 6))
def test_changes_at_once_are_the_changes_one_by_one(
    steps: list[tuple[bytes, dict[bytes, bool]]], subscriptions: int, prefix_bytes: int, collected: int
) -> None:
    limits = HubLimits(subscriptions=subscriptions, prefix_bytes=prefix_bytes)
    single, together = PubSubHub(encode, limits=limits), PubSubHub(encode, limits=limits)
    for hub in (single, together):
        hub.peer_up(b"a", 1)
        hub.peer_up(b"b", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_COLLECTED", collected)
        for name, wanted in steps:
            taken = True
            for prefix, want in wanted.items():
                change = single.subscribe(name, 1, prefix) if want else single.unsubscribe(name, 1, prefix)
                if change is Change.REFUSED:
                    taken = False
                    break
            assert together.change(name, 1, wanted) is taken
            if not taken:  # the caller ends the connection
                single.peer_down(name, 1)
                together.peer_down(name, 1)
                break
        assert together.publish([b"xyx"]) == single.publish([b"xyx"])
        assert together.prefixes() == single.prefixes()
        assert together.stats() == single.stats()


def test_collected_changes_are_bounded(hub: PubSubHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COLLECTED", 4)
    monkeypatch.setattr(module, "MAX_COLLECTED_BYTES", 10)
    hub.peer_up(b"a", 1)
    hub.peer_up(b"b", 1)
    most = [0, 0]
    for number in range(20):
        hub.change(b"ab"[number % 2 : number % 2 + 1], 1, {b"%d" % number: True, b"%d" % (number - 1): False})
        waiting = [prefix for peer in hub._live.values() for prefix in peer.collected]
        most = [max(most[0], len(waiting)), max(most[1], sum(map(len, waiting)))]
    assert (most[0], most[1] <= 10) == (4, True)
    assert hub.prefixes() == sorted(b"%d" % number for number in range(20))


def test_changes_of_a_peer_that_left_are_forgotten(hub: PubSubHub) -> None:
    hub.peer_up(b"a", 1)
    assert hub.change(b"a", 1, {b"x": True})
    hub.peer_up(b"a", 2)
    assert hub.publish([b"x"]) == 0
    assert hub.change(b"a", 1, {b"x": True}), "ignored and counted, but not refused"
    assert hub.stats().ignored[Ignored.SUBSCRIBE_STALE] == 1
    assert hub.change(b"a", 2, {b"x": True})
    assert hub.publish([b"x"]) == 1


# ── messages ────────────────────────────────────────────────────────────────────────────────


def test_one_message_is_encoded_once_and_is_the_same_object_in_every_queue() -> None:
    encoded: list[Sequence[bytes]] = []

    def counting(parts: Sequence[bytes]) -> Sequence[bytes]:
        encoded.append(encode(parts))
        return encoded[-1]

    hub = PubSubHub(counting)
    for name in (b"a", b"b", b"c"):
        hub.peer_up(name, 1)
        hub.subscribe(name, 1, b"t")
    assert hub.publish([b"topic", b"body"]) == 3
    taken = [hub.take(name, 1, ALL) for name in (b"a", b"b", b"c")]
    assert taken == [[wire(b"topic", b"body")]] * 3
    assert len(encoded) == 1
    assert all(buffers[0] is encoded[0][0] for buffers in taken)
    hub.publish([b"other"])
    assert len(encoded) == 1, "nobody gets it, so nobody encodes it"


def test_a_message_without_parts_is_nothing(hub: PubSubHub) -> None:
    hub.peer_up(b"a", 1)
    hub.subscribe(b"a", 1, b"")
    assert hub.publish([]) == 0
    assert (hub.stats().published, hub.ready()) == (0, [])


def test_ready_names_a_peer_once_until_it_gets_more(hub: PubSubHub) -> None:
    hub.peer_up(b"a", 7)
    hub.subscribe(b"a", 7, b"")
    hub.publish([b"1"])
    hub.publish([b"2"])
    assert (hub.ready(), hub.ready()) == ([(b"a", 7)], [])
    hub.publish([b"3"])
    assert hub.ready() == [(b"a", 7)]
    hub.publish([b"4"])
    hub.peer_down(b"a", 7)
    assert hub.ready() == []


# ── batches ─────────────────────────────────────────────────────────────────────────────────

NAMES = (b"a", b"b", b"c")
HELD = st.lists(st.tuples(st.sampled_from(NAMES), st.text("xy", max_size=2).map(str.encode)), max_size=6)
MESSAGES = st.lists(
    st.lists(st.text("xy", max_size=3).map(str.encode) | st.binary(max_size=40), max_size=3), max_size=30
)


@given(HELD, st.lists(MESSAGES, max_size=4), st.integers(1, 12), st.integers(1, 200), st.booleans())
def test_a_batch_is_its_messages_one_by_one(
    held: list[tuple[bytes, bytes]], batches: list[list[list[bytes]]], high_water: int, max_bytes: int, drain: bool
) -> None:
    limits = HubLimits(high_water=high_water, queue_bytes=max_bytes)
    single, batched = PubSubHub(encode, limits=limits), PubSubHub(encode, limits=limits)
    for hub in (single, batched):
        for name in NAMES:
            hub.peer_up(name, 1)
        for name, prefix in held:
            hub.subscribe(name, 1, prefix)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PARCEL_BYTES", 60)
        for messages in batches:
            assert batched.publish_batch(messages) == sum(single.publish(parts) for parts in messages)
            assert sorted(batched.ready()) == sorted(single.ready())
            assert batched.stats() == single.stats()
            if drain:
                assert [b"".join(batched.take(name, 1, ALL)) for name in NAMES] == [
                    b"".join(single.take(name, 1, ALL)) for name in NAMES
                ]


def test_messages_in_a_row_for_the_same_peers_are_one_buffer_shared_by_all(hub: PubSubHub) -> None:
    for name in NAMES:
        hub.peer_up(name, 1)
        hub.subscribe(name, 1, b"t")
    hub.publish_batch([[b"t%d" % number, b"body"] for number in range(50)])
    taken = [hub.take(name, 1, ALL) for name in NAMES]
    assert [len(buffers) for buffers in taken] == [1, 1, 1]
    assert taken[0][0] is taken[1][0] is taken[2][0]


def test_a_large_message_of_a_batch_is_not_copied() -> None:
    hub = PubSubHub(lambda parts: parts)
    hub.peer_up(b"a", 1)
    hub.subscribe(b"a", 1, b"t")
    body = bytes(1 << 20)
    hub.publish_batch([[b"t1"], [b"t2"], [b"t3", body], [b"t4"], [b"t5"]])
    taken = hub.take(b"a", 1, ALL)
    assert taken == [b"t1t2", b"t3", body, b"t4t5"]
    assert taken[2] is body


# ── slow and dead peers ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_a_stalled_peer_delays_no_other_and_its_losses_are_counted_exactly(batch: int) -> None:
    """One peer reads everything, one a little now and then, one nothing until the end."""
    rng = random.Random(batch)
    hub = PubSubHub(encode, limits=HubLimits(high_water=100))
    for name in NAMES:
        hub.peer_up(name, 1)
        hub.subscribe(name, 1, b"")
    received: dict[bytes, list[bytes]] = {name: [] for name in NAMES}
    sent = [[b"%05d" % number, rng.randbytes(rng.randrange(60))] for number in range(3_000)]

    def read(name: bytes, max_bytes: int) -> None:
        received[name] += split(b"".join(hub.take(name, 1, max_bytes)))

    for start in range(0, len(sent), batch):
        hub.publish_batch(sent[start : start + batch])
        read(b"a", ALL)
        if rng.random() < 0.3:
            read(b"b", rng.randrange(150 * batch))
        stats = hub.peer_stats(b"c")
        assert stats is not None
        assert stats.pending <= 100
        assert stats.pending_bytes <= 100 * len(wire(bytes(5), bytes(60)))
    for name in NAMES:
        while hub.peer_stats(name).pending:  # type: ignore[union-attr]
            read(name, 500)
    assert received[b"a"] == [parts[0] for parts in sent]
    assert received[b"c"] == [parts[0] for parts in sent[:100]]
    for name, got in received.items():
        stats = hub.peer_stats(name)
        assert stats is not None
        assert got == sorted(got), "gaps, but never another order"
        assert len(got) + sum(stats.dropped.values()) == stats.matched == len(sent)
    assert 100 < len(received[b"b"]) < len(sent)


def split(data: bytes) -> list[bytes]:
    """Return the topics of messages of two parts that `encode` encoded."""
    topics = []
    while data:
        length = int.from_bytes(data[:4], "big")
        topics.append(data[4 : 4 + length])
        data = data[4 + length :]
        body = int.from_bytes(data[:4], "big")
        data = data[4 + body :]
    return topics


CYCLES = 10_000


@pytest.mark.parametrize("generated", [True, False], ids=["generated ids", "chosen ids"])
def test_ghost_peers_leave_nothing_behind(generated: bool) -> None:
    """Connections open, subscribe and close, with events of old and new ones interleaved and repeated."""
    rng = random.Random(13)
    hub = PubSubHub(encode)
    hub.peer_up(b"stays", 1)
    hub.subscribe(b"stays", 1, b"topic/")
    epochs = dict.fromkeys((b"peer-%d" % number for number in range(20)), 0)

    def cycle() -> None:
        name = b"peer-%d" % rng.randrange(20)
        epoch = epochs[name] = epochs[name] + 1
        hub.peer_up(name, epoch, generated=generated)
        for late in (epoch, epoch, epoch - 1):
            hub.subscribe(name, late, b"topic/%d" % rng.randrange(50))
            hub.subscribe(name, late, b"")
        hub.publish([b"topic/%d/x" % rng.randrange(50), bytes(100)])
        if rng.random() < 0.5:
            hub.peer_down(name, epoch - 1)
        if rng.random() < 0.7:
            hub.peer_down(name, epoch)

    def end_all() -> int:
        for name, epoch in epochs.items():
            hub.peer_down(name, epoch)
        hub.take(b"stays", 1, ALL)
        gc.collect()
        return sys.getallocatedblocks()

    for _ in range(CYCLES // 10):
        cycle()
    baseline = end_all()
    for _ in range(CYCLES):
        cycle()
    grown = end_all() - baseline
    stats = hub.stats()
    assert (stats.peers, stats.prefixes, stats.subscriptions, stats.pending) == (1, 1, 1, 0)
    assert stats.remembered == (1 if generated else 21)
    assert stats.ignored[Ignored.SUBSCRIBE_STALE] >= CYCLES
    assert hub.ready() == [(b"stays", 1)]
    assert hub.publish([b"topic/1"]) == 1
    assert set(hub._index._fans._notes) <= {b"", b"topic/"}
    assert hub._index._fans._inner._prefixes == set()
    assert grown < CYCLES // 100, "blocks of memory that ten times as many cycles left behind"


def test_subscribers_of_a_topic_are_counted_without_a_message(hub: PubSubHub) -> None:
    for routing_id in (b"a", b"b"):
        hub.peer_up(routing_id, 1)
        hub.subscribe(routing_id, 1, b"x")
    assert (hub.count_subscribers(b"xy"), hub.count_subscribers(b"y")) == (2, 0)
    hub.count_unmatched()
    stats = hub.stats()
    assert (stats.published, stats.unmatched, stats.matched) == (1, 1, 0)
