"""An IP address and port: a 19-byte block in messages of NAT traversal, or text in an announcement (mesh.md §8).

Host names are never resolved: an address is numeric.
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

# mesh.md §8: family, 16 address bytes (IPv4 in the first four), and the port in big-endian order.
_LAYOUT = Layout("address", ">B16sH")
ADDRESS_BYTES = _LAYOUT.size
_MAX_PORT_DIGITS = 5


class Address(NamedTuple):
    """A numeric host and a port. A tuple, so that it equals the addresses of sockets and can be passed to them."""

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
    # Stricter than int(), which also accepts signs, spaces, underscores and digits of other scripts.
    if not (port.isascii() and port.isdigit() and len(port) <= _MAX_PORT_DIGITS and int(port) <= 0xFFFF):
        raise MalformedPacket("address", Fault.BAD_TEXT, repr(text[:64]))
    return Address(_show(ip), int(port))


def numeric(address: object) -> Address | None:
    """Convert the address of a socket; return None if it is not a numeric host and port."""
    match address:
        case (str(host), int(port), *_) if 0 <= port <= 0xFFFF:
            try:
                # The scope of a link-local address has a meaning on this machine only.
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
    """Read a 19-byte block; the unused bytes of an IPv4 block are ignored."""
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
    # A scope names an interface of the sender, so it means nothing to others.
    if ip.scope_id is not None:
        raise AddressValueError(text)
    return ip


def _show(ip: IPv4Address | IPv6Address) -> str:
    """Return an address as text in the form that all peers use; older Pythons write a mapped IPv4 address in hex."""
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        return f"::ffff:{ip.ipv4_mapped}"
    return str(ip)
