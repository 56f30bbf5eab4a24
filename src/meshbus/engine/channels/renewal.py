"""Renewal of tokens (0x4D0D): a node asks the issuer of its token for one that follows it, before the old one expires.

    holder                                             issuer
    a third of the time is left ──► RENEW ──►          its own token? of this peer? allowed? valid? not revoked? not early?
    verifies, keeps it; notice; PRESENT to peers ◄──   RENEWED, or REFUSED with the reason

A token that follows is for the same subject, scope and channel, with the same nonce, so that a revocation of one reaches all
(policy/tokens.py). It lasts as long as the old one did, and at most as long as the issuer's limit. The issuer must have allowed it in the token (Scope.RENEWABLE), and must be a peer: renewal needs no third node,
and happens in secure sessions only, where the entity at the other end is known. Delegated tokens are not renewed: they end
with their parent.

When an issuer gets another key, its node renews tokens of the old key, too (`renew_issuers`). A holder that has no session with
the issuer of its token asks peers whose entity it trusts as an issuer, and takes a token of one of these.

The holder shows the new token to its peers (PRESENT), which replace the old one where they keep it; others ignore it. Peers
without 0x4D0D get it with the next subscribe request, which the node sends. The engine keeps no files: the node stores what
TokenRenewed tells.
"""

from __future__ import annotations

from collections.abc import Callable

from meshbus.engine.base.deadlines import Deadlines
from meshbus.engine.base.notices import TokenIssued, TokenNotRenewed, TokenRenewed
from meshbus.engine.base.packets import Output
from meshbus.engine.session.peer import Peer
from meshbus.engine.session.service import Context
from meshbus.errors import AuthError
from meshbus.policy.reason import Reason
from meshbus.wire.messages.rotation import NotRenewed, Present, Refusal, Renew, Renewed, RotationMessage
from meshbus.wire.messages.token import PermissionToken

RETRY_S = 60.0
"""How often an issuer that refused, or did not answer, is asked again, and the time is looked at. Our choice."""
SIGN_US = 500.0
"""What one renewal costs: the check of a signature and a new one."""
_NANOSECONDS = 1_000_000_000

Send = Callable[[Peer, RotationMessage, float, Output], None]


class Renewals:
    """The tokens of this node that are renewed, and the renewal of those that it issued."""

    def __init__(self, context: Context, send: Send) -> None:
        self._identity = context.identity
        self._wall = context.wall
        self._peers = context.peers
        self._counters = context.counters
        self._tokens = context.tokens
        self._limit_s = context.settings.renew_tokens_s
        self._issuers = frozenset((context.identity.entity_id, *context.settings.renew_issuers))
        """Whose tokens this node renews."""
        self._send = send
        self._held: dict[int, PermissionToken] = {}
        """Tokens to renew, by nonce."""
        self._due: Deadlines[int] = Deadlines()
        self._refused: dict[int, int] = {}
        """The last refusal of a held token, by nonce."""

    # ── holder ──────────────────────────────────────────────────────────────────────────────

    def hold(self, token: PermissionToken, now: float) -> None:
        """Renew a token of this node before it expires, if its issuer allows that."""
        if token.is_renewable and self._tokens.names(token, self._identity.entity_id):
            self._held[token.nonce] = token
            self._look_later(token, now)

    def drop(self, token: PermissionToken) -> None:
        """Stop renewing a token."""
        self._held.pop(token.nonce, None)
        self._refused.pop(token.nonce, None)
        self._due.drop(token.nonce)

    def next_timer(self) -> float | None:
        """Return when the next token is to be renewed, or None."""
        return self._due.next()

    def tick(self, now: float, out: Output) -> None:
        """Ask the issuers of the tokens that are due."""
        for nonce in self._due.over(now):
            token = self._held[nonce]
            if self._renew_at(token, now) <= now:
                self._ask(token, now, out)
            else:
                self._look_later(token, now)

    def agreed(self, peer: Peer, now: float, out: Output) -> None:
        """Ask for the tokens that are due and that a peer can renew: it may have been away."""
        for token in list(self._held.values()):
            if peer in self._renewers(token) and self._renew_at(token, now) <= now:
                self._ask(token, now, out)

    def _ask(self, token: PermissionToken, now: float, out: Output) -> None:
        if token.expired(self._unix(now)):
            self.drop(token)
            return
        self._due.set(token.nonce, now + RETRY_S)
        for peer in self._renewers(token):
            self._send(peer, Renew(token), now, out)

    def _look_later(self, token: PermissionToken, now: float) -> None:
        """Look at a token when it is to be renewed, and now and then before: the wall clock may be set."""
        self._due.set(token.nonce, min(self._renew_at(token, now), now + RETRY_S))

    def _renewers(self, token: PermissionToken) -> list[Peer]:
        """Return who may renew a token: its issuer, or without it the other issuers that are trusted here."""
        known = [peer for peer in self._peers if peer.claims.entity_id is not None]
        issuers = [peer for peer in known if peer.claims.entity_id == token.issuer]
        return issuers or [peer for peer in known if peer.claims.entity_id in self._tokens.trusted_issuers]

    def on_renewed(self, peer: Peer, token: PermissionToken, now: float, out: Output) -> None:
        """Keep a token that follows one of ours, and show it to the peers."""
        trusted = self._tokens.trusted_issuers
        old = next((one for one in self._held.values() if token.follows(one)), None)
        if (
            old is None
            or not (token.issuer == old.issuer or token.issuer in trusted)
            or not (token.valid(self._unix(now)) and token.has_good_signature())
        ):
            self._counters.count(Reason.RENEWAL_UNEXPECTED)
            return
        self.drop(old)
        self.hold(token, now)
        out.control.append(TokenRenewed(peer.node_id, old, token))
        for other in self._peers:
            self._send(other, Present(token), now, out)

    def on_refused(self, peer: Peer, refusal: NotRenewed, out: Output) -> None:
        """Report a refusal, once for each reason; the issuer is asked again later."""
        token = self._held.get(refusal.nonce)
        if token is None or peer not in self._renewers(token):
            self._counters.count(Reason.RENEWAL_UNEXPECTED)
        elif self._refused.get(refusal.nonce) != refusal.why:
            self._refused[refusal.nonce] = refusal.why
            known = refusal.why in set(Refusal)
            why = Refusal(refusal.why).name.lower() if known else f"reason {refusal.why}"
            out.control.append(TokenNotRenewed(peer.node_id, token, why))

    # ── issuer ──────────────────────────────────────────────────────────────────────────────

    def on_renew(self, peer: Peer, token: PermissionToken, now: float, out: Output) -> None:
        """Issue a token that follows one of this node, or refuse it with the reason."""
        refusal = self._refusal(peer, token, now)
        if refusal is not None or self._limit_s is None:
            self._counters.count(Reason.REFUSE_RENEWAL)
            self._send(peer, NotRenewed(token.nonce, refusal or Refusal.OFF), now, out)
            return
        unix = self._unix(now)
        new = token.renewed(self._identity, now=unix, max_s=self._limit_s)
        out.control.append(TokenIssued(peer.node_id, new))
        self._send(peer, Renewed(new), now, out)

    def _refusal(self, peer: Peer, token: PermissionToken, now: float) -> Refusal | None:
        unix = self._unix(now)
        if self._limit_s is None:
            return Refusal.OFF
        if token.issuer not in self._issuers or not self._tokens.names(token, peer.claims.entity_id):
            return Refusal.FOREIGN
        if not token.is_renewable:
            return Refusal.NOT_RENEWABLE
        if not token.valid(unix):
            return Refusal.EXPIRED
        if self._tokens.revoked(token):
            return Refusal.REVOKED
        if unix < token.not_before + (token.not_after - token.not_before) // 2:
            return Refusal.EARLY
        # The signature comes last: it is what costs time.
        if not peer.work.afford(SIGN_US, now):
            return Refusal.BUSY
        return None if token.has_good_signature() else Refusal.FOREIGN

    # ── whoever keeps tokens of others ──────────────────────────────────────────────────────

    def on_present(self, peer: Peer, token: PermissionToken, now: float) -> bool:
        """Replace a token that is kept for a peer by one that follows it; return whether that changed anything."""
        if not self._tokens.names(token, peer.claims.holder):
            self._counters.count(Reason.TOKEN_WRONG_SUBJECT)
            return False
        if not peer.work.afford(SIGN_US, now):
            self._counters.count(Reason.PEER_SHARE)
            return False
        try:
            return self._tokens.renew(token)
        except AuthError:
            self._counters.count(Reason.TOKEN_BAD_SIGNATURE)
            return False

    def _renew_at(self, token: PermissionToken, now: float) -> float:
        """Return when a token is to be renewed: when a third of its time is left."""
        due = token.not_after - (token.not_after - token.not_before) / 3
        return now + due - self._wall(now) / _NANOSECONDS

    def _unix(self, now: float) -> int:
        return self._wall(now) // _NANOSECONDS
