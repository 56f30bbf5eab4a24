"""Revocations in effect at one node: the records themselves, and the questions that every part of the engine asks.

The set only grows, so the order in which records come and how often they come does not matter, and a replayed one changes
nothing. There is one exception: a record about a token goes a day after the token has expired, when it means nothing any more,
unless the token is renewable: its line may go on for as long as there is an issuer that does not know the record.
Of several records about the same, the last one is kept.

Who signed a record is checked before it comes here: by engine/directory/revoking.py, and when a file is read
(node/policies/revocationfile.py). Peers are known by their node id, which is a hash of the key that a record names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshbus.names.identity import derive_origin_hash
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.policy.tokens import TokenCache
from meshbus.wire.messages.revocation import Revocation, Revoked

MAX_REVOCATIONS = 4096
"""Records of one fleet. Our choice: a node in ten of forty thousand; they take about a megabyte."""
KEPT_S = 86_400
"""How long the record of an expired token stays: clocks that differ by less agree that it is over."""

BOUNDS = (
    Bound(
        name="revocations",
        what="records of what was revoked, in memory and on disk",
        by=By.PEER,
        per_node=MAX_REVOCATIONS,
        full="the new one is refused; only issuers of the fleet can fill it",
        cost="a signature check, paid by the share of the peer that sent it",
        counter=Reason.REVOCATION_FULL,
    ),
)


class Revocations:
    """The records that a node holds."""

    def __init__(self, tokens: TokenCache, records: Iterable[Revocation] = ()) -> None:
        """Begin with verified records; those about tokens are passed on to the cache of tokens."""
        self.version = 0
        """Incremented with every change."""
        self.nodes: set[int] = set()
        """Node ids that get no session."""
        self.publishers: set[int] = set()
        """Node ids that may not publish, those of `nodes` among them."""
        self.subscribers: set[int] = set()
        """Node ids that may not subscribe, those of `nodes` among them."""
        self.origins: set[int] = set()
        """The origin hashes of `publishers`."""
        self._tokens = tokens
        self._records: dict[bytes, Revocation] = {}
        for record in records:
            self.add(record)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Revocation]:
        return iter(list(self._records.values()))

    def __contains__(self, record_id: object) -> bool:
        return record_id in self._records

    @property
    def full(self) -> bool:
        """Whether there is no room for another record."""
        return len(self._records) >= MAX_REVOCATIONS

    def get(self, record_id: bytes) -> Revocation | None:
        """Return a record by its id, or None."""
        return self._records.get(record_id)

    def of(self, node_id: int) -> list[Revocation]:
        """Return the records about a node."""
        return [record for record in self._records.values() if record.node_id == node_id]

    def add(self, record: Revocation) -> bool:
        """Add a verified record, and return whether anything is revoked by it that was not. The caller has looked for room."""
        known = record.id in self._records
        self._records[record.id] = record
        if known:
            return False
        self.version += 1
        token = record.token
        if token is not None:
            self._tokens.revoke(token)
            return True
        if record.what in {Revoked.NODE, Revoked.PUBLISH}:
            self.publishers.add(record.node_id)
            self.origins.add(derive_origin_hash(record.subject))
        if record.what in {Revoked.NODE, Revoked.SUBSCRIBE}:
            self.subscribers.add(record.node_id)
        if record.what is Revoked.NODE:
            self.nodes.add(record.node_id)
        return True

    def expire(self, unix: int) -> int:
        """Remove the records of tokens that expired a day ago, and return how many there were."""
        over = [record_id for record_id, record in self._records.items() if is_over(record, unix)]
        for record_id in over:
            del self._records[record_id]
        if over:
            self.version += 1
            left = (record.token for record in self._records.values())
            self._tokens.revoke_only(token for token in left if token is not None)
        return len(over)


def is_over(record: Revocation, unix: int) -> bool:
    """Return whether a record is about a token that expired at least a day ago for good, so that nobody needs it."""
    token = record.token
    return token is not None and not token.is_renewable and token.expired(unix - KEPT_S)
