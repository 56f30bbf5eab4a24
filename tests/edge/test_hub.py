"""The hub: golden sequences of events under the strict rules, and what each rule means."""

from collections.abc import Sequence
from typing import Any

import pytest

from meshbus.edge import hub as module
from meshbus.edge.hub import Change, HubLimits, Ignored, PubSubHub
from meshbus.edge.queue import Loss
from tests.vectors import load

ALL = 1 << 30
"""More bytes than anything here has."""


def encode(parts: Sequence[bytes]) -> Sequence[bytes]:
    """Stand in for a framing: lengths and parts."""
    return (b"".join(len(part).to_bytes(4, "big") + part for part in parts),)


def wire(*parts: bytes) -> bytes:
    return encode(parts)[0]


@pytest.fixture
def hub() -> PubSubHub:
    return PubSubHub(encode)


def receivers(hub: PubSubHub) -> list[int]:
    """Take what waits for every peer: their keys, once for each message."""
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


def test_changes_tell_who_was_first_and_who_was_last() -> None:
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
