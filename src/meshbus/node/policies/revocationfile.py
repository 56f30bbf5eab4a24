"""The revocations of a node on disk, so that a restart forgets none of them.

The file is TOML with the records in hex and a checksum over all of them, so that a record that is lost is noticed like one that
is changed. It is written under a temporary name and then over the old file: a crash leaves the old records or the new ones. A
damaged file is an error when a node starts: what it revoked would be trusted again. All nodes of a fleet hold the same
records, so that the file of another node can replace it.

The engine keeps the records in memory (policy/revocations.py); node/policies/revocationkeeper.py writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from meshbus.errors import ConfigError, RemoteProtocolError
from meshbus.keyfile import VERSION, from_hex, read_table, replace_file
from meshbus.policy.revocations import MAX_REVOCATIONS
from meshbus.wire.messages.revocation import MAX_RECORD, Revocation, decode_record, encode_record

_MOST_BYTES = (2 * MAX_RECORD + 8) * MAX_REVOCATIONS
"""A longer file is something else."""


def load_revocations(path: Path) -> tuple[Revocation, ...]:
    """Read a file of revocations; without a file there are none. Raises ConfigError if it is damaged or others can change it."""
    if not path.exists():
        return ()
    table = read_table(path, "revocations", _MOST_BYTES)
    lines = table.get("records")
    if not isinstance(lines, list) or len(lines) > MAX_REVOCATIONS:
        raise _damaged(path, f"records must be a list of at most {MAX_REVOCATIONS}")
    raw = [from_hex(line) if isinstance(line, str) else None for line in lines]
    content = [record for record in raw if record is not None]
    if len(content) < len(raw) or _checksum(content) != table.get("sha256"):
        raise _damaged(path, "the checksum does not fit its records")
    return tuple(_read(record, number, path) for number, record in enumerate(content, 1))


def save_revocations(path: Path, records: Iterable[Revocation]) -> None:
    """Replace a file of revocations, completely or not at all. Raises ConfigError."""
    content = [encode_record(record) for record in records]
    lines = "".join(f'    "{record.hex()}",\n' for record in content)
    replace_file(
        path,
        "# What issuers of the fleet revoked: without this file, a node would trust it again after a restart.\n"
        "# `meshbus revoke ls` shows it.\n"
        f'version = {VERSION}\nkind = "revocations"\nsha256 = "{_checksum(content)}"\nrecords = [\n{lines}]\n',
        "revocations",
    )


def _read(raw: bytes, number: int, path: Path) -> Revocation:
    try:
        record = decode_record(raw)
    except RemoteProtocolError as error:
        raise _damaged(path, f"record {number} cannot be read ({error})") from None
    if not record.verify():
        raise _damaged(path, f"record {number} is not signed by its issuer")
    return record


def _checksum(content: Iterable[bytes]) -> str:
    return sha256(b"".join(content)).hexdigest()


def _damaged(path: Path, problem: str) -> ConfigError:
    return ConfigError(
        "revocations",
        f"the file is damaged: {problem}; restore it from a copy, or use a copy of the file of another node of the fleet, which"
        " holds the same records",
        source=str(path),
    )
