"""Authorization on this node's channels: decides who may subscribe and publish, and keeps no state about it.

A subscriber is judged in this order (policy.md §4.4); the first line that applies decides:

    1  no channel configurations are installed                accept
    2  the channel is not configured                          refuse: unknown channel
    3  the channel is not visible from the peer's subnet      refuse: not visible
    4  the channel is open                                    accept
    5  a token is required and the peer's entity is unknown   refuse: unpinned
    6  the capabilities do not match                          refuse: capability
    7  a token is required and none is valid                  refuse: token

Two rules are stricter than on 0.23 nodes (policy.md §7.5). A presented token counts only if its subject is the peer and
its issuer is trusted (policy/tokens.py), and it is cached only if it made the check pass. With `any_issuer`, every
token with a valid signature is cached, as on 0.23 nodes. And the requested name is hashed even if a prefix configuration
applies (policy.md §2.1), so that one token is valid at every check.

The counterpart is engine/channels/admission.py: it throttles, counts, keeps the roster, and checks again later.
"""

from __future__ import annotations

import msgspec

from meshbus.engine.session.peer import PeerClaims
from meshbus.engine.session.service import Context
from meshbus.errors import AuthError, AuthFault, RemoteProtocolError
from meshbus.names.channel import ChannelName
from meshbus.policy.capability import CapabilitySet
from meshbus.policy.channels import ChannelConfig, ChannelConfigRegistry, Visibility, visible
from meshbus.policy.reason import Reason
from meshbus.policy.tokens import Presented, TokenCache
from meshbus.wire.messages.membership import AckReason
from meshbus.wire.messages.token import PermissionToken, Scope, decode_chain

MUTED = "its key was revoked; `meshbus revoke ls` shows by whom and why"
"""Why a node may not publish, for people."""

_NANOSECONDS = 1_000_000_000
_SUBSCRIBE = int(Scope.SUBSCRIBE)


_ACKS = {
    Reason.REFUSE_THROTTLED: AckReason.RATE_LIMITED,
    Reason.REFUSE_TOO_MANY_CHANNELS: AckReason.TOO_MANY_CHANNELS,
    Reason.REFUSE_UNKNOWN_CHANNEL: AckReason.UNKNOWN_CHANNEL,
}


def ack_of(refusal: Reason) -> AckReason:
    """Return the Ack reason for a refusal. Most become UNAUTHORIZED, so that a peer learns little about the policy."""
    return _ACKS.get(refusal, AckReason.UNAUTHORIZED)


class Authorizer:
    """Decides by channel configuration, capabilities, tokens and subnets."""

    def __init__(self, context: Context) -> None:
        """Start without channel configurations: every peer may subscribe to every channel."""
        self.tokens = context.tokens
        self.own = PeerClaims(context.identity.entity_id, CapabilitySet(), context.settings.subnet)
        """Entity, announced capabilities and subnet of this node; replace it when they change."""
        self.registry: ChannelConfigRegistry | None = None
        """Configurations of this node's channels, or None."""
        self.default_visibility = Visibility.GLOBAL
        """Visibility of channels without a configuration (policy.md §2.3)."""
        self._identity = context.identity
        self.revocations = context.revocations
        self._unannounced_global = context.settings.unannounced_global
        self._counters = context.counters
        self._wall = context.wall

    def config_of(self, channel: str) -> ChannelConfig | None:
        """Return the configuration of a channel of this node, or None."""
        return None if self.registry is None else self.registry.get_by_name(channel)

    def judge(
        self, claims: PeerClaims, channel: ChannelName, now: float, token: bytes | Presented | None = None
    ) -> Reason | None:
        """Return the reason to refuse a subscriber with these claims and this token, or None."""
        # policy.md §4.4: steps 3 to 10 in their order; the first one that applies decides.
        if self.registry is None:
            return None
        config = self.registry.get_by_name(channel)
        if config is None:
            return Reason.REFUSE_UNKNOWN_CHANNEL
        if not self.sees(claims, config):
            return Reason.REFUSE_NOT_VISIBLE
        if config.is_open:
            return None
        # Step 8: a peer that never announced or proved itself has no entity that a token could name.
        if config.require_token and claims.holder is None:
            return Reason.REFUSE_UNPINNED
        if config.subscribe_caps is not None and not config.subscribe_caps.matches(claims.capabilities):
            return Reason.REFUSE_CAPABILITY
        return self._judge_token(claims, channel, config, token, now)

    def lapse(self, claims: PeerClaims, channel: ChannelName, now: float) -> Reason | None:
        """Return the reason to end a subscription that was accepted before, or None.

        Visibility is not checked: a channel that is not visible suspends the subscription and does not end it.
        """
        if self.registry is None:
            return None
        config = self.registry.get_by_name(channel)
        if config is None:
            return Reason.LAPSE_UNKNOWN_CHANNEL
        if config.subscribe_caps is not None and not config.subscribe_caps.matches(claims.capabilities):
            return Reason.LAPSE_CAPABILITY
        return Reason.LAPSE_TOKEN if config.require_token and not self.holds_token(claims, channel, now) else None

    def sees(self, claims: PeerClaims, config: ChannelConfig | None) -> bool:
        """Return whether a channel of this node is visible from the peer's subnet.

        A peer that never announced itself is in no subnet (docs/decisions/0034), unless `unannounced_global` is set: for
        a 0.23 node it is in GLOBAL, which contains them all (policy.md §2.3).
        """
        visibility = self.default_visibility if config is None else config.visibility
        if visibility is Visibility.GLOBAL:
            return True
        announced = claims.entity_id is not None or self._unannounced_global
        return announced and visible(visibility, self.own.subnet, claims.subnet)

    def holds_token(self, claims: PeerClaims, channel: ChannelName, now: float) -> bool:
        """Return whether a cached token lets the peer subscribe to a channel now."""
        entity = claims.holder
        # policy.md §2.1: by the requested name. A 0.23 node takes the hash of the entry, which may be that of a prefix.
        return entity is not None and self.tokens.check(entity, _SUBSCRIBE, channel, self._unix(now))

    def became(self) -> None:
        """Claim what this node announced under its new key; tokens that it signs itself are signed with that key."""
        before, self.own = self.own, msgspec.structs.replace(self.own, entity_id=self._identity.entity_id)
        self.tokens.trust({*self.tokens.trusted_issuers, self._identity.entity_id} - {before.entity_id})

    @property
    def muted(self) -> bool:
        """Whether this node itself may not publish any more, because its key was revoked."""
        return self._identity.node_id in self.revocations.publishers

    def can_publish_locally(self, channel: ChannelName, now: float) -> bool:
        """Return whether this node itself may publish on a channel."""
        return not self.muted and self.can_publish(self.own, channel, now)

    def can_publish(self, claims: PeerClaims, channel: ChannelName, now: float) -> bool:
        """Return whether a node with these claims may publish on a channel."""
        config = self.config_of(channel)
        # policy.md §2.3: publishing on a channel that is not configured is allowed, subscribing to it is not.
        if config is None:
            return True
        return config.can_publish(channel, claims.capabilities, claims.entity_id, self.tokens, self._unix(now))

    def present(self, claims: PeerClaims, token: bytes) -> Presented | None:
        """Verify a token once, to use it for many channels; count and return None if this peer cannot use it."""
        tokens = self._read(token)
        if tokens is None:
            return None
        # policy.md §7.5: a 0.23 node keeps tokens of any issuer for any subject; here only with `compat_any_issuer`.
        if not (self.tokens.any_issuer or self.tokens.names(tokens[-1], claims.holder)):
            self._counters.count(Reason.TOKEN_WRONG_SUBJECT)
            return None
        return self._prove(tokens)

    def evict_expired(self, now: float) -> int:
        """Remove the expired tokens from the cache, and return how many there were."""
        return self.tokens.evict_expired(self._unix(now))

    def _judge_token(
        self,
        claims: PeerClaims,
        channel: ChannelName,
        config: ChannelConfig,
        token: bytes | Presented | None,
        now: float,
    ) -> Reason | None:
        """Judge by the presented token alone, then by the cached ones; the capabilities have passed."""
        if not config.require_token and not self.tokens.any_issuer:
            return None
        unix = self._unix(now)
        presented = self._examine(token, claims, channel, unix) if isinstance(token, bytes) else token

        def passes(tokens: TokenCache | Presented) -> bool:
            return config.can_subscribe(channel, claims.capabilities, claims.holder, tokens, unix)

        # policy.md §4.4, steps 9 and 10: first the presented token alone, then the shared cache.
        by_itself = presented is not None and passes(presented)
        if not by_itself and not passes(self.tokens):
            return Reason.REFUSE_TOKEN
        if presented is not None and (by_itself or self.tokens.any_issuer):
            presented.keep()
        return None

    def _examine(self, token: bytes, claims: PeerClaims, channel: ChannelName, unix: int) -> Presented | None:
        """Decode and verify a token for one channel; the cheap checks come before the signature."""
        tokens = self._read(token)
        if tokens is None:
            return None
        if not self.tokens.any_issuer:
            fault = self._fault(tokens[-1], claims, channel, unix)
            if fault is not None:
                self._counters.count(fault)
                return None
        return self._prove(tokens)

    def _fault(self, token: PermissionToken, claims: PeerClaims, channel: ChannelName, unix: int) -> Reason | None:
        """Return why this peer cannot use a token for this channel, or None; signature and issuer are not checked."""
        skew_s = self.tokens.skew_s
        if not self.tokens.names(token, claims.holder):
            return Reason.TOKEN_WRONG_SUBJECT
        if not token.authorizes(_SUBSCRIBE, channel):
            return Reason.TOKEN_WRONG_SCOPE
        if token.expired(unix, skew_s):
            return Reason.TOKEN_EXPIRED
        if not token.valid(unix, skew_s):
            return Reason.TOKEN_NOT_YET_VALID
        return Reason.TOKEN_REVOKED if self.tokens.revoked(token) else None

    def _read(self, token: bytes) -> tuple[PermissionToken, ...] | None:
        if not token:
            return None
        # policy.md §4.2: a token that cannot be read counts as no token, so that an open channel still accepts.
        try:
            return decode_chain(token)
        except RemoteProtocolError:
            self._counters.count(Reason.TOKEN_MALFORMED)
            return None

    def _prove(self, tokens: tuple[PermissionToken, ...]) -> Presented | None:
        try:
            return self.tokens.present(tokens)
        except AuthError as error:
            forged = error.fault is AuthFault.BAD_SIGNATURE
            self._counters.count(Reason.TOKEN_BAD_SIGNATURE if forged else Reason.TOKEN_UNTRUSTED)
            return None

    def _unix(self, now: float) -> int:
        return self._wall(now) // _NANOSECONDS
