"""Revocations in effect at one node: the records themselves, and the questions that every part of the engine asks.

The set only grows, so the order in which records come and how often they come does not matter, and a replayed one changes
nothing. There is one exception: a record about a token goes a day after the token has expired, when it means nothing any more,
unless the token is renewable: its line may go on for as long as there is an issuer that does not know the record.
Of several records about the same, the last one is kept.

A succession retires a key as the revocation of its node does, and names the *heir*: the key by which the same node goes on.
Heirs are found along the chain of records, so that A, succeeded by B, succeeded by C, has the heir C. A key that has two
different heirs has none, and neither has one whose chain ends in a circle: whatever the order of the records, every node comes to
the same answer, and nobody gains anything by a second one. What was taken from a key is taken from its heirs, too.

Who signed a record is checked before it comes here: by engine/directory/revoking.py, and when a file is read
(node/policies/revocationfile.py). Peers are known by their node id, which is a hash of the key that a record names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshbus.names.identity import derive_node_id, derive_origin_hash
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason
from meshbus.policy.tokens import TokenCache
from meshbus.wire.messages.revocation import Revocation, Revoked

MAX_REVOCATIONS = 4096
"""Records of one fleet. Our choice: a node in ten of forty thousand; they take about a megabyte."""
MAX_UNENDORSED = 1024
"""Successions that no issuer signed. Our choice: any member can sign them for keys that it invents, so they must leave room."""
KEPT_S = 86_400
"""How long the record of an expired token stays: clocks that differ by less agree that it is over."""

EVERYTHING = frozenset({Revoked.NODE, Revoked.SUCCESSION})
"""What leaves a key without any right."""

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
    Bound(
        name="successions",
        what="successions that no issuer signed, in a fleet without issuers",
        by=By.MEMBER,
        per_node=MAX_UNENDORSED,
        full="the new one is refused; in a fleet with issuers none is taken",
        cost="two signature checks, paid by the share of the peer that sent it",
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
        """The origin hashes of `publishers`, without those of keys that were succeeded."""
        self._tokens = tokens
        self._records: dict[bytes, Revocation] = {}
        self._heirs: dict[bytes, set[bytes]] = {}
        """The keys that were named as the heir of a key."""
        self._ancestors: dict[bytes, set[bytes]] = {}
        """The same, from the heir to those that it succeeded."""
        self._keys: dict[int, bytes] = {}
        """Keys that were succeeded, and those that succeeded them, by their node id."""
        self._limited: dict[bytes, set[Revoked]] = {}
        """Keys that lost one of their rights, or succeeded one that had."""
        self._unendorsed = 0
        """Successions that no issuer signed."""
        tokens.earlier_of = self.earlier_of
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

    @property
    def crowded(self) -> bool:
        """Whether there is no room for another succession that no issuer signed."""
        return self.full or self._unendorsed >= MAX_UNENDORSED

    def heir_of(self, entity_id: bytes) -> bytes | None:
        """Return the key that took the place of a key, at the end of its chain; None if it has no heir."""
        passed = {entity_id}
        heir = entity_id
        while heirs := self._heirs.get(heir):
            (heir, *others) = heirs
            if others or heir in passed:
                return None
            passed.add(heir)
        return None if heir == entity_id else heir

    def earlier_of(self, entity_id: bytes) -> list[bytes]:
        """Return the keys whose heir a key is, the last one first."""
        found: list[bytes] = []
        if entity_id in self._heirs:
            return found
        # A key with one heir, in a chain that ends here, has this heir: no fork and no circle can be on the way.
        reached = [entity_id]
        while reached:
            before = [key for key in self._ancestors.get(reached.pop(0), ()) if len(self._heirs[key]) == 1]
            found += before
            reached += before
        return found

    def heir_id(self, node_id: int) -> int:
        """Return the id of the node that took the place of a node, or the same id if it has no heir."""
        entity_id = self._keys.get(node_id)
        heir = None if entity_id is None else self.heir_of(entity_id)
        return node_id if heir is None else derive_node_id(heir)

    def key_of(self, node_id: int) -> bytes | None:
        """Return the key of a node that a succession names, or None."""
        return self._keys.get(node_id)

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
        if record.token is not None:
            self._tokens.revoke(record.token)
            return True
        self._cut(record.subject, record.what)
        if record.heir is not None:
            self._unendorsed += not record.is_endorsed
            self._succeed(record.subject, record.heir)
        return True

    def _cut(self, entity_id: bytes, what: Revoked) -> None:
        """Take a right from a key; what is less than everything is taken from all that succeeded it, too."""
        losing = [entity_id]
        while losing:
            one = losing.pop()
            node_id = derive_node_id(one)
            if what is not Revoked.SUBSCRIBE:
                self.publishers.add(node_id)
            # What a key published is the work of its heir: relays still pass on what its streams repeat.
            if what in {Revoked.NODE, Revoked.PUBLISH}:
                self.origins.add(derive_origin_hash(one))
            if what is not Revoked.PUBLISH:
                self.subscribers.add(node_id)
            if what in EVERYTHING:
                self.nodes.add(node_id)
            elif what not in (limited := self._limited.setdefault(one, set())):
                limited.add(what)
                # Of a fork both ways, so that the order of records does not matter.
                losing += self._heirs.get(one, ())

    def _succeed(self, subject: bytes, heir: bytes) -> None:
        self._heirs.setdefault(subject, set()).add(heir)
        self._ancestors.setdefault(heir, set()).add(subject)
        for entity_id in (subject, heir):
            self._keys[derive_node_id(entity_id)] = entity_id
        for what in self._limited.get(subject, ()):
            self._cut(heir, what)

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
