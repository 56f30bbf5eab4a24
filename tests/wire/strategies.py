"""Values for property tests of codecs."""

from __future__ import annotations

from hypothesis import strategies as st

from meshbus.names.channel import ChannelName
from meshbus.wire.messages.address import Address


def unsigned(bits: int) -> st.SearchStrategy[int]:
    """Draw an unsigned integer; often the largest one, or the one with only the highest bit set."""
    largest = (1 << bits) - 1
    return st.integers(0, largest) | st.sampled_from([largest, 1 << (bits - 1)])


u8 = unsigned(8)
u16 = unsigned(16)
u32 = unsigned(32)
u64 = unsigned(64)
keys = st.binary(min_size=32, max_size=32)
text = st.text(st.characters(exclude_categories=["Cs"]))
channels = st.from_regex(r"[a-z0-9_-]{1,20}(/[a-z0-9_-]{1,20}){0,4}", fullmatch=True).map(ChannelName)
addresses = st.builds(
    Address, st.ip_addresses().filter(lambda ip: getattr(ip, "ipv4_mapped", None) is None).map(str), u16
)
