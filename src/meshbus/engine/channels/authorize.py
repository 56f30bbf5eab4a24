"""Who may subscribe to and publish on our channels: the decisions of the authorization flow, none of its bookkeeping.

A subscriber is judged in this order, and the first failure is the answer:

    (no configurations: yes) · unknown channel · not visible from its subnet · (an open channel: yes) ·
    no pinned entity where a token is needed · capabilities · token

Tokens: the presented one counts only when its subject is the peer and its issuer is trusted (policy/tokens.py), and it
is kept only when it is what made the check pass. With a cache that takes `any_issuer`, every genuine token is kept, as
the other implementation does. The name that was asked for is what is hashed, also behind a prefix configuration.

The counterpart is engine/channels/admission.py, which throttles, counts and remembers who was let in, and asks again later.
"""

from __future__ import annotations

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

_NANOSECONDS = 1_000_000_000
_SUBSCRIBE = int(Scope.SUBSCRIBE)


_ACKS = {
    Reason.REFUSE_THROTTLED: AckReason.RATE_LIMITED,
    Reason.REFUSE_TOO_MANY_CHANNELS: AckReason.TOO_MANY_CHANNELS,
    Reason.REFUSE_UNKNOWN_CHANNEL: AckReason.UNKNOWN_CHANNEL,
}


def ack_of(refusal: Reason) -> AckReason:
    """Return how the wire tells a subscriber why it was refused: by few words, so that it learns little about policy."""
    return _ACKS.get(refusal, AckReason.UNAUTHORIZED)


class Authorizer:
    """Judge by configuration, capabilities, tokens and subnets."""

    def __init__(self, context: Context) -> None:
        """Set up without channel configurations: everyone may subscribe to everything."""
        self.tokens = context.tokens
        self.own = PeerClaims(context.identity.entity_id, CapabilitySet(), context.settings.subnet)
        """This node's own entity, announced capabilities and subnet; replace it when they change."""
        self.registry: ChannelConfigRegistry | None = None
        """The configurations of our channels, if there are any."""
        self.default_visibility = Visibility.GLOBAL
        """Of channels without a configuration."""
        self._counters = context.counters
        self._wall = context.wall

    def config_of(self, channel: str) -> ChannelConfig | None:
        """Find the configuration of a channel of ours."""
        return None if self.registry is None else self.registry.get_by_name(channel)

    def judge(
        self, claims: PeerClaims, channel: ChannelName, now: float, token: bytes | Presented | None = None
    ) -> Reason | None:
        """Judge a subscriber by its claims and the token it presents: None is yes."""
        if self.registry is None:
            return None
        config = self.registry.get_by_name(channel)
        if config is None:
            return Reason.REFUSE_UNKNOWN_CHANNEL
        if not self.sees(claims, config):
            return Reason.REFUSE_NOT_VISIBLE
        if config.is_open:
            return None
        if config.require_token and claims.entity_id is None:
            return Reason.REFUSE_UNPINNED
        if config.subscribe_caps is not None and not config.subscribe_caps.matches(claims.capabilities):
            return Reason.REFUSE_CAPABILITY
        return self._judge_token(claims, channel, config, token, now)

    def lapse(self, claims: PeerClaims, channel: ChannelName, now: float) -> Reason | None:
        """Judge a peer that was let in before: None lets it stay.

        Visibility is not asked: it suspends a subscription and does not end it.
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
        """Return whether a channel of ours is visible from a peer's subnet."""
        visibility = self.default_visibility if config is None else config.visibility
        return visibility is Visibility.GLOBAL or visible(visibility, self.own.subnet, claims.subnet)

    def holds_token(self, claims: PeerClaims, channel: ChannelName, now: float) -> bool:
        """Return whether a kept token lets a peer subscribe to a channel now."""
        entity = claims.entity_id
        return entity is not None and self.tokens.check(entity, _SUBSCRIBE, channel.hash, self._unix(now))

    def can_publish_locally(self, channel: ChannelName, now: float) -> bool:
        """Return whether this node itself may publish on a channel."""
        config = self.config_of(channel)
        if config is None:
            return True
        return config.can_publish(channel, self.own.capabilities, self.own.entity_id, self.tokens, self._unix(now))

    def present(self, claims: PeerClaims, token: bytes) -> Presented | None:
        """Prove a token once for many channels; None, and counted, when it is of no use to this peer."""
        tokens = self._read(token)
        if tokens is None:
            return None
        if not self.tokens.any_issuer and tokens[-1].subject != claims.entity_id:
            self._counters.count(Reason.TOKEN_WRONG_SUBJECT)
            return None
        return self._prove(tokens)

    def evict_expired(self, now: float) -> int:
        """Drop the kept tokens whose time is over."""
        return self.tokens.evict_expired(self._unix(now))

    def _judge_token(
        self,
        claims: PeerClaims,
        channel: ChannelName,
        config: ChannelConfig,
        token: bytes | Presented | None,
        now: float,
    ) -> Reason | None:
        """Judge by the presented token alone, then by what is kept; the capabilities have passed."""
        if not config.require_token and not self.tokens.any_issuer:
            return None
        unix = self._unix(now)
        presented = self._examine(token, claims, channel, unix) if isinstance(token, bytes) else token

        def passes(tokens: TokenCache | Presented) -> bool:
            return config.can_subscribe(channel, claims.capabilities, claims.entity_id, tokens, unix)

        by_itself = presented is not None and passes(presented)
        if not by_itself and not passes(self.tokens):
            return Reason.REFUSE_TOKEN
        if presented is not None and (by_itself or self.tokens.any_issuer):
            presented.keep()
        return None

    def _examine(self, token: bytes, claims: PeerClaims, channel: ChannelName, unix: int) -> Presented | None:
        """Read and prove a token for one channel; what is cheap is looked at before the signature."""
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
        """Return what makes a token useless for this peer and channel, its signature and issuer aside."""
        skew_s = self.tokens.skew_s
        if token.subject != claims.entity_id:
            return Reason.TOKEN_WRONG_SUBJECT
        if not token.authorizes(_SUBSCRIBE, channel.hash):
            return Reason.TOKEN_WRONG_SCOPE
        if token.expired(unix, skew_s):
            return Reason.TOKEN_EXPIRED
        if not token.valid(unix, skew_s):
            return Reason.TOKEN_NOT_YET_VALID
        return Reason.TOKEN_REVOKED if self.tokens.revoked(token) else None

    def _read(self, token: bytes) -> tuple[PermissionToken, ...] | None:
        if not token:
            return None
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
