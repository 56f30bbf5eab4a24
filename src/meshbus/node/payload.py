"""How lines of JSON carry payloads: as text, or in base64 if the bytes are not UTF-8."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any


def payload_row(payload: bytes) -> dict[str, str]:
    """Return a payload as a field of a JSON object."""
    try:
        return {"payload": payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def payload_of(row: Mapping[str, Any]) -> bytes:
    """Return the payload that a JSON object holds."""
    if "payload" in row:
        return str(row["payload"]).encode()
    return base64.b64decode(row["payload_base64"])
