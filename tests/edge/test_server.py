import asyncio
import socket  # noqa: TID251 - the other end
import stat
from pathlib import Path

import pytest

from meshbus.config.edgeaddress import IpcAddress, TcpAddress
from meshbus.edge.server import Listener, dial, listen
from meshbus.errors import ConfigError


def mode_of(address: IpcAddress) -> int:
    return stat.S_IMODE(Path(address.path).stat().st_mode)


def exists(address: IpcAddress) -> bool:
    return Path(address.path).exists()


def unlink(address: IpcAddress) -> None:
    Path(address.path).unlink()


async def accepted(listener: Listener) -> tuple[socket.socket, str]:
    while (found := listener.accept()) is None:  # noqa: ASYNC110 - polled on purpose
        await asyncio.sleep(0.001)
    return found


async def test_tcp_both_ends() -> None:
    listener = await listen(TcpAddress("127.0.0.1", 0), exposed=False)
    try:
        assert isinstance(listener.address, TcpAddress)
        assert listener.address.port > 0
        assert listener.accept() is None
        mine = await dial(listener.address)
        theirs, peer = await accepted(listener)
        with mine, theirs:
            assert peer == f"tcp://127.0.0.1:{mine.getsockname()[1]}"
            assert not mine.getblocking()
            assert theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        listener.close()


async def test_a_unix_socket_belongs_to_its_owner_and_goes_with_it(tmp_path: Path) -> None:
    address = IpcAddress(str(tmp_path / "s"))
    listener = await listen(address, exposed=False)
    assert mode_of(address) == 0o600
    mine = await dial(address)
    theirs, peer = await accepted(listener)
    with mine, theirs:
        assert peer == str(address)
    listener.close()
    assert not exists(address)


async def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    (await listen(IpcAddress(str(path)), exposed=False)).close()


async def test_a_socket_that_is_served_is_not_touched(tmp_path: Path) -> None:
    address = IpcAddress(str(tmp_path / "s"))
    first = await listen(address, exposed=False)
    with pytest.raises(ConfigError, match="in use by another process"):
        await listen(address, exposed=False)
    (await dial(address)).close()
    first.close()


async def test_closing_leaves_the_socket_of_a_successor(tmp_path: Path) -> None:
    address = IpcAddress(str(tmp_path / "s"))
    first = await listen(address, exposed=False)
    unlink(address)
    second = await listen(address, exposed=False)
    first.close()
    assert exists(address)
    second.close()


def test_a_file_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="not a socket"):
        asyncio.run(listen(IpcAddress(str(path)), exposed=False))
    assert path.read_text() == "precious"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_other_machines_can_connect_only_if_exposed(host: str) -> None:
    with pytest.raises(ConfigError, match="insecure=True"):
        await listen(TcpAddress(host, 0), exposed=False)


async def test_an_exposed_endpoint_listens_on_every_interface() -> None:
    listener = await listen(TcpAddress("0.0.0.0", 0), exposed=True)
    listener.close()


async def test_an_address_that_is_taken_or_does_not_exist(tmp_path: Path) -> None:
    listener = await listen(TcpAddress("127.0.0.1", 0), exposed=False)
    assert isinstance(listener.address, TcpAddress)
    for bad in (listener.address, TcpAddress("no-such-host.invalid", 1), IpcAddress(str(tmp_path / "no" / "s"))):
        with pytest.raises(ConfigError, match="choose another"):
            await listen(bad, exposed=False)
    listener.close()


async def test_dialing_an_address_where_nothing_listens(tmp_path: Path) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - which one is the system's choice
        await dial(IpcAddress(str(tmp_path / "nobody")))
