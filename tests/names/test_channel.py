"""Channel names: which are legal, their hashes, and the registry; the reference binding is asked too."""

from typing import Any

import net
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import ChannelError, ChannelFault
from meshbus.names.channel import (
    MAX_NAME_BYTES,
    MAX_PREFIX_LEVELS,
    ChannelId,
    ChannelName,
    ChannelRegistry,
    hash_name,
    hash_prefix,
    prefixes_of,
)
from tests.vectors import load

NAMES = load("policy")["channel_names"]["rows"]
COLLISIONS = load("policy")["wire_hash_collisions"]["pairs"]
PREFIXES = load("policy")["channel_is_prefix_of"]["rows"]
HASHES = load("transport")["xxh3"]

legal_segments = st.text("abz059-_.", min_size=1, max_size=8).filter(lambda text: text not in {".", ".."})
legal_names = st.lists(legal_segments, min_size=1, max_size=5).map("/".join)
almost_names = st.text("ab/.-_A é", max_size=6) | st.text(max_size=6)


def fault_of(name: str) -> ChannelFault | None:
    try:
        ChannelName(name)
    except ChannelError as error:
        return error.fault
    return None


@pytest.mark.parametrize("row", [row for row in NAMES if row["valid"]], ids=lambda row: row["name"][:40])
def test_legal_names_hash_as_observed(row: dict[str, Any]) -> None:
    name = ChannelName(row["name"])
    assert name == row["name"]
    assert name.hash == int(row["canonical_u64"], 16)
    assert name.wire_hash == int(row["wire_u16"], 16)
    assert name.stream_id == int(row["publish_stream_id"], 16)
    assert name.depth == row["depth"]


@pytest.mark.parametrize("row", [row for row in NAMES if not row["valid"]], ids=lambda row: ascii(row["name"][:40]))
def test_illegal_names_are_refused_for_the_observed_reason(row: dict[str, Any]) -> None:
    assert fault_of(row["name"]) == row["error"].partition("(")[0]


@pytest.mark.parametrize("row", HASHES, ids=lambda row: row["key"])
def test_hashes_of_the_transport_vectors(row: dict[str, Any]) -> None:
    name = ChannelName(row["key"])
    assert hash_name(row["key"]) == int(row["xxh3_64"], 16)
    assert name.wire_hash == int(row["wire_channel_hash"], 16)
    assert name.stream_id == int(row["publish_stream_id"], 16)


@pytest.mark.parametrize("row", COLLISIONS, ids=lambda row: row["wire_u16"])
def test_wire_hashes_collide_where_canonical_ones_do_not(row: dict[str, Any]) -> None:
    one, other = ChannelName(row["a"]), ChannelName(row["b"])
    assert one.wire_hash == other.wire_hash == int(row["wire_u16"], 16)
    assert (one.hash, other.hash) == (int(row["canonical_a"], 16), int(row["canonical_b"], 16))


@pytest.mark.parametrize("row", PREFIXES, ids=lambda row: f"{row['self']}-{row['other']}")
def test_prefixes_end_at_a_slash(row: dict[str, Any]) -> None:
    assert ChannelName(row["self"]).is_prefix_of(ChannelName(row["other"])) == row["result"]


@given(legal_names)
def test_the_reference_hashes_legal_names_alike(name: str) -> None:
    assert ChannelName(name).hash == net.channel_hash(name)


@given(almost_names)
def test_the_reference_refuses_the_same_names(name: str) -> None:
    try:
        expected: int | None = net.channel_hash(name)
    except net.IdentityError:
        expected = None
    found = None if fault_of(name) else hash_name(name)
    assert found == expected


def test_length_is_counted_in_bytes() -> None:
    assert fault_of("a" * MAX_NAME_BYTES) is None
    assert fault_of("a" * (MAX_NAME_BYTES + 1)) is ChannelFault.TOO_LONG
    assert fault_of("é" * 127) is ChannelFault.INVALID_CHAR
    assert fault_of("é" * 128) is ChannelFault.TOO_LONG


def test_text_that_no_encoding_takes_is_refused_like_any_other() -> None:
    assert fault_of("a\udc80") is ChannelFault.INVALID_CHAR


def test_upper_case_gets_a_hint() -> None:
    with pytest.raises(ChannelError, match="try 'sensors/lidar'"):
        ChannelName("Sensors/Lidar")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Bad Channel", "bad-channel"),
        ("bad channel", "bad-channel"),
        ("Sensors/Lidar (front)", "sensors/lidar--front-"),
        ("A/../B", "a/b"),
        ("É", "-"),
        ("A" * 255, "a" * 255),
    ],
)
def test_the_hint_is_a_name_that_works(name: str, hint: str) -> None:
    with pytest.raises(ChannelError) as refused:
        ChannelName(name)
    assert repr(ChannelName(hint))[len("ChannelName(") : -1] in str(refused.value)


def test_a_name_is_text_and_is_checked_once() -> None:
    name = ChannelName("sensors/lidar")
    assert ChannelName(name) is name
    assert repr(name) == "ChannelName('sensors/lidar')"
    assert hash(name) == hash("sensors/lidar")


def test_an_id_pairs_a_name_with_its_hash() -> None:
    channel = ChannelId.of("sensors/lidar")
    assert (channel.name, channel.hash) == ("sensors/lidar", 0xEC20E8AC7FA5E5D8)
    with pytest.raises(ChannelError):
        ChannelId.of("/")


def test_a_registry_finds_channels_by_name_and_by_both_hashes() -> None:
    registry = ChannelRegistry()
    channel, collides = registry.register("sensors/lidar")
    assert not collides
    assert registry.get("sensors/lidar") == channel
    assert registry.get_all_by_hash(channel.hash) == [channel]
    assert registry.get_all_by_wire_hash(channel.hash & 0xFFFF) == [channel]
    assert "sensors/lidar" in registry
    assert len(registry) == 1
    assert registry.get("sensors") is None
    assert registry.get_all_by_hash(1) == registry.get_all_by_wire_hash(1) == []


def test_a_registry_lists_all_that_share_a_wire_hash() -> None:
    registry = ChannelRegistry()
    row = COLLISIONS[0]
    one, other = registry.register(row["a"])[0], registry.register(row["b"])[0]
    assert registry.get_all_by_wire_hash(int(row["wire_u16"], 16)) == [one, other]


def test_a_canonical_collision_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshbus.names.channel.hash_name", lambda _name: 7)
    registry = ChannelRegistry()
    assert registry.register("a")[1] is False
    assert registry.register("b")[1] is True
    assert [channel.name for channel in registry.get_all_by_hash(7)] == ["a", "b"]


def test_a_registry_takes_a_name_once_and_gives_it_back() -> None:
    registry = ChannelRegistry()
    channel, _ = registry.register("a")
    with pytest.raises(ChannelError) as caught:
        registry.register("a")
    assert caught.value.fault is ChannelFault.ALREADY_EXISTS
    assert registry.remove("a") == channel
    assert registry.remove("a") is None
    assert registry.get_all_by_hash(channel.hash) == registry.get_all_by_wire_hash(channel.hash & 0xFFFF) == []
    assert registry.register("a") == (channel, False)


# ── prefixes, by which tokens name many channels ────────────────────────────────────────────


def test_the_prefixes_of_a_name_are_those_that_end_with_a_slash() -> None:
    assert prefixes_of("a/b/c") == [hash_prefix("a/"), hash_prefix("a/b/")]
    assert prefixes_of("a") == []
    assert prefixes_of("a/b/") == prefixes_of("a/b/c")
    assert hash_prefix("sensors/") == 0x727BCFF501105B9E  # docs/wire/profile.md has the rule
    assert hash_prefix("sensors/") != hash_name("sensors/")


@given(legal_names, legal_names)
def test_a_name_is_below_a_prefix_exactly_if_it_starts_with_it(prefix: str, name: str) -> None:
    for below in (name, f"{prefix}/{name}", prefix, f"{prefix}x"):
        assert (hash_prefix(f"{prefix}/") in prefixes_of(below)) is below.startswith(f"{prefix}/")


@pytest.mark.parametrize("prefix", ["", "a", "/", "//", "a//", "A/", "a/" * (MAX_PREFIX_LEVELS + 1)])
def test_what_is_no_prefix(prefix: str) -> None:
    with pytest.raises(ChannelError):
        hash_prefix(prefix)
    assert hash_prefix("a/" * MAX_PREFIX_LEVELS) in prefixes_of("a/" * 100 + "a"), "deeper levels are not looked at"
    assert len(prefixes_of("a/" * 100 + "a")) == MAX_PREFIX_LEVELS
