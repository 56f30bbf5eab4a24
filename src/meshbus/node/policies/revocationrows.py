"""Revocations as people and programs see them: rows of `meshbus revoke ls` and of the admin socket."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from meshbus.errors import ConfigError, RemoteProtocolError
from meshbus.keyfile import from_hex
from meshbus.wire.messages.revocation import Revocation, decode_record


def revocation_row(record: Revocation, name: str | None) -> dict[str, Any]:
    """Return a record as a JSON object; `name` is what people call the node that lost something."""
    token = record.token
    return {
        "revoked": record.what.word,
        "node_id": f"{record.node_id:016x}",
        "name": name,
        "public_key": record.subject.hex(),
        "heir": None if record.heir is None else record.heir.hex(),
        "reason": record.reason,
        "at": _time(record.at),
        "issuer": record.issuer.hex(),
        "until": None if token is None or token.is_renewable else _time(token.not_after),
    }


def record_given(text: str) -> Revocation:
    """Return a record that was given in hex. Raises ConfigError if it is none."""
    raw = from_hex(text)
    try:
        return decode_record(b"" if raw is None else raw)
    except RemoteProtocolError as error:
        raise ConfigError("record", f"is not a revocation: {error}; sign it again with `meshbus revoke`") from None


def _time(unix_s: int) -> str:
    # An issuer may sign any 64-bit number.
    try:
        return datetime.fromtimestamp(unix_s, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return str(unix_s)
