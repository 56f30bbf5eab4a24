import pytest

from meshbus.config.edgeaddress import EdgeAddress, IpcAddress, TcpAddress, parse_address
from meshbus.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://127.0.0.1:5556", TcpAddress("127.0.0.1", 5556)),
        ("tcp://[::1]:5556", TcpAddress("::1", 5556)),
        ("tcp://robot-7.local:1", TcpAddress("robot-7.local", 1)),
        ("ipc:///run/app.sock", IpcAddress("/run/app.sock")),
    ],
)
def test_addresses_read_and_write_back(text: str, address: EdgeAddress) -> None:
    assert parse_address(text) == address
    assert str(address) == text


def test_stars_mean_any_where_we_listen() -> None:
    assert parse_address("tcp://*:*", listening=True) == TcpAddress("0.0.0.0", 0)


@pytest.mark.parametrize(
    "text",
    ["", "127.0.0.1:5556", "udp://127.0.0.1:1", "tcp://5556", "tcp://:5556", "tcp://h:x", "tcp://h:65536", "tcp://h:٣"],
)
def test_bad_addresses_are_refused_with_advice(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write|the port must be"):
        parse_address(text, listening=True)


@pytest.mark.parametrize("text", ["tcp://h:0", "tcp://h:*"])
def test_connecting_needs_a_port(text: str) -> None:
    with pytest.raises(ConfigError, match="1 to 65535"):
        parse_address(text)


@pytest.mark.parametrize("path", ["", "@abstract", "a\0b", "x" * 108])
def test_bad_paths(path: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(f"ipc://{path}")
