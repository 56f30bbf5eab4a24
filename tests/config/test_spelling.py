"""Addresses, keys, ids and paths: what is read, and what is refused in which words."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.config.spelling import READERS, Endpoint, Key, MaxPacket, NodeId, Secret, Socket, parse_endpoint
from meshbus.errors import ConfigError, MeshError
from meshbus.log.durability import NEVER, Fsync, every_n, interval
from meshbus.names.channel import ChannelName
from meshbus.names.subnet import SubnetId

HERE = Path("/etc/meshbus")
HEX = "0123456789abcdef" * 4


def _read(kind: object, value: object) -> object:
    return READERS[kind].read(value, HERE)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9000", ("::1", 9000)),
        ("[fe80::1%eth0]:65535", ("fe80::1%eth0", 65535)),
        (" robot-7.local:9000 ", ("robot-7.local", 9000)),
    ],
)
def test_endpoints(text: str, endpoint: tuple[str, int]) -> None:
    assert parse_endpoint(text) == endpoint
    assert str(parse_endpoint(text)) == text.strip()


@pytest.mark.parametrize(
    "text",
    ["", ":", "host", "host:", ":9000", "host:65536", "host:-1", "host:x", "host:٣", "::1:9000", "[::1]", "[::1:9",
     "[host]:9", "a b:9", "a\0b:9", "a\nb:9", "u@h:9", "http://h:9", "host:999999"],
)  # fmt: skip
def test_bad_endpoints(text: str) -> None:
    with pytest.raises(ConfigError, match="invalid address"):
        parse_endpoint(text)


@given(st.text(max_size=30))
def test_any_text_is_an_endpoint_or_a_complaint(text: str) -> None:
    with suppress(ConfigError):
        assert parse_endpoint(str(parse_endpoint(text))) == parse_endpoint(text)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (Endpoint, "h:1", Endpoint("h", 1)),
        (Endpoint, Endpoint("h", 1), Endpoint("h", 1)),
        (Path, "a/b", HERE / "a/b"),
        (Path, Path("/x"), Path("/x")),
        (Path, "~/x", Path.home() / "x"),
        (SubnetId, "3.7", SubnetId.new([3, 7])),
        (SubnetId, SubnetId.new([1]), SubnetId.new([1])),
        (ChannelName, "a/b", ChannelName("a/b")),
        (Key, HEX, bytes.fromhex(HEX)),
        (Key, bytes.fromhex(HEX), bytes.fromhex(HEX)),
        (Secret, HEX.upper(), bytes.fromhex(HEX)),
        (NodeId, "ff", 255),
        (NodeId, "0xFF", 255),
        (NodeId, "f" * 16, 2**64 - 1),
        (NodeId, 7, 7),
        (MaxPacket, "auto", None),
        (MaxPacket, 1400, 1400),
        (Socket, "", ""),
        (Socket, "auto", "auto"),
        (Socket, "run/admin.sock", str(HERE / "run/admin.sock")),
    ],
)
def test_good_spellings(kind: object, value: object, expected: object) -> None:
    result = _read(kind, value)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value", "complaint"),
    [
        (Endpoint, 9000, "expected host:port such as '10.0.0.7:9000', got 9000"),
        (Path, "", "expected a path, got ''"),
        (Path, 3, "expected a path, got 3"),
        (SubnetId, 3.7, "expected a subnet such as '3.7', or 'global', got 3.7"),
        (SubnetId, 3, "expected a subnet such as '3.7', or 'global', got 3"),
        (ChannelName, 3, "expected a channel name, got 3"),
        (ChannelName, "Bad", "upper case"),
        (Key, "abc", "expected 64 hex digits, got 'abc'"),
        (Key, HEX[:-2], "expected 64 hex digits"),
        (Key, b"short", "expected 64 hex digits"),
        (Key, 3, "expected 64 hex digits"),
        (NodeId, 0, "expected a node id"),
        (NodeId, True, "expected a node id"),
        (NodeId, "-5", "expected a node id"),
        (NodeId, "f" * 17, "expected a node id"),
        (NodeId, "robot", "expected a node id"),
        (MaxPacket, 575, "expected 'auto' or 576 to 8192 bytes, got 575"),
        (MaxPacket, 8193, "expected 'auto' or 576 to 8192 bytes, got 8193"),
        (MaxPacket, "big", "expected 'auto' or 576 to 8192 bytes, got 'big'"),
        (MaxPacket, True, "expected 'auto' or 576 to 8192 bytes, got True"),
        (Socket, 3, "expected a path"),
    ],
)
def test_bad_spellings(kind: object, value: object, complaint: str) -> None:
    with pytest.raises((MeshError, ValueError)) as caught:
        _read(kind, value)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("value", ["5ecre7" * 10, HEX[:-1], 12345])
def test_a_bad_secret_is_not_repeated(value: object) -> None:
    with pytest.raises(ValueError, match="expected 64 hex digits") as caught:
        _read(Secret, value)
    assert str(value) not in str(caught.value)


def test_every_reader_has_a_description_of_what_it_expects() -> None:
    assert all(reader.expected for reader in READERS.values())


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("never", NEVER),
        ("every 1", every_n(1)),
        (" every  100 ", every_n(100)),
        ("interval 0.5", interval(0.5)),
        (every_n(7), every_n(7)),
    ],
)
def test_when_a_log_waits_for_the_disk(text: object, policy: Fsync) -> None:
    assert _read(Fsync, text) == policy


@pytest.mark.parametrize(
    "text",
    ["", "every", "every 0", "every -1", "every x", "every 1 2", "interval", "interval 0", "interval nan", "1", 5],
)
def test_what_no_log_can_keep_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="expected 'never', 'every 100'"):
        _read(Fsync, text)
