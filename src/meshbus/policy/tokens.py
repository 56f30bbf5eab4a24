"""Token cache: decides which permission tokens are trusted, and keeps the presented ones (policy.md §7).

A signature proves only who signed. The rules of trust (policy.md §7.5):

- A token counts if its issuer is a *root*, an entity that this node is configured to trust.
- A token of another issuer counts only with a chain of parents up to a root (`verify_chain`): the subject of each parent
  is the issuer of the next token, each parent may delegate, with a greater depth than its child, and no child exceeds
  its parent in scope, channel or time.
- A token whose generation is below the floor of its issuer is revoked. So is one that a record of the fleet names
  (policy/revocations.py), with all that came of it by renewal or of which it came, and every token below it in a chain.

- A token of a key that was succeeded by another one counts for its heir, as long as the fleet holds the record of it.

With `any_issuer` the first two rules do not apply, and the cache behaves as on a 0.23 node: anyone may issue any token,
and a new token replaces an old one of the same scope, whatever its content. It is for parity tests, and for networks
that rely on that. Times are unix seconds. The bytes of a token are in wire/messages/token.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

from meshbus.errors import AuthError, AuthFault
from meshbus.names.channel import hash_name, prefixes_of
from meshbus.policy.bound import Bound, By
from meshbus.wire.messages.token import MAX_CHAIN, PermissionToken, Scope

MAX_SLOTS = 65_536
"""Slots of the cache (policy.md §7.4)."""
MAX_PER_SLOT = 32
"""Tokens in one slot (policy.md §7.4)."""

Chain: TypeAlias = tuple[PermissionToken, ...]
"""Tokens from that of a root to the one that is used; a token of a root is a chain of one."""

_Slot: TypeAlias = tuple[bytes, int]
"""Subject and channel hash; wildcard tokens are in the slot of channel 0 (policy.md §7.4)."""


BOUNDS = (
    Bound(
        name="tokens",
        what="subjects and channels with a permission token",
        by=By.PEER,
        per_node=MAX_SLOTS,
        per={"subject and channel": MAX_PER_SLOT},
        full="the new one is not kept",
        counter="dropped of the token cache",
    ),
)


def verify_chain(tokens: Sequence[PermissionToken], roots: Collection[bytes], now: float, skew_s: int = 0) -> None:
    """Check that a chain leads from a root to its last token, and that all its tokens are valid now.

    Raises AuthError with the first fault.
    """
    # Before the signatures: comparing fields is cheap, each signature costs a curve operation.
    _check_shape(tokens, roots)
    for token in tokens:
        token.verify(now, skew_s)


class TokenCache:
    """The tokens presented to this node, and the permissions that follow from them."""

    def __init__(self, trusted_issuers: Iterable[bytes] = (), *, any_issuer: bool = False, skew_s: int = 0) -> None:
        self.trusted_issuers = frozenset(trusted_issuers)
        self.any_issuer = any_issuer
        self.skew_s = skew_s
        self.dropped = 0
        """Number of tokens for which there was no room."""
        self._slots: dict[_Slot, list[Chain]] = {}
        self._floors: dict[bytes, int] = {}
        self._has_prefixes = False
        """Whether a token for a prefix was ever kept; until then, no name is cut into its prefixes."""
        self._revoked: set[bytes] = set()
        """Lines of tokens that were revoked one by one."""
        self.earlier_of: Callable[[bytes], Sequence[bytes]] = _none
        """Returns the keys that a key has succeeded (policy/revocations.py); their tokens count for it."""

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def trust(self, issuers: Iterable[bytes]) -> None:
        """Accept tokens of these issuers only; kept tokens that rest on another one are dropped."""
        self.trusted_issuers = frozenset(issuers)
        if self.any_issuer:
            return
        for slot, chains in list(self._slots.items()):
            kept = [chain for chain in chains if chain[0].issuer in self.trusted_issuers]
            if kept:
                self._slots[slot] = kept
            else:
                del self._slots[slot]

    def insert(self, token: PermissionToken) -> bool:
        """Keep a token, even if it is not valid now; return False if there is no room for it.

        A token of another issuer than a root is kept if a cached token is its valid parent. Raises AuthError if the
        signature is wrong or the issuer is not trusted.
        """
        return self._keep(self._prove_alone(token))

    def insert_chain(self, tokens: Sequence[PermissionToken]) -> bool:
        """Keep the last token of a chain, which the others prove; return False if there is no room for it.

        A chain of one is a plain token. Raises AuthError if the chain is not valid.
        """
        return self.present(tokens).keep()

    def present(self, tokens: Sequence[PermissionToken]) -> Presented:
        """Verify a chain without keeping it, so that the caller can first check what it permits.

        Raises AuthError as `insert_chain` does.
        """
        # With `any_issuer` the parents prove nothing, because no verifier of the 0.23 wire reads a chain (§7.3).
        if len(tokens) == 1 or (tokens and self.any_issuer):
            return Presented(self, self._prove_alone(tokens[-1]))
        _check_shape(tokens, self.trusted_issuers)
        for token in tokens:
            _check_signature(token)
        return Presented(self, tuple(tokens))

    def check(self, subject: bytes, action: int, channel: str | int, now: float) -> bool:
        """Return whether a cached token permits the subject an action on a channel, given by name or hash, now."""
        for chain in self._candidates(subject, channel):
            if chain[-1].authorizes(action, channel) and self._counts(chain, now):
                return True
        return False

    def permitted_until(self, subject: bytes, action: int, channel: str | int, now: float) -> int:
        """Return the time at which the last of the tokens that permit the action now expires, or 0 if there is none."""
        ends = (
            chain[-1].not_after + self.skew_s
            for chain in self._candidates(subject, channel)
            if chain[-1].authorizes(action, channel) and self._counts(chain, now)
        )
        return max(ends, default=0)

    def get(self, subject: bytes, channel_hash: int, now: float) -> PermissionToken | None:
        """Return the first valid token of this exact subject and channel, or else the first one, or None."""
        chains = self._slots.get((subject, channel_hash))
        if not chains:
            return None
        # policy.md §7.4: in the order of insertion.
        return next((chain[-1] for chain in chains if self._counts(chain, now)), chains[0][-1])

    def renew(self, token: PermissionToken) -> bool:
        """Replace a kept token of a root by one of a root that follows it; return whether there was one.

        Raises AuthError if the signature is wrong or the issuer is not trusted.
        """
        slot = self._slots.get(_slot_of(token), [])
        place = next((index for index, (*_, old) in enumerate(slot) if token.follows(old)), None)
        if place is None or token.issuer not in self.trusted_issuers:
            return False
        _check_signature(token)
        slot[place] = (token,)
        return True

    def revoke_below(self, issuer: bytes, generation: int) -> None:
        """Revoke the tokens of an issuer below a generation. The floor never decreases."""
        # policy.md §7.4: monotonic, so that a revoked token cannot become valid again.
        self._floors[issuer] = max(generation, self.floor(issuer))

    def floor(self, issuer: bytes) -> int:
        """Return the lowest generation of an issuer that is not revoked."""
        return self._floors.get(issuer, 0)

    def names(self, token: PermissionToken, entity_id: bytes | None) -> bool:
        """Return whether an entity is the subject of a token, or has succeeded it."""
        return entity_id is not None and (token.subject == entity_id or token.subject in self.earlier_of(entity_id))

    def revoke(self, token: PermissionToken) -> None:
        """Revoke a token with all of its line."""
        # Not by its signature: whoever issued it could sign the same again in another way.
        self._revoked.add(token.line)

    def revoke_only(self, tokens: Iterable[PermissionToken]) -> None:
        """Revoke these tokens with all of their lines, and no others; what was below a floor stays so."""
        self._revoked = {token.line for token in tokens}

    def revoked(self, token: PermissionToken) -> bool:
        """Return whether a token is below the floor of its issuer, or one of its line was revoked."""
        if token.issuer_generation < self.floor(token.issuer):
            return True
        return bool(self._revoked) and token.line in self._revoked

    def evict_expired(self, now: float) -> int:
        """Remove the expired tokens, and return how many there were."""
        before = len(self)
        for slot, chains in list(self._slots.items()):
            kept = [chain for chain in chains if not chain[-1].expired(now, self.skew_s)]
            if kept:
                self._slots[slot] = kept
            else:
                del self._slots[slot]
        return before - len(self)

    def _prove_alone(self, token: PermissionToken) -> Chain:
        """Return the chain that proves a single token; raise AuthError if there is none."""
        _check_signature(token)
        if self.any_issuer or token.issuer in self.trusted_issuers:
            return (token,)
        for parent in self._candidates(token.issuer, token.channel_hash):
            chain = (*parent, token)
            if _link_fault(parent[-1], token) is None and len(chain) <= MAX_CHAIN:
                return chain
        raise AuthError(
            AuthFault.NOT_AUTHORIZED,
            f"the issuer {token.issuer.hex()} is not trusted, and no cached token delegates to it;"
            " add it to trusted_issuers, or present the whole chain",
        )

    def _counts(self, chain: Chain, now: float) -> bool:
        # The lifetime of a child is within that of its parent, so only the last token's time has to be checked.
        return chain[-1].valid(now, self.skew_s) and not (
            (self._floors or self._revoked) and any(map(self.revoked, chain))
        )

    def _candidates(self, subject: bytes, channel: str | int) -> Sequence[Chain]:
        channel_hash = channel if isinstance(channel, int) else hash_name(channel)
        found = self._slots.get((subject, channel_hash), [])
        # policy.md §7.4: the exact slot first, then the one of wildcards.
        others = [0] if channel_hash else []
        if self._has_prefixes and isinstance(channel, str):
            others += prefixes_of(channel)
        for other in others:
            if more := self._slots.get((subject, other)):
                found = [*found, *more]
        for before in self.earlier_of(subject):
            for other in (channel_hash, *others):
                if more := self._slots.get((before, other)):
                    found = [*found, *more]
        return found

    def _keep(self, chain: Chain) -> bool:
        token = chain[-1]
        # policy.md §7.4: overflow is dropped, so that a flood of tokens cannot evict valid ones.
        slot = _slot_of(token)
        chains = self._slots.get(slot)
        if chains is None:
            if len(self._slots) >= MAX_SLOTS:
                self.dropped += 1
                return False
            chains = self._slots[slot] = []
        place = self._place(chains, token)
        if place is None:
            self.dropped += 1
            return False
        chains[place : place + 1] = [chain]
        self._has_prefixes |= token.is_prefix
        return True

    def _place(self, chains: list[Chain], token: PermissionToken) -> int | None:
        """Return the index at which to store a token (the end of the list appends), or None if there is no room.

        With `any_issuer`, a token replaces the one of equal scope (policy.md §7.4). Otherwise it replaces only itself,
        so that a good token is not lost to a worse one (§7.5); in a full slot it replaces the one that expires first,
        if it lasts longer.
        """
        for index, (*_, old) in enumerate(chains):
            if old.scope == token.scope if self.any_issuer else old == token:
                return index
        if len(chains) < MAX_PER_SLOT:
            return len(chains)
        first = min(range(len(chains)), key=lambda index: chains[index][-1].not_after)
        return None if self.any_issuer or token.not_after <= chains[first][-1].not_after else first


class Presented:
    """A verified chain that is not kept yet; it answers `check` like a cache that holds only this chain."""

    __slots__ = ("_cache", "_chain")

    def __init__(self, cache: TokenCache, chain: Chain) -> None:
        self._cache = cache
        self._chain = chain

    @property
    def token(self) -> PermissionToken:
        """The last token of the chain, which is the one that is used."""
        return self._chain[-1]

    def check(self, subject: bytes, action: int, channel: str | int, now: float) -> bool:
        """Return whether the token permits the subject an action on a channel now; the cache's revocations apply."""
        token = self.token
        cache = self._cache
        return cache.names(token, subject) and token.authorizes(action, channel) and cache._counts(self._chain, now)

    def keep(self) -> bool:
        """Put the token into the cache; return False if there is no room for it."""
        return self._cache._keep(self._chain)


def _none(_entity_id: bytes) -> Sequence[bytes]:
    return ()


def _slot_of(token: PermissionToken) -> _Slot:
    return token.subject, 0 if token.is_wildcard else token.channel_hash


def _check_signature(token: PermissionToken) -> None:
    if not token.has_good_signature():
        raise AuthError(AuthFault.BAD_SIGNATURE, f"the token is not signed by its issuer {token.issuer.hex()}")


def _check_shape(tokens: Sequence[PermissionToken], roots: Collection[bytes]) -> None:
    """Check everything about a chain except signatures and the current time."""
    if not 1 <= len(tokens) <= MAX_CHAIN:
        raise AuthError(AuthFault.NOT_AUTHORIZED, f"a chain must have 1 to {MAX_CHAIN} tokens, got {len(tokens)}")
    if tokens[0].issuer not in roots:
        problem = f"the chain does not start at a trusted issuer, but at {tokens[0].issuer.hex()}"
        raise AuthError(AuthFault.NOT_AUTHORIZED, problem)
    for parent, child in pairwise(tokens):
        fault = _link_fault(parent, child)
        if fault is not None:
            raise AuthError(fault, "a token of the chain exceeds what its parent delegates")


def _link_fault(parent: PermissionToken, child: PermissionToken) -> AuthFault | None:
    """Return the fault of `child` as a delegation of `parent`, or None; signatures and time are not checked.

    policy.md §7.3 has the rules of delegation; 0.23 nodes never verify them.
    """
    # Strictly falling, so that a chain cannot be longer than its root allowed.
    if parent.delegation_depth <= child.delegation_depth:
        return AuthFault.DELEGATION_EXHAUSTED
    if not parent.allows(Scope.DELEGATE):
        return AuthFault.DELEGATION_NOT_ALLOWED
    within = (
        child.issuer == parent.subject
        and child.scope & ~parent.scope == 0
        and (parent.is_wildcard or child.channel_hash == parent.channel_hash)
        and parent.not_before <= child.not_before
        and child.not_after <= parent.not_after
    )
    return None if within else AuthFault.NOT_AUTHORIZED
