"""An IP address and port, as NAT traversal messages carry it: a 19-byte block, or text in an announcement.

Host names are never resolved here: an address is numeric.
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

_LAYOUT = Layout("address", ">B16sH")
ADDRESS_BYTES = _LAYOUT.size
_MAX_PORT_DIGITS = 5


class Address(NamedTuple):
    """A numeric host and a port: a plain pair, so that it equals and replaces the addresses sockets give and take."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `1.2.3.4:80` or `[2001:db8::1]:80` into its canonical form.

    Raises MalformedPacket for anything else, names and scoped addresses included.
    """
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        ip = _parse_v6(host[1:-1]) if bracketed else IPv4Address(host)
    except AddressValueError:
        raise MalformedPacket("address", Fault.BAD_TEXT, repr(text[:64])) from None
    if not (port.isascii() and port.isdigit() and len(port) <= _MAX_PORT_DIGITS and int(port) <= 0xFFFF):
        raise MalformedPacket("address", Fault.BAD_TEXT, repr(text[:64]))
    return Address(_show(ip), int(port))


def numeric(address: object) -> Address | None:
    """Read an address as a socket spells it, or give None for what is no numeric host and port."""
    match address:
        case (str(host), int(port), *_) if 0 <= port <= 0xFFFF:
            try:
                return Address(_show(ip_address(host.partition("%")[0])), port)
            except ValueError:
                return None
    return None


def pack_address(address: Address) -> bytes:
    """Write the 19-byte block."""
    try:
        ip = ip_address(address.host)
    except ValueError as error:
        raise LocalProtocolError(f"{address.host!r} is not a numeric address") from error
    return _LAYOUT.pack(ip.version, ip.packed, address.port)


def unpack_address(block: Buffer) -> Address:
    """Read a 19-byte block; the unused bytes of an IPv4 block are not looked at."""
    family, raw, port = _LAYOUT.unpack(block)
    match family:
        case 4:
            return Address(_show(IPv4Address(raw[:4])), port)
        case 6:
            return Address(_show(IPv6Address(raw)), port)
        case _:
            raise MalformedPacket("address", Fault.UNKNOWN_KIND, f"family {family}")


def _parse_v6(text: str) -> IPv6Address:
    ip = IPv6Address(text)
    if ip.scope_id is not None:
        raise AddressValueError(text)
    return ip


def _show(ip: IPv4Address | IPv6Address) -> str:
    """Show an address as every peer does; older Pythons spell a mapped IPv4 address in hex."""
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        return f"::ffff:{ip.ipv4_mapped}"
    return str(ip)
