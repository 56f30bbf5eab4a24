"""Files and entries of daemons: checkpoints, journals, decisions about moves, and ledgers on replicated channels.

What is in a file has a checksum. The targets write the right one, so that what is behind it is reached: who can write the
file can do so too.
"""

from __future__ import annotations

from itertools import cycle

from fuzz.pieces import cut
from fuzz.target import Target
from meshbus.compute import ledger, records
from meshbus.compute.store import Mark, Status, Stored

_ORIGIN = 7
_NUMBER = bytes(records.NUMBER_BYTES)
_STORED = Stored(mark=Mark(status=Status.ACTIVE), snapshot=b"the state of a daemon " * 4)


def _file(data: bytes) -> None:
    magic = records._CHECKPOINT
    number, stored = records.decode_checkpoint_file(magic + records._digest([magic, data]) + data)
    assert records.decode_checkpoint_file(b"".join(records.encode_checkpoint_file(number, stored))) == (number, stored)


def _journal(data: bytes) -> None:
    """Read groups of all kinds, in turns; the second byte of a piece says how much of the journal is known to be written."""
    kinds = cycle(sorted(records._GROUPS))
    raw, confirmed = b"", 0
    for kind, piece in zip(kinds, cut(data), strict=False):
        raw += records._framed(kind, piece[: records.NUMBER_BYTES], piece[records.NUMBER_BYTES :])
        confirmed = piece[1] if len(piece) > 1 else 0
    whole = records.encode_confirmed(confirmed) + raw
    records.decode_journal(whole, _NUMBER, _STORED)
    records.decode_decisions(whole)


def _torn_journal(data: bytes) -> None:
    records.decode_journal(data, _NUMBER, _STORED)
    records.decode_decisions(data)


def _ledger(data: bytes) -> None:
    kept = ledger.Ledger(_ORIGIN)
    for piece in cut(data):
        entry = ledger.decode_entry(piece)
        assert ledger.decode_entry(ledger.encode_entry(entry)) == entry
        kept.read(entry)
    kept.claim(1)


TARGETS: tuple[Target, ...] = (
    Target("daemon-file", lambda: _file),
    Target("daemon-journal", lambda: _journal),
    Target("daemon-journal-torn", lambda: _torn_journal),
    Target("daemon-ledger", lambda: _ledger),
)
