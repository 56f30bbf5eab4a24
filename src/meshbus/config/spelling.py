"""Parsers of setting types that TOML does not have: addresses, keys, node ids, paths, subnets.

Each type has one annotation and one reader. Readers accept text, as in files, and finished values, as in programs.
config/node.py says which setting has which type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from meshbus.config.loader import Reader, Readers
from meshbus.errors import ConfigError
from meshbus.log.durability import NEVER, Fsync, every_n, interval
from meshbus.names.channel import ChannelName
from meshbus.names.identity import KEY_BYTES
from meshbus.names.subnet import SubnetId
from meshbus.wire.constants import MAX_DATAGRAM, STREAM_WINDOW

MIN_PACKET = 576
"""Smallest allowed `max_packet`: the datagram size that every IPv4 host must accept (RFC 791)."""


class Endpoint(NamedTuple):
    """Host (name or numeric address) and port; a plain tuple, as sockets expect."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """Parse `127.0.0.1:9000`, `robot-7.local:9000` or `[2001:db8::1]:9000`. Raises ConfigError if it is invalid."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    # Brackets if and only if the host contains a colon: `::1:9000` would be ambiguous.
    good_host = bare and bare.isprintable() and not set(bare) & set("[] /@") and bracketed == (":" in bare)
    if not (colon and good_host and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 0xFFFF):
        raise ConfigError(
            "address", f"invalid address {text!r}; write host:port, such as '10.0.0.7:9000' or '[::1]:9000'"
        )
    return Endpoint(bare, int(port))


Key: TypeAlias = Annotated[bytes, "32 bytes as hex"]
Secret: TypeAlias = Annotated[bytes, "32 secret bytes as hex"]
NodeId: TypeAlias = Annotated[int, "64 bits as hex"]
MaxPacket: TypeAlias = Annotated[int | None, "auto or bytes"]
Socket: TypeAlias = Annotated[str, "auto, nothing or a path"]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=86_400, description="a number of seconds in (0, 86400]")]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1_000_000, description="an integer from 1 to 1000000")]
Bytes: TypeAlias = Annotated[
    int, msgspec.Meta(ge=4096, le=1 << 30, description=f"an integer number of bytes from 4096 to {1 << 30}")
]
DiskBytes: TypeAlias = Annotated[
    int, msgspec.Meta(ge=16 << 20, le=1 << 50, description=f"an integer number of bytes from {16 << 20} to {1 << 50}")
]
Hops: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=16, description="an integer from 1 to 16")]
LogSize: TypeAlias = Annotated[int, msgspec.Meta(ge=1, description="an integer of at least 1")]
PollTime: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1_000_000, description="an integer from 0 to 1000000")]
Window: TypeAlias = Annotated[
    int,
    msgspec.Meta(
        ge=STREAM_WINDOW, le=1 << 30, description=f"an integer number of bytes from {STREAM_WINDOW} to {1 << 30}"
    ),
]


def _read_endpoint(value: object, _: Path) -> Endpoint:
    if isinstance(value, Endpoint):
        return value
    return parse_endpoint(_text(value, "host:port such as '10.0.0.7:9000'"))


def _read_path(value: object, folder: Path) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"expected a path, got {value!r}")
    return folder / Path(value).expanduser()


def _read_socket(value: object, folder: Path) -> str:
    if value in {"", "auto"}:
        return str(value)
    return str(_read_path(value, folder))


def _read_subnet(value: object, _: Path) -> SubnetId:
    return value if isinstance(value, SubnetId) else SubnetId.parse(_text(value, "a subnet such as '3.7', or 'global'"))


def _read_channel(value: object, _: Path) -> ChannelName:
    return ChannelName(_text(value, "a channel name"))


def _read_key(value: object, _: Path) -> bytes:
    raw = _hex_bytes(value)
    if raw is None or len(raw) != KEY_BYTES:
        raise ValueError(f"expected 64 hex digits, got {value!r}")
    return raw


def _read_secret(value: object, _: Path) -> bytes:
    raw = _hex_bytes(value)
    if raw is None or len(raw) != KEY_BYTES:  # the message omits the value: a mistyped secret reveals the secret
        raise ValueError("expected 64 hex digits; create a key with `meshbus key psk FILE` and set psk_file to it")
    return raw


def parse_node_id(value: object) -> int:
    """Return a node id that was given as a number or as hex digits. Raises ValueError if it is neither."""
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, str) and len(value) <= 18:  # 0x and 16 digits
        try:
            number = int(value, 16)
        except ValueError:
            number = None
    if number is None or not 1 <= number <= 0xFFFFFFFFFFFFFFFF:
        raise ValueError(f"expected a node id of up to 16 hex digits, got {value!r}")
    return number


def _read_node_id(value: object, _: Path) -> int:
    return parse_node_id(value)


def _read_fsync(value: object, _: Path) -> Fsync:
    if isinstance(value, Fsync):
        return value
    match str(value).split():
        case ["never"]:
            return NEVER
        case ["every", count] if count.isascii() and count.isdigit() and int(count):
            return every_n(int(count))
        case ["interval", seconds] if _is_time(seconds):
            return interval(float(seconds))
    raise ValueError(f"expected {_FSYNC}, got {value!r}")


def _is_time(text: str) -> bool:
    try:
        return 0 < float(text) <= 86_400
    except ValueError:
        return False


def _read_max_packet(value: object, _: Path) -> int | None:
    if value == "auto":
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not MIN_PACKET <= value <= MAX_DATAGRAM:
        raise ValueError(f"expected 'auto' or {MIN_PACKET} to {MAX_DATAGRAM} bytes, got {value!r}")
    return value


def _text(value: object, expected: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected {expected}, got {value!r}")  # noqa: TRY004 - an invalid setting, not a wrong call
    return value


def _hex_bytes(value: object) -> bytes | None:
    if isinstance(value, bytes):
        return value
    try:
        return bytes.fromhex(value) if isinstance(value, str) else None
    except ValueError:
        return None


_FSYNC = "'never', 'every 100' (events) or 'interval 0.5' (seconds)"

READERS: Readers = {
    Fsync: Reader(_FSYNC, _read_fsync),
    Endpoint: Reader("an address such as '10.0.0.7:9000'", _read_endpoint),
    Path: Reader("a path", _read_path),
    SubnetId: Reader("a subnet such as '3.7', or 'global'", _read_subnet),
    ChannelName: Reader("a channel name such as 'sensors/lidar'", _read_channel),
    Key: Reader("64 hex digits", _read_key),
    Secret: Reader("64 hex digits", _read_secret),
    NodeId: Reader("a node id of 16 hex digits", _read_node_id),
    MaxPacket: Reader(f"'auto' or {MIN_PACKET} to {MAX_DATAGRAM} bytes", _read_max_packet),
    Socket: Reader("a path, 'auto' or an empty string", _read_socket),
}
"""Readers of the types above; other types are converted by msgspec."""
