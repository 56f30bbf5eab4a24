"""The bytes of hot files of packets: what was written is read back, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from meshbus.log.packets.block import NewerFile, UnknownFile, pack_block, pack_file_header, read_content
from meshbus.log.packets.packed import MASK_BYTES, Packed, pack_rows, unpack_rows
from meshbus.log.packets.row import ROW
from meshbus.log.packets.runs import RecordInfo

WHOSE = RecordInfo(2**64 - 1, 7)


def rows(first: int, count: int) -> Packed:
    made = np.zeros(count, ROW)
    made["header"]["counter"] = np.arange(first, first + count)
    return pack_rows(made)


def a_file() -> tuple[bytes, list[int]]:
    """Return a file of three blocks, and where its header and each block end."""
    data, ends = pack_file_header(100, WHOSE, 5), []
    ends.append(len(data))
    for first, count, names in ((100, 3, {2**63: "a/b"}), (103, 1, {}), (104, 5, {7: "c"})):
        data += b"".join(bytes(part) for part in pack_block(first, rows(first, count), names, first * 10))
        ends.append(len(data))
    return data, ends


def test_a_file_is_read_back_unchanged() -> None:
    data, ends = a_file()
    content = read_content(data)
    assert (content.first, content.end, content.size, content.info) == (100, 109, ends[-1], WHOSE)
    assert (content.created_ns, content.written_ns) == (5, 1040)
    assert content.names == {2**63: "a/b", 7: "c"}
    found = [number for _, part in content.blocks for number in unpack_rows(part)["header"]["counter"].tolist()]
    assert found == list(range(100, 109))
    assert [first for first, _ in content.blocks] == [100, 103, 104]


def test_a_truncated_file_yields_its_whole_blocks() -> None:
    data, ends = a_file()
    for size in range(ends[0], len(data)):
        assert read_content(data[:size]).size == max(end for end in ends if end <= size)


def test_whatever_is_changed_ends_the_file_there() -> None:
    data, ends = a_file()
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]
        if place < ends[0]:
            with pytest.raises((UnknownFile, NewerFile)):
                read_content(changed)
            continue
        whole = max(end for end in ends if end <= place)
        unused = place - whole in range(4, 8)  # zeros that no checksum covers, for what may come
        assert read_content(changed).size == (ends[-1] if unused else whole)


def test_a_foreign_file_is_an_error() -> None:
    for data in (b"", b"PAR1" * 20, bytes(48)):
        with pytest.raises(UnknownFile):
            read_content(data)
    other = bytearray(a_file()[0])
    other[4] = 1
    with pytest.raises(UnknownFile, match="never released"):
        read_content(bytes(other))
    other[4] = 9
    with pytest.raises(NewerFile, match="newer meshbus"):
        read_content(bytes(other))


def test_rows_out_of_sequence_are_not_a_block() -> None:
    data = pack_file_header(0, WHOSE, 0) + b"".join(bytes(part) for part in pack_block(1, rows(1, 2), {}, 0))
    assert read_content(data).end == 0


def test_rows_that_differ_from_their_block_header_are_refused() -> None:
    """A checksum may be correct for bytes that are not valid rows."""
    good = rows(0, 3)
    endless = np.frombuffer(bytes(MASK_BYTES) + (2**32 - 1).to_bytes(MASK_BYTES, "little"), np.uint8)
    bads = [Packed(good.data[:-1], 3), Packed(good.data, 2), Packed(good.data, 4), Packed(endless, 1 << 31)]
    for bad in bads:
        data = pack_file_header(0, WHOSE, 0) + b"".join(bytes(part) for part in pack_block(0, bad, {}, 0))
        assert read_content(data).end == 0


@pytest.mark.parametrize(
    "names", [b"{", b'{"u": "a"}', b'{"1": "\xff"}', b'{"-1": "a"}', b'{"18446744073709551616": "a"}', b"[" * 5000]
)
def test_names_that_are_none_end_the_file_there(names: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checksum may be correct for them too."""
    monkeypatch.setattr("msgspec.json.encode", lambda _: names)
    parts = pack_block(0, rows(0, 3), {1: "a"}, 0)
    data = pack_file_header(0, WHOSE, 0) + b"".join(bytes(part) for part in parts)
    assert read_content(data).end == 0
