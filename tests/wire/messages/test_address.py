from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbus.errors import Fault, LocalProtocolError, MalformedPacket
from meshbus.wire.messages.address import ADDRESS_BYTES, Address, numeric, pack_address, parse_address, unpack_address
from tests.fuzz import assert_survives
from tests.wire.strategies import addresses, u16

GOLDEN = [
    (Address("127.0.0.1", 59053), "127.0.0.1:59053", "047f000001000000000000000000000000e6ad"),  # seen on the wire
    (Address("192.0.2.45", 9001), "192.0.2.45:9001", "04c000022d0000000000000000000000002329"),
    (Address("2001:db8::1", 443), "[2001:db8::1]:443", "0620010db800000000000000000000000101bb"),
]


@pytest.mark.parametrize(("address", "text", "block"), GOLDEN)
def test_golden_addresses(address: Address, text: str, block: str) -> None:
    assert pack_address(address).hex() == block
    assert unpack_address(bytes.fromhex(block)) == address
    assert parse_address(text) == address
    assert str(address) == text


def test_an_address_is_the_pair_that_sockets_use() -> None:
    assert unpack_address(bytes.fromhex(GOLDEN[0][2])) == ("127.0.0.1", 59053)


@pytest.mark.parametrize(
    ("spelled", "read"),
    [
        (("127.0.0.1", 9000), Address("127.0.0.1", 9000)),
        (("2001:db8::1", 9, 0, 0), Address("2001:db8::1", 9)),
        (("fe80::1%eth0", 9, 0, 2), Address("fe80::1", 9)),
        (("::ffff:1.2.3.4", 9, 0, 0), Address("::ffff:1.2.3.4", 9)),
        (("a-name", 9), None),
        (("10.0.0.1", 1 << 16), None),
        (("10.0.0.1", -1), None),
        ("node-7", None),
        (None, None),
    ],
)
def test_what_sockets_spell_is_read(spelled: object, read: Address | None) -> None:
    assert numeric(spelled) == read


@given(addresses)
def test_addresses_round_trip_as_block_and_as_text(address: Address) -> None:
    block = pack_address(address)
    assert len(block) == ADDRESS_BYTES
    assert unpack_address(block) == address
    assert parse_address(str(address)) == address


@given(st.ip_addresses(v=4), u16)
def test_a_mapped_address_is_spelled_with_dots_on_every_python(ip: object, port: int) -> None:
    text = f"[::ffff:{ip}]:{port}"
    assert str(parse_address(text)) == text
    assert str(unpack_address(pack_address(parse_address(text)))) == text


@pytest.mark.parametrize(
    ("spelled", "canonical"),
    [
        ("[2001:DB8:0:0:0:0:0:1]:443", "[2001:db8::1]:443"),
        ("[::FFFF:102:304]:1", "[::ffff:1.2.3.4]:1"),
        ("1.2.3.4:00080", "1.2.3.4:80"),
    ],
)
def test_other_spellings_become_canonical(spelled: str, canonical: str) -> None:
    assert str(parse_address(spelled)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "1.2.3.4",
        "1.2.3.4:",
        "1.2.3.4:65536",
        "1.2.3.4:-1",
        "1.2.3.4:+1",
        "1.2.3.4: 1",
        "1.2.3.4:٣",
        "1.2.3.4:" + "9" * 5000,
        "1.2.3:80",
        "01.2.3.4:80",
        "[1.2.3.4]:80",
        "2001:db8::1:80",
        "2001:db8::1]:80",
        "[fe80::1%eth0]:80",
        "[fe80::1%3]:80",
        "localhost:80",
        "host.example:80",
        "1.2.3.4/24:80",
    ],
)
def test_what_is_not_digits_and_a_port_is_refused(text: str) -> None:
    with pytest.raises(MalformedPacket) as caught:
        parse_address(text)
    assert caught.value.fault is Fault.BAD_TEXT


@given(st.text(max_size=40))
def test_no_text_crashes_the_parser(text: str) -> None:
    try:
        address = parse_address(text)
    except MalformedPacket:
        return
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ("07" + "00" * 18, Fault.UNKNOWN_KIND),
        ("00" * 19, Fault.UNKNOWN_KIND),
        ("04" + "00" * 17, Fault.TRUNCATED),
        ("04" + "00" * 19, Fault.TRAILING),
    ],
)
def test_other_blocks_are_refused(block: str, fault: Fault) -> None:
    with pytest.raises(MalformedPacket) as caught:
        unpack_address(bytes.fromhex(block))
    assert caught.value.fault is fault


def test_padding_of_an_ipv4_block_is_ignored() -> None:
    assert unpack_address(bytes.fromhex("047f000001" + "ff" * 12 + "0050")) == Address("127.0.0.1", 80)


@pytest.mark.parametrize("address", [Address("localhost", 80), Address("1.2.3.4", 65536), Address("1.2.3.4", -1)])
def test_a_name_or_a_bad_port_is_our_error(address: Address) -> None:
    with pytest.raises(LocalProtocolError):
        pack_address(address)


def test_damaged_blocks_never_crash() -> None:
    assert_survives(unpack_address, [bytes.fromhex(block) for _, _, block in GOLDEN])
