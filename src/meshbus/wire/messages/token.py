"""Permission tokens: 169 bytes in which an issuer permits a subject to use a channel (policy.md §7.2).

A token is signed and self-contained, so that it is verified without asking anyone. This module checks a single token:
its bytes, signature, times and scope. policy/tokens.py decides whether its issuer is trusted. A delegated token carries
no link to its parent, so the parents are sent with it as a *chain*: one token after the other, the root's first. From
0.27 on, net-mesh reads only chains with their length in front, also those of one token (dialects.md §2.6).

Times are unix seconds. A token is valid from `not_before` up to, and not including, `not_after`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntFlag

import msgspec

from meshbus.errors import AuthError, AuthFault, Fault, LocalProtocolError, MalformedPacket
from meshbus.names.channel import ChannelName, hash_name, hash_prefix, prefixes_of
from meshbus.names.identity import KEY_BYTES, SIGNATURE_BYTES, Entropy, Identity, verify_signature
from meshbus.wire.header import Buffer
from meshbus.wire.layout import Layout

TOKEN_BYTES = 169
MAX_CHAIN = 8
"""Tokens in one chain, because each costs a signature check. Our choice: seven delegations are enough."""

_MAX_U64 = 0xFFFFFFFFFFFFFFFF
# policy.md §7.2: the signature covers exactly these 105 bytes, without a prefix for domain separation.
_SIGNED = Layout("token", "<32s32sIQIQQBQ")
_TOKEN = Layout("token", "<32s32sIQIQQBQ64s")
SIGNED_BYTES = _SIGNED.size
"""105: the bytes of a token that its signature covers. They name the token: another valid signature makes no other one."""


class Scope(IntFlag):
    """What a token permits; other bits are carried and signed, but have no meaning."""

    NONE = 0
    PUBLISH = 0x01
    SUBSCRIBE = 0x02
    ADMIN = 0x04
    DELEGATE = 0x08
    WILDCARD = 0x10
    """For every channel instead of one; permits nothing by itself."""
    ALL = 0x0F
    """Everything on one channel, that is, without WILDCARD."""
    PREFIX = 0x2000_0000
    """For every channel under a prefix; only meshbus nodes know it. Elsewhere such a token permits nothing."""
    RENEWABLE = 0x4000_0000
    """The issuer may be asked for a token that follows it (engine/channels/renewal.py); only meshbus nodes know it."""


_WILDCARD = int(Scope.WILDCARD)
_PREFIX = int(Scope.PREFIX)
_RENEWABLE = int(Scope.RENEWABLE)


class PermissionToken(msgspec.Struct, frozen=True):
    """One token, fields in wire order."""

    issuer: bytes
    """Entity id of the signer."""
    subject: bytes
    """Entity id of the node that may use it."""
    scope: int
    """Bits of `Scope`. A plain int, because an IntFlag caches every value that it sees, and peers choose these."""
    channel_hash: int
    issuer_generation: int
    """An issuer revokes tokens by raising the lowest generation that counts (policy.md §7.4)."""
    not_before: int
    not_after: int
    delegation_depth: int
    """How many more times it may be delegated."""
    nonce: int
    """Random, and the same in all tokens that follow from one by renewal."""
    signature: bytes

    @classmethod
    def issue(
        cls,
        issuer: Identity,
        subject: bytes,
        scope: int,
        channel: str | None,
        *,
        ttl_s: int,
        now: float,
        entropy: Entropy,
        delegation_depth: int = 0,
        generation: int = 0,
    ) -> PermissionToken:
        """Sign a token valid from `now` (unix seconds) for `ttl_s` seconds.

        Without a channel the scope must hold WILDCARD. A channel that ends with a slash is a prefix. Raises AuthError for
        a lifetime of 0 or an issuer without its secret, LocalProtocolError for values that do not fit.
        """
        if ttl_s <= 0:
            raise AuthError(AuthFault.ZERO_TTL, "ttl_s must be at least 1")
        if channel is None and not scope & Scope.WILDCARD:
            raise LocalProtocolError("a token is for one channel, or for all with WILDCARD in its scope")
        bits, channel_hash = int(scope), 0
        if channel is not None and channel.endswith("/"):
            bits, channel_hash = bits | _PREFIX, hash_prefix(channel)
        elif channel is not None:
            channel_hash = ChannelName(channel).hash
        start = int(now)
        return _signed(
            issuer,
            subject,
            scope=bits,
            channel_hash=channel_hash,
            generation=generation,
            not_before=start,
            # policy.md §7.2: saturates instead of overflowing.
            not_after=min(start + ttl_s, _MAX_U64),
            delegation_depth=delegation_depth,
            entropy=entropy,
        )

    def delegate(
        self, signer: Identity, new_subject: bytes, scope: int, *, now: float, entropy: Entropy
    ) -> PermissionToken:
        """Delegate the permissions of this token within `scope` to another subject.

        Raises AuthError, checked in this order: this token is not valid now, may not be delegated further, does not
        allow delegation, does not belong to the signer.
        """
        # policy.md §7.3 fixes the order of these checks; the first fault is the one that is reported.
        self.verify(now)
        if self.delegation_depth == 0:
            raise AuthError(AuthFault.DELEGATION_EXHAUSTED, "the token cannot be delegated further")
        if not self.allows(Scope.DELEGATE):
            raise AuthError(AuthFault.DELEGATION_NOT_ALLOWED, "the token's scope does not include DELEGATE")
        if signer.entity_id != self.subject:
            raise AuthError(AuthFault.NOT_AUTHORIZED, "only the subject of a token can delegate it")
        return _signed(
            signer,
            new_subject,
            scope=self.scope & (int(scope) | _PREFIX),  # a prefix stays a prefix
            channel_hash=self.channel_hash,
            generation=self.issuer_generation,
            not_before=int(now),
            # policy.md §7.3: a child ends with its parent, and keeps its generation.
            not_after=self.not_after,
            delegation_depth=self.delegation_depth - 1,
            entropy=entropy,
        )

    @property
    def signed_bytes(self) -> bytes:
        """The 105 bytes that the signature covers."""
        return _SIGNED.pack(*msgspec.structs.astuple(self)[:-1])

    @property
    def line(self) -> bytes:
        """Names a token and all that come of it by renewal: what is signed, without the issuer and the times."""
        fields = {"issuer": bytes(KEY_BYTES), "not_before": 0, "not_after": 0}
        return msgspec.structs.replace(self, **fields).signed_bytes

    def verify(self, now: float, skew_s: int = 0) -> None:
        """Check the signature, then the times, tolerating clocks that differ by `skew_s`.

        Raises AuthError with the first fault. Costs a signature check.
        """
        if not self.has_good_signature():
            raise AuthError(AuthFault.BAD_SIGNATURE, "the token is not signed by its issuer")
        if int(now) + skew_s < self.not_before:
            raise AuthError(AuthFault.NOT_YET_VALID, f"the token is valid only from {self.not_before} on")
        if self.expired(now, skew_s):
            raise AuthError(AuthFault.EXPIRED, f"the token expired at {self.not_after}; ask its issuer for a new one")

    def has_good_signature(self) -> bool:
        """Return whether the issuer signed this, regardless of the time."""
        return verify_signature(self.issuer, self.signed_bytes, self.signature)

    def valid(self, now: float, skew_s: int = 0) -> bool:
        """Return whether the token is valid at this time; the signature is not checked."""
        return int(now) + skew_s >= self.not_before and not self.expired(now, skew_s)

    def expired(self, now: float, skew_s: int = 0) -> bool:
        """Return whether the token has expired; the signature is not checked."""
        # policy.md §7.2: expired at equality.
        return max(int(now) - skew_s, 0) >= self.not_after

    def allows(self, scope: int) -> bool:
        """Return whether the scope includes all the given bits; at least one must be given."""
        bits = int(scope)  # a plain number: arithmetic on enum members is slow
        return bits != 0 and self.scope & bits == bits

    @property
    def is_wildcard(self) -> bool:
        """Whether the token is for every channel."""
        return self.scope & _WILDCARD != 0

    @property
    def is_prefix(self) -> bool:
        """Whether the token is for every channel under a prefix."""
        return self.scope & _PREFIX != 0

    @property
    def is_renewable(self) -> bool:
        """Whether its issuer may be asked for a token that follows it."""
        return self.scope & _RENEWABLE != 0

    def authorizes(self, action: int, channel: str | int) -> bool:
        """Return whether the token is for this action on this channel; time and signature are not checked."""
        return self.allows(action) and self.covers(channel)

    def covers(self, channel: str | int) -> bool:
        """Return whether the token is for a channel, given by its name, or by its hash alone, which no prefix covers."""
        # policy.md §7.2: a channel_hash of 0 is not a wildcard; only the scope makes one.
        if self.is_wildcard or self.channel_hash == (channel if isinstance(channel, int) else hash_name(channel)):
            return True
        return self.is_prefix and isinstance(channel, str) and self.channel_hash in prefixes_of(channel)

    def follows(self, earlier: PermissionToken) -> bool:
        """Return whether this token came of an earlier one by renewal, and lasts longer; issuers are not compared."""
        return self.line == earlier.line and self.not_after > earlier.not_after

    def renewed(self, issuer: Identity, *, now: float, max_s: int) -> PermissionToken:
        """Sign a token that follows this one: for as long as this one, at most for `max_s` seconds, from now on."""
        start = int(now)
        ends = start + min(self.not_after - self.not_before, max_s)
        fields = {"issuer": issuer.entity_id, "not_before": start, "not_after": ends}
        return _sign(issuer, msgspec.structs.replace(self, **fields))


def encode_token(token: PermissionToken) -> bytes:
    """Write a token.

    Raises LocalProtocolError for a field that does not fit.
    """
    _check_sizes(token)
    return token.signed_bytes + token.signature


def decode_token(buffer: Buffer) -> PermissionToken:
    """Read a token; its signature and times are not checked."""
    return PermissionToken(*_TOKEN.unpack(buffer))


def encode_chain(tokens: Sequence[PermissionToken]) -> bytes:
    """Write a chain, the root's token first. A chain of one token is a plain token, which every 0.23 peer reads."""
    if not 1 <= len(tokens) <= MAX_CHAIN:
        raise LocalProtocolError(f"a chain has 1 to {MAX_CHAIN} tokens, got {len(tokens)}")
    return b"".join(map(encode_token, tokens))


def count_chain(chain: bytes) -> bytes:
    """Put its length in front of a chain, as net-mesh reads it from 0.27 on; other bytes are returned as they are."""
    count, rest = divmod(len(chain), TOKEN_BYTES)
    return chain if rest or not 1 <= count <= MAX_CHAIN else bytes((count,)) + chain


def decode_chain(buffer: Buffer) -> tuple[PermissionToken, ...]:
    """Read a chain, with or without its length in front; its tokens are not verified."""
    view = memoryview(buffer)
    count, rest = divmod(len(view), TOKEN_BYTES)
    if rest == 1 and view[0] == count:
        view, rest = view[1:], 0
    if rest or not 1 <= count <= MAX_CHAIN:
        raise MalformedPacket("token chain", Fault.BAD_LENGTH, f"{len(buffer)} bytes")
    return tuple(decode_token(view[start : start + TOKEN_BYTES]) for start in range(0, len(view), TOKEN_BYTES))


def _signed(
    issuer: Identity,
    subject: bytes,
    *,
    scope: int,
    channel_hash: int,
    generation: int,
    not_before: int,
    not_after: int,
    delegation_depth: int,
    entropy: Entropy,
) -> PermissionToken:
    unsigned = PermissionToken(
        issuer=issuer.entity_id,
        subject=subject,
        scope=scope,
        channel_hash=channel_hash,
        issuer_generation=generation,
        not_before=not_before,
        not_after=not_after,
        delegation_depth=delegation_depth,
        nonce=int.from_bytes(entropy(8), "little"),
        signature=bytes(SIGNATURE_BYTES),
    )
    return _sign(issuer, unsigned)


def _sign(issuer: Identity, unsigned: PermissionToken) -> PermissionToken:
    _check_sizes(unsigned)
    return msgspec.structs.replace(unsigned, signature=issuer.sign(unsigned.signed_bytes))


def _check_sizes(token: PermissionToken) -> None:
    """Raise LocalProtocolError for byte strings that `struct` would pad or cut."""
    for name, size in (("issuer", KEY_BYTES), ("subject", KEY_BYTES), ("signature", SIGNATURE_BYTES)):
        # `struct` would silently pad or cut it, and the signature would cover other bytes.
        if len(getattr(token, name)) != size:
            raise LocalProtocolError(f"a token's {name} has {size} bytes, got {len(getattr(token, name))}")
