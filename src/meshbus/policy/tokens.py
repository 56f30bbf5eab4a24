"""Which tokens count here: trusted issuers, delegation chains, revocation, and a bounded cache of what was presented.

A signature only proves who signed. The rules of trust:

- A token counts when its issuer is a *root*: one of the entities this node was told to trust.
- A token of anyone else counts only with a chain of parents up to a root (`verify_chain`): each parent's subject is
  the next issuer, each parent may delegate and deeper than its child, and no child reaches further than its parent in
  scope, channel or time.
- A token whose generation is below its issuer's floor is revoked, and with it every token below it in a chain.

`any_issuer` gives up the first two rules and takes on the other implementation's habits, where anyone may issue
anything and a new token replaces an old one of the same scope whatever it says: for parity tests, and for networks
that rely on it. Time is unix seconds. The bytes of a token are in wire/messages/token.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

from meshbus.errors import AuthError, AuthFault
from meshbus.wire.messages.token import MAX_CHAIN, PermissionToken, Scope

MAX_SLOTS = 65_536
MAX_PER_SLOT = 32

Chain: TypeAlias = tuple[PermissionToken, ...]
"""Tokens from a root's down to the one that is used; a directly trusted token is a chain of one."""

_Slot: TypeAlias = tuple[bytes, int]
"""Subject and channel hash; tokens for every channel are under channel 0."""


def verify_chain(tokens: Sequence[PermissionToken], roots: Collection[bytes], now: float, skew_s: int = 0) -> None:
    """Check that a chain leads from a root to its last token, and that this one is valid now.

    Raises AuthError with the first fault.
    """
    _check_shape(tokens, roots)
    for token in tokens:
        token.verify(now, skew_s)


class TokenCache:
    """The tokens presented to this node, and what they let their subjects do."""

    def __init__(self, trusted_issuers: Iterable[bytes] = (), *, any_issuer: bool = False, skew_s: int = 0) -> None:
        self.trusted_issuers = frozenset(trusted_issuers)
        self.any_issuer = any_issuer
        self.skew_s = skew_s
        self.dropped = 0
        """Tokens that found no room."""
        self._slots: dict[_Slot, list[Chain]] = {}
        self._floors: dict[bytes, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def insert(self, token: PermissionToken) -> bool:
        """Keep a token, valid now or not; False when there is no room for it.

        A delegate's token is kept when a cached one proves it. Raises AuthError when the signature is bad or nothing
        here makes the issuer trusted.
        """
        return self._keep(self._prove_alone(token))

    def insert_chain(self, tokens: Sequence[PermissionToken]) -> bool:
        """Keep the last token of a chain on the strength of the others; False when there is no room for it.

        A chain of one is a plain token. Raises AuthError when the chain does not hold.
        """
        return self.present(tokens).keep()

    def present(self, tokens: Sequence[PermissionToken]) -> Presented:
        """Prove a chain without keeping it, so that it can be asked first what it is good for.

        Raises AuthError as `insert_chain` does.
        """
        if len(tokens) == 1 or (tokens and self.any_issuer):
            return Presented(self, self._prove_alone(tokens[-1]))
        _check_shape(tokens, self.trusted_issuers)
        for token in tokens:
            _check_signature(token)
        return Presented(self, tuple(tokens))

    def check(self, subject: bytes, action: int, channel_hash: int, now: float) -> bool:
        """Return whether a kept token lets the subject do this on this channel now."""
        for chain in self._candidates(subject, channel_hash):
            if chain[-1].authorizes(action, channel_hash) and self._counts(chain, now):
                return True
        return False

    def get(self, subject: bytes, channel_hash: int, now: float) -> PermissionToken | None:
        """Return the first token under exactly this subject and channel that is valid now, or else the first."""
        chains = self._slots.get((subject, channel_hash))
        if not chains:
            return None
        return next((chain[-1] for chain in chains if self._counts(chain, now)), chains[0][-1])

    def revoke_below(self, issuer: bytes, generation: int) -> None:
        """Revoke the issuer's tokens of lower generations; a floor never sinks again."""
        self._floors[issuer] = max(generation, self.floor(issuer))

    def floor(self, issuer: bytes) -> int:
        """Return the lowest generation of an issuer that counts."""
        return self._floors.get(issuer, 0)

    def revoked(self, token: PermissionToken) -> bool:
        """Return whether the token's own issuer has revoked it."""
        return token.issuer_generation < self.floor(token.issuer)

    def evict_expired(self, now: float) -> int:
        """Drop the tokens whose time is over, and say how many they were."""
        before = len(self)
        for slot, chains in list(self._slots.items()):
            kept = [chain for chain in chains if not chain[-1].expired(now, self.skew_s)]
            if kept:
                self._slots[slot] = kept
            else:
                del self._slots[slot]
        return before - len(self)

    def _prove_alone(self, token: PermissionToken) -> Chain:
        """Find the chain that makes a single token count."""
        _check_signature(token)
        if self.any_issuer or token.issuer in self.trusted_issuers:
            return (token,)
        for parent in self._candidates(token.issuer, token.channel_hash):
            chain = (*parent, token)
            if _link_fault(parent[-1], token) is None and len(chain) <= MAX_CHAIN:
                return chain
        raise AuthError(AuthFault.NOT_AUTHORIZED, "the token's issuer is not trusted here, and no chain leads to it")

    def _counts(self, chain: Chain, now: float) -> bool:
        # A child's life lies within its parent's, so the last token answers for the time of all.
        return chain[-1].valid(now, self.skew_s) and not (self._floors and any(map(self.revoked, chain)))

    def _candidates(self, subject: bytes, channel_hash: int) -> Sequence[Chain]:
        exact = self._slots.get((subject, channel_hash), [])
        for_all = self._slots.get((subject, 0)) if channel_hash else None
        return [*exact, *for_all] if for_all else exact

    def _keep(self, chain: Chain) -> bool:
        token = chain[-1]
        slot = (token.subject, 0 if token.is_wildcard else token.channel_hash)
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
        return True

    def _place(self, chains: list[Chain], token: PermissionToken) -> int | None:
        """Find the index to write a token at; the end of the list appends.

        With any_issuer a token replaces the one of equal scope. Otherwise it replaces only itself, so that nobody
        loses a good token to a worse one; in a full slot the token that expires first makes room for a longer one.
        """
        for index, (*_, old) in enumerate(chains):
            if old.scope == token.scope if self.any_issuer else old == token:
                return index
        if len(chains) < MAX_PER_SLOT:
            return len(chains)
        first = min(range(len(chains)), key=lambda index: chains[index][-1].not_after)
        return None if self.any_issuer or token.not_after <= chains[first][-1].not_after else first


class Presented:
    """A chain that was proven and is not kept yet: answers as a cache that holds nothing else."""

    __slots__ = ("_cache", "_chain")

    def __init__(self, cache: TokenCache, chain: Chain) -> None:
        self._cache = cache
        self._chain = chain

    @property
    def token(self) -> PermissionToken:
        """The token that is used: the last of the chain."""
        return self._chain[-1]

    def check(self, subject: bytes, action: int, channel_hash: int, now: float) -> bool:
        """Return whether the token lets the subject do this on this channel now; the cache's revocations count."""
        token = self.token
        return (
            token.subject == subject
            and token.authorizes(action, channel_hash)
            and self._cache._counts(self._chain, now)
        )

    def keep(self) -> bool:
        """Put the token into the cache; False when there is no room for it."""
        return self._cache._keep(self._chain)


def _check_signature(token: PermissionToken) -> None:
    if not token.has_good_signature():
        raise AuthError(AuthFault.BAD_SIGNATURE, "the token's signature is not its issuer's")


def _check_shape(tokens: Sequence[PermissionToken], roots: Collection[bytes]) -> None:
    """Check everything about a chain but signatures and the present time."""
    if not 1 <= len(tokens) <= MAX_CHAIN:
        raise AuthError(AuthFault.NOT_AUTHORIZED, f"a chain has 1 to {MAX_CHAIN} tokens, got {len(tokens)}")
    if tokens[0].issuer not in roots:
        raise AuthError(AuthFault.NOT_AUTHORIZED, "the chain does not start at a trusted issuer")
    for parent, child in pairwise(tokens):
        fault = _link_fault(parent, child)
        if fault is not None:
            raise AuthError(fault, "a token of the chain goes beyond the one it comes from")


def _link_fault(parent: PermissionToken, child: PermissionToken) -> AuthFault | None:
    """Return what is wrong with `child` as a delegation of `parent`, signatures and the present time aside."""
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
