"""Payloads in lines of JSON."""

import json

import pytest

from meshbus.node.payload import payload_of, payload_row


@pytest.mark.parametrize("payload", [b"", b"text", "größer".encode(), b"\xff\x00", bytes(range(256))])
def test_a_payload_survives_a_line_of_json(payload: bytes) -> None:
    row = json.loads(json.dumps(payload_row(payload)))
    assert payload_of(row) == payload
    assert set(row) <= {"payload", "payload_base64"}
