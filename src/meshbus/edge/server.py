"""Open TCP and Unix sockets: listen, accept and connect. edge/bytestream.py reads and writes them.

Safe by default: an unencrypted endpoint listens on addresses that other machines reach only with `insecure=True`, and a
Unix socket is accessible to its owner only. The socket file of a dead process is replaced; a socket that is in use, or a
file that is not a socket, is left alone.
"""

from __future__ import annotations

import asyncio
import errno
import socket  # noqa: TID251 - this module opens the sockets of the edge
import stat
from ipaddress import ip_address
from pathlib import Path

from meshbus.config.edgeaddress import EdgeAddress, IpcAddress, TcpAddress
from meshbus.errors import ConfigError

BACKLOG = 1024
"""Connections that wait to be accepted: enough for a fleet that reconnects at once. The kernel caps it at somaxconn."""
OWNER_ONLY = 0o600

NOW_NOT = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR, errno.ECONNABORTED}
"""Errors of accept that mean: no connection is waiting now."""


class Listener:
    """A listening socket."""

    def __init__(self, sock: socket.socket, address: EdgeAddress) -> None:
        self._socket = sock
        self.address = address
        """Address to connect to, with the actual port."""
        self._inode = Path(address.path).stat().st_ino if isinstance(address, IpcAddress) else None

    def fileno(self) -> int:
        """Return the file descriptor, for `add_reader`."""
        return self._socket.fileno()

    def accept(self) -> tuple[socket.socket, str] | None:
        """Accept one connection; return its socket and the peer's address, or None if none waits. Raises OSError."""
        try:
            sock, peer = self._socket.accept()
        except OSError as error:
            if error.errno in NOW_NOT:
                return None
            raise
        _prepare(sock)
        return sock, _spell(peer) or str(self.address)

    def close(self) -> None:
        """Stop listening, and remove the socket file unless another process has replaced it."""
        self._socket.close()
        if isinstance(self.address, IpcAddress):
            path = Path(self.address.path)
            # Compare inodes: another process may have replaced the file since.
            if path.exists() and path.stat().st_ino == self._inode:
                path.unlink()


async def listen(address: EdgeAddress, *, exposed: bool) -> Listener:
    """Listen on an address; `exposed` allows addresses that other machines reach. Raises ConfigError."""
    sock: socket.socket | None = None
    try:
        if isinstance(address, IpcAddress):
            sock = _bind_unix(Path(address.path))
        else:
            family, target = await _look_up(address)
            # Checked after the lookup, on the address that is bound: `localhost` may resolve to anything.
            if not exposed and not ip_address(target[0].partition("%")[0]).is_loopback:
                raise _exposed(address)
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(target)
            host, port = sock.getsockname()[:2]
            address = TcpAddress(host, port)
        sock.listen(BACKLOG)
        sock.setblocking(False)
        return Listener(sock, address)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise ConfigError(
            "bind", f"cannot listen on {address}: {error.strerror or error}; choose another address"
        ) from error


async def dial(address: EdgeAddress) -> socket.socket:
    """Connect to an address. Raises OSError if nothing listens there."""
    target: str | tuple[str, int]
    if isinstance(address, IpcAddress):
        family, target = socket.AF_UNIX, address.path
    else:
        family, target = await _look_up(address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        _prepare(sock)
        await asyncio.get_running_loop().sock_connect(sock, target)
    except BaseException:
        sock.close()
        raise
    return sock


def _bind_unix(path: Path) -> socket.socket:
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        path.chmod(OWNER_ONLY)  # no race: nobody can connect before `listen` is called
    except OSError:
        sock.close()
        raise
    return sock


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    if sock.family in {socket.AF_INET, socket.AF_INET6}:
        # Writes are already collected per loop iteration; Nagle's algorithm would only delay them.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _look_up(address: TcpAddress) -> tuple[socket.AddressFamily, tuple[str, int]]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    # The first result is the one that the system prefers.
    family, _, _, _, target = found[0]
    return family, target  # type: ignore[return-value]  # an IPv6 address has two more fields


def _exposed(address: EdgeAddress) -> ConfigError:
    return ConfigError(
        "bind",
        f"{address} is reachable from other machines and this endpoint does not encrypt; "
        "use CurveServer, bind 127.0.0.1, or pass insecure=True",
    )


def _remove_stale(path: Path) -> None:
    """Remove the socket file of a dead process. Raises ConfigError if it is in use or not a socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError("bind", f"{path} exists and is not a socket; move it away, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        # Only a refused connection proves that nobody listens; EAGAIN, for one, means a full backlog.
        refused = probe.connect_ex(str(path)) == errno.ECONNREFUSED
    if not refused:
        raise ConfigError("bind", f"{path} is in use by another process; stop it, or choose another path")
    path.unlink()


def _spell(peer: object) -> str:
    """Return the peer's address as text, or an empty string for a Unix socket, which has none."""
    return str(TcpAddress(peer[0], peer[1])) if isinstance(peer, tuple) else ""
