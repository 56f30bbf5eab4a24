"""Addresses of ZeroMQ endpoints: `tcp://host:port` or `ipc://path`.

Where an endpoint listens, `*` as the host means every interface, and `*` as the port means any free port. This module
only parses; edge/server.py resolves host names.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from meshbus.errors import ConfigError

IPC_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux: sun_path has 108 bytes, the last one is NUL."""


class TcpAddress(msgspec.Struct, frozen=True):
    """Host and port of a TCP socket."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


class IpcAddress(msgspec.Struct, frozen=True):
    """The path of a Unix socket."""

    path: str

    def __str__(self) -> str:
        return f"ipc://{self.path}"


EdgeAddress: TypeAlias = TcpAddress | IpcAddress


def parse_address(text: str, *, listening: bool = False) -> EdgeAddress:
    """Parse an address. `listening` allows `*` and port 0. Raises ConfigError if it is invalid."""
    transport, found, rest = text.partition("://")
    if not found or transport not in {"tcp", "ipc"}:
        raise _bad(text, "write it as tcp://host:port or ipc://path")
    return _parse_tcp(text, rest, listening=listening) if transport == "tcp" else _parse_ipc(text, rest)


def _parse_tcp(text: str, rest: str, *, listening: bool) -> TcpAddress:
    host, found, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not found or not host:
        raise _bad(text, "write a host and a port, such as tcp://127.0.0.1:5556")
    if listening:
        host, port = ("0.0.0.0" if host == "*" else host), ("0" if port == "*" else port)  # noqa: S104 - what `*` means
    if not port.isascii() or not port.isdigit() or int(port) > 65535 or (int(port) == 0 and not listening):
        allowed = "0 to 65535 or *" if listening else "1 to 65535"
        raise _bad(text, f"the port must be {allowed}, got {port!r}")
    return TcpAddress(host, int(port))


def _parse_ipc(text: str, path: str) -> IpcAddress:
    if (
        not path or path.startswith("@") or "\0" in path
    ):  # '@': a name in Linux's abstract namespace, without permissions
        raise _bad(text, "write the path of a file, such as ipc:///run/app/events.sock")
    if len(path.encode()) > IPC_PATH_BYTES:
        raise _bad(text, f"the path is longer than {IPC_PATH_BYTES} bytes; choose a shorter one")
    return IpcAddress(path)


def _bad(text: str, problem: str) -> ConfigError:
    return ConfigError("address", f"invalid address {text!r}; {problem}")
