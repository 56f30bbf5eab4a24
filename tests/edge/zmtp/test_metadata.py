import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.edge.zmtp.closereason import CloseReason, Violation
from meshbus.edge.zmtp.metadata import (
    SocketType,
    decode_metadata,
    describe_socket,
    encode_metadata,
    read_counterpart,
)
from tests.edge.zmtp.talk import CAPTURES
from tests.fuzz import assert_survives

NAMES = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=20)


def test_the_metadata_of_libzmq() -> None:
    golden = {side: bytes.fromhex(text) for side, _, text in CAPTURES["curve_libzmq_pub"]["plaintexts"][:2]}
    assert describe_socket(SocketType.SUB) == golden["C"]
    assert describe_socket(SocketType.PUB) == golden["S"]


@given(st.dictionaries(NAMES.map(str.lower), st.binary(max_size=50), max_size=5))
def test_properties_read_back(properties: dict[str, bytes]) -> None:
    assert decode_metadata(encode_metadata(properties)) == properties


def test_names_have_no_case_and_the_first_counts() -> None:
    data = encode_metadata({"Socket-Type": b"PUB"}) + encode_metadata({"SOCKET-TYPE": b"SUB"})
    assert decode_metadata(data) == {"socket-type": b"PUB"}


@pytest.mark.parametrize("mine", SocketType)
@pytest.mark.parametrize("theirs", SocketType)
def test_publishers_face_subscribers(mine: SocketType, theirs: SocketType) -> None:
    if mine.publishes != theirs.publishes:
        assert read_counterpart(describe_socket(theirs), mine)
        return
    with pytest.raises(Violation) as caught:
        read_counterpart(describe_socket(theirs), mine)
    assert caught.value.reason is CloseReason.INCOMPATIBLE_SOCKET


def test_a_peer_without_a_socket_type_is_accepted() -> None:
    assert read_counterpart(encode_metadata({"x-color": b"red"}), SocketType.SUB) == {"x-color": b"red"}


def test_hostile_properties() -> None:
    assert_survives(
        lambda data: decode_metadata(bytes(data)),
        [encode_metadata({"Socket-Type": b"SUB", "Identity": b"", "X": bytes(40)})],
        randoms=5_000,
    )
