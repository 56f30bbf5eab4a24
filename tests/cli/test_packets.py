"""What flight recorders wrote, from a shell: shown with words, and bad questions answered in one sentence."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from meshbus.cli.exit import Exit
from meshbus.log.census import FOLDER, Fact, FactKind, channel_of
from meshbus.log.log import Redex
from meshbus.log.packets.reader import PacketReader
from meshbus.log.packets.recorder import PacketRecorder
from meshbus.policy.reason import Reason
from tests.cli.conftest import Meshbus
from tests.log.packets.making import CHANNELS, NODE, POLICY, blank_headers, numbered, open_recorder

NAME = f"{NODE:016x}"


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Ten packets that were delivered and sealed, then three that were for others, one of them on a channel."""
    recorder = open_recorder(tmp_path)
    recorder.set_policy(POLICY, ())
    recorder.take(**numbered(0, 10))
    recorder.seal()
    headers = blank_headers(3)
    headers["stream_id"][1], headers["channel_hash"][1] = CHANNELS[0].stream_id, CHANNELS[0].wire_hash
    packet = headers.tobytes()
    for number, reason in enumerate((0, Reason.SUBNET_LOCAL.code, Reason.NO_ROUTE.code)):
        one = np.frombuffer(bytearray(bytes(18) + packet[68 * number : 68 * (number + 1)]), np.uint8)
        model = recorder.model(headers[number : number + 1], reason, 0xA, 0xB, (0x01000000, 0xFF000000), 0)
        recorder.take_train(model, one, 0, len(one), 1, 1_700_000_000_123_456_789)
    recorder.close()
    return tmp_path


def test_ls_shows_the_recorders_and_their_sizes(meshbus: Meshbus, records: Path) -> None:
    result = meshbus("packets", "ls", records)
    assert (result.code, result.err) == (Exit.OK, "")
    assert result.rows == [
        {"name": None, "recorder": NAME, "first": 0, "next": 13, "sealed_files": 1, "sealed_rows": 10, "hot_rows": 3}
    ]


def test_cat_shows_reasons_as_words_and_ids_in_hex(meshbus: Meshbus, records: Path) -> None:
    rows = meshbus("packets", "cat", records).rows
    assert [row["verdict"] for row in rows] == ["delivered"] * 10 + ["forwarded", "dropped", "dropped"]
    assert [row["reason"] for row in rows[-3:]] == [None, "subnet_local", "no_route"]
    assert [row["counter"] for row in rows[:10]] == list(range(10))
    forwarded, dropped = rows[10], rows[11]
    assert (forwarded["previous_hop"], forwarded["next_hop"]) == (f"{0xA:016x}", f"{0xB:016x}")
    assert "next_hop" not in dropped
    assert (dropped["src"], dropped["dst"]) == ("01000000", "ff000000")
    assert (dropped["channel"], dropped["chash64"]) == (str(CHANNELS[0]), f"{CHANNELS[0].hash:016x}")
    assert dropped["ts"] == "2023-11-14T22:13:20.123456+00:00"
    assert {row["recorder"] for row in rows} == {NAME}


def test_cat_can_be_filtered(meshbus: Meshbus, records: Path) -> None:
    def shown(*options: object) -> list[tuple[str, str | None]]:
        rows = meshbus("packets", "cat", records, NAME, *options).rows
        return [(row["verdict"], row["reason"]) for row in rows]

    assert shown("--limit", 2) == [("dropped", "subnet_local"), ("dropped", "no_route")]
    assert shown("--reason", "no_route") == [("dropped", "no_route")]
    assert shown("--channel", CHANNELS[0]) == [("dropped", "subnet_local")]
    assert shown("--channel", CHANNELS[0], "--reason", "no_route") == []
    assert len(shown("--limit", 100)) == 13


def test_a_terminal_gets_sentences(meshbus: Meshbus, records: Path, terminal: None) -> None:
    lines = meshbus("packets", "cat", records, "--limit", 3).out.splitlines()
    assert f"forwarded  {0xA:016x} → {0xB:016x}" in lines[0]
    assert f"dropped (subnet_local)  {0xA:016x} → nowhere  {CHANNELS[0]}" in lines[1]
    assert "sealed files" in meshbus("packets", "ls", records).out


def test_a_terminal_gets_the_names_of_nodes(meshbus: Meshbus, records: Path, terminal: None) -> None:
    with Redex(records / FOLDER, recorder=1, background=False) as redex:
        for node_id, name in ((0xA, "west-rover"), (int(NAME, 16), "gateway")):
            fact = Fact(FactKind.NODE, node_id, name=name)
            redex.open(channel_of(1)).append(msgspec.json.encode(fact))
    assert "gateway" in meshbus("packets", "ls", records).out
    lines = meshbus("packets", "cat", records, "--limit", 3).out.splitlines()
    assert f"forwarded  west-rover → {0xB:016x}" in lines[0]


def test_bad_arguments_are_errors_of_one_line(meshbus: Meshbus, records: Path) -> None:
    for arguments, why in (
        (("cat", records, "--reason", "bad_luck"), "unknown reason 'bad_luck'; choose from subnet_local,"),
        (("cat", records, "--limit", 0), "must be at least 1, got 0"),
        (("cat", records, "00"), f"choose from {NAME}"),
        (("cat", records / "nowhere"), "set record_packets"),
    ):
        result = meshbus("packets", *arguments)
        assert (result.code, result.out) == (Exit.USAGE, "")
        assert why in result.err
        assert len(result.err.splitlines()) == 1
    PacketRecorder(records, 1, background=False).close()
    assert f"choose from {1:016x}, {NAME}" in meshbus("packets", "cat", records).err


def test_a_damaged_file_is_named(meshbus: Meshbus, records: Path) -> None:
    (sealed,) = PacketReader(records, NODE).folder.glob("*.parquet")
    sealed.write_bytes(sealed.read_bytes()[:-20])
    result = meshbus("packets", "cat", records)
    assert result.code == Exit.FAILED
    assert f"{sealed} is damaged" in result.err
