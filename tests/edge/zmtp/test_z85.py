import pytest
import zmq.utils.z85
from hypothesis import given
from hypothesis import strategies as st

from meshbus.edge.zmtp.z85 import decode_z85, encode_z85


@given(st.binary(max_size=64).filter(lambda data: len(data) % 4 == 0))
def test_as_pyzmq_does(data: bytes) -> None:
    text = encode_z85(data)
    assert text.encode() == zmq.utils.z85.encode(data)
    assert decode_z85(text) == data


@pytest.mark.parametrize("text", ["1234", "1234~", "#####", "é2345"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Z85|four bytes"):
        decode_z85(text)


def test_only_whole_groups_are_written() -> None:
    with pytest.raises(ValueError, match="multiple of 4 bytes"):
        encode_z85(b"123")
