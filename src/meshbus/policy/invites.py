"""Invites of a node: who may join by which one, once, until when. Decisions only; keys and files are the caller's.

    OPEN ──► GRANTED ──► USED             without approval
    OPEN ──► WAITING ──► APPROVED ──► GRANTED ──► USED
                                          any but USED ──► WITHDRAWN

The first key that presents an invite is the only one that can use it: from then on the invite is bound to it. GRANTED means that
the answer was sent. The same key may ask again, because the answer may have been lost; when it confirms that it stored what it
got, the invite is used up. An invite that is not used by its time has expired. Invites that are over are kept for a while, so
that whoever presents them gets the reason.

Times are unix seconds, passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from meshbus.errors import ConfigError
from meshbus.names.nodename import check_node_name
from meshbus.names.subnet import SubnetId
from meshbus.policy.bound import Bound, By
from meshbus.policy.reason import Reason

MAX_INVITES = 256
"""Invites that are kept. Our choice: a fleet of robots at a time, in a file of some tens of kilobytes."""
MAX_INVITE_S = 30 * 86_400
"""Longest time in which an invite can be used. Our choice: its secret lies around for so long."""
MAX_VALID_S = 20 * 365 * 86_400
"""Longest validity of a certificate. Our choice: longer than machines are used."""

BOUNDS = (
    Bound(
        name="invites",
        what="invites, with those that are over",
        by=By.USER,
        per_node=MAX_INVITES,
        full="the oldest that is over goes; if all are open, the new one is refused",
        counter="raises ConfigError",
    ),
)


class InviteState(StrEnum):
    """Where an invite is on its way."""

    OPEN = "open"
    WAITING = "waiting"
    """A newcomer presented it, and an operator has to approve that."""
    APPROVED = "approved"
    GRANTED = "granted"
    """The newcomer was sent what it needs, and has not confirmed yet."""
    USED = "used"
    WITHDRAWN = "withdrawn"


class InviteSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an invite is bound to."""

    name: str
    """The name of the new node."""
    tags: tuple[str, ...] = ()
    subnet: SubnetId = SubnetId.GLOBAL
    ttl_s: int = 3600
    """How long the invite can be used."""
    valid_s: int = 365 * 86_400
    """How long the certificate is valid, from the join on."""
    approval: bool = False
    """Whether an operator has to approve the newcomer."""

    def __post_init__(self) -> None:
        check_node_name(self.name)
        for key, value, most in (("ttl_s", self.ttl_s, MAX_INVITE_S), ("valid_s", self.valid_s, MAX_VALID_S)):
            if not 1 <= value <= most:
                raise ConfigError(key, f"must be from 1 to {most} seconds, got {value}")


class Invite(msgspec.Struct, frozen=True, kw_only=True):
    """One invite. Its repr shows no secret."""

    invite_id: bytes
    psk: bytes
    """What the secret of the token leads to (wire/invitation.py)."""
    issuer: bytes
    """Entity id of the issuer that certifies whoever uses it."""
    expires: int
    spec: InviteSpec
    state: InviteState = InviteState.OPEN
    subject: bytes | None = None
    """Entity id of the node that it is bound to."""

    def __repr__(self) -> str:
        return f"Invite({self.invite_id.hex()}, {self.spec.name!r}, {self.state})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("invite_id", self.invite_id.hex()), ("name", self.spec.name), ("state", str(self.state))]

    def over(self, now: float) -> bool:
        """Return whether nobody can use it any more."""
        return self.state in {InviteState.USED, InviteState.WITHDRAWN} or now >= self.expires

    def shown_state(self, now: float) -> str:
        """Return the state as people see it: one whose time is up has expired."""
        ended = self.state in {InviteState.USED, InviteState.WITHDRAWN}
        return "expired" if not ended and now >= self.expires else str(self.state)


class InviteBook:
    """The invites of one node, the oldest first."""

    def __init__(self, invites: Iterable[Invite] = ()) -> None:
        self._invites = {invite.invite_id: invite for invite in invites}

    def __iter__(self) -> Iterator[Invite]:
        return iter(self._invites.values())

    def __len__(self) -> int:
        return len(self._invites)

    def get(self, invite_id: bytes) -> Invite | None:
        """Return an invite, or None."""
        return self._invites.get(invite_id)

    def put(self, invite: Invite) -> None:
        """Store an invite that changed."""
        self._invites[invite.invite_id] = invite

    def add(self, invite: Invite, now: float) -> None:
        """Add a new invite. Raises ConfigError if too many are open."""
        if len(self._invites) >= MAX_INVITES:
            oldest = next((one for one in self if one.over(now)), None)
            if oldest is None:
                raise ConfigError(
                    "invite",
                    f"{MAX_INVITES} invites are open already; withdraw some with `meshbus invite withdraw`, or wait until"
                    " they expire",
                )
            del self._invites[oldest.invite_id]
        self._invites[invite.invite_id] = invite

    def last_end(self, now: float) -> int | None:
        """Return when the last open invite expires; None if none is open."""
        return max((invite.expires for invite in self if not invite.over(now)), default=None)


def present(invite: Invite, subject: bytes, issuer: bytes, now: float) -> Invite | Reason:
    """Return an invite as it is after a node presented it, or why the node is refused.

    The caller has verified that the node has the secret of the token and of its own key. `issuer` is who signs here now. The
    new state is GRANTED or WAITING.
    """
    if invite.state is InviteState.WITHDRAWN:
        return Reason.REFUSE_JOIN_WITHDRAWN
    if invite.subject not in {None, subject}:
        return Reason.REFUSE_JOIN_OTHER_KEY
    if invite.state is InviteState.USED:
        return Reason.REFUSE_JOIN_USED
    if now >= invite.expires:
        return Reason.REFUSE_JOIN_EXPIRED
    if invite.issuer != issuer:
        return Reason.REFUSE_JOIN_ISSUER
    waits = invite.spec.approval and invite.state in {InviteState.OPEN, InviteState.WAITING}
    state = InviteState.WAITING if waits else InviteState.GRANTED
    return msgspec.structs.replace(invite, state=state, subject=subject)


def approve(invite: Invite, now: float) -> Invite:
    """Return an invite as it is after an operator approved its newcomer. Raises ConfigError if nobody waits."""
    if invite.state is not InviteState.WAITING or invite.over(now):
        raise ConfigError(
            "invite", f"{_called(invite)} is {invite.shown_state(now)}; only a newcomer that waits is approved"
        )
    return msgspec.structs.replace(invite, state=InviteState.APPROVED)


def withdraw(invite: Invite, now: float) -> Invite:
    """Return an invite as it is after an operator withdrew it. Raises ConfigError if it is over."""
    if invite.over(now):
        raise ConfigError("invite", f"{_called(invite)} is {invite.shown_state(now)} already, so it admits no node")
    return msgspec.structs.replace(invite, state=InviteState.WITHDRAWN)


def confirm(invite: Invite, subject: bytes) -> Invite:
    """Return an invite as it is after its node confirmed that it stored what it was granted."""
    if invite.state is InviteState.GRANTED and invite.subject == subject:
        return msgspec.structs.replace(invite, state=InviteState.USED)
    return invite


def _called(invite: Invite) -> str:
    return f"invite {invite.invite_id.hex()} for {invite.spec.name!r}"
