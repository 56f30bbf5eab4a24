"""Subscription index: compared with a naive scan, golden tables, and hostile tables."""

import math
import random
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numpy.typing import NDArray

from meshbus import jit
from meshbus.errors import LocalProtocolError
from meshbus.policy import fans, prefixes, prefixmatch, sortedblocks
from meshbus.policy.prefixes import SubscriptionIndex
from meshbus.policy.prefixmatch import Matches, Topics
from tests.vectors import load

Text = Callable[[random.Random], bytes]


class Model:
    """The rules in their simplest form: a dict that is scanned."""

    def __init__(self) -> None:
        self.held: dict[bytes, set[int]] = {}

    def subscribe(self, peer: int, prefix: bytes) -> bool:
        peers = self.held.setdefault(prefix, set())
        new = peer not in peers
        peers.add(peer)
        return new

    def unsubscribe(self, peer: int, prefix: bytes) -> bool:
        peers = self.held.get(prefix, set())
        if peer not in peers:
            return False
        peers.remove(peer)
        if not peers:
            del self.held[prefix]
        return True

    def remove_peer(self, peer: int) -> list[bytes]:
        return [prefix for prefix in sorted(self.held) if self.unsubscribe(peer, prefix)]

    def change(self, peer: int, wanted: dict[bytes, bool]) -> tuple[list[bytes], list[bytes]]:
        added = [prefix for prefix, want in wanted.items() if want and self.subscribe(peer, prefix)]
        return added, [prefix for prefix, want in wanted.items() if not want and self.unsubscribe(peer, prefix)]

    def match(self, topic: bytes) -> list[int]:
        return sorted({peer for prefix, peers in self.held.items() if topic.startswith(prefix) for peer in peers})


def match_by_reference(index: SubscriptionIndex, topics: list[bytes]) -> list[list[int]]:
    """Match on the snapshot with the plain-Python references of the kernels."""
    table = index.snapshot()
    offsets, data = prefixmatch.pack_topics(topics)
    rows, bounds = np.empty(len(topics), np.int32), np.empty(len(topics) + 1, np.int64)
    total = prefixmatch._locate.reference(table.starts, table.data, table.links, offsets, data, rows, bounds)
    peers = np.empty(total, np.uint64)
    prefixmatch._fill.reference(table.links, table.peers, rows, bounds, peers)
    return Matches(bounds, peers).tolist()


def match_compiled(index: SubscriptionIndex, topics: list[bytes]) -> list[list[int]]:
    """Match on the snapshot, even if the index would match a batch of this size one by one."""
    return prefixmatch.match_topics(index.snapshot(), *prefixmatch.pack_topics(topics)).tolist()


def assert_notes_hold(index: SubscriptionIndex) -> None:
    """Check every link and every cached fan that counts as valid against the definition."""
    memory, keys = index._fans, list(index._table)
    assert keys == sorted(set(keys))
    held = dict(zip(keys, chain.from_iterable(index._table.values), strict=True))
    for prefix, note in memory._notes.items():
        assert note.own is held[prefix]
        above = [other for other in keys if prefix.startswith(other) and other != prefix]
        if note.linked == memory._shape and prefix:
            assert note.parent.prefix == above[-1]
            assert note.parent is memory._notes[above[-1]]
            assert prefix.startswith(note.jump.prefix)
            assert note.jump.prefix != prefix
        if note.checked == memory._version:
            assert list(note.fan) == sorted({peer for other in [*above, prefix] for peer in held[other]})


# ── golden tables ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", load("pubsub")["index"], ids=lambda case: case["name"])
def test_a_golden_table_gives_the_golden_peers(case: dict[str, Any]) -> None:
    index = SubscriptionIndex()
    for peer, prefix in case["subs"]:
        index.subscribe(peer, bytes.fromhex(prefix))
    topics = [bytes.fromhex(topic) for topic, _ in case["expect"]]
    expected = [peers for _, peers in case["expect"]]
    assert [index.match(topic) for topic in topics] == expected
    assert index.match_batch(topics).tolist() == expected
    assert match_compiled(index, topics) == expected
    assert match_by_reference(index, topics) == expected


@pytest.mark.parametrize("case", load("pubsub")["churn"], ids=lambda case: case["name"])
def test_golden_churn_step_by_step(case: dict[str, Any]) -> None:
    index = SubscriptionIndex()
    for step, *arguments in case["steps"]:
        match step, arguments:
            case "sub", [peer, prefix]:
                index.subscribe(peer, bytes.fromhex(prefix))
            case "unsub", [peer, prefix]:
                index.unsubscribe(peer, bytes.fromhex(prefix))
            case "remove_peer", [peer]:
                index.remove_peer(peer)
            case "match", [topic, expected]:
                assert index.match(bytes.fromhex(topic)) == expected
            case "table", [expected]:
                assert index.prefixes() == [bytes.fromhex(prefix) for prefix in expected]
                assert len(index) == len(expected)
            case _:
                pytest.fail(f"unknown step {step}")


# ── against the model ───────────────────────────────────────────────────────────────────────


def letters(alphabet: bytes, longest: int) -> Text:
    def draw(rng: random.Random) -> bytes:
        return bytes(rng.choices(alphabet, k=rng.randrange(longest + 1)))

    return draw


def hierarchy(rng: random.Random) -> bytes:
    parts = [f"{name}-{rng.randrange(3)}/" for name in ("region", "fleet", "vehicle", "sensor")]
    return "".join(parts[: rng.randrange(5)]).encode()[: rng.choice([99, 99, 99, 7, 8, 9, 15, 16, 17])]


TEXTS: dict[str, Text] = {
    "two letters": letters(b"ab", 6),
    "NUL and 0xff": letters(b"\0\xff", 6),
    "only NUL, across words": letters(b"\0", 20),
    "only 0xff": letters(b"\xff", 20),
    "long and alike": letters(b"aaaaaaaaaaaaaaab", 30),
    "every byte": letters(bytes(range(256)), 2),
    "hierarchy": hierarchy,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_any_sequence_of_operations_equals_the_naive_scan(text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sortedblocks, "_MOST", 16)  # so that a small table is split and joined as a large one is
    monkeypatch.setattr(sortedblocks, "_FEWEST", 4)
    monkeypatch.setattr(fans, "_MARKED", 6)
    rng = random.Random(7)
    for _ in range(5):
        index, model = SubscriptionIndex(), Model()
        for step in range(3_000):  # 105 000 in all, beside the batches
            take_a_step(rng, text, index, model)
            if step % 300 == 0:
                check_all_ways(rng, text, index, model)
        check_all_ways(rng, text, index, model)
        for peer in range(6):
            assert index.remove_peer(peer) == model.remove_peer(peer)
        assert_is_empty(index)


@pytest.mark.soak
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_million_operations_leave_nothing_behind(text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sortedblocks, "_MOST", 64)
    monkeypatch.setattr(sortedblocks, "_FEWEST", 8)
    rng = random.Random(11)
    index, model = SubscriptionIndex(), Model()
    for step in range(200_000):  # 1 400 000 in all
        take_a_step(rng, text, index, model)
        if step % 20_000 == 0:
            check_all_ways(rng, text, index, model)
    for peer in range(6):
        assert index.remove_peer(peer) == model.remove_peer(peer)
    assert_is_empty(index)


def take_a_step(rng: random.Random, text: Text, index: SubscriptionIndex, model: Model) -> None:
    peer = rng.randrange(6)
    kind = rng.random()
    if kind < 0.30:
        prefix = text(rng)
        assert index.subscribe(peer, prefix) == model.subscribe(peer, prefix)
    elif kind < 0.55:
        prefix = rng.choice(list(model.held)) if model.held and rng.random() < 0.7 else text(rng)
        assert index.unsubscribe(peer, prefix) == model.unsubscribe(peer, prefix)
    elif kind < 0.56:
        assert index.remove_peer(peer) == model.remove_peer(peer)
    elif kind < 0.60:
        wanted = {text(rng): rng.random() < 0.5 for _ in range(rng.choice((1, 10)))}
        assert index.change(peer, wanted) == model.change(peer, wanted)
    else:
        topic = text(rng) + text(rng)
        assert index.match(topic) == model.match(topic)


def check_all_ways(rng: random.Random, text: Text, index: SubscriptionIndex, model: Model) -> None:
    assert index.prefixes() == sorted(model.held)
    assert_notes_hold(index)
    topics = [text(rng) + text(rng) for _ in range(40)] + list(model.held)
    expected = [model.match(topic) for topic in topics]
    assert index.match_batch(topics).tolist() == expected
    assert match_compiled(index, topics) == expected
    assert match_by_reference(index, topics) == expected


def assert_is_empty(index: SubscriptionIndex) -> None:
    assert len(index) == index.subscriptions == 0
    assert index.prefixes() == []
    assert index.match(b"") == []
    assert (index._table.keys, index._table.values) == ([[b""]], [[()]])
    assert not index._owners
    assert list(index._fans._notes) == [b""]


PREFIX = st.text("ab\0", max_size=4).map(str.encode) | st.binary(max_size=3)


class IndexMachine(RuleBasedStateMachine):
    """Hypothesis looks for a short sequence that breaks the index."""

    def __init__(self) -> None:
        super().__init__()
        self.index = SubscriptionIndex()
        self.model = Model()

    @rule(peer=st.integers(0, 2), prefix=PREFIX)
    def subscribe(self, peer: int, prefix: bytes) -> None:
        assert self.index.subscribe(peer, prefix) == self.model.subscribe(peer, prefix)

    @rule(peer=st.integers(0, 2), prefix=PREFIX)
    def unsubscribe(self, peer: int, prefix: bytes) -> None:
        assert self.index.unsubscribe(peer, prefix) == self.model.unsubscribe(peer, prefix)

    @rule(peer=st.integers(0, 2))
    def remove_peer(self, peer: int) -> None:
        assert self.index.remove_peer(peer) == self.model.remove_peer(peer)

    @rule(
        peer=st.integers(0, 2), wanted=st.dictionaries(PREFIX, st.booleans(), max_size=8), cost=st.sampled_from((0, 8))
    )
    def change(self, peer: int, wanted: dict[bytes, bool], cost: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prefixes, "_CHANGE_COST", cost)  # with 0, one by one
            assert self.index.change(peer, wanted) == self.model.change(peer, wanted)

    @rule(topic=PREFIX)
    def match(self, topic: bytes) -> None:
        assert self.index.match(topic) == self.model.match(topic)

    @rule(topics=st.lists(PREFIX, max_size=20))
    def match_batch(self, topics: list[bytes]) -> None:
        expected = [self.model.match(topic) for topic in topics]
        assert self.index.match_batch(topics).tolist() == expected
        assert match_compiled(self.index, topics) == expected

    @invariant()
    def notes_hold(self) -> None:
        assert_notes_hold(self.index)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


# ── single rules ────────────────────────────────────────────────────────────────────────────


def test_prefixes_of_many_peers_stay_one_object_when_the_table_is_made_anew() -> None:
    index = SubscriptionIndex()
    for peer in range(3):
        index.change(peer, {b"a/%d" % number: True for number in range(10)})
    kept = list(index._table)
    for owner in index._owners.values():
        assert all(mine is kept[kept.index(mine)] for mine in owner.prefixes)


def test_a_peer_with_several_prefixes_of_a_topic_is_named_once_and_peers_ascend() -> None:
    index = SubscriptionIndex()
    for peer, prefix in [(9, "a"), (9, "ab"), (9, ""), (2, "abc"), (5, "a"), (2, "ab")]:
        index.subscribe(peer, prefix)
    assert index.match("abcd") == [2, 5, 9]
    assert index.match_batch(["abcd"] * 20).tolist() == [[2, 5, 9]] * 20


def test_a_subscription_is_held_or_not_whatever_the_number_of_requests() -> None:
    index = SubscriptionIndex()
    assert index.subscribe(1, b"t")
    assert not index.subscribe(1, b"t")
    assert index.unsubscribe(1, b"t")
    assert not index.unsubscribe(1, b"t")
    assert index.match(b"t") == []


def test_the_empty_prefix_matches_everything_and_an_empty_index_nothing() -> None:
    index = SubscriptionIndex()
    assert len(index) == 0
    assert b"" not in index
    assert index.match(b"") == []
    index.subscribe(3, b"")
    assert (len(index), b"" in index, index.prefixes()) == (1, True, [b""])
    assert index.match(b"") == index.match(b"anything") == [3]
    index.unsubscribe(3, b"")
    assert (len(index), b"" in index, index.prefixes()) == (0, False, [])


def test_text_is_its_utf8_bytes() -> None:
    index = SubscriptionIndex()
    index.subscribe(1, "é")
    assert index.prefixes() == [b"\xc3\xa9"]
    assert "é" in index
    assert index.match("été") == index.match("été".encode()) == [1]
    assert index.match(b"\xc3") == []
    assert index.match_batch(["été", b"x"] * 10).tolist() == [[1], []] * 10


def test_peers_are_all_64_bit_numbers_and_nothing_else() -> None:
    index = SubscriptionIndex()
    for peer in (0, 2**64 - 1, 2**63):
        index.subscribe(peer, b"a")
    assert index.match(b"a") == [0, 2**63, 2**64 - 1]
    assert index.match_batch([b"a"] * 20)[0].tolist() == [0, 2**63, 2**64 - 1]
    for peer in (-1, 2**64):
        for prefix in (b"a", b"new"):
            with pytest.raises(OverflowError):
                index.subscribe(peer, prefix)
        assert not index.unsubscribe(peer, b"a")
        assert index.remove_peer(peer) == []
    assert index.prefixes() == [b"a"]


def test_the_result_of_a_match_belongs_to_the_caller() -> None:
    index = SubscriptionIndex()
    index.subscribe(1, b"a")
    index.match(b"a").append(99)
    assert index.match(b"a") == [1]


# ── batches ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def index() -> SubscriptionIndex:
    index = SubscriptionIndex()
    for peer, prefix in enumerate([b"a", b"ab", b"b", b"b\0", b"\xff"]):
        index.subscribe(peer, prefix)
    return index


TOPICS = [b"", b"a", b"abc", b"b\0\0", b"b", b"\xff\xff", b"c", b"ab"] * 3
PEERS = [[], [0], [0, 1], [2, 3], [2], [4], [], [0, 1]] * 3


def column(topics: list[bytes], kind: type) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    offsets: NDArray[Any] = np.cumsum([0, *map(len, topics)]).astype(kind)
    return offsets, np.frombuffer(b"".join(topics), np.uint8)


@pytest.mark.parametrize("count", [len(TOPICS), 3], ids=["by the kernels", "one by one"])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_a_column_matches_as_a_list_does(index: SubscriptionIndex, count: int, kind: type) -> None:
    matches = index.match_batch(column(TOPICS[:count], kind))
    assert matches.tolist() == PEERS[:count]
    assert (matches.offsets.dtype, matches.peers.dtype) == (np.dtype(np.int64), np.dtype(np.uint64))


def test_a_slice_of_a_column_and_spare_data_are_fine(index: SubscriptionIndex) -> None:
    offsets, data = column(TOPICS, np.int32)
    spare = np.concatenate([data, np.full(50, 255, np.uint8)])
    assert index.match_batch((offsets[4:], data)).tolist() == PEERS[4:]
    assert index.match_batch((offsets[:12], data)).tolist() == PEERS[:11]
    assert index.match_batch((offsets, spare)).tolist() == PEERS


@pytest.mark.parametrize("count", [20, 3], ids=["by the kernels", "one by one"])
@pytest.mark.parametrize("bad", [[0, 2, 1], [-1, 0, 1], [0, 1, 9], [0, 9, 4]])
def test_offsets_that_lead_outside_are_refused(index: SubscriptionIndex, count: int, bad: list[int]) -> None:
    offsets = np.array([*bad[:-1], *[bad[-1]] * (count - 1)], np.int32)
    with pytest.raises(LocalProtocolError, match="offsets"):
        index.match_batch((offsets, np.zeros(4, np.uint8)))


def test_a_tuple_of_topics_is_a_list_of_topics(index: SubscriptionIndex) -> None:
    assert index.match_batch((b"a", b"b")).tolist() == [[0], [2]]


def test_an_empty_batch_has_no_matches(index: SubscriptionIndex) -> None:
    no_bytes = np.zeros(0, np.uint8)
    batches: list[Topics] = [[], (np.zeros(1, np.int32), no_bytes), (np.zeros(0, np.int32), no_bytes)]
    for nothing in batches:
        matches = index.match_batch(nothing)
        assert len(matches) == 0
        assert matches.tolist() == []


def test_a_change_is_seen_by_the_next_batch(index: SubscriptionIndex) -> None:
    assert index.match_batch(TOPICS).tolist() == PEERS
    index.subscribe(77, b"")
    assert index.match_batch(TOPICS).tolist() == [[*peers, 77] for peers in PEERS]
    index.remove_peer(77)
    assert index.match_batch(TOPICS).tolist() == PEERS


def test_a_snapshot_is_taken_once_topics_have_paid_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHBUS_JIT", "1")
    index = SubscriptionIndex()
    for number in range(1_000):
        index.subscribe(number % 7, b"%d" % number)
    batch = [b"%d" % number for number in range(100)]
    taken = []
    for _ in range(6):
        index.match_batch(batch)
        taken.append(index._flat is not None)
    assert taken == [False, False, False, False, False, True]
    index.subscribe(1, b"new")
    assert index._flat is None


def test_without_a_compiler_batches_are_matched_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHBUS_JIT", "0")
    assert not jit.available()
    index = SubscriptionIndex()
    index.subscribe(1, b"a")
    assert index.match_batch([b"ab", b"b"] * 500).tolist() == [[1], []] * 500
    assert index._flat is None


# ── hostile tables ──────────────────────────────────────────────────────────────────────────

DEPTH = 10_000


def nested() -> Iterator[bytes]:
    stem = b"n" * DEPTH
    return (stem[:length] for length in range(DEPTH, 0, -1))  # the longest first: each new one is above all others


class CountingTopic(bytes):
    """A topic that counts how often it is compared with a prefix."""

    comparisons = 0

    def startswith(self, *arguments: Any) -> bool:
        self.comparisons += 1
        return super().startswith(*arguments)


def test_deep_nesting_is_climbed_in_a_logarithm_of_steps() -> None:
    index = SubscriptionIndex()
    for prefix in nested():
        index.subscribe(7, prefix)
    assert index.match(b"n" * (DEPTH + 5)) == [7]  # links everything
    for length in (1, 2, 4_999, 5_000, DEPTH - 1):
        topic = CountingTopic(b"n" * length + b"z")  # sorts behind the whole nest, so the climb starts at the bottom
        assert index.match(topic) == [7]
        assert topic.comparisons < 6 * math.log2(DEPTH)
    assert match_compiled(index, [b"n" * 5_000 + b"z", b"z"]) == [[7], []]
    assert len(index.remove_peer(7)) == DEPTH
    assert_is_empty(index)


def test_deep_nesting_of_many_peers_needs_no_more_than_the_subscriptions_in_a_snapshot() -> None:
    index = SubscriptionIndex()
    order = random.Random(3).sample(range(1_000), 1_000)
    for length, peer in enumerate(order, 1):
        index.subscribe(peer, b"n" * length)
    topics = [b"n" * length + b"z" for length in range(0, 1_001, 7)]
    expected = [sorted(order[:length]) for length in range(0, 1_001, 7)]
    assert match_compiled(index, topics) == expected
    assert match_by_reference(index, topics) == expected
    assert index.snapshot().peers.nbytes == 8 * 1_000


def test_a_comb_of_prefixes_that_almost_fit_is_answered() -> None:
    index = SubscriptionIndex()
    stem = b"c" * 500
    for length in range(500):
        index.subscribe(length, stem[:length] + b"0")  # each sorts below the stem and shares one byte more with it
    index.subscribe(1_000, b"")
    topic = CountingTopic(stem + b"z")
    assert index.match(topic) == [1_000]
    assert topic.comparisons < 10
    assert match_compiled(index, [stem + b"z", stem[:40] + b"0z"]) == [[1_000], [40, 1_000]]
