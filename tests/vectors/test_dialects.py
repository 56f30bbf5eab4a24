"""Whole datagrams of later net-mesh versions, and the tables of what each version reads."""

from __future__ import annotations

from typing import Any

import pytest

from meshbus.engine.session.dialect import RANGES_TAG
from meshbus.errors import RemoteProtocolError
from meshbus.wire.constants import Flags
from meshbus.wire.frames import unpack_frames
from meshbus.wire.keys import SessionKeys
from meshbus.wire.messages.capability import decode_announcement
from meshbus.wire.messages.rendezvous import PunchRequest, decode_rendezvous
from meshbus.wire.messages.token import TOKEN_BYTES, count_chain, decode_chain, encode_chain
from meshbus.wire.messages.window import Grant, decode_grant, encode_grant
from meshbus.wire.seal import Opener
from tests.vectors import load

DATAGRAMS: list[dict[str, Any]] = load("dialects")["datagrams"]
REFUSED: list[dict[str, Any]] = load("dialects")["refused"]
MESSAGES: list[dict[str, Any]] = load("dialects")["messages"]
PROBE: dict[str, Any] = load("dialects")["probe"]


@pytest.mark.parametrize("row", DATAGRAMS, ids=lambda row: f"{row['version']} {row['name']}")
def test_datagrams_of_real_nodes_are_opened(row: dict[str, Any]) -> None:
    session_id, rx_key = row["session_id"], bytes.fromhex(row["receive_key"])
    prefix = (session_id & 0xFFFFFFFF ^ session_id >> 32).to_bytes(4, "little")
    keys = SessionKeys(session_id=session_id, nonce_prefix=prefix, tx_key=bytes(32), rx_key=rx_key)
    header, plain = Opener(keys).open(bytes.fromhex(row["hex"]))
    fields = row["fields"]
    for name in ("flags", "stream_id", "sequence", "event_count", "subprotocol_id", "channel_hash", "origin_hash"):
        assert getattr(header, name) == fields.get(name, 0), name
    events = [bytes(event) for event in unpack_frames(plain, header.event_count)]
    if header.subprotocol_id:
        assert [event.hex() for event in events] == fields["events"]
    else:
        assert [event.decode() for event in events] == fields["events"]
    starts = row["version"] == "0.45.1" and not header.subprotocol_id and not header.sequence
    assert bool(header.flags & Flags.START) is starts


def test_each_version_reads_one_length_of_a_grant_and_we_write_both() -> None:
    lengths = {len(encode_grant(Grant(stream_id=1, total_consumed=2, ack_seq=ack))) for ack in (None, 3)}
    assert set(PROBE["grant_length_by_version"].values()) == lengths


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row['subprotocol']} {row['length']}")
def test_what_some_version_refuses_we_read_if_another_version_sends_it(row: dict[str, Any]) -> None:
    event = bytes(row["length"])
    match row["subprotocol"], row["length"]:
        case "0x0b00", 25:
            with pytest.raises(RemoteProtocolError):
                decode_grant(event)
        case "0x0b00", _:
            assert decode_grant(event).total_consumed == 0
        case "0x0d01", length:
            request = bytes((1,)) + bytes(8 if length == 28 else 12) + bytes((4,)) + bytes(18)
            assert isinstance(decode_rendezvous(request), PunchRequest)
        case _, length:
            assert len(decode_chain(bytes((length - TOKEN_BYTES,)) * (length % TOKEN_BYTES) + bytes(TOKEN_BYTES))) == 1


CHAINS = [row for row in MESSAGES if "token field" in row["subprotocol"]]


@pytest.mark.parametrize("row", CHAINS, ids=lambda row: row["version"])
def test_token_chains_of_real_nodes_read_and_write(row: dict[str, Any]) -> None:
    chain = bytes.fromhex(row["hex"])
    tokens = decode_chain(chain)
    assert len(tokens) == row["fields"]["count"]
    assert all(token.has_good_signature() for token in tokens)
    assert count_chain(encode_chain(tokens)) == chain
    assert decode_chain(encode_chain(tokens)) == tokens


ANNOUNCEMENTS = [row for row in MESSAGES if row["subprotocol"] == "0x0c00"]


@pytest.mark.parametrize("row", ANNOUNCEMENTS, ids=lambda row: row["version"])
def test_announcements_of_later_versions_are_verified(row: dict[str, Any]) -> None:
    announcement = decode_announcement(bytes.fromhex(row["hex"]))
    assert announcement.verify()
    assert RANGES_TAG in announcement.tags
    assert list(announcement.tags) == row["fields"]["tags"]


def test_every_kind_of_message_is_read_by_a_test() -> None:
    """Each test of a decoder takes the messages with its id; a message with another id would be read by none."""
    assert {row["subprotocol"] for row in MESSAGES} == {
        "0x0a00 (token field)",
        "0x0a01",
        "0x0b00",
        "0x0b01",
        "0x0b02",
        "0x0b03",
        "0x0c00",
        "0x0c01",
        "0x0d01",
    }
