"""Capability tags: their classes, their canonical form, and the tags that only the mesh writes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import ConfigError
from meshbus.names.channel import ChannelName
from meshbus.policy.tag import (
    MAX_CHANNEL_BYTES,
    MAX_CHANNEL_TAGS,
    Tag,
    TagKind,
    announced_channels,
    canonical,
    chain_in,
    chain_range_tag,
    chain_tag,
    channel_tag,
    fork_tag,
    heat_tag,
    is_reserved,
    nameable,
    region_tag,
    tenant_tag,
    text_list,
)
from tests.vectors import load

ROWS = load("policy")["tag_parse"]["rows"]

texts = st.text("ha.=:x", min_size=1, max_size=8) | st.sampled_from([row["text"] for row in ROWS if row["text"]])
axis_texts = st.builds("{}.{}".format, st.sampled_from(["hardware", "software", "devices", "dataforts"]), texts)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["text"][:30] or "empty")
def test_tags_are_taken_apart_as_computed(row: dict[str, Any]) -> None:
    if "error" in row:
        with pytest.raises(ConfigError, match="empty"):
            Tag.parse(row["text"])
        return
    tag = Tag.parse(row["text"])
    assert tag.text == row["text"]
    assert tag.kind == row["kind"]
    assert tag.head == row.get("axis", row.get("prefix", ""))
    assert tag.key == row.get("key", "")
    assert tag.separator == row.get("separator", "")
    assert tag.value == row.get("value", row.get("body", ""))
    assert is_reserved(row["text"]) != row["accepted_from_user_code"]


@given(texts | axis_texts)
def test_the_parts_make_up_the_text(text: str) -> None:
    tag = Tag.parse(text)
    match tag.kind:
        case TagKind.RESERVED:
            assert tag.head + tag.value == text
        case TagKind.AXIS_PRESENT | TagKind.AXIS_VALUE:
            assert f"{tag.head}.{tag.key}{tag.separator}{tag.value}" == text
        case TagKind.LEGACY:
            assert (tag.head, tag.key, tag.value) == ("", "", "")


@given(texts | axis_texts)
def test_canonical_text_changes_the_first_separator_on_an_axis_and_nothing_else(text: str) -> None:
    changed = canonical(text)
    assert canonical(changed) == changed
    differences = [(old, new) for old, new in zip(text, changed, strict=True) if old != new]
    assert differences in ([], [(":", "=")])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("software.os:linux", "software.os=linux"),
        ("software.os=a:b", "software.os=a:b"),
        ("software.os:a=b", "software.os=a=b"),
        ("hardware.gpu", "hardware.gpu"),
        ("subprotocol:0x0500", "subprotocol:0x0500"),
        ("dataforts:x.y:z", "dataforts:x.y:z"),
        ("", ""),
    ],
)
def test_examples_of_canonical_text(text: str, expected: str) -> None:
    assert canonical(text) == expected


def test_tags_of_the_mesh() -> None:
    assert chain_tag(0xFF) == "causal:00000000000000ff"
    assert chain_tag(0xFF, tip=0) == "causal:00000000000000ff:0"
    assert chain_range_tag(0xFF, 3, 9) == "causal:00000000000000ff[3..9]"
    assert fork_tag(0xFF) == "fork-of:00000000000000ff"
    assert tenant_tag("a") == "scope:tenant:a"
    assert region_tag("eu") == "scope:region:eu"


@pytest.mark.parametrize(("rate", "text"), [(0.5, "0.50"), (-1.0, "0.00"), (7.0, "1.00"), (0.126, "0.13")])
def test_heat_is_clamped_and_has_two_decimals(rate: float, text: str) -> None:
    assert heat_tag(1, rate) == f"heat:0000000000000001={text}"


def test_tags_without_content_are_refused() -> None:
    with pytest.raises(ConfigError, match="tenant: the name must not be empty"):
        tenant_tag("")
    with pytest.raises(ConfigError, match="region: the name must not be empty"):
        region_tag("")
    with pytest.raises(ConfigError, match=r"the range 5\.\.5 is empty"):
        chain_range_tag(1, 5, 5)
    for rate in (float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="the rate must be a finite number"):
            heat_tag(1, rate)


def test_one_text_is_not_taken_for_a_list() -> None:
    assert text_list("tags", ["a", "b"]) == ("a", "b")
    with pytest.raises(ConfigError, match="tags: must be a list of texts, got the text 'gpu'"):
        text_list("tags", "gpu")


def test_channels_are_named_in_tags_and_read_from_them() -> None:
    channels = [ChannelName("b/c"), ChannelName("a")]
    tags = [channel_tag(channel) for channel in channels]
    assert tags == ["publishes:b/c", "publishes:a"]
    assert announced_channels(["x", *tags, "publishes:", "publishes:Not Valid"]) == ("a", "b/c")


def test_an_announcement_names_a_limited_number_of_channels_and_bytes() -> None:
    many = [ChannelName(f"c/{number:03}") for number in range(MAX_CHANNEL_TAGS + 9)]
    assert list(nameable(many)) == many[:MAX_CHANNEL_TAGS]
    long = [ChannelName(f"{number:03}".rjust(200, "x")) for number in range(20)]
    fitting = MAX_CHANNEL_BYTES // 200
    assert list(nameable(long)) == long[:fitting]
    assert announced_channels(f"publishes:{name}" for name in many) == tuple(many[:MAX_CHANNEL_TAGS])
    assert announced_channels(f"publishes:{name}" for name in long) == tuple(long[:fitting])


def test_a_chain_is_known_from_all_forms_of_its_tag_and_from_nothing_else() -> None:
    for tag in (chain_tag(0xFF), chain_tag(0xFF, tip=0), chain_tag(0xFF, tip=2**64), chain_range_tag(0xFF, 3, 9)):
        assert chain_in(tag) == 0xFF, tag
    hostile = ("", ":", ":x", ":1:2", "[3..]", "[..9]", "[3..9", "[3..9]:1", "0", ":-1", ":١", "\n")
    for tag in (*(chain_tag(0xFF) + rest for rest in hostile[1:]), "causal:ff", "causal:00000000000000FF", "lidar", ""):
        assert chain_in(tag) is None, tag


@pytest.mark.parametrize(("origin_hash", "tip"), [(-1, None), (1 << 64, None), (1, -1)])
def test_a_chain_tag_has_64_bits_and_a_tip_from_0_on(origin_hash: int, tip: int | None) -> None:
    with pytest.raises(ConfigError, match="got"):
        chain_tag(origin_hash, tip=tip)
