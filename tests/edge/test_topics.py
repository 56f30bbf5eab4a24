"""Topics map to channel names; a prefix subscribes to everything it matches, and to nothing that is not exposed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.config.edge import EdgeEntry, covers
from meshbus.edge.topics import TopicMap
from meshbus.errors import ChannelError

AT = "tcp://127.0.0.1:*"


def topics(*channels: str, strip: str = "", add: str = "") -> TopicMap:
    return TopicMap(
        EdgeEntry(publishers=AT, subscribers=AT, channels_in=channels, channels_out=channels, strip=strip, add=add)
    )


def test_names_are_mapped_both_ways() -> None:
    plain, mapped = topics("fleet/"), topics("fleet/", strip="fleet/", add="r.")
    assert plain.topic_of("fleet/a") == b"fleet/a"
    assert plain.channel_of(b"fleet/a") == "fleet/a"
    assert mapped.topic_of("fleet/a") == b"r.a"
    assert mapped.channel_of(b"r.a") == "fleet/a"


@pytest.mark.parametrize("topic", [b"", b"a", b"R.a", b"r.", b"r.A", b"r.\xff", b"r.a/", "r.é".encode()])
def test_a_topic_that_is_not_a_channel_name(topic: bytes) -> None:
    with pytest.raises(ChannelError):
        topics("fleet/", strip="fleet/", add="r.").channel_of(topic)


def test_only_what_is_configured_is_taken() -> None:
    some = topics("fleet/", "one")
    assert [some.takes(name) for name in ("fleet/a", "one", "fleet", "one/a", "two")] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("prefix", "demands"),
    [
        (b"", {"fleet/", "one"}),
        (b"f", {"fleet/"}),
        (b"fleet/", {"fleet/"}),
        (b"fleet/a", {"fleet/"}),
        (b"fleet/a/", {"fleet/a/"}),
        (b"fleet/a/b/c", {"fleet/a/b/"}),
        (b"o", {"one"}),
        (b"one", {"one"}),
        (b"one/", set()),
        (b"fleet/A/", set()),
        (b"fleet//", set()),
        (b"fleet/\xff/", set()),
        (b"fleet/" + b"x" * 300 + b"/", set()),
        (b"x", set()),
    ],
)
def test_what_a_prefix_asks_the_mesh_for(prefix: bytes, demands: set[str]) -> None:
    assert topics("fleet/", "one").demands(prefix) == demands


_NAME = st.lists(st.sampled_from(["a", "ab", "b"]), min_size=1, max_size=3).map("/".join)
_EXPOSED = st.sampled_from([("",), ("a/",), ("a/", "b"), ("ab", "a/b/"), ("a", "b/")])


@given(
    _EXPOSED, _NAME, st.binary(max_size=6) | st.text("ab/.", max_size=6).map(str.encode), st.sampled_from(["", "r."])
)
def test_what_matches_is_asked_for_and_nothing_hidden_is(
    exposed: tuple[str, ...], channel: str, prefix: bytes, add: str
) -> None:
    some = topics(*exposed, add=add)
    demands = some.demands(prefix)
    shown = any(covers(one, channel) for one in exposed)
    if shown and some.topic_of(channel).startswith(prefix):
        assert any(covers(demand, channel) for demand in demands)
    if not shown:
        assert not any(covers(demand, channel) for demand in demands)
